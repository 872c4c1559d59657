# SPDX-License-Identifier: Apache-2.0
"""From a traced program (program.py) to each rank's lanes of instructions.

The trace is one serial order of copies and sums in which each message is sent and received at once. Four passes merge
steps of a rank: what is received and added once is added where it arrives, successive sums become one, what is copied
or sent on goes out with the step that made it, and what nobody reads is not stored. Then all steps of all ranks get one
order in which they can run with few slots a link. Every lane keeps it, so no lane can wait for ever.
"""
from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Callable, NamedTuple, Union

SOURCES = 16  #: of a sum
DESTINATIONS = 16
CHANNELS = 8  #: of links between two ranks
SLOTS = (2, 4, 8)  #: of a link; fewer are tried first
MESSAGE_TAKES = 4  #: as long as so many steps


class Place(NamedTuple):
    """Memory of a rank for one chunk."""

    space: str  #: "in", "out", or a name of scratch memory
    block: int

    def is_scratch(self) -> bool:
        return self.space not in ("in", "out")


Link = tuple[int, int, int]  # the sender, the receiver, the channel


class Message:
    """A chunk on its way from one rank to another."""

    __slots__ = ("sender", "receiver", "channel", "block", "number", "sent", "received")

    def __init__(self, sender: int, receiver: int, channel: int, block: int, number: int) -> None:
        self.sender, self.receiver, self.channel, self.block, self.number = sender, receiver, channel, block, number
        self.sent: Step | None = None
        self.received: Step | None = None

    def link(self) -> Link:
        return self.sender, self.receiver, self.channel


Operand = Union[Place, Message]
End = tuple[str, int, int]  # of a link: "to" or "from", the peer, the channel
Key = Union[Place, End]


class Step:
    """One instruction of a rank: destinations <- the sum of sources."""

    __slots__ = ("rank", "channel", "to", "sources", "final", "copy", "settle", "at", "lane", "event", "clock", "begin")

    def __init__(self, rank: int, channel: int, to: list[Operand], sources: list[Operand], final: bool = False) -> None:
        self.rank, self.channel, self.to, self.sources, self.final = rank, channel, to, sources, final
        self.copy = False  #: links carry copies
        self.settle = False  #: what it receives must not land in the output before its turn
        self.at = self.lane = self.event = 0
        self.clock: list[int] = []
        self.begin: list[int] = []  #: `clock` without what the step itself receives

    def messages(self) -> list[Message]:
        return [o for o in self.to + self.sources if isinstance(o, Message)]


