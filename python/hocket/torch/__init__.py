# SPDX-License-Identifier: Apache-2.0
"""The backend "hocket" of torch.distributed, for tensors in host memory (docs/torch.md).

    import hocket.torch              # not needed if the wheel is installed: PyTorch finds it
    torch.distributed.init_process_group("hocket")
"""
from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["register"]


def _create(options: Any, _: Any) -> Any:
    """What init_process_group() and new_group() call on every member."""
    from ._group import create  # the library is loaded when the first group is made
    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    mixed = getattr(options, "process_group", None)
    return create(options.store, options.group_rank, options.group_size, seconds, str(options.group_id), mixed)


def register() -> None:
    """Makes the backend known to torch.distributed. Importing the module does it; doing it twice has no effect."""
    if dist.is_available() and not hasattr(dist.Backend, "HOCKET"):
        dist.Backend.register_backend("hocket", _create, extended_api=True, devices=["cpu"])


def _autoload() -> None:
    """PyTorch calls this when it is imported, if the wheel is installed."""


register()
assert torch  # the name of this package is not PyTorch's
