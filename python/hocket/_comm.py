# SPDX-License-Identifier: Apache-2.0
"""Communicators and their operations."""
from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterable, Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from enum import IntEnum
from typing import Any, Union

from . import _buffers
from ._buffers import Buffer, DataType, buffer
from ._lib import ID_BYTES, InvalidUsage, UniqueId, check, config, fail, integer, lib
from ._stream import Stream, StreamLike, handle_of


class Op(IntEnum):
    """Operators of reductions (ncclRedOp_t). Also given by name: "sum", "prod", "max", "min", "avg"."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4  #: the sum divided by the number of ranks; integers truncate towards zero


OpLike = Union[Op, int, str]
_OPS = {op.name.lower(): int(op) for op in Op}


def _op(op: OpLike) -> int:
    if isinstance(op, str):
        if op not in _OPS:
            raise ValueError(f"there is no operator {op!r}; the operators are {', '.join(_OPS)}")
        return _OPS[op]
    return int(op)


def _end(handle: int) -> None:
    """The end of a communicator that was not closed. After an error the other ranks must learn of it at once."""
    if hasattr(sys, "last_type"):
        lib.ncclCommAbort(handle)
    else:
        lib.ncclCommDestroy(handle)


def _moved(b: Buffer) -> tuple[int, int]:
    """Count and type for an operation that only moves elements."""
    if b.dtype is not None:
        return b.count, b.dtype
    return b.nbytes, DataType.UINT8


def _same(a: Buffer, b: Buffer, what: str) -> None:
    if a.width != b.width or a.dtype != b.dtype:
        raise TypeError(f"{what}: the elements of the two buffers differ: {a!r}, {b!r}")


class Communicator:
    """One rank of a communicator. Operations block until they are complete, unless they get a `stream`.

    Every rank makes the same calls in the same order. One communicator is used by one thread at a time; different ones
    may be used by different threads, because a call that waits gives other threads of Python their turn.

    Buffers are anything that hocket.buffer() takes. A receive buffer that is left out means "in place". Every operation
    returns the object that has the result. On a machine whose GPUs the library uses, buffers are memory of a GPU.

    Errors are raised as hocket.Error or one of its subclasses. Arguments that are wrong by themselves raise ValueError,
    TypeError or BufferError; nothing was done then.
    """

    def __init__(self, handle: int) -> None:
        """Of an ncclComm_t, which the object owns from now on. Most programs call hocket.init()."""
        self.handle = handle
        number = c_int()
        check(lib.ncclCommUserRank(handle, byref(number)))
        self.rank: int = number.value  #: this rank's number
        check(lib.ncclCommCount(handle, byref(number)))
        self.size: int = number.value  #: number of ranks
        self._finalizer = weakref.finalize(self, _end, handle)

    @classmethod
    def from_id(cls, unique_id: bytes, rank: int, size: int, **options: int | str) -> Communicator:
        """Joins the communicator of an id that one rank got from hocket.unique_id() and gave to all others.

        Returns when all ranks have called it. Options are fields of ncclConfig_t, as commName="train" or maxCTAs=2.
        """
        if len(unique_id) != ID_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes, not {len(unique_id)}")
        rank, size = integer("rank", rank), integer("size", size)
        handle = c_void_p()
        check(lib.ncclCommInitRankConfig(byref(handle), size, UniqueId.from_buffer_copy(unique_id), rank,
                                         byref(config(options))))
        return cls(handle.value or 0)

    # ---- life ----

    def split(self, color: int | None, key: int = 0, **options: int | str) -> Communicator | None:
        """A new communicator of the ranks with the same color (0 or more), ordered by key, then by rank. All ranks call
        it; one that gives None takes part and gets None."""
        color, key = -1 if color is None else integer("color", color), integer("key", key)
        handle = c_void_p()
        self._check(lib.ncclCommSplit(self.handle, color, key, byref(handle),
                                      byref(config(options))))
        return Communicator(handle.value) if handle.value else None

    def shrink(self, exclude: Iterable[int], *, abort: bool = False, **options: int | str) -> Communicator:
        """A new communicator of all ranks but these, which do not call. Works after ranks have died: `abort` ends what
        the communicator still does."""
        ranks = [integer("a rank to exclude", rank) for rank in exclude]
        handle = c_void_p()
        self._check(lib.ncclCommShrink(self.handle, (c_int * len(ranks))(*ranks), len(ranks), byref(handle),
                                       byref(config(options)), int(abort)))
        return Communicator(handle.value or 0)

    def close(self) -> None:
        """Waits until this rank's operations are complete, and leaves. Done by itself at the end of the process."""
        if self._finalizer.detach():
            self._check(lib.ncclCommDestroy(self.handle))

    def abort(self) -> None:
        """Ends all operations at once, informs the other ranks, and leaves. Any thread, also during an operation."""
        if self._finalizer.detach():
            self._check(lib.ncclCommAbort(self.handle))

    def revoke(self) -> None:
        """Ends the operations and refuses new ones; the communicator can still be shrunk and closed. Any thread."""
        self._check(lib.ncclCommRevoke(self.handle, 0))

    def check(self) -> None:
        """Raises the failure that ended the communicator, if there is one. Never waits. Any thread."""
        code = c_int()
        self._check(lib.ncclCommGetAsyncError(self.handle, byref(code)))
        if code.value:
            fail(code.value, self.handle)

    def set_batch_invariant(self, on: bool = True) -> None:
        """Sums whose bits depend on the ranks' values alone (docs/numerics.md). All ranks call it alike."""
        self._check(lib.hocketCommSetBatchInvariant(self.handle, int(on)))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<hocket.Communicator: rank {self.rank} of {self.size}>"

    def _check(self, code: int) -> None:
        if code:
            fail(code, self.handle)

    def _alive(self) -> int:
        if not self._finalizer.alive:
            raise InvalidUsage(f"the communicator (rank {self.rank} of {self.size}) is closed")
        return self.handle

    def _stream(self, stream: StreamLike, *held: object) -> int | None:
        if stream is None:
            return None
        if isinstance(stream, Stream):
            stream.hold(*held)
        return handle_of(stream)

    # ---- reductions ----

    def _reduced(self, what: str, send: Any, recv: Any, factor: int = 1) -> tuple[Buffer, Buffer]:
        """The buffers of a reduction: send has `factor` times as many elements."""
        s = buffer(send)
        r = s if recv is None else buffer(recv)
        if s.dtype is None:
            raise TypeError(f"{what}: elements of {s.kind} cannot be reduced; the types are "
                            f"{', '.join(t.name.lower() for t in DataType)}")
        if r is not s:
            _same(s, r, what)
            if s.count != factor * r.count:
                raise ValueError(f"{what}: the send buffer has {s.count} elements, the receive buffer {r.count}; "
                                 f"wanted {factor * r.count} and {r.count}")
        _written(what, r)
        return s, r

    def all_reduce(self, send: Any, recv: Any = None, op: OpLike = Op.SUM, *, stream: StreamLike = None) -> Any:
        """Reduces the elements of all ranks; every rank gets the result, with the same bits."""
        s, r = self._reduced("all_reduce", send, recv)
        self._check(lib.ncclAllReduce(s.address, r.address, s.count, s.dtype, _op(op), self._alive(),
                                      self._stream(stream, s, r)))
        return send if recv is None else recv

    def reduce(self, send: Any, recv: Any = None, root: int = 0, op: OpLike = Op.SUM, *,
               stream: StreamLike = None) -> Any:
        """Reduces the elements of all ranks into recv on `root`; recv is not used elsewhere."""
        root = integer("root", root)
        if self.rank != root:
            s = r = buffer(send)
        else:
            s, r = self._reduced("reduce", send, recv)
        self._check(lib.ncclReduce(s.address, r.address, s.count, _reducible("reduce", s), _op(op), root, self._alive(),
                                   self._stream(stream, s, r)))
        return send if recv is None else recv

    def reduce_scatter(self, send: Any, recv: Any, op: OpLike = Op.SUM, *, stream: StreamLike = None) -> Any:
        """Reduces send, `size` blocks of recv's length, of all ranks; block r of the result goes to rank r."""
        s, r = self._reduced("reduce_scatter", send, recv, self.size)
        self._check(lib.ncclReduceScatter(s.address, r.address, r.count, s.dtype, _op(op), self._alive(),
                                          self._stream(stream, s, r)))
        return recv

    def premul_sum(self, scalar: float, dtype: DataType) -> int:
        """An operator that multiplies this rank's elements by a number, then adds. For this communicator and type."""
        value = _scalar(scalar, dtype)
        op = c_int()
        self._check(lib.ncclRedOpCreatePreMulSum(byref(op), value, dtype, 1, self._alive()))
        return op.value

    def free_op(self, op: int) -> None:
        """Ends an operator of premul_sum; at most 64 exist at a time."""
        self._check(lib.ncclRedOpDestroy(op, self._alive()))

    # ---- moves ----

    def broadcast(self, buf: Any, root: int = 0, *, stream: StreamLike = None) -> Any:
        """The elements of `root` replace those of every other rank."""
        root = integer("root", root)
        b = buffer(buf)
        if self.rank != root:
            _written("broadcast", b)
        count, dtype = _moved(b)
        self._check(lib.ncclBroadcast(b.address, b.address, count, dtype, root, self._alive(), self._stream(stream, b)))
        return buf

    def _two(self, what: str, send: Any, recv: Any, sent: int, received: int) -> tuple[Buffer, Buffer, int, int]:
        """Buffers that have `sent` and `received` blocks of the same length; also its count and type."""
        s, r = buffer(send), buffer(recv)
        _same(s, r, what)
        if s.count * received != r.count * sent or s.count % sent:
            raise ValueError(f"{what}: {self.size} ranks cannot exchange {s.count} elements for {r.count}: the buffers "
                             f"have {sent} and {received} blocks of the same length")
        _written(what, r)
        count, dtype = _moved(s)
        return s, r, count // sent, dtype

    def all_gather(self, send: Any, recv: Any, *, stream: StreamLike = None) -> Any:
        """recv, which is `size` times as long, gets the elements of all ranks in their order."""
        s, r, count, dtype = self._two("all_gather", send, recv, 1, self.size)
        self._check(lib.ncclAllGather(s.address, r.address, count, dtype, self._alive(), self._stream(stream, s, r)))
        return recv

    def all_to_all(self, send: Any, recv: Any, *, stream: StreamLike = None) -> Any:
        """Block p of this rank's send buffer becomes block `rank` of rank p's receive buffer."""
        s, r, count, dtype = self._two("all_to_all", send, recv, self.size, self.size)
        self._check(lib.ncclAlltoAll(s.address, r.address, count, dtype, self._alive(), self._stream(stream, s, r)))
        return recv

    def gather(self, send: Any, recv: Any = None, root: int = 0, *, stream: StreamLike = None) -> Any:
        """recv on `root`, which is `size` times as long, gets the elements of all ranks in their order."""
        root = integer("root", root)
        if self.rank == root:
            s, r, count, dtype = self._two("gather", send, recv, 1, self.size)
        else:
            s = r = buffer(send)
            count, dtype = _moved(s)
        self._check(lib.ncclGather(s.address, r.address, count, dtype, root, self._alive(), self._stream(stream, s, r)))
        return recv

    def scatter(self, send: Any, recv: Any, root: int = 0, *, stream: StreamLike = None) -> Any:
        """Block r of send on `root` goes to rank r; send is not used elsewhere, and may be None."""
        root = integer("root", root)
        if self.rank == root:
            s, r, count, dtype = self._two("scatter", send, recv, self.size, 1)
        else:
            s = r = buffer(recv)
            _written("scatter", r)
            count, dtype = _moved(r)
        self._check(lib.ncclScatter(s.address, r.address, count, dtype, root, self._alive(),
                                    self._stream(stream, s, r)))
        return recv

    def send(self, buf: Any, peer: int, *, stream: StreamLike = None) -> None:
        """Sends to a rank, which makes the matching recv() with the same count and type. Put sends and receives that
        wait for one another into one hocket.group()."""
        b = buffer(buf)
        count, dtype = _moved(b)
        peer = integer("peer", peer)
        self._check(lib.ncclSend(b.address, count, dtype, peer, self._alive(), self._stream(stream, b)))

    def recv(self, buf: Any, peer: int, *, stream: StreamLike = None) -> Any:
        """Receives from a rank."""
        b = buffer(buf)
        _written("recv", b)
        count, dtype = _moved(b)
        peer = integer("peer", peer)
        self._check(lib.ncclRecv(b.address, count, dtype, peer, self._alive(), self._stream(stream, b)))
        return buf

    def barrier(self) -> None:
        """Waits until every rank has come here. Host memory only."""
        mark = c_int(0)
        self._check(lib.ncclAllReduce(ctypes.addressof(mark), ctypes.addressof(mark), 1, DataType.INT32, Op.SUM,
                                      self._alive(), None))

    # ---- blocks that differ in length ---- Counts and displacements are in elements, one for each rank.

    def all_gatherv(self, send: Any, recv: Any, counts: Sequence[int], displs: Sequence[int] | None = None, *,
                    stream: StreamLike = None) -> Any:
        """As all_gather, with counts[r] elements from rank r, which come to place displs[r] of recv (None: one after
        the other). All ranks give the same counts."""
        s, r = buffer(send), buffer(recv)
        _same(s, r, "all_gatherv")
        _written("all_gatherv", r)
        n, d, dtype = self._counts(s, counts, displs)
        _fits("all_gatherv: send", s, counts[self.rank:self.rank + 1], None)
        _fits("all_gatherv: recv", r, counts, displs)
        self._check(lib.hocketAllGatherv(s.address, r.address, n, d, dtype, self._alive(), self._stream(stream, s, r)))
        return recv

    def reduce_scatterv(self, send: Any, recv: Any, counts: Sequence[int], displs: Sequence[int] | None = None,
                        op: OpLike = Op.SUM, *, stream: StreamLike = None) -> Any:
        """As reduce_scatter; block r of send has counts[r] elements from place displs[r]."""
        s, r = buffer(send), buffer(recv)
        _same(s, r, "reduce_scatterv")
        _written("reduce_scatterv", r)
        dtype = _reducible("reduce_scatterv", s)
        n, d, _ = self._counts(s, counts, displs)
        _fits("reduce_scatterv: send", s, counts, displs)
        _fits("reduce_scatterv: recv", r, counts[self.rank:self.rank + 1], None)
        self._check(lib.hocketReduceScatterv(s.address, r.address, n, d, dtype, _op(op), self._alive(),
                                             self._stream(stream, s, r)))
        return recv

    def all_to_allv(self, send: Any, sendcounts: Sequence[int], recv: Any, recvcounts: Sequence[int],
                    sdispls: Sequence[int] | None = None, rdispls: Sequence[int] | None = None, *,
                    stream: StreamLike = None) -> Any:
        """sendcounts[p] elements go to rank p, recvcounts[p] come from it. The buffers do not overlap."""
        s, r = buffer(send), buffer(recv)
        _same(s, r, "all_to_allv")
        _written("all_to_allv", r)
        sn, sd, dtype = self._counts(s, sendcounts, sdispls)
        rn, rd, _ = self._counts(r, recvcounts, rdispls)
        _fits("all_to_allv: send", s, sendcounts, sdispls)
        _fits("all_to_allv: recv", r, recvcounts, rdispls)
        self._check(lib.hocketAlltoAllv(s.address, sn, sd, r.address, rn, rd, dtype, self._alive(),
                                        self._stream(stream, s, r)))
        return recv

    def _counts(self, b: Buffer, counts: Sequence[int], displs: Sequence[int] | None) -> tuple[Any, Any, int]:
        """The arrays for the library, and the type; elements that no reduction knows count as bytes."""
        if len(counts) != self.size or (displs is not None and len(displs) != self.size):
            raise ValueError(f"{self.size} counts are needed, and as many displacements, one for each rank")
        if any(n < 0 for n in counts) or any(d < 0 for d in displs or ()):
            raise ValueError("counts and displacements are not negative")
        by = 1 if b.dtype is not None else b.width
        dtype = b.dtype if b.dtype is not None else DataType.UINT8
        array = c_size_t * self.size
        return (array(*[by * n for n in counts]), array(*[by * n for n in displs]) if displs is not None else None,
                dtype)

    # ---- memory ----

    def register(self, buf: Any) -> Registration:
        """Registers memory, so that operations may move it without a copy. Keep the result as long as it is used."""
        return Registration(self, buffer(buf))


