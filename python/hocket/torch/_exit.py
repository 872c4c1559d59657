# SPDX-License-Identifier: Apache-2.0
"""The end of the process, with groups that were not destroyed."""
from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 6.0  # for an operation under way when its group ends; the library warns of a late rank after 8


class _Gate:
    """Daemon threads hold it in calls of PyTorch. At the end of the process it closes for good: until Python 3.14 a
    thread that comes back from C++ code to an interpreter that has ended is unwound, and C++ aborts the process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in the child of a fork, which has none of the threads."""
        self._changed, self._inside, self._closed = threading.Condition(), 0, False

    def __enter__(self) -> None:
        with self._changed:
            while self._closed and not self._inside:  # a callback that is inside may wait for another one
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Waits until no thread is inside, for so many seconds at most."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0, seconds)


gate = _Gate()
os.register_at_fork(after_in_child=gate.reset)
engines: weakref.WeakSet[Any] = weakref.WeakSet()  # those of groups that are not destroyed


def start(function: Callable[[], object], name: str) -> bool:
    """Starts a daemon thread; False: the interpreter ends, and starts none any more."""
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _leave() -> None:
    """Operations under way may be what other ranks wait for, so they get some time. What is not complete then is ended:
    the other ranks do not make the same calls."""
    left = list(engines)
    complete = [engine.complete() for engine in left]
    gate.close(PATIENCE_SECONDS)
    for engine, good in zip(left, complete):
        engine.leave(good)


# What weakref ends at exit comes after this: its handler is registered with the first finalizer.
weakref.finalize(gate, int).detach()
atexit.register(_leave)
