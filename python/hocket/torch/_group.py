# SPDX-License-Identifier: Apache-2.0
"""The operations of torch.distributed, as a ProcessGroup of its own or as the part of one for tensors of the CPU."""
from __future__ import annotations

import datetime
import operator
import os
import weakref
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup

from .._buffers import DataType
from .._comm import Op, empty, view
from .._lib import Error, RemoteError, lib
from ._engine import Engine, Unformed
from ._quick import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, REDUCE, REDUCE_SCATTER
from ._tensors import Use, any_of, gathered, memory, scattered, write
from ._window import Window
from ._work import Work

Tensor = torch.Tensor
_TYPES = {torch.int8: DataType.INT8, torch.uint8: DataType.UINT8, torch.bool: DataType.UINT8,
          torch.int32: DataType.INT32, torch.int64: DataType.INT64, torch.float16: DataType.FLOAT16,
          torch.float32: DataType.FLOAT32, torch.float64: DataType.FLOAT64, torch.bfloat16: DataType.BFLOAT16,
          torch.float8_e4m3fn: DataType.FLOAT8_E4M3, torch.float8_e5m2: DataType.FLOAT8_E5M2,
          torch.uint32: DataType.UINT32, torch.uint64: DataType.UINT64}
_SUM = c10d.ReduceOp.RedOpType.SUM
# By the operator's number: PyTorch's own objects take half a microsecond to be found in a table.
_NUMBER = {name: kind.value for name, kind in c10d.ReduceOp.RedOpType.__members__.items()}
_OPS = {_NUMBER[name]: int(op) for name, op in {
    "SUM": Op.SUM, "PRODUCT": Op.PROD, "MIN": Op.MIN, "MAX": Op.MAX, "AVG": Op.AVG}.items()}
# Truth values: a sum is "or", a product "and".
_BOOL_OPS = {_NUMBER[name]: int(op) for name, op in {
    "SUM": Op.MAX, "PRODUCT": Op.MIN, "MIN": Op.MIN, "MAX": Op.MAX, "BAND": Op.MIN, "BOR": Op.MAX}.items()}
# What _codes() gives for sums, by the elements' type.
_SUMS = {dtype: (int(number), (_BOOL_OPS if dtype is torch.bool else _OPS)[_NUMBER["SUM"]], None)
         for dtype, number in _TYPES.items()}
_READ, _WRITE, _BOTH = Use  # an Enum's attributes cost time
_BITS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    _NUMBER["BAND"]: torch.bitwise_and, _NUMBER["BOR"]: torch.bitwise_or, _NUMBER["BXOR"]: torch.bitwise_xor}
_BYTE = DataType.UINT8


def _kind(op: Any) -> int:
    return int(getattr(op, "op", op).value)


