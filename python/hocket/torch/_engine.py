# SPDX-License-Identifier: Apache-2.0
"""What a group needs to run operations: its communicator, a host stream for what is asynchronous, and channels for
messages."""
from __future__ import annotations

import ctypes
import datetime
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from ctypes import byref, c_int, c_uint64
from typing import Any

import torch
from torch.autograd import profiler

from .._buffers import DataType
from .._comm import Communicator
from .._lib import IN_PROGRESS, Error, fail, lib, quick, unique_id
from .._stream import Stream
from ._anyone import AnySource
from ._event import event
from ._exit import PATIENCE_SECONDS, engines, gate, start
from ._quick import UNSET, Quick, prepare
from ._self import SelfChannel
from ._work import NOT_ENQUEUED, Completer, Done, Together, Work, backend_error

Call = Callable[["int | None"], int]  # with a stream's handle, or None to block; gives an ncclResult_t
_POLL_SECONDS = 0.001
_now = time.monotonic


class Engine(Quick):
    """One rank's part of a group. Operations are collective in the order of the calls; sends and receives do not
    wait for them; those from one rank to another with one tag keep their order."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, name: str,
                 comm: Communicator | None = None) -> None:
        self.store, self.rank, self.size, self.timeout, self.name = store, rank, size, timeout, name
        self.lock, self.finishing = threading.RLock(), threading.RLock()
        self.sequence = self._barriers = 0
        self.comm = comm or Communicator.from_id(self.shared_id("id", rank == 0), rank, size,
                                                 commName=name[:60] or "hocket")
        self.handle = self.comm.handle
        self._stream: Stream | None = None
        self.completer = Completer()
        self._position = c_uint64()
        self._position_at = byref(self._position)
        self._works: deque[Work] = deque()
        self._channels: dict[tuple[int, int, int], _Channel | SelfChannel] = {}
        self._anyone: dict[int, AnySource] = {}
        self.windows: list[Engine] = []  # their engines, which end with this one
        self._ops: dict[Any, int] = {}
        self._batch: list[tuple[Call, Any, list[torch.Tensor], Callable[[], object] | None]] | None = None
        self._batch_parts: list[Work] = []
        self._error: BaseException | None = None
        self.observed = False  # by PyTorch's flight recorder: an operation without a work would look as if it hung
        self.timing = False  # works note when they were complete
        self.timed_out = False
        self.abort_hooks: dict[int, Callable[[], None]] = {}
        self.since = 0.0  # when the blocking call under way began; 0: there is none
        self.limit = timeout
        prepare(self)
        self._process = os.getpid()
        engines.add(self)
        _watch.add(self)

    def shared_id(self, key: str, make: bool) -> bytes:
        """An id that one rank makes, from the group's store."""
        if make:
            made = unique_id()
            self.store.set(f"hocket/{key}", made)
            return made
        return bytes(self.store.get(f"hocket/{key}"))

    def set_timeout(self, seconds: float) -> None:
        """For the calls that come."""
        self.timeout = seconds
        _watch.add(self)

    # ---- collectives ----

    def issue(self, name: str, call: Call, opts: Any, held: Any, result: list[torch.Tensor],
              finish: Callable[[], object] | None) -> Any:
        """Runs a call now, if the caller waits for it, else on the stream. `name` is for PyTorch's profiler."""
        if self._batch is not None:
            self._batch.append((call, held, result, finish))
            return None
        if profiler._is_profiler_enabled and name:
            with event(self, name, held, result, getattr(opts, "asyncOp", True)):
                return self.issue("", call, opts, held, result, finish)
        if opts is not None and getattr(opts, "asyncOp", True) is False:
            return self._blocking(call, opts, result, finish)
        with self.lock:
            if self._error is not None:
                raise self._error
            self.sequence += 1
            stream = self._stream or self._open_stream()
            work = Work(self, held, result, finish)
            code = call(stream.handle)
            if code:
                self._refused(code)
            quick.hocketStreamPosition(stream.handle, self._position_at)
            work.place, work.limit = self._position.value, _seconds(opts) or self.timeout
            self._keep(work)
            if self.timing:
                self.completer.add(work)
            return work

    def _blocking(self, call: Call, opts: Any, result: list[torch.Tensor], finish: Callable[[], object] | None) -> Any:
        with self.lock:
            if self._error is not None:
                raise self._error
            self.sequence += 1
            self.limit = limit = _seconds(opts) or self.timeout
            self.since = _now()
            if limit < _watch.period:
                _watch.hurry()
            code = call(None)
            self.since = 0.0
            if code:
                self._refused(code)
        if finish is not None:
            with torch.no_grad():
                finish()
        return Done(self, result) if self.observed else None

    def _began(self, given: torch.Tensor, output: torch.Tensor, place: int) -> Work:
        """The compiled module has enqueued an operation."""
        work = Work(self, (given, output), [output], None)
        work.place, work.limit = place, self.timeout
        self._keep(work)
        return work

    def _keep(self, work: Work) -> None:
        """Its tensors live until it is over, even if the caller drops the work."""
        works = self._works
        works.append(work)
        while works[0] is not work and works[0].arrived():
            done = works.popleft()
            if done._finish is None:
                done.held = None
        if work.limit < _watch.period:
            _watch.hurry()

    def _refused(self, code: int) -> None:
        self._usable()  # if this side ended it, that is the cause, and there is no communicator to ask
        try:
            fail(code, self.handle)
        except Error as error:
            raise backend_error(error) from error

    def _usable(self) -> None:
        if self._error is not None:
            raise self._error

    def _open_stream(self) -> Stream:
        self._stream = _stream()
        self.stream = self._stream.handle
        return self._stream

    def ended(self) -> BaseException | None:
        """The reason why the group was ended; None: it was not."""
        return self._error

    def failure(self) -> BaseException | None:
        """The failure of the stream's operations, or the reason why the group was ended."""
        if self._error is not None:
            return self._error
        stream = self._stream
        if stream is None:
            return None
        code = lib.hocketStreamQuery(stream.handle)
        if code in (0, IN_PROGRESS):
            return None
        try:
            fail(code, self.handle)
        except Error as error:
            return backend_error(error)

    def reach(self, work: Work, seconds: float | None) -> int:
        """Waits until the work is complete: Stream.reach()."""
        if seconds is None:
            return self.until(work.place)  # type: ignore[no-any-return]
        return self._stream.reach(work.place, seconds)  # type: ignore[arg-type, union-attr]

    def wait(self, work: Any) -> None:
        """For operations that are made of several."""
        if work is not None:
            work.wait()

    def done(self, result: list[torch.Tensor]) -> Work:
        return Done(self, result)

    def counts(self, counts: list[int], width: int = 1) -> Any:
        """For the library; elements that it has no type for count as bytes."""
        return (ctypes.c_size_t * len(counts))(*[n * width for n in counts])

    def premul(self, op: Any, dtype: DataType) -> int:
        """An operator that multiplies first; the few that exist at a time are kept."""
        factor = op.__getstate__()[1]
        number = float(factor.item() if isinstance(factor, torch.Tensor) else factor)
        if (number, dtype) not in self._ops:
            if len(self._ops) > 32:
                self.drain()
                for old in self._ops.values():
                    self.comm.free_op(old)
                self._ops.clear()
            self._ops[number, dtype] = self.comm.premul_sum(number, dtype)
        return self._ops[number, dtype]

    # ---- several as one ----

    @property
    def batching(self) -> bool:
        return self._batch is not None

    def open_batch(self) -> None:
        if self._batch is not None:
            raise RuntimeError("operations of this group are being coalesced already")
        self._batch, self._batch_parts = [], []

    def close_batch(self) -> None:
        self._batch, self._batch_parts = None, []

    def coalesced(self, opts: Any) -> Any:
        """Issues what was collected as one group of the library."""
        batch, parts = self._batch or [], self._batch_parts
        self.close_batch()
        if not batch:
            return Together(self, parts) if parts else Done(self, [])
        finishes = [finish for _, _, _, finish in batch if finish is not None]

        def call(stream: int | None) -> int:
            lib.ncclGroupStart()
            for each, _, _, _ in batch:
                code = each(stream)
                if code:
                    break
            return lib.ncclGroupEnd()

        result = [tensor for each in batch for tensor in each[2]]
        work = self.issue("coalesced", call, opts, [held for _, held, _, _ in batch], result,
                          (lambda: [finish() for finish in finishes]) if finishes else None)
        return Together(self, [work, *parts]) if parts and work is not None else work

    # ---- sends and receives ----

    def transfer(self, src: int, dst: int, tag: int, call: Callable[[int, int], int], held: Any,
                 result: list[torch.Tensor], finish: Callable[[], object] | None) -> Work:
        """A message. It must not wait for others, so each pair of ranks and each tag has a communicator of its own."""
        name = f"send {src}->{dst}" if src == self.rank else f"recv {dst}<-{src}"
        channel = self.channel(src, dst, tag)
        return self._issued(name, Work(channel, held, result, finish, src), channel, call)

    def send_self(self, tag: int, x: torch.Tensor, result: list[torch.Tensor]) -> Work:
        """A message to this rank."""
        self.channel(self.rank, self.rank, tag).send(x)  # type: ignore[union-attr]
        work = Done(self, result)
        if self._batch is not None:
            self._batch_parts.append(work)
        return work

    def channel(self, src: int, dst: int, tag: int) -> _Channel | SelfChannel:
        """For messages from one rank to another with one tag."""
        with self.lock:
            self._usable()
            found = self._channels.get((src, dst, tag))
            if found is None:
                found = SelfChannel(self, tag) if src == dst else _Channel(self, src, dst, tag)
                self._channels[src, dst, tag] = found
            return found

    def receive_any(self, tag: int, call: Callable[[int, int], int], held: Any, result: list[torch.Tensor],
                    finish: Callable[[], object] | None) -> Work:
        """A message from whichever rank sends one with this tag first."""
        with self.lock:
            self._usable()
            if tag not in self._anyone:
                self._anyone[tag] = AnySource(self, tag)
            anyone = self._anyone[tag]
        return self._issued("recvAnySource", Work(anyone, held, result, finish), anyone, call)

    def _issued(self, name: str, work: Work, queue: Any, call: Callable[[int, int], int]) -> Work:
        if profiler._is_profiler_enabled and name:
            with event(self, name, work.held, work.tensors, True):
                return self._issued("", work, queue, call)
        work.limit = self.timeout
        queue.issue(work, call)
        if self._batch is not None:
            self._batch_parts.append(work)
        return work

    # ---- barriers ----

    def monitored_barrier(self, seconds: float, all_ranks: bool) -> None:
        """Rank 0 learns of every rank through the store, and names those that do not come."""
        self._barriers += 1
        key, until = f"hocket/barrier/{self._barriers}", time.monotonic() + seconds
        if self.rank:
            self.store.set(f"{key}/{self.rank}", b"here")
            came = f"Rank {self.rank} successfully reached monitoredBarrier, but received errors while waiting for " \
                   "send/recv from rank 0. Please check rank 0 logs for faulty rank"
            self._wait_for(f"{key}/go", until, f"{came}: no word from it within {int(seconds * 1000)} ms")
            said = bytes(self.store.get(f"{key}/go")).decode()
            if said != "go":
                raise RuntimeError(f"{came}: {said}")
            return
        if seconds == 0 and self.size > 1:
            raise RuntimeError(f"Rank {self.rank} timed out in monitoredBarrier after 0 ms")
        late = []
        for rank in range(1, self.size):
            try:
                self._wait_for(f"{key}/{rank}", until, "")
            except RuntimeError:
                late.append(rank)
                if not all_ranks:
                    break
        text = f"Rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))} failed to pass monitoredBarrier in " \
               f"{int(seconds * 1000)} ms"
        self.store.set(f"{key}/go", text if late else "go")
        if late:
            raise RuntimeError(f"[Rank 0]: {text}")

    def _wait_for(self, key: str, until: float, text: str) -> None:
        try:
            self.store.wait([key], datetime.timedelta(seconds=max(until - time.monotonic(), _POLL_SECONDS)))
        except Exception as error:
            raise RuntimeError(text) from error

    # ---- the end ----

    def drain(self, seconds: float | None = None) -> bool:
        """Waits for everything under way; False: for so many seconds nothing of it was completed."""
        return all(work.arrived(seconds) for work in list(self._works)) and all(
            channel.drain(seconds) for channel in list(self._channels.values()))

    def expire(self, now: float) -> float:
        """Ends the group if an operation takes longer than its time. Gives the time at which to look again."""
        begun, next_look = [], now + self.timeout
        since, limit = self.since, self.limit
        if since:
            begun.append((since, limit))
        for works in [self._works, *(queue.works for queue in [*self._channels.values(), *self._anyone.values()])]:
            begun += [(work.born, work.limit) for work in list(works)[:1] if not work.arrived()]
        for since, limit in begun:
            if now > since + limit:
                self.timed_out = self.timed_out or self._error is None
                self.abort(f"[Rank {self.rank}] Timed out waiting {limit * 1000:g}ms: an operation of group "
                           f"{self.name!r} with {self.size} ranks was not complete: another rank has not made the "
                           "call, or is slow")
            next_look = min(next_look, since + limit)
        return next_look

    def abort(self, why: str) -> None:
        """Ends all operations; those who wait for them get an error with this text."""
        if self._error is None:
            for hook in list(self.abort_hooks.values()):
                try:
                    hook()
                except Exception:
                    traceback.print_exc()
            self._error = torch.distributed.DistBackendError(why)
        self.comm.abort()
        for channel in list(self._channels.values()):
            channel.abort()
        for window in self.windows:
            window.abort(why)

    def end(self, why: str) -> None:
        """Ends the group now, and gives back what it has. Other ranks hear of an abort if anything is under way."""
        try:
            if self._error is None and not self.since and self.drain(0.0):
                self.comm.check()
                return self.shutdown()
        except Exception:  # the communicator has failed, or a work has
            pass
        self.abort(why)
        self.shutdown()

    def shutdown(self) -> None:
        """Waits a while for what is under way, and leaves."""
        _watch.remove(self)
        engines.discard(self)
        ended = self._error is not None or not self.drain(self._patience())
        if ended:
            self.abort("the group was destroyed")
        self.completer.close()
        for anyone in self._anyone.values():
            anyone.close()
        for channel in self._channels.values():
            channel.close()
        for window in self.windows:
            window.shutdown()
        if self._stream is not None:
            lib.hocketStreamSynchronize(self._stream.handle)
        self._works.clear()  # they refer to this object, which would live, with its stream's thread, until a collection
        if self._error is None:
            self._error = torch.distributed.DistBackendError("the group was destroyed")
            try:
                self.comm.close()
            except Error as error:
                raise backend_error(error) from error

    def complete(self) -> bool:
        """At the end of the process, if the group was not destroyed: waits for what other ranks have called, too."""
        if self._foreign() or hasattr(sys, "last_type") or self.since:
            return False
        return all(work.arrived(self._patience()) for work in list(self._works)) and all(
            channel.drain(self._patience() / (1 if channel.met else 2)) for channel in list(self._channels.values()))

    def _patience(self) -> float:
        return min(self.timeout, PATIENCE_SECONDS)

    def _foreign(self) -> bool:
        """There is nothing to end: it has ended, or belongs to the process that this one was forked from."""
        return self._error is not None or os.getpid() != self._process

    def leave(self, in_peace: bool) -> None:
        """The other ranks learn of an end that is not in peace."""
        if self._foreign():
            return
        comms = [self.comm, *(channel.comm for channel in list(self._channels.values()))]
        for comm in comms:
            try:
                if comm is not None:
                    comm.close() if in_peace else comm.abort()
            except Error:  # the library has logged it, and there is no caller
                pass


