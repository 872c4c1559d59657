# SPDX-License-Identifier: Apache-2.0
"""Operations under way: a mark in memory that the stream's thread sets, and what torch.distributed wants to know."""
from __future__ import annotations

import ctypes
import datetime
import errno
import queue
import threading
import time
from collections.abc import Callable
from ctypes import c_int, c_long, c_uint, c_void_p
from typing import Any

import torch
from torch.distributed import DistBackendError
from torch.distributed import Work as TorchWork

# Semaphores of the C library: the stream's thread posts one after an operation without any Python, and a thread that
# waits for one gives other threads their turn.
_libc = ctypes.CDLL(None, use_errno=True)
_quick = ctypes.PyDLL(None)
SEM_POST: int = ctypes.cast(_libc.sem_post, c_void_p).value or 0
_sem_init, _sem_post, _sem_try = _quick.sem_init, _quick.sem_post, _quick.sem_trywait
_sem_wait, _sem_clockwait = _libc.sem_wait, _libc.sem_clockwait


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", c_long), ("nanoseconds", c_long)]


_Semaphore = ctypes.c_char * 32
_sem_init.argtypes = [c_void_p, c_int, c_uint]
_sem_post.argtypes = _sem_try.argtypes = _sem_wait.argtypes = [c_void_p]
_sem_clockwait.argtypes = [c_void_p, c_int, ctypes.POINTER(_Timespec)]


class Mark:
    """Is set once, and can be waited for by any number of threads."""

    __slots__ = ("memory", "address", "is_set")

    def __init__(self) -> None:
        self.memory = _Semaphore()
        self.address = ctypes.addressof(self.memory)
        self.is_set = False
        _sem_init(self.address, 0, 0)

    def set(self) -> None:
        """From Python; a stream's thread calls sem_post itself."""
        _sem_post(self.address)

    def test(self) -> bool:
        """Is it set? Never waits."""
        if not self.is_set and _sem_try(self.address) == 0:
            self.is_set = True
            _sem_post(self.address)  # for others that wait
        return self.is_set

    def wait(self, seconds: float | None) -> bool:
        """False: it is not set after so many seconds."""
        if self.test():
            return True
        until = None
        if seconds is not None:
            at = time.monotonic() + seconds
            until = _Timespec(int(at), int(at % 1 * 1e9))
        while True:
            if until is None:
                code = _sem_wait(self.address)
            else:
                code = _sem_clockwait(self.address, time.CLOCK_MONOTONIC, until)
            if code == 0:
                self.is_set = True
                _sem_post(self.address)
                return True
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
            # A signal: Python handles it between two calls.


class Work(TorchWork):
    """An operation. `result` are its output tensors; `finish` is done once, by the first who sees that it is over."""

    def __init__(self, owner: Any, held: Any, result: list[torch.Tensor], finish: Callable[[], object] | None,
                 source: int = -1) -> None:
        super().__init__()
        self.owner, self.held, self.tensors, self._finish, self._source = owner, held, result, finish, source
        self.mark = Mark()
        self.error: BaseException | None = None
        self.over = False
        self.born, self.limit = time.monotonic(), 0.0  # seconds; the group ends when an operation takes longer
        self._future: torch.futures.Future | None = None

    def end(self, error: BaseException | None = None) -> None:
        """The operation is over: notes how, and does what is left to do."""
        with self.owner.finishing:
            if self.over:
                return
            self.error = error or self.owner.failure()
            if self.error is None and self._finish is not None:
                try:
                    with torch.no_grad():
                        self._finish()
                except Exception as trouble:
                    self.error = trouble
            self._finish = self.held = None
            self.over = True

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        if not self.over:
            seconds = timeout.total_seconds() if timeout else None
            if seconds is None or seconds <= 0:
                seconds = None
            if not self.mark.wait(seconds):
                raise RuntimeError(f"Operation timed out! It is not complete after {seconds} s")
            self.end()
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        if not self.over and self.mark.test():
            self.end()
        return self.over

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> BaseException | None:
        return self.error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.tensors

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future that gets the output tensors; its callbacks run on a thread of their own."""
        if self._future is None:
            self._future = torch.futures.Future()
            if self.is_completed():
                self.give()
            else:
                self.owner.completer.add(self)
        return self._future

    def give(self) -> None:
        """Completes the future."""
        assert self._future is not None
        if self.error is None:
            self._future.set_result(self.tensors)
        else:
            self._future.set_exception(self.error)


class Together(Work):
    """Several operations as one."""

    def __init__(self, owner: Any, parts: list[Work]) -> None:
        super().__init__(owner, None, [t for part in parts for t in part.tensors], None)
        self.parts = parts

    def is_completed(self) -> bool:
        if not self.over and all(part.is_completed() for part in self.parts):
            self.end(next((part.error for part in self.parts if part.error), None))
        return self.over

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        for part in self.parts:
            part.wait(timeout)
        self.is_completed()
        return True


class Done(Work):
    """What is over when the call returns."""

    def __init__(self, owner: Any, result: list[torch.Tensor]) -> None:
        super().__init__(owner, None, result, None)
        self.over = True


class Completer:
    """Threads that complete the futures of one stream's operations, in their order. Only futures need them.

    One thread at a time waits for the oldest operation. When it completes a future, whose callbacks may wait for other
    futures, the next thread takes its place.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._first, self._count = threading.Lock(), threading.Lock()
        self._ready = 0  # threads that wait to be the first one, or are it

    def add(self, work: Work) -> None:
        """Its future is completed after the operation."""
        self._queue.put(work)
        with self._count:
            if self._ready == 0:
                self._start()

    def _start(self) -> None:
        self._ready += 1
        threading.Thread(target=self._run, name="hocket futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._first:
                work = self._queue.get()
                if work is None:
                    self._queue.put(None)  # for the other threads
                    return
                try:
                    work.wait()
                except BaseException as trouble:
                    if work.error is None:
                        work.end(trouble)
                with self._count:
                    self._ready -= 1
                    if self._ready == 0:
                        self._start()
            work.give()
            work = None
            with self._count:
                if self._ready > 1:
                    return
                self._ready += 1

    def close(self) -> None:
        """Ends the threads after what they have."""
        self._queue.put(None)


def backend_error(error: BaseException) -> DistBackendError:
    """The exception that torch.distributed's users expect, with the library's text."""
    made = DistBackendError(str(error))
    made.__cause__ = error
    return made
