# SPDX-License-Identifier: Apache-2.0
"""Operations in the traces of torch.profiler."""
from __future__ import annotations

from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast


def event(engine: Any, name: str, held: Any, result: list[torch.Tensor], later: bool) -> Any:
    """A context whose time is that of the call. The names are those of PyTorch's events for NCCL, with this backend's
    name before them. The shapes and the facts about the group come if the profiler records shapes."""
    parts = [_tensors(part) for part in (held if isinstance(held, list) else [held])]  # a list: of a coalesced call
    inputs = [tensors[0] for tensors in parts if tensors]
    dtype = inputs[0].type() if inputs else ""
    facts: dict[str, Any] = {
        "Collective name": name, "dtype": dtype.removeprefix("torch.").removesuffix("Tensor"),
        "In msg nelems": sum(t.numel() for t in inputs), "Out msg nelems": sum(t.numel() for t in result),
        "Group size": engine.size, "Rank": engine.rank, "Process Group Name": engine.name, "Seq": engine.sequence + 1,
        "Is asynchronized op": later}
    return _RecordFunctionFast(f"hocket:{name}", inputs, facts)


def _tensors(held: Any) -> list[torch.Tensor]:
    """What an operation holds until it is over: its input, its output, and numbers for the library."""
    return [each for each in (held if isinstance(held, tuple) else (held,)) if isinstance(each, torch.Tensor)]