class Registration:
    """Memory that is registered with a communicator until close()."""

    def __init__(self, comm: Communicator, memory: Buffer) -> None:
        self.memory, self._comm = memory, comm
        handle = c_void_p()
        comm._check(lib.ncclCommRegister(comm._alive(), memory.address, memory.nbytes, byref(handle)))
        self._handle: int | None = handle.value

    def close(self) -> None:
        """Ends the registration."""
        if self._handle is not None and self._comm._finalizer.alive:
            self._comm._check(lib.ncclCommDeregister(self._comm.handle, self._handle))
        self._handle = None


def empty(count: int, dtype: DataType = DataType.UINT8) -> Buffer:
    """Memory of the library that peers reach without a copy (ncclMemAlloc); it is freed with the object. On the host
    `numpy.frombuffer(memoryview(...))` takes `hocket.view(buffer)`."""
    handle = c_void_p()
    nbytes = count * _buffers.WIDTH[dtype]
    check(lib.ncclMemAlloc(byref(handle), nbytes))
    return Buffer(handle.value or 0, count, dtype, 0, True, _Memory(handle.value))


class _Memory:
    def __init__(self, address: int | None) -> None:
        weakref.finalize(self, lib.ncclMemFree, address)


def view(b: Buffer) -> memoryview:
    """Host memory of a Buffer as bytes, for numpy.frombuffer() and the like; the Buffer must outlive it."""
    array = (ctypes.c_char * b.nbytes).from_address(b.address)
    array._owner = b  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def _written(what: str, b: Buffer) -> None:
    if not b.writable:
        raise BufferError(f"{what}: the receive buffer is read-only")