class Rank:
    """The steps of a rank, and where each place and each end of a link is used."""

    def __init__(self, rank: int, steps: list[Step], key_of: Callable[[Place], Place]) -> None:
        self.rank, self.key_of = rank, key_of
        self.steps: list[Step | None] = list(steps)
        self.keeps_order = True  #: of the messages of a link
        self.uses: dict[Key, list[int]] = {}
        self.writes: dict[Key, list[int]] = {}
        for at, step in enumerate(steps):
            self._enter(at, step)

    def keys(self, operands: list[Operand]) -> list[Key]:
        """What the operands use: a place (in place, an input chunk is an output chunk), or an end of a link."""
        return [self.key_of(o) if isinstance(o, Place) else self._end(o) for o in operands]

    def _end(self, m: Message) -> End:
        return ("to", m.receiver, m.channel) if m.sender == self.rank else ("from", m.sender, m.channel)

    def _enter(self, at: int, step: Step) -> None:
        written = set(self.keys(step.to))
        for key in written | set(self.keys(step.sources)):
            insort(self.uses.setdefault(key, []), at)
        for key in written:
            insort(self.writes.setdefault(key, []), at)

    def _leave(self, at: int, step: Step) -> None:
        written = set(self.keys(step.to))
        for key in written | set(self.keys(step.sources)):
            self.uses[key].remove(at)
        for key in written:
            self.writes[key].remove(at)

    def replace(self, at: int, to: list[Operand], sources: list[Operand]) -> None:
        step = self.steps[at]
        assert step is not None
        self._leave(at, step)
        step.to, step.sources = to, sources
        self._enter(at, step)

    def remove(self, at: int) -> None:
        step = self.steps[at]
        assert step is not None
        self._leave(at, step)
        self.steps[at] = None

    def used(self, key: Key, after: int, until: int) -> bool:
        """True if a step from after + 1 to until - 1 uses it, in a way that matters."""
        if not self.keeps_order and not isinstance(key, Place):
            return False
        uses = self.uses.get(key, [])
        k = bisect_right(uses, after)
        return k < len(uses) and uses[k] < until

    def written(self, key: Key, after: int, until: int) -> bool:
        writes = self.writes.get(key, [])
        k = bisect_right(writes, after)
        return k < len(writes) and writes[k] < until

    def last(self, where: dict[Key, list[int]], key: Key, before: int) -> int:
        """The last position before `before`; -1: none."""
        found = where.get(key, [])
        k = bisect_left(found, before)
        return found[k - 1] if k else -1

    def next(self, key: Key, after: int) -> int:
        """The next use; -1: none."""
        uses = self.uses.get(key, [])
        k = bisect_right(uses, after)
        return uses[k] if k < len(uses) else -1

    # ---- the passes ----

    def add_where_it_arrives(self) -> None:
        """[s] <- link; [q] <- q + [s] becomes [q] <- q + link, if nothing else reads s."""
        for at in range(len(self.steps) - 1, -1, -1):
            step = self.steps[at]
            if not step or len(step.sources) > 1 or not isinstance(step.sources[0], Message) or len(step.to) > 1:
                continue
            place, came = step.to[0], step.sources[0]
            if not isinstance(place, Place) or not place.is_scratch():
                continue
            use = self.next(place, at)
            user = self.steps[use] if use >= 0 else None
            if not user or len(user.sources) < 2 or place not in user.sources:
                continue
            again = self.next(place, use)
            if place not in user.to and again >= 0 and place in self._read_at(again):
                continue
            if self.used(self._end(came), at, use + 1) or self._end(came) in self.keys(user.sources):
                continue
            self.remove(at)
            self.replace(use, user.to, [came if o == place else o for o in user.sources])

    def _read_at(self, at: int) -> list[Key]:
        step = self.steps[at]
        return self.keys(step.sources) if step else []

    def join_sums(self) -> None:
        """[q] <- x + y; [q] <- [q] + z becomes [q] <- x + y + z, at either place."""
        for at, step in enumerate(self.steps):
            if not step or len(step.to) > 1 or len(step.sources) < 2 or step.sources[0] != step.to[0]:
                continue
            key = self.keys(step.to)[0]
            before = self.last(self.uses, key, at)
            first = self.steps[before] if before >= 0 else None
            if not first or first.to != step.to or first.final or first.channel != step.channel:
                continue
            old, new = first.sources, step.sources[1:]
            inputs = [o for o in old + new if isinstance(o, Place) and o.space == "in"]
            ends = self.keys([o for o in old + new if isinstance(o, Message)])
            if len(old) + len(new) > SOURCES or len(inputs) > 1 or len(set(ends)) < len(ends):
                continue
            if self._free(old, before, at, before, at + 1):
                self.remove(before)
                self.replace(at, step.to, old + new)
            elif self._free(new, before, at, before - 1, at):
                final = step.final
                self.remove(at)
                self.replace(before, first.to, old + new)
                first.final = final

    def _free(self, moved: list[Operand], before: int, at: int, low: int, high: int) -> bool:
        """True if sources may move between the steps `before` and `at`; link ends: none used in low + 1 .. high - 1."""
        for o, key in zip(moved, self.keys(moved)):
            if self.written(key, before, at) if isinstance(o, Place) else self.used(key, low, high):
                return False
        return True

    def send_at_once(self) -> None:
        """A copy of what an earlier step made is another destination of that step."""
        for at, step in enumerate(self.steps):
            if not step or len(step.sources) > 1 or not isinstance(step.sources[0], Place):
                continue
            source, key = step.sources[0], self.keys(step.sources)[0]
            before = self.last(self.writes, key, at)
            if source.space == "in":
                if before >= 0:
                    continue
                before = self.last(self.uses, key, at)
            maker = self.steps[before] if before >= 0 else None
            if not maker or before == at:
                continue
            if source.space == "in":
                if maker.sources != [source] or maker.channel != step.channel:
                    continue
            elif source not in maker.to:
                continue
            used = set(self.keys(maker.to + maker.sources))
            if len(maker.to) + len(step.to) > DESTINATIONS or any(
                    k in used or self.used(k, before, at) for k in self.keys(step.to)):
                continue
            self.remove(at)
            self.replace(before, maker.to + step.to, maker.sources)

    def store_no_waste(self) -> None:
        """What is overwritten, or scratch memory that ends, before anyone reads it is not stored."""
        for at in range(len(self.steps) - 1, -1, -1):
            step = self.steps[at]
            if not step:
                continue
            kept: list[Operand] = []
            for o, key in zip(step.to, self.keys(step.to)):
                use = self.next(key, at)
                if isinstance(o, Message) or (use >= 0 and key in self._read_at(use)) or (use < 0 and o.space == "out"):
                    kept.append(o)
            if kept and len(kept) < len(step.to):
                self.replace(at, kept, step.sources)
            elif not kept and not any(isinstance(o, Message) for o in step.sources):
                self.remove(at)


