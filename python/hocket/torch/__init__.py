# SPDX-License-Identifier: Apache-2.0
"""The backend "hocket" of torch.distributed, for tensors in host memory (docs/torch.md).

    import hocket.torch              # not needed if the wheel is installed: PyTorch finds it
    torch.distributed.init_process_group("hocket")
"""
from __future__ import annotations

import datetime
import functools
import inspect
import os
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["create_group", "register"]


def _create(options: Any, _: Any) -> Any:
    """What init_process_group() and new_group() call on every member."""
    from ._group import create  # the library is loaded when the first group is made
    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    mixed = getattr(options, "process_group", None)
    return create(options.store, options.group_rank, options.group_size, seconds, str(options.group_id), mixed,
                  bool(getattr(options, "enable_reconfigure", False)))


def create_group(store: Any, rank: int, size: int, timeout: datetime.timedelta | float = 1800.0,
                 name: str = "hocket") -> dist.ProcessGroup:
    """A group that torch.distributed's state does not have, for programs that make groups by themselves, as torchft
    does. All members call it, with a store (or a prefix of one) that no other group has used. shutdown() or abort()
    ends it."""
    from ._group import create
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    return create(store, rank, size, seconds, name, None)  # type: ignore[no-any-return]


def register() -> None:
    """Makes the backend known to torch.distributed. Importing the module does it; doing it twice has no effect."""
    if dist.is_available() and not hasattr(dist.Backend, "HOCKET"):
        dist.Backend.register_backend("hocket", _create, extended_api=True, devices=["cpu"])
        if os.environ.get("HOCKET_TORCH_AS_GLOO", "0") not in ("", "0"):
            _be_gloo()


def _be_gloo() -> None:
    """Where a group is made, the name "gloo" means this backend: for programs that accept no other name for the CPU."""
    from torch.distributed import distributed_c10d as c10d
    make = c10d._new_process_group_helper
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*given: Any, **named: Any) -> Any:
        call = signature.bind(*given, **named)
        parts = str(call.arguments["backend"]).split(",")
        call.arguments["backend"] = dist.Backend(",".join(
            {"gloo": "hocket", "cpu:gloo": "cpu:hocket"}.get(part, part) for part in parts))
        return make(*call.args, **call.kwargs)

    c10d._new_process_group_helper = made
    dist.Backend.default_device_backend_map["cpu"] = "hocket"  # of groups that name no backend


def _autoload() -> None:
    """PyTorch calls this when it is imported, if the wheel is installed."""


register()
assert torch  # the name of this package is not PyTorch's
