# SPDX-License-Identifier: Apache-2.0
"""Writes programs: algorithms of collectives that the library proves, prices, simulates and runs.

A script says, for all ranks at once, where chunks of the message go and which are added:

    from hocket.program import Program, chunk

    n = 4
    with Program("AllReduce", "my-ring", ranks=n, chunks=n) as ring:
        for i in range(n):
            for step in range(1, n):
                chunk((i + step) % n, "input", i).reduce(chunk((i + step - 1) % n, "input", i))
            for step in range(n, 2 * n - 1):
                chunk((i + step - 1) % n, "input", i).copy((i + step) % n)
    ring.write("my-ring.json")

The script's order is one in which the program could run; the ranks' instructions are made from it, with as much at the
same time as it allows. `hocket program check my-ring.json` proves the result. docs/programs.md is a tutorial.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, NamedTuple

from . import _steps
from ._steps import Message, Operand, Place, Rank, Step

__all__ = ["Buffer", "Chunk", "Program", "ProgramError", "chunk"]


class ProgramError(ValueError):
    """A script moves or adds what it cannot, or does not do what the collective is. The text names rank and chunk."""


class Buffer:
    """The names of a rank's buffers. Every other name is a buffer of scratch memory, as long as the script needs."""

    input = "input"
    output = "output"
    scratch = "scratch"


class _Collective(NamedTuple):
    """A row of src/program/coll.def."""

    reduces: bool = False
    has_root: bool = False
    whole: bool = False  #: a block is a whole message; else one message is split
    in_each: bool = False  #: the input has a message for each rank
    out_each: bool = False
    in_root: bool = False  #: only the root has an input
    out_root: bool = False


_COLLECTIVES = {
    "AllReduce": _Collective(reduces=True),
    "Broadcast": _Collective(has_root=True, in_root=True),
    "Reduce": _Collective(reduces=True, has_root=True, out_root=True),
    "AllGather": _Collective(whole=True, out_each=True),
    "ReduceScatter": _Collective(reduces=True, whole=True, in_each=True),
    "AlltoAll": _Collective(whole=True, in_each=True, out_each=True),
    "Gather": _Collective(has_root=True, whole=True, out_each=True, out_root=True),
    "Scatter": _Collective(has_root=True, whole=True, in_each=True, in_root=True),
}


class _Value(NamedTuple):
    """What a place holds: a chunk of the message, summed over a set of ranks."""

    chunk: int  #: of the message; if each rank has its own message: rank * (chunks of an input) + chunk
    ranks: int  #: a bit for each rank whose part is in it


class _Memory:
    """What the memory of a rank holds during the trace."""

    def __init__(self) -> None:
        self.input: list[_Value] = []
        self.output: dict[int, _Value] = {}
        self.scratch: dict[Place, _Value] = {}
        self.lengths: dict[str, int] = {}  # of scratch buffers


class Chunk:
    """`count` chunks of a buffer of a rank, one after another, as they are now."""

    def __init__(self, program: Program, rank: int, buffer: str, index: int, count: int = 1) -> None:
        self._program, self.rank, self.buffer, self.index, self.count = program, rank, buffer, index, count

    def copy(self, rank: int, buffer: str | None = None, index: int | None = None,
             ch: int | None = None) -> Chunk:
        """Copies them to a rank, over channel `ch` (0 to 7; 0). Returns them there. Without `buffer`: to the same place
        of that rank. Without `index`: to the same index, or behind what a buffer of scratch memory holds."""
        to = self._program._memory(rank)
        if index is None:
            scratch = buffer is not None and buffer not in (Buffer.input, Buffer.output)
            index = to.lengths.get(buffer or "", 0) if scratch else self.index
        there = Chunk(self._program, rank, buffer or self.buffer, index, self.count)
        for k in range(self.count):
            self._program._copy(self, there, k, ch)
        return there

    def reduce(self, other: Chunk, ch: int | None = None) -> Chunk:
        """Adds `other` to them. If it is on another rank, it is sent from there, over channel `ch`."""
        if other.count != self.count:
            raise ProgramError(f"{other} has {other.count} chunks, and {self} has {self.count}")
        for k in range(self.count):
            self._program._reduce(self, other, k, ch)
        return self

    def split(self, parts: int) -> list[Chunk]:
        """The same chunks in `parts` equal parts."""
        if parts < 1 or self.count % parts:
            raise ProgramError(f"{self} cannot be split into {parts} equal parts")
        n = self.count // parts
        return [Chunk(self._program, self.rank, self.buffer, self.index + k * n, n) for k in range(parts)]

    def group(self, other: Chunk) -> Chunk:
        """These and those that follow at once, as one."""
        if (other.rank, other.buffer, other.index) != (self.rank, self.buffer, self.index + self.count):
            raise ProgramError(f"{other} does not follow {self}")
        return Chunk(self._program, self.rank, self.buffer, self.index, self.count + other.count)

    def get_dst_rank(self) -> int:
        """The rank whose output should hold them, if it is one."""
        return self._program._target(self)[0]

    def get_dst_index(self) -> int:
        """Their index in the output that should hold them."""
        return self._program._target(self)[1]

    def __str__(self) -> str:
        which = f"chunk {self.index}" if self.count == 1 else f"chunks {self.index} to {self.index + self.count - 1}"
        return f"{which} of {self.buffer!r} of rank {self.rank}"


