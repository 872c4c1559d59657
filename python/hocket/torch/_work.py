# SPDX-License-Identifier: Apache-2.0
"""Operations under way, and what torch.distributed wants to know of them."""
from __future__ import annotations

import datetime
import queue
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import DistBackendError
from torch.distributed import Work as TorchWork

from .._lib import IN_PROGRESS
from ._exit import gate, start

NOT_ENQUEUED = 1  # an ncclResult_t: there is an error, which failure() gives
_BARRIER = re.compile(r"AllReduce\(1 x uint64, min(, batch-invariant)?\)")  # Operations.barrier()
_UNLIMITED = datetime.timedelta(0)


class Work(TorchWork):
    """An operation. `result` are its output tensors; `finish` is done once, by the first who sees that it is over. The
    owner has a stream; `place` is the operation's position there, None before it is enqueued."""

    place: int | None = None
    error: BaseException | None = None
    over = False
    limit = 0.0  # seconds; the group ends when an operation takes longer
    _future: torch.futures.Future | None = None
    _source = -1
    _ended: float | None = None

    def __init__(self, owner: Any, held: Any, result: list[torch.Tensor], finish: Callable[[], object] | None,
                 source: int = -1) -> None:
        TorchWork.__init__(self)
        self.owner, self.held, self.tensors, self._finish = owner, held, result, finish
        if source >= 0:
            self._source = source
        self.born = time.monotonic()

    def arrived(self, seconds: float | None = 0.0) -> bool:
        """Waits until the operation is complete, for so many seconds at most; what is left to do is not done yet."""
        return self.over or self.owner.reach(self, seconds) != IN_PROGRESS

    def _finished(self, seconds: float | None) -> bool:
        """The same, and what is left to do is done."""
        code = self.owner.reach(self, seconds)
        if code == IN_PROGRESS:
            return False
        self.end(self.owner.failure() if code else None)
        return True

    def end(self, error: BaseException | None = None) -> None:
        """The operation is over: notes how, and does what is left to do."""
        if error is None and self._finish is None:  # nothing is left, and a second time does no harm
            self.held, self.over = None, True
            return
        with self.owner.finishing:
            if self.over:
                return
            self.error = error
            if self.error is None and self._finish is not None:
                try:
                    with torch.no_grad():
                        self._finish()
                except Exception as trouble:
                    self.error = trouble
            self._finish = self.held = None
            self.over = True

    def wait(self, timeout: datetime.timedelta = _UNLIMITED) -> bool:
        if not self.over:
            seconds = 0.0 if timeout is _UNLIMITED else timeout.total_seconds()
            if not self._finished(seconds if seconds > 0 else None):
                raise RuntimeError(f"Operation timed out! It is not complete after {seconds} s")
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        return self.over or self._finished(0.0)

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

    def _get_duration(self) -> float:
        """Milliseconds; after _enable_collectives_timing() of the group."""
        if self._ended is None:
            raise RuntimeError("the operation has no time: it is not complete, or was issued before "
                               "_enable_collectives_timing()")
        return 1000 * (self._ended - self.born)

    def give(self) -> None:
        """Completes the future, if there is one."""
        self._ended = self._ended or time.monotonic()
        if self._future is None or self._future.done():
            return
        if self.error is None:
            self._future.set_result(self.tensors)
        else:
            self._future.set_exception(self.error)


class Together(Work):
    """Several operations as one."""

    def __init__(self, owner: Any, parts: list[Work]) -> None:
        super().__init__(owner, None, [t for part in parts for t in part.tensors], None)
        self.parts = parts

    def arrived(self, seconds: float | None = 0.0) -> bool:
        return all(part.arrived(seconds) for part in self.parts)

    def is_completed(self) -> bool:
        if not self.over and all(part.is_completed() for part in self.parts):
            self.end(next((part.error for part in self.parts if part.error), None))
        return self.over

    def wait(self, timeout: datetime.timedelta = _UNLIMITED) -> bool:
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
            started = self._ready > 0 or self._start()
        if not started:  # the interpreter ends
            self._wait(work)
            work.give()

    def _start(self) -> bool:
        self._ready += 1
        if start(self._run, "hocket futures"):
            return True
        self._ready -= 1
        return False

    def _run(self) -> None:
        while True:
            with self._first:
                work = self._queue.get()
                if work is None:
                    self._queue.put(None)  # for the other threads
                    return
                self._wait(work)
                with self._count:
                    self._ready -= 1
                    if self._ready == 0:
                        self._start()
            with gate:
                work.give()
            work = None
            with self._count:
                if self._ready > 1:
                    return
                self._ready += 1

    @staticmethod
    def _wait(work: Work) -> None:
        try:
            work.arrived(None)
            with gate:
                work.wait()
        except BaseException as trouble:
            if work.error is None:
                work.end(trouble)

    def close(self) -> None:
        """Ends the threads after what they have."""
        self._queue.put(None)


def backend_error(error: BaseException) -> DistBackendError:
    """The exception that torch.distributed's users expect, with the library's text. It calls a barrier a barrier."""
    made = DistBackendError(_BARRIER.sub("barrier()", str(error)))
    made.__cause__ = error
    return made
