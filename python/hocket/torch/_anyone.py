# SPDX-License-Identifier: Apache-2.0
"""Receives from whichever rank sends first."""
from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from .._lib import IN_PROGRESS
from ._exit import start
from ._work import NOT_ENQUEUED, Completer, Work

_POLL_SECONDS, _LONGEST_POLL_SECONDS = 5e-5, 2e-3


class AnySource:
    """Receives with one tag that name no rank, in their order. A thread, which lives as long as there are any, looks at
    the channels from all ranks, and gives the oldest receive to the first one that has a message."""

    def __init__(self, engine: Any, tag: int) -> None:
        self.engine, self.tag, self.finishing = weakref.proxy(engine), tag, engine.finishing
        self.completer = Completer()
        self.works: deque[Work] = deque()
        self._calls: dict[Work, Callable[[int, int], int]] = {}
        self._changed = threading.Condition()
        self._closed = self._runs = False

    def issue(self, work: Work, call: Callable[[int, int], int]) -> None:
        with self._changed:
            self.works.append(work)
            self._calls[work] = call
            if not self._runs:
                self._runs = start(self._match, "hocket any source")

    def _match(self) -> None:
        pause = _POLL_SECONDS
        while True:
            channel = self._ready_channel()
            with self._changed:
                if self._ended():
                    self._runs = False
                    self._changed.notify_all()
                    return
                if channel is not None:
                    work = self.works.popleft()
                    work.owner, work._source = channel, channel.source
                    try:
                        channel.issue(work, self._calls.pop(work))
                    except BaseException as error:
                        work.end(error)
                    pause = _POLL_SECONDS
                    self._changed.notify_all()
                if not self.works:
                    self._runs = False
                    return
            if channel is None:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def _ready_channel(self) -> Any:
        try:
            for source in range(self.engine.size):
                channel = self.engine.channel(source, self.engine.rank, self.tag)
                if channel.waits():
                    return channel
        except Exception:  # the group has ended
            self._closed = True
        return None

    def _ended(self) -> bool:
        return self._closed or self.failure() is not None

    def reach(self, work: Work, seconds: float | None) -> int:
        """As Engine.reach()."""
        with self._changed:
            self._changed.wait_for(lambda: work.owner is not self or self._ended(), seconds)
        if work.owner is not self:
            return 0 if work.over else int(work.owner.reach(work, seconds))
        return NOT_ENQUEUED if self._ended() else IN_PROGRESS

    def failure(self) -> BaseException | None:
        """Why no receive is matched any more."""
        try:
            return self.engine.ended()
        except ReferenceError:
            return RuntimeError("the group is gone")

    def close(self) -> None:
        self._closed = True
        self.completer.close()