class Plan:
    """All steps of all ranks, in lanes. A link has `slots` slots."""

    def __init__(self, ranks: list[Rank], reduces: bool, slots: int) -> None:
        self.ranks, self.reduces, self.slots = ranks, reduces, slots
        self.steps = [s for rank in ranks for s in rank.steps if s]
        for at, step in enumerate(self.steps):
            step.at, step.copy, step.settle = at, False, False
            for o in step.to:
                if isinstance(o, Message):
                    o.sent = step
            for o in step.sources:
                if isinstance(o, Message):
                    o.received = step
        self.group = [list(range(CHANNELS)) for _ in ranks]  # of channels that are one lane
        self.after: list[list[tuple[int, int]]] = [[] for _ in self.steps]  # steps that come later, and by how much
        for rank in ranks:
            self._order_rank(rank)
        for message in self._messages():
            assert message.sent and message.received
            self.after[message.sent.at].append((message.received.at, MESSAGE_TAKES))

    # ---- what must come before what ----

    def _order_rank(self, rank: Rank) -> None:
        for key, uses in rank.uses.items():
            if not isinstance(key, Place):
                continue
            writer: Step | None = None
            readers: list[Step] = []
            writes = set(rank.writes.get(key, []))
            for at in uses:
                step = rank.steps[at]
                assert step is not None
                if writer:
                    self.after[writer.at].append((step.at, 1))
                    if key.is_scratch():
                        self.tie(writer, step)
                if at in writes:
                    for reader in readers:
                        self.after[reader.at].append((step.at, 1))
                    writer, readers = step, []
                else:
                    readers.append(step)
        for step in rank.steps:
            if step:
                for m in step.messages():
                    self.group_of(step.rank, m.channel, step.channel)

    def group_of(self, rank: int, channel: int, also: int | None = None) -> int:
        """The lane's first channel; `also`: another channel that becomes the same lane."""
        group = self.group[rank]
        if also is not None and group[also] != group[channel]:
            low, high = sorted((group[also], group[channel]))
            self.group[rank] = group = [low if g == high else g for g in group]
        return group[channel]

    def tie(self, a: Step, b: Step) -> None:
        self.group_of(a.rank, a.channel, b.channel)

    def _messages(self) -> list[Message]:
        return [o for step in self.steps for o in step.to if isinstance(o, Message)]

    def order_links(self, order: str) -> bool:
        """Each link gets an order of its messages: the trace's, that in which they are "ready", or in which "slots"
        are free for them. False: none can be."""
        keeps = order == "trace"
        if not keeps and not self.schedule(limited=order == "slots"):
            return False
        links: dict[Link, list[Message]] = {}
        for m in sorted(self._messages(), key=lambda m: m.number) if keeps else self._messages():
            links.setdefault(m.link(), []).append(m)
        for line in links.values():
            for one, next_one in zip(line, line[1:]):
                assert one.sent and one.received and next_one.sent and next_one.received
                self.after[one.sent.at].append((next_one.sent.at, 1))
                self.after[one.received.at].append((next_one.received.at, 1))
            for early, late in zip(line, line[self.slots:]):
                assert early.received and late.sent
                self.after[early.received.at].append((late.sent.at, 1))
        return True

    # ---- the order ----

    def schedule(self, limited: bool = False) -> bool:
        """Orders self.steps as they can run; False: there is a circle of steps that wait for each other. `limited`:
        links have no order yet, so a step waits until its messages are the next ones, and slots are free."""
        n, after = len(self.steps), self.after
        steps = sorted(self.steps, key=lambda s: s.at)
        before = [0] * n
        for later in after:
            for k, _ in later:
                before[k] += 1
        height = self._heights(after, list(before))
        if not height:
            return False
        # Each lane runs one step at a time; of those that are ready, the one with the longest way to the end.
        clock: dict[tuple[int, int], int] = {}
        ready_at = [0] * n
        events: list[tuple[int, int, int]] = []

        def wake(k: int) -> None:
            step = steps[k]
            step.lane = self.group_of(step.rank, step.channel)
            heapq.heappush(events, (ready_at[k], -height[k], k))

        for k in range(n):
            if not before[k]:
                wake(k)
        order: list[Step] = []
        under_way: dict[Link, deque[Message]] = {m.link(): deque() for m in self._messages()}
        waiting: dict[Link, list[int]] = {link: [] for link in under_way}
        while events:
            now, _, k = heapq.heappop(events)
            lane = (steps[k].rank, steps[k].lane)
            if clock.get(lane, 0) > now:  # it is busy: compared again with those that are ready then
                heapq.heappush(events, (clock[lane], -height[k], k))
                continue
            if limited:
                wrong = self._not_yet(steps[k], under_way)
                if wrong:
                    waiting[wrong].append(k)
                    continue
                for m in steps[k].messages():
                    if m.sender == steps[k].rank:
                        under_way[m.link()].append(m)
                    else:
                        under_way[m.link()].popleft()
                    for j in waiting[m.link()]:
                        heapq.heappush(events, (now + 1, -height[j], j))
                    waiting[m.link()].clear()
            clock[lane] = now + 1
            order.append(steps[k])
            for j, takes in after[k]:
                ready_at[j] = max(ready_at[j], now + takes)
                before[j] -= 1
                if not before[j]:
                    wake(j)
        if len(order) == n:
            self.steps = order
        return len(order) == n

    def _not_yet(self, step: Step, under_way: dict[Link, deque[Message]]) -> Link | None:
        """A link for which the step has to wait. A step that receives nothing leaves one slot to those that do: they
        make room on other links."""
        receives = any(isinstance(o, Message) for o in step.sources)
        for m in step.messages():
            line = under_way[m.link()]
            if len(line) >= self.slots - (not receives) if m.sender == step.rank else line[0] is not m:
                return m.link()
        return None

    @staticmethod
    def _heights(after: list[list[tuple[int, int]]], before: list[int]) -> list[int]:
        ready = [k for k, b in enumerate(before) if not b]
        for k in ready:
            for j, _ in after[k]:
                before[j] -= 1
                if not before[j]:
                    ready.append(j)
        height = [0] * len(after)
        for k in reversed(ready):
            height[k] = max((height[j] + takes for j, takes in after[k]), default=1)
        return height if len(ready) == len(after) else []

    # ---- accesses to one place ----

    def _number_events(self) -> None:
        """Each step gets its number in its lane, and of each lane the last step that surely comes before it."""
        thread: dict[tuple[int, int], int] = {}
        for step in self.steps:
            step.lane = thread.setdefault((step.rank, self.group_of(step.rank, step.channel)), len(thread))
        last: list[list[int]] = [[0] * len(thread) for _ in thread]
        for step in self.steps:
            clock = step.begin = last[step.lane]
            for o in step.sources:
                if isinstance(o, Message):
                    assert o.sent
                    clock = list(map(max, clock, o.sent.clock))
            clock = list(clock)
            clock[step.lane] += 1
            step.event, step.clock = clock[step.lane], clock
            last[step.lane] = clock

    def settle(self) -> bool:
        """Finds accesses to one place that nothing orders, and helps. True: lanes have become one, so that a new order
        is needed."""
        self._number_events()
        tied = False
        for rank in self.ranks:
            for key, uses in rank.uses.items():
                if isinstance(key, Place) and not key.is_scratch() and rank.writes.get(key):
                    tied |= self._settle_place(rank, key, uses)
        return tied

    def _settle_place(self, rank: Rank, key: Place, uses: list[int]) -> bool:
        writer: Step | None = None
        readers: list[Step] = []
        tied = False
        for at in uses:
            step = rank.steps[at]
            assert step is not None
            reads, writes = key in rank.keys(step.sources), key in rank.keys(step.to)
            if writes and reads and len(step.sources) == 1 and not self.reduces:
                writes = False  # in place it copies to itself
            # The verifier looks at a source in memory before it takes a slot.
            if reads and writer and step.lane != writer.lane and step.begin[writer.lane] < writer.event:
                self.tie(writer, step)
                tied = True
            if not writes:
                readers.append(step)
                continue
            for old in ([writer] if writer else []) + readers:
                if _comes_before(old, step):
                    self._keep_apart(rank, key, old, step)
                else:
                    self.tie(old, step)
                    tied = True
            writer, readers = step, []
        return tied

    def _keep_apart(self, rank: Rank, key: Place, old: Step, new: Step) -> None:
        """An earlier step uses a place that a later one writes: nothing may be written before that use has ended."""
        sent = _sender(new)
        if sent and not _comes_before(old, sent):
            new.settle, sent = True, None
        for m in old.to if self._refers(rank, old, key) else []:
            if isinstance(m, Message) and not (m.received and _comes_before(m.received, sent or new)):
                old.copy = True

    @staticmethod
    def _refers(rank: Rank, step: Step, key: Place) -> bool:
        """True if slots that the step sends may refer to the place instead of holding a copy."""
        return key in rank.keys(step.to) or (len(step.sources) == 1 and key in rank.keys(step.sources))


def _sender(step: Step) -> Step | None:
    """The step that sends what this one receives, if the data may be written as soon as it is sent (hk_instr_lands)."""
    outputs = [o for o in step.to if isinstance(o, Place)]
    came = step.sources[0]
    lands = len(step.sources) == 1 and not step.settle and len(outputs) == 1 and outputs[0].space == "out"
    return came.sent if lands and isinstance(came, Message) else None


def _comes_before(a: Step, b: Step) -> bool:
    return b.clock[a.lane] >= a.event


def plan(make: Callable[[], list[Rank]], reduces: bool) -> Plan:
    """The plan of what `make` returns, which is called again for each try: the more steps are merged, the more of them
    wait for several things at once."""
    for merges, order in ((True, "ready"), (True, "slots"), (True, "trace"), (False, "trace")):
        for slots in SLOTS:
            ranks = make()
            for rank in ranks:
                rank.keeps_order = order == "trace"
                if merges:
                    rank.add_where_it_arrives()
                    rank.join_sums()
                    rank.send_at_once()
                    rank.store_no_waste()
            made = Plan(ranks, reduces, slots)
            if made.order_links(order) and made.schedule():
                while made.settle():
                    made.schedule()
                return made
    raise AssertionError("the order of the trace itself has no circle")