class Program:
    """An algorithm of a collective for a number of ranks.

    `chunks`: into how many an allreduce's, broadcast's or reduce's message is split; in all other collectives, how many
    each rank's message has, so that the input of an alltoall has `ranks * chunks`. A program runs in calls in place,
    too, so input and output chunks that such a call has at one address are one chunk here. `min_bytes`, `max_bytes`:
    sizes of the larger buffer of a rank for which it is chosen by itself."""

    _open: list[Program] = []

    def __init__(self, collective: str, name: str, ranks: int, chunks: int = 1, *, root: int = 0,
                 min_bytes: int | None = None, max_bytes: int | None = None) -> None:
        names = {known.lower(): known for known in _COLLECTIVES}
        if collective.lower() not in names:
            raise ProgramError(f"there is no collective {collective!r}; there are {', '.join(_COLLECTIVES)}")
        if not re.fullmatch(r"[A-Za-z0-9_\-+.]{1,23}", name):
            raise ProgramError(f"the name {name!r} must have 1 to 23 letters, digits, and characters of _-+.")
        if ranks < 2 or chunks < 1 or not 0 <= root < ranks:
            raise ProgramError(f"no program has {ranks} ranks, {chunks} chunks, and root {root}")
        self.collective, self.name, self.ranks, self.chunks, self.root = (
            names[collective.lower()], name, ranks, chunks, root)
        self.min_bytes, self.max_bytes = min_bytes, max_bytes
        self._is = _COLLECTIVES[self.collective]
        self._inputs = chunks * (ranks if self._is.in_each else 1)
        self._outputs = chunks * (ranks if self._is.out_each else 1)
        self._trace: list[list[Step]] = [[] for _ in range(ranks)]
        self._ranks = [_Memory() for _ in range(ranks)]
        for rank, memory in enumerate(self._ranks):
            if not self._is.in_root or rank == root:
                memory.input = [self._input(rank, k) for k in range(self._inputs)]
        self._messages = 0
        self._plan: _steps.Plan | None = None

    # ---- the language ----

    def __enter__(self) -> Program:
        Program._open.append(self)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        Program._open.remove(self)
        if not kind:
            self._finish()

    def chunk(self, rank: int, buffer: str, index: int = 0, count: int = 1) -> Chunk:
        """`count` chunks of a buffer of a rank, from `index` on. They must hold data."""
        found = Chunk(self, rank, buffer, index, count)
        if count < 1 or index < 0:
            raise ProgramError(f"there is no chunk {index} with count {count}")
        for k in range(count):
            self._read(found, k)
        return found

    # ---- what collectives are ----

    def _input(self, rank: int, index: int) -> _Value:
        shared = self._is.reduces or not self._is.whole
        return _Value(index if shared else rank * self._inputs + index, 1 << rank)

    def _alias(self, rank: int, index: int) -> int | None:
        """In place, the output chunk that is the same memory as an input chunk."""
        message, part = divmod(index, self.chunks)
        if self.collective == "AllReduce":
            return index
        if self.collective in ("Broadcast", "Reduce"):
            return index if rank == self.root else None
        if self.collective == "AllGather" or (self.collective == "Gather" and rank == self.root):
            return rank * self.chunks + part
        if self.collective == "ReduceScatter":
            return part if message == rank else None
        return part if self.collective == "Scatter" and rank == self.root == message else None

    def _aliased(self, rank: int, index: int) -> int | None:
        """The input chunk that is the same memory as an output chunk."""
        part = index % self.chunks
        candidate = rank * self.chunks + part if self._is.in_each else part if self._is.out_each else index
        return candidate if self._ranks[rank].input and self._alias(rank, candidate) == index else None

    def _result(self, rank: int, index: int) -> _Value:
        """What an output chunk must hold in the end."""
        message, part = divmod(index, self.chunks)
        if self._is.reduces:
            return _Value(rank * self.chunks + part if self._is.whole else index, (1 << self.ranks) - 1)
        if not self._is.whole:
            return _Value(index, 1 << self.root)
        sender = message if self._is.out_each else self.root
        return self._input(sender, (rank if self._is.in_each else 0) * self.chunks + part)

    def _has_output(self, rank: int) -> bool:
        return not self._is.out_root or rank == self.root

    def _target(self, c: Chunk) -> tuple[int, int]:
        value, _ = self._read(c, 0)
        if self._is.reduces and self._is.whole:
            return value.chunk // self.chunks, value.chunk % self.chunks
        if not self._is.whole:
            return c.rank, value.chunk
        sender, index = divmod(value.chunk, self._inputs)
        message, part = divmod(index, self.chunks)
        return (message if self._is.in_each else c.rank), (sender * self.chunks if self._is.out_each else 0) + part

    # ---- memory ----

    def _memory(self, rank: int) -> _Memory:
        if not 0 <= rank < self.ranks:
            raise ProgramError(f"there is no rank {rank}: the program has {self.ranks}")
        return self._ranks[rank]

    def _check_index(self, c: Chunk, index: int) -> None:
        length = {Buffer.input: self._inputs, Buffer.output: self._outputs}.get(c.buffer)
        if length is not None and not 0 <= index < length:
            raise ProgramError(f"{c}: the buffer has {length} chunks")

    def _read(self, c: Chunk, k: int) -> tuple[_Value, Place]:
        """What chunk k of them holds, and where it is."""
        memory, index = self._memory(c.rank), c.index + k
        self._check_index(c, index)
        place = self._place(c.rank, c.buffer, index)
        if place.space == "out":
            index, value = place.block, memory.output.get(place.block)
            source = self._aliased(c.rank, index) if value is None else None
            return (self._held(c, value), place) if source is None else (memory.input[source], Place("in", source))
        if c.buffer == Buffer.input and place not in memory.scratch:
            return self._held(c, memory.input[index] if memory.input else None), Place("in", index)
        return self._held(c, memory.scratch.get(place)), place

    def _place(self, rank: int, buffer: str, index: int) -> Place:
        """Where a script writes such a chunk. Programs only read the input: it is the output, or scratch memory."""
        alias = self._alias(rank, index) if buffer == Buffer.input else index if buffer == Buffer.output else None
        return Place(f"scratch {buffer}", index) if alias is None or not self._has_output(rank) else Place("out", alias)

    @staticmethod
    def _held(c: Chunk, value: _Value | None) -> _Value:
        if value is None:
            raise ProgramError(f"{c} holds nothing yet")
        return value

    def _write(self, c: Chunk, k: int, value: _Value) -> Place:
        memory, index = self._memory(c.rank), c.index + k
        self._check_index(c, index)
        place = self._place(c.rank, c.buffer, index)
        if place.space != "out":
            memory.scratch[place] = value
            memory.lengths[c.buffer] = max(memory.lengths.get(c.buffer, 0), index + 1)
            return place
        parts = self.chunks
        if value.chunk % parts != place.block % parts:
            raise ProgramError(f"{c} would get chunk {value.chunk % parts} of a message, and it is the place of chunk "
                               f"{place.block % parts}")
        memory.output[place.block] = value
        return place

    # ---- steps ----

    def _add(self, rank: int, ch: int | None, to: list[Operand], sources: list[Operand],
             final: bool = False) -> None:
        self._plan = None
        if ch is None:  # in the lane that made what it moves
            ch = 0
            for step in reversed(self._trace[rank]):
                if any(o in step.to for o in to + sources if isinstance(o, Place)):
                    ch = step.channel
                    break
        self._trace[rank].append(Step(rank, ch, to, sources, final))

    def _send(self, source: Chunk, at: Place, value: _Value, rank: int, ch: int | None) -> Message:
        ch = ch or 0
        if not 0 <= ch < _steps.CHANNELS:
            raise ProgramError(f"{source} cannot go over channel {ch}: two ranks have {_steps.CHANNELS}, from 0 on")
        message = Message(source.rank, rank, ch, value.chunk % max(self._inputs, self._outputs), self._messages)
        self._messages += 1
        self._add(source.rank, ch, [message], [at])
        return message

    def _copy(self, source: Chunk, to: Chunk, k: int, ch: int | None) -> None:
        value, at = self._read(source, k)
        if source.rank != to.rank:
            message = self._send(source, at, value, to.rank, ch)
            self._add(to.rank, message.channel, [self._write(to, k, value)], [message])
            return
        place = self._write(to, k, value)
        if place != at:
            self._add(to.rank, ch, [place], [at])

    def _reduce(self, to: Chunk, other: Chunk, k: int, ch: int | None) -> None:
        if not self._is.reduces:
            raise ProgramError(f"{other} cannot be added to {to}: {self.collective} only copies")
        value, at = self._read(to, k)
        added, there = self._read(other, k)
        if added.chunk != value.chunk:
            raise ProgramError(f"{other} is chunk {added.chunk} of the message, and cannot be added to {to}, which is "
                               f"chunk {value.chunk}")
        both = added.ranks & value.ranks
        if both:
            raise ProgramError(f"{other} has the part of rank {both.bit_length() - 1}, which {to} has already")
        total = _Value(value.chunk, value.ranks | added.ranks)
        final = total.ranks == (1 << self.ranks) - 1
        source: Operand = there
        if other.rank != to.rank:
            source = self._send(other, there, added, to.rank, ch)
            ch = source.channel
        self._add(to.rank, ch, [self._write(to, k, total)], [at, source], final)

    # ---- the result ----

    def _finish(self) -> _steps.Plan:
        """Checks the outputs, and makes the ranks' instructions."""
        if self._plan:
            return self._plan
        trace = [list(steps) for steps in self._trace]
        for rank in range(self.ranks):
            for index in range(self._outputs if self._has_output(rank) else 0):
                self._check_output(rank, index, trace[rank])

        def ranks() -> list[Rank]:
            def alias(rank: int, place: Place) -> Place:
                there = self._alias(rank, place.block) if place.space == "in" else None
                return place if there is None else Place("out", there)

            return [Rank(rank, [Step(s.rank, s.channel, list(s.to), list(s.sources), s.final) for s in steps],
                         lambda place, rank=rank: alias(rank, place))  # type: ignore[misc]
                    for rank, steps in enumerate(trace)]

        self._plan = _steps.plan(ranks, self._is.reduces)
        for step in self._plan.steps:
            operands = step.to + step.sources
            if all(isinstance(o, Place) and o.is_scratch() for o in operands):
                names = " and ".join(sorted({repr(o.space) for o in operands if isinstance(o, Place)}))
                raise ProgramError(f"rank {step.rank} moves data in {names} alone: use the input, the "
                                   "output or another rank's data")
        return self._plan

    def _check_output(self, rank: int, index: int, steps: list[Step]) -> None:
        value, must = self._ranks[rank].output.get(index), self._result(rank, index)
        where = f"in the end chunk {index} of the output of rank {rank}"
        if value is None:
            source = self._aliased(rank, index)
            if source is None:
                raise ProgramError(f"{where} holds nothing")
            value = self._ranks[rank].input[source]
            steps.append(Step(rank, 0, [Place("out", index)], [Place("in", source)]))  # for calls out of place
        if value == must:
            return
        lacks = must.ranks & ~value.ranks
        if self._is.reduces and value.chunk == must.chunk:
            raise ProgramError(f"{where} lacks the part of rank {(lacks & -lacks).bit_length() - 1}")
        owner = "" if self._is.reduces else f" of rank {value.ranks.bit_length() - 1}"
        raise ProgramError(f"{where} holds chunk {value.chunk % self._inputs}{owner}")

    @staticmethod
    def _buffers(steps: list[Step]) -> tuple[dict[Place, int], dict[int, int], int]:
        """The lane's scratch buffers: by place, by the step that needs one more, and how many. A buffer is free again
        after the last use of its place."""
        last: dict[Place, int] = {}
        for at, step in enumerate(steps):
            last.update((o, at) for o in step.to + step.sources if isinstance(o, Place) and o.is_scratch())
        numbers: dict[Place, int] = {}
        extra: dict[int, int] = {}
        free: list[int] = []
        count = 0
        for at, step in enumerate(steps):
            new = [o for o in step.to if isinstance(o, Place) and o in last and o not in numbers]
            while len(free) < len(new) + step.settle:
                free.append(count)
                count += 1
            free.sort()
            for place in new:
                numbers[place] = free.pop(0)
            if step.settle:
                extra[at] = free[0]
            free += [numbers[o] for o in {*step.to, *step.sources} if isinstance(o, Place) and last.get(o) == at]
        return numbers, extra, count

    def _lane(self, steps: list[Step]) -> tuple[list[Message], list[dict[str, Any]], int]:
        """A lane's messages, one for each link, its instructions with links by index, and how many scratch buffers."""
        links: list[Message] = []
        numbers: dict[tuple[bool, int, int], int] = {}
        buffers, extra, count = self._buffers(steps)
        instructions = []

        def operand(rank: int, o: Operand) -> dict[str, Any]:
            if isinstance(o, Place):
                scratch = o in buffers
                return {"space": "scratch" if scratch else o.space, "block": buffers[o] if scratch else o.block}
            sends = o.sender == rank
            key = (sends, o.receiver if sends else o.sender, o.channel)
            if key not in numbers:
                numbers[key] = len(links)
                links.append(o)
            return {"space": "send" if sends else "recv", "link": numbers[key], "block": o.block}

        for at, step in enumerate(steps):
            instruction: dict[str, Any] = {"to": [operand(step.rank, o) for o in step.to],
                                           "from": [operand(step.rank, o) for o in step.sources]}
            if at in extra:  # an instruction that also stores to scratch memory waits for its turn
                instruction["to"].append({"space": "scratch", "block": extra[at]})
            if step.final:
                instruction["final"] = True
            if step.copy:
                instruction["copy"] = True
            instructions.append(instruction)
        return links, instructions, count

    def programs(self) -> list[dict[str, Any]]:
        """Each rank's program, as `hocket plan --program --json` writes them."""
        plan = self._finish()
        lanes: list[dict[int, list[Step]]] = [{} for _ in range(self.ranks)]
        for step in plan.steps:
            lanes[step.rank].setdefault(plan.group_of(step.rank, step.channel), []).append(step)
        made: list[dict[str, Any]] = []
        scratch = 0
        for rank in range(self.ranks):
            links: list[dict[str, Any]] = []
            instructions = []
            for number, channel in enumerate(sorted(lanes[rank])):
                ends, lane, count = self._lane(lanes[rank][channel])
                scratch = max(scratch, count)
                for instruction in lane:
                    for o in instruction["to"] + instruction["from"]:
                        if "link" in o:
                            o["link"] += len(links)
                instructions.append(lane)
                links += [{"kind": "send" if m.sender == rank else "recv",
                           "peer": m.receiver if m.sender == rank else m.sender, "lane": number, "channel": m.channel}
                          for m in ends]
            made.append({
                "collective": self.collective, "algorithm": self.name, "rank": rank, "ranks": self.ranks,
                "root": self.root, "split": not self._is.whole, "blocks": {}, "links": links, "lanes": instructions})
        for program in made:
            program["blocks"] = {"in": self._inputs, "out": self._outputs, "scratch": scratch}
        return made

    def json(self) -> str:
        """The file that `hocket program`, `HOCKET_PROGRAMS` and `hocketCommLoadProgram` read."""
        head: dict[str, Any] = {"hocket": 1}
        if self.min_bytes is not None:
            head["min_bytes"] = self.min_bytes
        if self.max_bytes is not None:
            head["max_bytes"] = self.max_bytes
        lines = [json.dumps(program, separators=(",", ":")) for program in self.programs()]
        return json.dumps(head)[:-1] + ', "programs": [\n' + ",\n".join(lines) + "\n]}\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.json())

    def check(self) -> str:
        """Proves the program by the command `hocket`, and returns its verdict. Raises ProgramError if it is rejected,
        FileNotFoundError if there is no such command."""
        command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "hocket")
        found = command if os.path.exists(command) else shutil.which("hocket")
        if not found:
            raise FileNotFoundError("there is no command hocket: install the wheel, or run `make python`")
        ran = subprocess.run([found, "program", "check", "-"], input=self.json(), text=True, capture_output=True,
                             check=False)
        if ran.returncode:
            raise ProgramError(ran.stdout + ran.stderr)
        return ran.stdout.strip()


def chunk(rank: int, buffer: str, index: int = 0, count: int = 1) -> Chunk:
    """`Program.chunk` of the program whose `with` block this is in."""
    if not Program._open:
        raise ProgramError("chunk() works inside `with Program(...):`")
    return Program._open[-1].chunk(rank, buffer, index, count)
