# SPDX-License-Identifier: Apache-2.0
"""Host streams, and groups of calls."""
from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Union

from ._lib import IN_PROGRESS, InvalidArgument, check, fail, lib, quick

#: The argument `stream` of an operation: a Stream, a CUDA stream's handle, an object that has one, or None.
StreamLike = Union["Stream", int, Any, None]

_Function = ctypes.CFUNCTYPE(None, c_void_p)


class Stream:
    """A host stream: operations that are given to it return at once and run in their order, on the stream's own thread
    or on one that waits for them.

    The stream keeps the arrays of its operations alive until synchronize(). The end of a `with` block waits for all of
    them. Errors of operations are raised by synchronize().
    """

    def __init__(self) -> None:
        handle = c_void_p()
        check(lib.hocketStreamCreate(byref(handle)))
        self.handle: int = handle.value or 0
        self._held: list[object] = []
        self._end = weakref.finalize(self, lib.hocketStreamDestroy, self.handle)

    def synchronize(self) -> None:
        """Waits until all operations are complete, and raises the first failure since the last call."""
        held = self._held
        self._held = []
        check(lib.hocketStreamSynchronize(self.handle))
        held.clear()

    def done(self) -> bool:
        """Are all operations complete? Raises the first failure."""
        code = lib.hocketStreamQuery(self.handle)
        if code not in (0, IN_PROGRESS):
            fail(code)
        return bool(code == 0)

    def position(self) -> int:
        """How many operations and functions were given so far; a group counts once."""
        count = c_uint64()
        check(quick.hocketStreamPosition(self.handle, byref(count)))
        return count.value

    def reach(self, position: int, seconds: float | None = None) -> int:
        """Waits until all up to a position is complete. The result is an ncclResult_t: IN_PROGRESS after so many
        seconds (0: does not wait), else 0 or the first failure."""
        if seconds is None:
            return int(lib.hocketStreamWait(self.handle, position, -1))
        if seconds <= 0:
            return int(quick.hocketStreamWait(self.handle, position, 0))
        return int(lib.hocketStreamWait(self.handle, position, int(seconds * 1e9)))

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function after all operations that were given before, on the stream's thread or on one that waits for
        the stream. It must call nothing of the library. An exception in it is printed and ignored."""
        c = _Function(lambda _: (function(), None)[1])
        self._held.append(c)
        check(lib.hocketStreamLaunch(self.handle, ctypes.cast(c, c_void_p), None))

    def close(self) -> None:
        """Waits for all operations and ends the thread."""
        if self._end.alive:
            self.synchronize()
            self._end()

    def hold(self, *things: object) -> None:
        """Keeps things alive until synchronize()."""
        self._held.extend(things)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.synchronize()


def handle_of(stream: StreamLike) -> int | None:
    """The handle of a stream of ours, of CuPy (ptr), PyTorch (cuda_stream), of __cuda_stream__, or an integer."""
    if stream is None or isinstance(stream, int):
        return stream
    if isinstance(stream, Stream):
        if not stream._end.alive:
            raise InvalidArgument("the stream is closed")
        return stream.handle
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if isinstance(value, int):
            return value
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    raise TypeError(f"a {type(stream).__name__} is no stream")


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Calls of the block run side by side at its end. Sends and receives that must progress together belong in one.

    If the block raises, its calls run all the same, because other ranks wait for them, unless the library refused one.
    """
    check(lib.ncclGroupStart())
    try:
        yield
    except BaseException:
        lib.ncclGroupEnd()
        raise
    check(lib.ncclGroupEnd())