class Unformed:
    """In the place of an engine as long as the group has no members: until reconfigure()."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, name: str) -> None:
        self.store, self.rank, self.size, self.timeout, self.name = store, rank, size, timeout, name
        self.observed = self.timing = self.timed_out = False
        self.abort_hooks: dict[int, Callable[[], None]] = {}
        self.sequence = 0

    def end(self, why: str) -> None:
        """There is nothing to end."""

    def shutdown(self) -> None:
        """There is nothing to end."""

    def ended(self) -> BaseException | None:
        """It never was."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the group was made with enable_reconfigure and has no members: call reconfigure() first")


class _Channel:
    """Messages from one rank to another with one tag: a communicator of these two, with a stream. It is made on a
    thread of its own when the first message is sent and received, because neither may wait for the other rank."""

    def __init__(self, engine: Engine, src: int, dst: int, tag: int) -> None:
        self.engine, self.key, self.sends = weakref.proxy(engine), f"p2p/{src}/{dst}/{tag}", src == engine.rank
        self.source = src
        self.lock, self.finishing = threading.Lock(), engine.finishing
        self.completer = Completer()
        self.comm: Communicator | None = None
        self.met = False  # the other rank has come, too
        self._stream = _stream()
        self._early: list[tuple[Work, Callable[[int, int], int]]] = []
        self._opened = threading.Event()  # early works have a place, or there is an error
        self.works: deque[Work] = deque()
        self._error: BaseException | None = None
        if not start(self._open, f"hocket {self.key}"):
            raise RuntimeError("a message cannot be sent or received at the end of the process")

    def _open(self) -> None:
        try:
            comm = Communicator.from_id(self._id(), int(not self.sends), 2)
        except BaseException as error:
            with self.lock:
                self._error = self._error or backend_error(error)
                self._opened.set()
            return
        with self.lock:
            self.comm = comm
            for work, call in self._early:
                self._enqueue(work, call)
            self._early.clear()
            self._opened.set()
            if self._error is not None:
                comm.abort()

    def _id(self) -> bytes:
        """The receiver asks for an id, the sender makes one. The store is polled, because its other users must not wait
        as long as the other rank takes."""
        store, mine, theirs = self.engine.store, f"hocket/{self.key}/id", f"hocket/{self.key}/wanted"
        awaited, pause = theirs if self.sends else mine, _POLL_SECONDS / 10
        if not self.sends:
            with gate:
                store.set(theirs, b"1")
        while True:
            if self._error is not None:
                raise self._error
            with gate:
                if store.check([awaited]):
                    self.met = True
                    break
            time.sleep(pause)
            pause = min(2 * pause, 20 * _POLL_SECONDS)
        with gate:
            if not self.sends:
                return bytes(store.get(mine))
            made = unique_id()
            store.set(mine, made)
        return made

    def issue(self, work: Work, call: Callable[[int, int], int]) -> None:
        with self.lock:
            if self._error is not None:
                raise self._error
            if self.comm is None:
                self._early.append((work, call))
            else:
                self._enqueue(work, call)
            self.works.append(work)
            while len(self.works) > 1 and self.works[0].arrived():
                self.works.popleft()

    def waits(self) -> bool:
        """A message has come that no earlier receive takes."""
        found = c_int()
        with self.lock:
            if self.comm is None or self._error is not None or any(not work.arrived() for work in self.works):
                return False
            code = quick.hocketCommProbe(self.comm.handle, 0, byref(found))  # the sender is rank 0 of the two
            if code:
                self._error = self._failed(code)
        return bool(found.value)

    def _enqueue(self, work: Work, call: Callable[[int, int], int]) -> None:
        assert self.comm is not None
        if call(self.comm.handle, self._stream.handle):
            self._error = self._error or self._failed(1)
            return
        work.place = self._stream.position()

    def _failed(self, code: int) -> BaseException | None:
        try:
            fail(code, self.comm.handle if self.comm else None)
        except Error as error:
            return backend_error(error)

    def reach(self, work: Work, seconds: float | None) -> int:
        """As Engine.reach()."""
        if work.place is None and not self._opened.wait(seconds):
            return IN_PROGRESS
        return self._stream.reach(work.place, seconds) if work.place is not None else NOT_ENQUEUED

    def failure(self) -> BaseException | None:
        """As Engine.failure()."""
        code = lib.hocketStreamQuery(self._stream.handle)
        return self._error or (None if code in (0, IN_PROGRESS) else self._failed(code))

    def drain(self, seconds: float | None) -> bool:
        return all(work.arrived(seconds) for work in list(self.works))

    def abort(self) -> None:
        with self.lock:
            self._error = self._error or torch.distributed.DistBackendError("the group was ended")
            self._early.clear()
            self._opened.set()
            if self.comm is not None:
                self.comm.abort()

    def close(self) -> None:
        self.completer.close()
        lib.hocketStreamSynchronize(self._stream.handle)
        self.works.clear()
        with self.lock:
            if self.comm is None:  # its thread is still asking the store
                self._error = self._error or torch.distributed.DistBackendError("the group was destroyed")
        if self.comm is not None:
            self.comm.close()


class _Watch:
    """A thread that looks for operations that take longer than their time."""

    def __init__(self) -> None:
        self.period = 3600.0
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, engine: Engine) -> None:
        with self._wake:
            self._engines.add(engine)
            self.period = min(self.period, engine.timeout)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hocket timeouts", daemon=True)
                self._thread.start()
            self._wake.notify()

    def remove(self, engine: Engine) -> None:
        with self._wake:
            self._engines.discard(engine)

    def hurry(self) -> None:
        """An operation with less time than the others' begins."""
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            with self._wake:
                engines = list(self._engines)
            look = now + 60
            for engine in engines:
                look = min(look, engine.expire(now))
            engines, engine = [], None  # they may end while this thread sleeps
            with self._wake:
                self._wake.wait(min(max(look - time.monotonic(), 0.01), 60) + 0.005)


_watch = _Watch()


def _stream() -> Stream:
    """One that is not destroyed at the end of the process, where threads may still wait for its operations."""
    made = Stream()
    made._end.atexit = False
    return made


def _seconds(opts: Any) -> float | None:
    """The time that a call was given; None: the group's."""
    timeout = getattr(opts, "timeout", None)
    if timeout == UNSET:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else -1.0
    return seconds if seconds > 0 else None
