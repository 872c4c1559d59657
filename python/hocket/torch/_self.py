# SPDX-License-Identifier: Apache-2.0
"""Messages from a rank to itself."""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import DistBackendError

from .._lib import IN_PROGRESS
from ._exit import gate, start
from ._tensors import write
from ._work import Work


def _give(work: Work) -> None:
    with gate:
        work.give()


class SelfChannel:
    """Messages with one tag from this rank to itself, with the functions of the channels between ranks. They are copies
    in memory: a message without a receive is kept. To wait for one that was not sent is an error at once, because the
    process that waits is the one that sends."""

    comm, met = None, False  # there is nobody else

    def __init__(self, engine: Any, tag: int) -> None:
        self.source, self.tag, self.finishing = engine.rank, tag, engine.finishing
        self.works: deque[Work] = deque()  # none that ends by itself: nothing here takes longer than its time
        self.completer = self
        self._changed = threading.Condition()
        self._messages: deque[torch.Tensor] = deque()
        self._receives: deque[Work] = deque()
        self._futures: set[Work] = set()
        self._error: BaseException | None = None

    def send(self, x: torch.Tensor) -> None:
        with self._changed:
            self._usable()
            if self._receives:
                self._give(self._receives.popleft(), x)
            else:
                self._messages.append(x.detach().clone())

    def issue(self, work: Work, _: Callable[[int, int], int]) -> None:
        """A receive."""
        with self._changed:
            self._usable()
            if self._messages:
                self._give(work, self._messages.popleft())
            else:
                self._receives.append(work)

    def _usable(self) -> None:
        if self._error is not None:
            raise self._error

    def _give(self, work: Work, x: torch.Tensor) -> None:
        y, error = work.held, None
        if (x.dtype, x.numel()) == (y.dtype, y.numel()):
            write(y, x.view(y.shape))
        else:
            error = ValueError(f"rank {self.source} sends {x.numel()} x {x.dtype} to itself with tag {self.tag}, and "
                               f"receives {y.numel()} x {y.dtype}")
        self._end(work, error)

    def _end(self, work: Work, error: BaseException | None) -> None:
        work.end(error)
        self._changed.notify_all()
        if work in self._futures:
            self._futures.remove(work)
            start(lambda: _give(work), "hocket futures")

    def add(self, work: Work) -> None:
        """As Completer.add()."""
        with self._changed:
            self._futures.add(work)
            if work.over:
                self._end(work, work.error)

    def waits(self) -> bool:
        """A message has come that no earlier receive takes."""
        with self._changed:
            return bool(self._messages)

    def reach(self, work: Work, seconds: float | None) -> int:
        """As Engine.reach()."""
        with self._changed:
            if seconds is None and work in self._receives:
                self._receives.remove(work)
                self._end(work, RuntimeError(
                    f"rank {self.source} waits for a message from itself with tag {self.tag} that it has not sent: "
                    "send before you wait, or put both into one batch_isend_irecv"))
            self._changed.wait_for(lambda: work.over, seconds)
            return 0 if work.over else IN_PROGRESS

    def failure(self) -> BaseException | None:
        """As Engine.failure()."""
        return self._error

    def drain(self, _: float | None) -> bool:
        return True

    def abort(self) -> None:
        self._leave(DistBackendError("the group was ended"))

    def close(self) -> None:
        self._leave(DistBackendError("the group was destroyed"))

    def _leave(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            for work in self._receives:
                self._end(work, self._error)
            self._receives.clear()
            self._messages.clear()