def _reducible(what: str, b: Buffer) -> DataType:
    if b.dtype is None:
        raise TypeError(f"{what}: elements of {b.kind} cannot be reduced")
    return b.dtype


def _fits(what: str, b: Buffer, counts: Sequence[int], displs: Sequence[int] | None) -> None:
    ends = sum(counts) if displs is None else max((d + n for d, n in zip(displs, counts) if n), default=0)
    if ends > b.count:
        raise ValueError(f"{what}: the blocks end at element {ends}, the buffer has {b.count}")


def _scalar(value: float, dtype: DataType) -> Any:
    """One element in host memory."""
    kinds: dict[DataType, Any] = {
        DataType.INT8: ctypes.c_int8, DataType.UINT8: ctypes.c_uint8, DataType.INT32: ctypes.c_int32,
        DataType.UINT32: ctypes.c_uint32, DataType.INT64: ctypes.c_int64, DataType.UINT64: ctypes.c_uint64,
        DataType.FLOAT32: ctypes.c_float, DataType.FLOAT64: ctypes.c_double}
    if dtype in kinds:
        made = kinds[dtype](value if dtype in (DataType.FLOAT32, DataType.FLOAT64) else int(value))
    elif dtype == DataType.FLOAT16:
        import struct
        made = ctypes.c_uint16(int.from_bytes(struct.pack("=e", value), sys.byteorder))
    elif dtype == DataType.BFLOAT16:
        import struct
        bits = struct.unpack("=I", struct.pack("=f", value))[0]
        made = ctypes.c_uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
    else:
        raise TypeError(f"there is no scalar of type {dtype.name.lower()}")
    return ctypes.cast(ctypes.pointer(made), c_void_p)
