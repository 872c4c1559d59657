# SPDX-License-Identifier: Apache-2.0
"""The PTX memory model, and all executions of a small program that it allows.

The axioms are those of the chapter "Memory Consistency Model" of NVIDIA's PTX ISA (9.x); each is in words at its
code. An execution is: which write each read reads from, an order of the fence.sc, and a coherence order. All of the
first two are tried, and of the third the least that the axioms demand: more coherence only forbids more.

What is not modelled: accesses that overlap in part (a vector counts as one access, or as one for each element where a
test names the elements), textures, asynchronous copies, clusters.
"""
from itertools import permutations, product

STRONG = {"relaxed", "acquire", "release", "acq_rel", "sc"}


class Event:
    """One access, fence or barrier. kind: R, W, F (fence), A (alias fence), B (barrier)."""

    def __init__(self, kind, thread, order="weak", scope="sys", place="", address="", value=None, wanted=None, name=""):
        self.kind, self.thread, self.order, self.scope = kind, thread, order, scope
        self.place = place  # the memory location; of a barrier its number
        self.address = address or place  # the virtual address by which it is accessed
        self.value = value  # of a write: a number, or what gives it from the registers
        self.wanted = wanted  # of a read that polls: whether a value ends the polls
        self.name = name  # of a read: the register
        self.index = -1
        self.pair = None  # of an atomic: its other half

    def strong(self):
        return self.kind == "F" or self.order in STRONG


class Computed:
    """A value that a thread computes from registers that it has read."""

    def __init__(self, reads, function):
        self.reads, self.function = reads, function

    def __call__(self, *values):
        return self.function(*values)


class Relation:
    """A relation over n events, a set of bits for each."""

    def __init__(self, n, rows=None):
        self.n, self.rows = n, rows or [0] * n

    def add(self, a, b):
        self.rows[a] |= 1 << b

    def has(self, a, b):
        return self.rows[a] >> b & 1

    def closed(self):
        rows = self.rows[:]
        for k in range(self.n):
            bit, through = 1 << k, rows[k]
            for i in range(self.n):
                if rows[i] & bit:
                    rows[i] |= through
        return Relation(self.n, rows)

    def joined(self, other):
        return Relation(self.n, [a | b for a, b in zip(self.rows, other.rows)])

    def cyclic(self):
        return any(row >> i & 1 for i, row in enumerate(self.closed().rows))


def includes(e, other):
    """The scope of e includes the thread of `other`. A thread is (gpu, block, name)."""
    if e.scope == "sys":
        return True
    if e.scope == "gpu":
        return e.thread[0] == other.thread[0]
    return e.thread[:2] == other.thread[:2]


