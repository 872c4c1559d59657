# SPDX-License-Identifier: Apache-2.0
"""Calls on plain memory without Python's work around them: in C (_calls.c), where that is compiled and PyTorch
describes tensors to C. The operations in Python do what it does not know, or all where it is missing."""
from __future__ import annotations

import ctypes
import datetime
import struct
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp
from torch.autograd import profiler

from .._comm import Op
from .._lib import lib

UNSET = datetime.timedelta(milliseconds=-1)  # PyTorch's kUnsetTimeout
ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, BARRIER = range(6)  # what quick() knows
_OPERATORS = {"SUM": Op.SUM, "PRODUCT": Op.PROD, "MIN": Op.MIN, "MAX": Op.MAX, "AVG": Op.AVG}
_NONE = 5  # ncclNumOps

TABLE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # since PyTorch 2.10

try:
    if TABLE is None:
        raise ImportError
    from ._calls import Quick  # type: ignore[import-not-found]
except ImportError:
    class Quick:  # type: ignore[no-redef]
        """In the place of the compiled one."""

        stream = 0  # the handle of the stream of asynchronous calls

        def quick(self, kind: int, output: Any, given: Any, opts: Any) -> Any:
            """Does a call and gives what the operation returns; False: it has done nothing."""
            return False

        def until(self, position: int) -> int:
            """Waits until the stream's items up to this one are complete. The result is an ncclResult_t."""
            return int(lib.hocketStreamWait(self.stream, position, -1))


def _operators() -> bytes:
    """The library's operators by PyTorch's numbers, which the objects of PyTorch must have as their hash."""
    kinds = ReduceOp.RedOpType.__members__.values()
    codes = bytearray([_NONE] * (1 + max(kind.value for kind in kinds)))
    for name, op in _OPERATORS.items():
        kind = ReduceOp.RedOpType.__members__[name]
        if hash(ReduceOp(kind)) == kind.value:
            codes[kind.value] = op
    return bytes(codes)


_ADDRESSES = struct.pack("7P", *(ctypes.cast(call, ctypes.c_void_p).value for call in (
    lib.ncclAllReduce, lib.ncclReduce, lib.ncclBroadcast, lib.ncclAllGather, lib.ncclReduceScatter,
    lib.hocketStreamPosition, lib.hocketStreamWait)))
# The names are those of attributes, of PyTorch's profiler and of its options.
_TOOLS = (torch.Tensor, torch.nn.Parameter, torch.Tensor.is_neg, UNSET, vars(profiler), "_is_profiler_enabled",
          "asyncOp", "timeout", "reduceOp", "rootRank", _operators())


def prepare(engine: Any) -> None:
    """Gives an engine what its quick calls need."""
    if hasattr(engine, "prepare"):
        engine.prepare(engine.handle, engine.size, _ADDRESSES, TABLE, engine.lock.acquire, engine.lock.release, _TOOLS)
