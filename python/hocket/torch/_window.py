# SPDX-License-Identifier: Apache-2.0
"""Windows of torch.distributed: memory that other ranks write into, over the library's one-sided operations."""
from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from .._buffers import DataType
from .._comm import Communicator
from .._lib import check, lib
from ._engine import Engine
from ._tensors import Use, memory
from ._work import Done

_BYTE = DataType.UINT8
_ALIGNMENT, _SYMMETRIC = 4096, 1  # NCCL_WIN_REQUIRED_ALIGNMENT, NCCL_WIN_COLL_SYMMETRIC
# The library's put signals as well. The user's signals, those of puts, and those of tensor_deregister() are apart.
_USER, _PUT, _END, _SIGNALS = range(4)


class Window:
    """What new_window() of a group gives. It has PyTorch's methods (torch._C._distributed_c10d.Window), but it is no
    object of that class, which Python cannot make.

    A window has a communicator and a stream of its own: its operations run in the order of the calls, and
    do not wait for the group's.
    """

    def __init__(self, engine: Engine, tensor: torch.Tensor | None = None) -> None:
        number, name = len(engine.windows), f"{engine.name[:40]} window"
        comm = Communicator.from_id(engine.shared_id(f"window/{number}", engine.rank == 0), engine.rank, engine.size,
                                    commName=name, numRmaSig=_SIGNALS)
        self.e = Engine(engine.store, engine.rank, engine.size, engine.timeout, name, comm)
        engine.windows.append(self.e)
        self._handle = ctypes.c_void_p()
        self._bytes, self._held = 0, None
        if tensor is not None:
            self.tensor_register(tensor)

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Makes the tensor's memory the window. All ranks call it, with tensors of one size. The tensor is one of
        allocate_tensor() of the backend, or begins at a multiple of 4096 bytes."""
        if self._bytes:
            raise RuntimeError("tensor_register: the window has a tensor: call tensor_deregister() first")
        x, _ = memory(tensor, "tensor_register", Use.BOTH)
        if x is not tensor or not x.numel():
            raise ValueError("tensor_register: the tensor must be contiguous, and not empty")
        if x.data_ptr() % _ALIGNMENT:
            raise ValueError(f"tensor_register: the tensor begins at {x.data_ptr():#x}, and must begin at a multiple "
                             f"of {_ALIGNMENT}: take one of the backend's allocate_tensor()")
        size = x.numel() * x.element_size()
        check(lib.ncclCommWindowRegister(self.e.handle, x.data_ptr(), size, ctypes.byref(self._handle), _SYMMETRIC),
              self.e.handle)
        self._bytes, self._held = size, x if owning else None

    def tensor_deregister(self) -> None:
        """Ends the tensor's part. All ranks call it; each waits until all puts into its memory have arrived."""
        if not self._bytes:
            raise RuntimeError("tensor_deregister: the window has no tensor")
        peers, comm = range(self.e.size), self.e.handle
        waits = (ctypes.c_int * (4 * self.e.size))(*[n for peer in peers for n in (1, peer, _END, 0)])

        def call(s: int | None) -> int:
            for peer in peers:
                code = lib.ncclSignal(peer, _END, 0, 0, comm, s)
                if code:
                    return int(code)
            return int(lib.ncclWaitSignal(self.e.size, waits, comm, s))
        self.e.issue("tensor_deregister", call, None, waits, [], None).wait()
        check(lib.ncclCommWindowDeregister(comm, self._handle), comm)
        self._bytes, self._held, self._handle = 0, None, ctypes.c_void_p()

    def put(self, tensor: torch.Tensor, dst_rank: int, target_offset_nelems: int, async_op: bool,
            opts: Any = None) -> Any:
        """Writes the tensor into the window of a rank, from an offset in elements of the tensor's type on."""
        self._peer("put", dst_rank)
        x, _ = memory(tensor, "put", Use.READ)
        size, offset = x.numel() * x.element_size(), target_offset_nelems * x.element_size()
        if not 0 <= offset <= self._bytes - size:
            raise ValueError(f"put: bytes {offset} to {offset + size} are not in the window, which has {self._bytes}")
        if not size:
            return Done(self.e, [tensor])
        at, window, comm = x.data_ptr(), self._handle, self.e.handle

        def call(s: int | None) -> int:
            return int(lib.ncclPutSignal(at, size, _BYTE, dst_rank, window, offset, _PUT, 0, 0, comm, s))
        return self._issue("put", call, async_op, opts, x, [tensor])

    def signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> Any:
        """Tells a rank that all earlier puts to it have arrived."""
        self._peer("signal", peer_rank)
        comm = self.e.handle
        return self._issue("signal", lambda s: lib.ncclSignal(peer_rank, _USER, 0, 0, comm, s),
                           async_op, opts, None, [])

    def wait_signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> Any:
        """Waits for one signal of a rank; a signal that comes before is not lost."""
        self._peer("wait_signal", peer_rank)
        comm, wait = self.e.handle, (ctypes.c_int * 4)(1, peer_rank, _USER, 0)
        return self._issue("wait_signal", lambda s: lib.ncclWaitSignal(1, wait, comm, s), async_op, opts, wait, [])

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """The backend has no view of another rank's window."""
        raise RuntimeError("map_remote_tensor: a window of the backend hocket is written with put() only")

    def get_attr(self, peer_rank: int) -> Any:
        """One view of the memory: what puts have written is read as it is."""
        self._peer("get_attr", peer_rank)
        return c10d.WindowAttr()

    def _peer(self, op: str, peer: int) -> None:
        if not 0 <= peer < self.e.size:
            raise ValueError(f"{op}: {peer} is not a rank of this group (0 to {self.e.size - 1})")
        if not self._bytes:
            raise RuntimeError(f"{op}: the window has no tensor: all ranks call tensor_register() first")

    def _issue(self, name: str, call: Any, async_op: bool, opts: Any, held: Any, result: list[torch.Tensor]) -> Any:
        work = self.e.issue(name, call, opts, held, result, None)
        if not async_op:
            work.wait()
        return work