class Program:
    """The events of all threads, and all that does not depend on the execution."""

    def __init__(self, threads, one_address=(), bound=False):
        self.events, self.one_address, self.bound = [], one_address, bound
        for t in threads:
            for e in t:
                e.index = len(self.events)
                self.events.append(e)
        self.n = n = len(self.events)
        self.reads = [e for e in self.events if e.kind == "R"]
        self.writes = [e for e in self.events if e.kind == "W"]
        self.po = Relation(n)
        for t in threads:
            for i, e in enumerate(t):
                for later in t[i + 1 :]:
                    self.po.add(e.index, later.index)
        self.ms = Relation(n)
        for a in self.events:
            for b in self.events:
                if self.morally_strong(a, b):
                    self.ms.add(a.index, b.index)
        self.releases, self.acquires = self.patterns()
        self.bars = Relation(n)
        for a in self.events:
            for b in self.events:
                if a is not b and a.kind == b.kind == "B" and a.place == b.place:
                    self.bars.add(a.index, b.index)
        self.dep = self.dependencies()

    def same(self, a, b):
        """By one address. Two addresses of one location are as two proxies: only an alias fence joins them."""
        return a.place == b.place and (a.address == b.address or a.place in self.one_address)

    def morally_strong(self, a, b):
        """In program order, or both strong with scopes that include the other; accesses overlap and use one address."""
        if a is b or "A" in (a.kind, b.kind) or "B" in (a.kind, b.kind):
            return False
        memory = "RW"
        if a.kind in memory and b.kind in memory and not self.same(a, b):
            return False
        related = self.po.has(a.index, b.index) or self.po.has(b.index, a.index)
        return related or (a.strong() and b.strong() and includes(a, b) and includes(b, a))

    def patterns(self):
        """Release patterns: (first operation, write). Acquire patterns: (read, last operation)."""
        releases, acquires = [], []
        for e in self.events:
            later = [x for x in self.events if self.po.has(e.index, x.index)]
            if e.kind == "W" and e.order in ("release", "acq_rel"):
                releases += [(e, e)] + [(e, w) for w in later if w.kind == "W" and w.strong() and self.same(e, w)]
            if e.kind == "F" and e.order in ("release", "acq_rel", "sc"):
                releases += [(e, w) for w in later if w.kind == "W" and w.strong()]
            if e.kind != "R" or not e.strong():
                continue
            if e.order in ("acquire", "acq_rel"):
                acquires.append((e, e))
            for x in later:
                ends = x.kind == "R" and x.order in ("acquire", "acq_rel") and self.same(e, x)
                if ends or (x.kind == "F" and x.order in ("acquire", "acq_rel", "sc")):
                    acquires.append((e, x))
        return releases, acquires

    def dependencies(self):
        """No operation is there before what makes it happen: a poll that ends comes before all that follows it in the
        thread, a barrier before what follows it in any of its threads, an atomic's read and a register before the
        write. `bound`, an assumption: a load has its value when its thread passes a barrier or its kernel ends."""
        dep = Relation(self.n)
        for e in self.events:
            if e.kind == "R" and e.wanted:
                dep.rows[e.index] |= self.po.rows[e.index]
            if e.kind == "B":
                after = self.po.rows[e.index]
                for other in self.events:
                    if self.bars.has(e.index, other.index):
                        after |= self.po.rows[other.index]
                dep.rows[e.index] |= after
                for r in self.reads:
                    if self.bound and self.po.has(r.index, e.index):
                        dep.rows[r.index] |= after
            if e.kind == "W" and callable(e.value):
                for r in e.value.reads:
                    dep.add(r.index, e.index)
            if e.kind == "W" and e.pair:
                dep.add(e.pair.index, e.index)
        return dep