def _bitwise(op: Any, t: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function of a bitwise operator that the library has not for these elements."""
    kind = _kind(op)
    if kind not in _BITS or (t.dtype is torch.bool and kind in _BOOL_OPS):
        return None
    if t.dtype.is_floating_point or t.dtype.is_complex:
        raise ValueError(f"Cannot use a bitwise ReduceOp with {t.dtype}")
    return _BITS[kind]


def _size(t: Tensor) -> tuple[int, int]:
    """Count and type where elements are only moved."""
    dtype = _TYPES.get(t.dtype)
    return (t.numel() * t.element_size(), _BYTE) if dtype is None else (t.numel(), dtype)


class Operations:
    """Everything that torch.distributed calls. `e` is the engine: communicator, stream, and works under way. What the
    compiled module may do is in two methods: one with a lambda costs time also where it makes none."""

    e: Engine

    # ---- reductions ----

    def _codes(self, op: Any, t: Tensor) -> tuple[int, int, Callable[[Tensor, Tensor], Tensor] | None]:
        """The library's numbers of the elements' type and of the operator. The library has no bitwise operators: their
        function comes instead."""
        if op == _SUM and t.dtype in _SUMS:
            return _SUMS[t.dtype]
        by = _bitwise(op, t)
        return (0, 0, by) if by else (self._reducible(t), self._op(op, t.dtype), None)

    def _op(self, op: Any, dtype: torch.dtype) -> int:
        kind = _kind(op)
        found = (_BOOL_OPS if dtype is torch.bool else _OPS).get(kind)
        if found is None:
            if kind == _NUMBER["PREMUL_SUM"] and dtype is not torch.bool:
                return self.e.premul(op, _TYPES[dtype])
            raise ValueError(f"the backend hocket has no {getattr(op, 'op', op)} of {dtype}")
        return found

    def _reducible(self, t: Tensor) -> int:
        dtype = _TYPES.get(t.dtype)
        if dtype is None:
            raise ValueError(f"Invalid scalar type {t.dtype}: the backend hocket reduces {', '.join(map(str, _TYPES))}")
        return dtype

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        done = self.e.quick(ALL_REDUCE, tensors, tensors, opts)
        return done if done is not False else self._allreduce(tensors, opts)

    def _allreduce(self, tensors: Any, opts: Any) -> Any:
        tensor = tensors[0] if type(tensors) is list else any_of(tensors)[0]
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        x, finish = memory(tensor, "all_reduce", _BOTH)
        op = getattr(opts, "reduceOp", opts if opts is not None else _SUM)
        dtype, code, by = self._codes(op, x)
        if by:
            return self._combined(x, by, opts, tensor, x, finish)
        at, n, comm = x.data_ptr(), x.numel(), self.e.handle
        return self.e.issue("all_reduce", lambda s: lib.ncclAllReduce(at, at, n, dtype, code, comm, s),
                            opts, x, [tensor], finish)

    def _combined(self, x: Tensor, by: Callable[[Tensor, Tensor], Tensor], opts: Any, result: Tensor, y: Tensor | None,
                  finish: Callable[[], object] | None) -> Any:
        """There is no bitwise operator in the library: all elements come to every rank. `y` gets the total or, if it is
        shorter, this rank's part."""
        every = torch.empty((self.e.size, *x.shape), dtype=x.dtype, device="cpu")

        def take() -> None:
            if y is None:
                return
            total = every[0]
            for part in every[1:]:
                total = by(total, part)
            write(y, (total if y.numel() == total.numel() else total.view(self.e.size, -1)[self.e.rank]).view(y.shape))
            if finish is not None:
                finish()
        return self._gathered(every, x, opts, [result], take)

    def _allreduce_sparse(self, tensor: Tensor, opts: Any) -> Any:
        """Sums of sparse tensors: every rank gets the elements of all."""
        if opts is not None and _kind(opts.reduceOp) != _NUMBER["SUM"]:
            raise ValueError("all_reduce: sparse tensors can only be summed")
        if self.e.batching:
            raise ValueError("all_reduce: sparse tensors cannot be part of a coalesced call")
        mine = tensor.coalesce()
        shape = [self.e.size, 2]
        counts = torch.empty(shape, dtype=torch.int64, device="cpu")
        self.e.wait(self._gathered(counts, torch.tensor([mine._nnz(), mine.sparse_dim()], device="cpu"), None))
        number = counts[:, 0].tolist()
        if counts[:, 1].unique().numel() != 1:
            raise ValueError("the tensors of all ranks must have the same sparse dimensions")
        indices = [torch.empty((n, mine.sparse_dim()), dtype=torch.int64, device="cpu") for n in number]
        values = [torch.empty((n, *mine.values().shape[1:]), dtype=mine.dtype, device="cpu") for n in number]
        self.e.wait(self.allgather([indices], [mine.indices().t().contiguous()], None))
        self.e.wait(self.allgather([values], [mine.values()], None))
        total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), tensor.shape).coalesce()
        tensor.copy_(total)
        return self.e.done([total])

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._together([lambda t=t: self.allreduce([t], opts) for t in any_of(tensors)], opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> Any:
        done = self.e.quick(REDUCE, tensors, tensors, opts)
        return done if done is not False else self._reduce(tensors, opts, op)

    def _reduce(self, tensors: Any, opts: Any, op: Any) -> Any:
        tensor = any_of(tensors)[0]
        root = getattr(opts, "rootRank", opts if isinstance(opts, int) else 0)
        takes = self.e.rank == root
        x, finish = memory(tensor, "reduce", _BOTH if takes else _READ)
        op = getattr(opts, "reduceOp", op if op is not None else _SUM)
        dtype, code, by = self._codes(op, x)
        if by:
            return self._combined(x, by, opts, tensor, x if takes else None, finish)
        at, n, comm = x.data_ptr(), x.numel(), self.e.handle
        return self.e.issue("reduce", lambda s: lib.ncclReduce(at, at, n, dtype, code, root, comm, s),
                            opts, x, [tensor], finish)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        output, parts = any_of(outputs)[0], any_of(inputs[0])
        if len(parts) != self.e.size:
            raise ValueError(f"reduce_scatter: {len(parts)} inputs for {self.e.size} ranks")
        counts = [t.numel() for t in parts]
        if output.numel() != counts[self.e.rank]:
            raise ValueError(f"reduce_scatter: the output has {output.numel()} elements, input {self.e.rank} has "
                             f"{counts[self.e.rank]}")
        if len(set(counts)) == 1:
            return self.reduce_scatter_single(output, gathered(parts, "reduce_scatter"), opts, "reduce_scatter")
        given, (x, finish) = gathered(parts, "reduce_scatter"), memory(output, "reduce_scatter", _WRITE)
        if x.dtype != given.dtype:
            raise ValueError(f"reduce_scatter: inputs of {given.dtype}, output of {x.dtype}")
        dtype, code = self._reducible(given), self._op(getattr(opts, "reduceOp", _SUM), given.dtype)
        a, b, comm, n = given.data_ptr(), x.data_ptr(), self.e.handle, self.e.counts(counts)
        return self.e.issue("reduce_scatter", lambda s: lib.hocketReduceScatterv(a, b, n, None, dtype, code, comm, s),
                            opts, (given, x, n), [output], finish)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None,
                              name: str = "_reduce_scatter_base") -> Any:
        done = self.e.quick(REDUCE_SCATTER, output, given, opts)
        return done if done is not False else self._reduce_scatter_single(output, given, opts, name)

    def _reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any, name: str) -> Any:
        (x, _), (y, finish) = memory(given, "reduce_scatter", _READ), memory(output, "reduce_scatter", _WRITE)
        if given.numel() != output.numel() * self.e.size or given.dtype != output.dtype:
            raise ValueError(f"reduce_scatter: input of {given.numel()} {given.dtype}, output of {output.numel()} "
                             f"{output.dtype}: the input must be {self.e.size} times as long as the output")
        op = getattr(opts, "reduceOp", _SUM)
        dtype, code, by = self._codes(op, x)
        if by:
            return self._combined(x, by, opts, output, y, finish)
        a, b, n, comm = x.data_ptr(), y.data_ptr(), y.numel(), self.e.handle
        return self.e.issue(name, lambda s: lib.ncclReduceScatter(a, b, n, dtype, code, comm, s),
                            opts, (x, y), [output], finish)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._together([lambda o=o, i=i: self.reduce_scatter_single(o, i, opts)
                               for o, i in zip(outputs, inputs)], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moves ----

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        done = self.e.quick(BROADCAST, tensors, tensors, opts)
        return done if done is not False else self._broadcast(tensors, opts)

    def _broadcast(self, tensors: Any, opts: Any) -> Any:
        tensor = any_of(tensors)[0]
        root = getattr(opts, "rootRank", opts if isinstance(opts, int) else 0)
        x, finish = memory(tensor, "broadcast", _READ if self.e.rank == root else _WRITE)
        at, (n, dtype), comm = x.data_ptr(), _size(x), self.e.handle
        return self.e.issue("broadcast", lambda s: lib.ncclBroadcast(at, at, n, dtype, root, comm, s),
                            opts, x, [tensor], finish)

    def _gathered(self, output: Tensor, given: Tensor, opts: Any, result: list[Tensor] | None = None,
                  finish: Callable[[], object] | None = None, name: str = "all_gather") -> Any:
        a, b, (n, dtype), comm = given.data_ptr(), output.data_ptr(), _size(given), self.e.handle
        return self.e.issue(name, lambda s: lib.ncclAllGather(a, b, n, dtype, comm, s),
                            opts, (given, output), result or [output], finish)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        done = self.e.quick(ALL_GATHER, output, given, opts)
        return done if done is not False else self._all_gather_single(output, given, opts)

    def _all_gather_single(self, output: Tensor, given: Tensor, opts: Any) -> Any:
        (x, _), (y, finish) = memory(given, "all_gather", _READ), memory(output, "all_gather", _WRITE)
        if output.numel() != given.numel() * self.e.size or given.dtype != output.dtype:
            raise ValueError(f"all_gather: input of {given.numel()} {given.dtype}, output of {output.numel()} "
                             f"{output.dtype}: the output must be {self.e.size} times as long as the input")
        return self._gathered(y, x, opts, [output], finish, "_all_gather_base")

    _allgather_base = all_gather_single

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        parts = any_of(outputs[0] if not isinstance(outputs[0], Tensor) else outputs)
        given = any_of(inputs)[0]
        if len(parts) != self.e.size:
            raise ValueError(f"all_gather: {len(parts)} outputs for {self.e.size} ranks")
        counts, (x, _) = [t.numel() for t in parts], memory(given, "all_gather", _READ)
        if counts[self.e.rank] != x.numel() or any(t.dtype != x.dtype for t in parts):
            raise ValueError(f"all_gather: input of {x.numel()} {x.dtype}, output {self.e.rank} of "
                             f"{counts[self.e.rank]} {parts[self.e.rank].dtype}")
        y, finish = scattered(parts, "all_gather")
        if len(set(counts)) == 1:
            return self._gathered(y, x, opts, parts, finish)
        (_, dtype), width = _size(x), 1 if x.dtype in _TYPES else x.element_size()
        a, b, comm, n = x.data_ptr(), y.data_ptr(), self.e.handle, self.e.counts(counts, width)
        return self.e.issue("all_gather", lambda s: lib.hocketAllGatherv(a, b, n, None, dtype, comm, s),
                            opts, (x, y, n), parts, finish)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        # output_lists[r][k]: input k of rank r
        return self._together([lambda o=o, i=i: self.allgather([list(o)], [i], opts)
                               for o, i in zip(zip(*output_lists), inputs)], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._together([lambda o=o, i=i: self.all_gather_single(o, i, opts)
                               for o, i in zip(outputs, inputs)], opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        given = any_of(inputs)[0]
        root = getattr(opts, "rootRank", 0)
        x, finish = memory(given, "gather", _READ)
        y, parts = x, []
        if self.e.rank == root:
            parts = any_of(outputs[0])
            if len(parts) != self.e.size or any(t.numel() != x.numel() or t.dtype != x.dtype for t in parts):
                raise ValueError(f"gather: the outputs must be {self.e.size} tensors like the input")
            y, finish = scattered(parts, "gather")
        a, b, (n, dtype), comm = x.data_ptr(), y.data_ptr(), _size(x), self.e.handle
        return self.e.issue("gather", lambda s: lib.ncclGather(a, b, n, dtype, root, comm, s),
                            opts, (x, y), parts, finish)

    def gather_single(self, output: Any, given: Tensor, opts: Any = None) -> Any:
        root = getattr(opts, "rootRank", 0)
        return self.gather([list(output.chunk(self.e.size))] if self.e.rank == root else [], [given], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        output = any_of(outputs)[0]
        root = getattr(opts, "rootRank", 0)
        y, finish = memory(output, "scatter", _WRITE)
        x = y
        if self.e.rank == root:
            parts = any_of(inputs[0])
            if len(parts) != self.e.size or any(t.numel() != y.numel() or t.dtype != y.dtype for t in parts):
                raise ValueError(f"scatter: the inputs must be {self.e.size} tensors like the output")
            x = gathered(parts, "scatter")
        a, b, (n, dtype), comm = x.data_ptr(), y.data_ptr(), _size(y), self.e.handle
        return self.e.issue("scatter", lambda s: lib.ncclScatter(a, b, n, dtype, root, comm, s),
                            opts, (x, y), [output], finish)

    def all_to_all_single(self, output: Tensor, given: Tensor, output_splits: Any = None, input_splits: Any = None,
                          opts: Any = None) -> Any:
        (x, _), (y, finish) = memory(given, "all_to_all", _READ), memory(output, "all_to_all", _WRITE)
        if x.dtype != y.dtype:
            raise ValueError(f"all_to_all: input of {x.dtype}, output of {y.dtype}")
        size = self.e.size
        a, b, comm, dtype = x.data_ptr(), y.data_ptr(), self.e.handle, _size(x)[1]
        width = 1 if x.dtype in _TYPES else x.element_size()
        if not output_splits and not input_splits:
            if x.numel() != y.numel() or x.numel() % size or (x.dim() and x.size(0) % size):
                raise ValueError(f"all_to_all: {tuple(x.shape)} and {tuple(y.shape)} cannot be divided among {size} "
                                 "ranks")
            n = x.numel() // size * width
            return self.e.issue("all_to_all", lambda s: lib.ncclAlltoAll(a, b, n, dtype, comm, s),
                                opts, (x, y), [output], finish)
        sent = self.e.counts(_splits("input_split_sizes", input_splits, x, size), width)
        got = self.e.counts(_splits("output_split_sizes", output_splits, y, size), width)
        return self.e.issue("all_to_all", lambda s: lib.hocketAlltoAllv(a, sent, None, b, got, None, dtype, comm, s),
                            opts, (x, y, sent, got), [output], finish)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        outs, ins = any_of(outputs), any_of(inputs)
        if len(outs) != self.e.size or len(ins) != self.e.size:
            raise ValueError(f"all_to_all: {len(ins)} inputs and {len(outs)} outputs for {self.e.size} ranks")
        x, (y, finish) = gathered(ins, "all_to_all"), scattered(outs, "all_to_all")
        if x.dtype != y.dtype:
            raise ValueError(f"all_to_all: inputs of {x.dtype}, outputs of {y.dtype}")
        width, dtype = 1 if x.dtype in _TYPES else x.element_size(), _size(x)[1]
        sent = self.e.counts([t.numel() for t in ins], width)
        got = self.e.counts([t.numel() for t in outs], width)
        a, b, comm = x.data_ptr(), y.data_ptr(), self.e.handle
        return self.e.issue("all_to_all", lambda s: lib.hocketAlltoAllv(a, sent, None, b, got, None, dtype, comm, s),
                            opts, (x, y, sent, got), outs, finish)

    # ---- sends and receives ----

    def _peer(self, op: str, peer: int) -> None:
        if not 0 <= peer < self.e.size:
            raise ValueError(f"{op}: peer {peer} is not a rank of this group (0 to {self.e.size - 1})")

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = any_of(tensors)[0]
        self._peer("send", dst)
        x, _ = memory(tensor, "send", _READ)
        if dst == self.e.rank:
            return self.e.send_self(tag, x, [tensor])
        at, (n, dtype) = x.data_ptr(), _size(x)
        return self.e.transfer(self.e.rank, dst, tag, lambda comm, s: lib.ncclSend(at, n, dtype, 1, comm, s), x,
                               [tensor], None)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        tensor = any_of(tensors)[0]
        self._peer("recv", src)
        y, finish = memory(tensor, "recv", _WRITE)
        at, (n, dtype) = y.data_ptr(), _size(y)
        return self.e.transfer(src, self.e.rank, tag, lambda comm, s: lib.ncclRecv(at, n, dtype, 0, comm, s), y,
                               [tensor], finish)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        if self.e.size == 1:
            return self.recv(tensors, 0, tag)
        tensor = any_of(tensors)[0]
        y, finish = memory(tensor, "recv", _WRITE)
        at, (n, dtype) = y.data_ptr(), _size(y)
        return self.e.receive_any(tag, lambda comm, s: lib.ncclRecv(at, n, dtype, 0, comm, s), y, [tensor], finish)

    # ---- barriers ----

    def barrier(self, opts: Any = None) -> Any:
        done = self.e.quick(BARRIER, None, None, opts)
        return done if done is not False else self._barrier(opts)

    def _barrier(self, opts: Any) -> Any:
        mark = torch.zeros(1, dtype=torch.int64, device="cpu")
        at, comm = mark.data_ptr(), self.e.handle
        return self.e.issue("barrier", lambda s: lib.ncclAllReduce(at, at, 1, DataType.UINT64, Op.MIN, comm, s),
                            opts, mark, [mark], None)  # a call that nothing else makes: backend_error() knows it

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        given = getattr(timeout, "timeout", timeout)  # BarrierOptions, from C++
        seconds = given.total_seconds() if isinstance(given, datetime.timedelta) else -1
        self.e.monitored_barrier(seconds if seconds >= 0 else self.e.timeout, wait_all_ranks)

    # ---- several operations as one ----

    def _together(self, calls: list[Callable[[], Any]], opts: Any) -> Any:
        nested = self.e.batching
        if not nested:
            self.e.open_batch()
        try:
            for call in calls:
                call()
            return None if nested else self.e.coalesced(opts)
        except BaseException:
            self.e.close_batch()
            raise

    def start_coalescing(self, _: Any = None) -> None:
        self.e.open_batch()

    def end_coalescing(self, _: Any = None) -> Any:
        try:
            return self.e.coalesced(None)
        finally:
            self.e.close_batch()

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- the rest ----

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self.e.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self.e.sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.e.sequence

    def _wait_for_pending_works(self) -> None:
        self.e.drain()

    def abort(self) -> None:
        self.e.end("the group was aborted")

    def shutdown(self) -> None:
        self.e.shutdown()

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        return "hocket"

    name = getBackendName


def _splits(name: str, splits: Any, t: Tensor, size: int) -> list[int]:
    """Elements for each rank; splits are of the first dimension."""
    if not splits:
        if t.dim() == 0 or t.size(0) % size:
            raise ValueError(f"all_to_all: {tuple(t.shape)} cannot be divided among {size} ranks")
        return [t.numel() // size] * size
    rows, numbers = t.size(0) if t.dim() else 1, []
    for k, n in enumerate(splits):
        try:
            numbers.append(operator.index(n))
        except TypeError:
            raise TypeError(f"all_to_all: {name}[{k}] is {n!r}, and must be an int") from None
        if numbers[k] < 0:
            raise ValueError(f"all_to_all: {name}[{k}] is {n}")
    if len(numbers) != size or sum(numbers) != rows:
        raise ValueError(f"all_to_all: {name} {numbers}: Number of elements of the splits must be those of the first "
                         f"dimension, {rows}, for {size} ranks")
    each = t.numel() // rows if rows else 0
    return [n * each for n in numbers]


class HocketBackend(Operations, c10d.Backend):  # type: ignore[misc]
    """The part of a group for the CPU's tensors, next to another backend for those of a GPU."""

    # PyTorch asks for a property of C++ through Python: one that this class does not have would ask itself.
    supports_splitting = supports_shrinking = supports_reconfigure = supports_abort_hooks = True
    _supports_time_estimate = False
    supports_window = False  # C++ asks for a window of C++: only groups of this backend alone have windows
    # PyTorch asks it for batch_isend_irecv, where a coalesced batch that is refused in part would stay open. Messages
    # wait for no other anyway.
    supports_coalescing = False

    def __init__(self, engine: Engine | Unformed) -> None:
        c10d.Backend.__init__(self, engine.rank, engine.size)
        self.e: Any = engine
        self.group: Callable[[], Any] = lambda: None
        self._store, self._handle = engine.store, f"hocket:{uuid4().hex}"
        self._uuids: set[int] = set()

    @property
    def options(self) -> Any:
        made = c10d.Backend.Options("hocket", datetime.timedelta(seconds=self.e.timeout))
        return made

    def rank(self) -> int:
        return int(self.e.rank)

    def size(self) -> int:
        return int(self.e.size)

    def eager_connect_single_device(self, device: Any) -> None:
        """A group is connected when it is made."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Ranks that a part of the group does not have need not take part."""

    # ---- groups made of groups ----

    def split(self, store: Any, ranks: list[int], opts: Any = None) -> HocketBackend:
        """Of these ranks, in this order."""
        if self.e.rank not in ranks:
            raise RuntimeError(f"rank {self.e.rank} is none of {list(ranks)}: in a group of two backends only ranks of "
                               "the new group can call split_group()")
        return HocketBackend(Engine(store, ranks.index(self.e.rank), len(ranks), _timeout(opts, self.e.timeout),
                                    getattr(opts, "group_name", "") or "split"))

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> HocketBackend:
        """With ranks of other groups that have the same store."""
        return HocketBackend(Engine(store, rank, size, _timeout(opts, self.e.timeout),
                                    getattr(opts, "group_name", "") or "merged"))

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> HocketBackend:
        """Of all ranks but these, which do not call. Works after ranks have died."""
        out = sorted(ranks_to_exclude)
        stay = [rank for rank in range(self.e.size) if rank not in out]
        if self.e.ended() is not None:
            raise self.e.ended()
        comm = self.e.comm.shrink(out, abort=bool(shrink_flags))
        store = c10d.PrefixStore(f"hocket/without/{'.'.join(map(str, out))}", self.e.store)
        made = HocketBackend(Engine(store, stay.index(self.e.rank), len(stay), _timeout(opts_override, self.e.timeout),
                                    f"{self.e.name[:40]} shrunk", comm))
        made.e.observed = _is_observed()
        return made

    def get_reconfigure_handle(self) -> str:
        return self._handle

    def reconfigure(self, opts: Any) -> Any:
        """New members: those of the handles, which have the same store. A list has the order of the ranks."""
        handles = list(opts.handles) if isinstance(opts.handles, list) else sorted(opts.handles)
        if opts.uuid in self._uuids:
            raise RuntimeError(f"reconfigure: the uuid {opts.uuid} was already used in this group: take a new one")
        if self._handle not in handles:
            raise RuntimeError("reconfigure: none of the handles is this group's: each rank gives what its "
                               "get_reconfigure_handle() returns")
        old, rank = self.e, handles.index(self._handle)
        old.end("the group was reconfigured")
        store = c10d.PrefixStore(f"hocket/members/{opts.uuid}", self._store)
        limit = opts.timeout or datetime.timedelta(seconds=old.timeout)
        if rank:
            store.wait(["hocket/id"], limit)  # the first member's
        self._uuids.add(opts.uuid)
        self.e = Engine(store, rank, len(handles), old.timeout, old.name)
        self.e.observed, self.e.timing, self.e.abort_hooks = old.observed, old.timing, old.abort_hooks
        group = self.group()
        if group is not None:
            group.e = self.e
        return self.e.done([])

    # ---- the rest ----

    def get_error(self) -> Any:
        """What ended the group's operations; an abort by the user is no error."""
        kinds = c10d.ErrorType
        if self.e.timed_out:
            return kinds.TIMEOUT
        if isinstance(self.e, Unformed) or self.e.ended() is not None:
            return kinds.SUCCESS
        try:
            self.e.comm.check()
        except Error as error:
            return kinds.REMOTE_ERROR if isinstance(error, RemoteError) else kinds.COMM_ERROR
        return kinds.SUCCESS

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Called before operations are ended, for a time-out or by abort()."""
        self.e.abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self.e.abort_hooks.pop(hook_id, None)

    registerAbortHook, unregisterAbortHook = register_abort_hook, unregister_abort_hook  # noqa: N815

    def _enable_collectives_timing(self) -> None:
        self.e.timing = True

    def supports_tensor_alloc(self, device: Any) -> bool:
        return getattr(device, "type", "cpu") == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any = None) -> Tensor:
        """One in memory of the library, which other processes of the host reach without a copy."""
        if size == 0:
            return torch.empty(0, dtype=dtype, device="cpu")
        return torch.frombuffer(view(empty(size * dtype.itemsize)), dtype=dtype, count=size)


def _timeout(opts: Any, other: float) -> float:
    given = getattr(opts, "_timeout", None)
    return given.total_seconds() if isinstance(given, datetime.timedelta) else other


class _Members:
    """What the two kinds of a group have apart from their operations."""

    e: Any
    supports_reconfigure = supports_abort_hooks = supports_window = True

    def __init__(self, engine: Engine | Unformed, part: HocketBackend) -> None:
        group: Any = self
        ProcessGroup.__init__(group, engine.store, engine.rank, engine.size)
        self.e, self._part = engine, part
        part.group = weakref.ref(group)
        self._hooks: set[tuple[str, int]] = set()
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, part)

    def rank(self) -> int:
        return int(self.e.rank)

    def size(self) -> int:
        return int(self.e.size)

    getRank, getSize = rank, size  # noqa: N815 (C++ asks by these names)

    def split_group(self, ranks: list[int], timeout: datetime.timedelta | None = None, opts: Any = None,
                    group_name: str | None = None, group_desc: str | None = None, device_types: Any = None) -> Any:
        """None: this rank is none of them."""
        if self.e.rank not in ranks:
            return None
        store = c10d.PrefixStore(f"{group_name}/", self.e.store)
        seconds = timeout.total_seconds() if timeout is not None else _timeout(opts, self.e.timeout)
        return _named(create(store, ranks.index(self.e.rank), len(ranks), seconds, group_name or "split", None),
                      group_name, group_desc)

    def merge_remote_group(self, store: Any, size: int, timeout: datetime.timedelta = datetime.timedelta(minutes=30),
                           group_name: str | None = None, group_desc: str | None = None) -> Any:
        """With groups that have the same store; ranks are numbered as they come."""
        rank = store.add(f"hocket/merge/{group_name}", 1) - 1
        prefix = c10d.PrefixStore(f"hocket/merge/{group_name}/{rank // size}", store)
        return _named(create(prefix, rank % size, size, timeout.total_seconds(), group_name or "merged", None),
                      group_name, group_desc)

    def new_window(self, tensor: Tensor | None = None) -> Window:
        """Memory that other ranks write into. All ranks call it."""
        return Window(self.e, tensor)

    def get_reconfigure_handle(self) -> str:
        return self._part.get_reconfigure_handle()

    def reconfigure(self, opts: Any) -> Any:
        return self._part.reconfigure(opts)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self._part.register_abort_hook(hook_id, hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._part.unregister_abort_hook(hook_id)

    def _enable_collectives_timing(self) -> None:
        self._part._enable_collectives_timing()

    def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        ProcessGroup.register_pre_hook(self, hook_id, hook)  # type: ignore[arg-type]
        self._hooked("pre", hook_id, True)

    def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        ProcessGroup.register_post_hook(self, hook_id, hook)  # type: ignore[arg-type]
        self._hooked("post", hook_id, True)

    def unregister_pre_hook(self, hook_id: int) -> None:
        ProcessGroup.unregister_pre_hook(self, hook_id)  # type: ignore[arg-type]
        self._hooked("pre", hook_id, False)

    def unregister_post_hook(self, hook_id: int) -> None:
        ProcessGroup.unregister_post_hook(self, hook_id)  # type: ignore[arg-type]
        self._hooked("post", hook_id, False)

    def _hooked(self, kind: str, hook_id: int, on: bool) -> None:
        """PyTorch's dispatcher, which calls the hooks, costs microseconds: operations take the way through it as long
        as there are hooks."""
        (self._hooks.add if on else self._hooks.discard)((kind, hook_id))
        self.e.observed = bool(self._hooks) or _is_observed()
        self.__class__ = ObservedGroup if self.e.observed else HocketGroup  # type: ignore[assignment]


class HocketGroup(Operations, _Members, ProcessGroup):  # type: ignore[misc]
    """A group whose only backend is this one. torch.distributed's functions call it without a way through C++."""


class ObservedGroup(_Members, ProcessGroup):  # type: ignore[misc]
    """The same, whose operations go through PyTorch's dispatcher to its backend. Hooks and recorders are there."""


class LoneGroup(Operations, ProcessGroup):
    """The same for versions of PyTorch that make no Backend of Python's. They keep a group's name in its backends."""

    _name = _description = ""

    def __init__(self, engine: Engine) -> None:
        ProcessGroup.__init__(self, engine.rank, engine.size)
        self.e = engine

    def setGroupName(self, name: str) -> None:  # noqa: N802 (PyTorch's name, as below)
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description


def _named(group: Any, name: str | None, description: str | None) -> Any:
    group._set_group_name(name or "")
    group._set_group_desc(description or "")
    return group


def create(store: Any, rank: int, size: int, timeout: float, name: str, config: Any, unformed: bool = False) -> Any:
    """What torch.distributed gets for one group: all members call it."""
    engine: Any = (Unformed if unformed else Engine)(store, rank, size, timeout, name)
    engine.observed = _is_observed()
    alone = config is None or _alone(config)
    try:
        part = HocketBackend(engine)
    except TypeError as error:
        if alone:
            return LoneGroup(engine)
        raise RuntimeError(f"PyTorch {torch.__version__} has no place for a backend of Python's next to another one: "
                           "init_process_group('hocket') works") from error
    return _whole(part) if alone else part


def _whole(part: HocketBackend) -> Any:
    """A group that has this backend alone."""
    return (ObservedGroup if part.e.observed else HocketGroup)(part.e, part)


def _own_shrunk_groups() -> None:
    """PyTorch calls the group that shrink_group() makes Gloo's if it is for the CPU. DDP then takes it for an object of
    Gloo's and crashes."""
    make = getattr(torch.distributed.distributed_c10d, "_create_shrunk_process_group", None)

    def made(backend: Any, ranks: list[int], about: Any, default: bool) -> Any:
        if not isinstance(backend, HocketBackend):
            return make(backend, ranks, about, default)  # type: ignore[misc]
        return _named(_whole(backend), about["new_group_name"],
                      "default:shrunken" if default else f"{about['original_group_name']}:shrunk")

    if make is not None:
        torch.distributed.distributed_c10d._create_shrunk_process_group = made


_own_shrunk_groups()


def _is_observed() -> bool:
    """Has the user asked for what PyTorch does around each operation? A group that is Hocket's own is called without
    PyTorch's dispatcher, so its flight recorder and its checks would see nothing."""
    size = os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "0"
    return size != "0" or os.environ.get("TORCH_DIST_NAN_CHECK") == "1"


def _alone(group: Any) -> bool:
    """Is the group's default backend, which torch.distributed has set before, this one?"""
    return bool(group.name() == "custom" or group.name() == "hocket")