class Execution:
    """One choice of what the reads read, and of the order of the fence.sc. None stands for the initial value, 0."""

    def __init__(self, program, source, fences):
        self.p, self.source, self.fences = program, source, fences

    def values(self):
        """The registers; None if values come out of thin air, or a poll finds another value than it waits for."""
        p, registers, known = self.p, {}, {}
        rf = Relation(p.n, p.dep.rows[:])
        for r, w in self.source.items():
            if w:
                rf.add(w.index, r.index)
        if rf.cyclic():  # No-thin-air: what is read does not depend, through other threads, on its being read
            return None

        def value_of(e):
            if e not in known:
                if e.kind == "R":
                    known[e] = value_of(self.source[e]) if self.source[e] else 0
                else:
                    known[e] = e.value(*[value_of(r) for r in e.value.reads]) if callable(e.value) else e.value
            return known[e]

        for r in p.reads:
            registers[r.name] = value_of(r)
            if r.wanted and not r.wanted(registers[r.name]):
                return None
        return registers

    def base_causality(self):
        """Program order, barriers, fence.sc in their order, and releases with the acquires that observe them."""
        p = self.p
        base = p.po.joined(p.bars)
        for i, a in enumerate(self.fences):
            for b in self.fences[i + 1 :]:
                if p.ms.has(a.index, b.index):
                    base.add(a.index, b.index)
        # Observation: a read of a morally strong write, also through atomics in between.
        observed = Relation(p.n)
        for r, w in self.source.items():
            if w and p.ms.has(w.index, r.index):
                observed.add(w.index, r.index)
        step = Relation(p.n, observed.rows[:])
        for r in p.reads:
            if r.pair:
                step.add(r.index, r.pair.index)
        self.observed = step.closed()
        for first, w in p.releases:
            for r, last in p.acquires:
                if self.observed.has(w.index, r.index) and p.ms.has(first.index, last.index):
                    base.add(first.index, last.index)
        return base.closed()

    def causality(self, base):
        """Base causality between accesses by one address, or with an alias fence on the way; after an observation."""
        p = self.p
        kept = Relation(p.n)
        memory = p.reads + p.writes
        alias = [e for e in p.events if e.kind == "A"]
        for a in memory:
            for b in memory:
                if a.place != b.place or not base.has(a.index, b.index):
                    continue
                if p.same(a, b) or any(base.has(a.index, f.index) and base.has(f.index, b.index) for f in alias):
                    kept.add(a.index, b.index)
        cause = Relation(p.n, kept.rows[:])
        for w in p.writes:
            for r in p.reads:
                if self.observed.has(w.index, r.index):
                    cause.rows[w.index] |= kept.rows[r.index]
        return cause

    def reads_before(self, coherence):
        """A read comes before the writes that follow, in coherence, the one that it reads."""
        p, fr = self.p, Relation(self.p.n)
        for r, w in self.source.items():
            for other in p.writes:
                if other.place == r.place and other is not w and other is not r.pair:
                    if w is None or coherence.has(w.index, other.index):
                        fr.add(r.index, other.index)
            if r.pair and r.pair is not w:
                fr.add(r.index, r.pair.index)
        return fr

    def races(self, cause):
        """Two accesses of different threads, one a write and one weak, neither of which causes the other."""
        memory = self.p.reads + self.p.writes
        for a in self.p.writes:
            for b in memory:
                if a.place != b.place or a.thread == b.thread or (a.strong() and b.strong()):
                    continue
                if not cause.has(a.index, b.index) and not cause.has(b.index, a.index):
                    return True
        return False

    def allowed(self):
        p = self.p
        base = self.base_causality()
        # Fence-SC: causality does not contradict the order of the fence.sc.
        for i, a in enumerate(self.fences):
            if any(base.has(b.index, a.index) and p.ms.has(a.index, b.index) for b in self.fences[i + 1 :]):
                return False
        cause = self.causality(base)
        self.race = self.races(cause)
        # Causality: a read does not read a write that it precedes ...
        if any(w and cause.has(r.index, w.index) for r, w in self.source.items()):
            return False
        # Coherence: it has causality between writes of a location, and relates all that are morally strong.
        coherence, free = Relation(p.n), []
        for i, a in enumerate(p.writes):
            for b in p.writes[i + 1 :]:
                if a.place != b.place:
                    continue
                forth, back = cause.has(a.index, b.index), cause.has(b.index, a.index)
                if forth:
                    coherence.add(a.index, b.index)
                if back:
                    coherence.add(b.index, a.index)
                if not forth and not back and p.ms.has(a.index, b.index):
                    free.append((a.index, b.index))
        return any(self.coherent(coherence, free, turn, cause) for turn in product((False, True), repeat=len(free)))

    def coherent(self, least, free, turns, cause):
        p = self.p
        co = Relation(p.n, least.rows[:])
        for (a, b), turn in zip(free, turns):
            co.add(b, a) if turn else co.add(a, b)
        if co.cyclic():
            return False
        co = co.closed()
        fr = self.reads_before(co)
        # Causality, second part: ... nor one that is older than a write that precedes it.
        if any(fr.has(r.index, w.index) and cause.has(w.index, r.index) for r in p.reads for w in p.writes):
            return False
        # Atomicity: no morally strong write comes between an atomic's read and its write.
        for r in p.reads:
            if r.pair and any(
                fr.has(r.index, w.index)
                and co.has(w.index, r.pair.index)
                and p.ms.has(r.index, w.index)
                and p.ms.has(w.index, r.pair.index)
                for w in p.writes
            ):
                return False
        # SC-per-location: program order of a location and communication between morally strong accesses have no cycle.
        both = Relation(p.n)
        for a in p.reads + p.writes:
            for b in p.reads + p.writes:
                if p.po.has(a.index, b.index) and p.same(a, b):
                    both.add(a.index, b.index)
                talks = self.source.get(b) is a or co.has(a.index, b.index) or fr.has(a.index, b.index)
                if talks and p.ms.has(a.index, b.index):
                    both.add(a.index, b.index)
        return not both.cyclic()


def executions(program):
    """All consistent executions: the registers of each."""
    fences = [e for e in program.events if e.kind == "F" and e.order == "sc"]
    choices = []
    for r in program.reads:
        can = [None] + [w for w in program.writes if w.place == r.place and w is not r.pair]
        fits = lambda w: not r.wanted or (callable(w.value) if w else False) or r.wanted(w.value if w else 0)
        choices.append([w for w in can if fits(w)])
    for chosen in product(*choices):
        source = dict(zip(program.reads, chosen))
        for order in permutations(fences):
            x = Execution(program, source, order)
            registers = x.values()
            if registers is not None and x.allowed():
                yield {**registers, "race": x.race}
