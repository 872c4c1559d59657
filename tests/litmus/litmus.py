#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the litmus tests, and compares the comments of the kernels with them: litmus.py [-v].
links.litmus says how tests are written.

The operations of a test are primitives of src/kernels/cuda/primitives.h, and their PTX is read from there, or PTX.
"""
import re
import sys
from pathlib import Path

from model import Computed, Event, Program, executions

HEADERS = Path(__file__).resolve().parents[2] / "src/kernels/cuda"
INTRINSICS = {name: "bar" for name in ("__syncthreads", "__syncthreads_or", "__syncwarp")}
INTRINSICS["atomicCAS_system"] = "atom.relaxed.sys"
ACCESS = re.compile(r"\b((?:ld|st|fence|red|atom|multimem\.\w+)\.[\w.:]+)")


def functions(text):
    """(name, the comment that is nearest before it, body) of each function of a header."""
    at = re.compile(r"^HK_DEVICE(?:_CALL)? [^\n;{]*?(\w+)\([^;{]*?\) \{(?:\n(.*?)^\}|([^\n]*)\}$)", re.M | re.S)
    for m in at.finditer(text):
        begin = text.rfind("/*", 0, m.start())
        yield m[1], text[begin : text.find("*/", begin)] if begin >= 0 else "", m[2] or m[3] or ""


def tags(text):
    """The tests that comments name: "litmus: slot, credit"."""
    lists = re.findall(r"litmus: (\w+(?:,\s+(?:\* )?\w+)*)", text)
    return [name for names in lists for name in re.findall(r"\w+", names)]


def short(ptx):
    """What the model knows of an instruction: 'st.release.sys'."""
    parts = ptx.split(".")
    multi = parts[0] == "multimem"
    kind = {"ld_reduce": "ld", "st": "st", "red": "red"}[parts[1]] if multi else parts[0]
    if kind == "fence" and "proxy" in parts:
        return "fence.proxy.alias"
    order = next((p for p in parts if p in ("relaxed", "acquire", "release", "acq_rel", "sc", "volatile")), "weak")
    scope = next((p for p in parts if p in ("cta", "gpu", "sys")), "sys")
    if kind == "bar" or order == "weak":
        return kind
    return f"{kind}.relaxed.sys" if order == "volatile" else f"{kind}.{order}.{scope}"


def primitives():
    """The PTX of each primitive that reads, writes or orders memory."""
    text = (HEADERS / "primitives.h").read_text().split("#else", 1)[1]
    found = {}
    for name, _, body in functions(text):
        ptx = {short(x) for x in ACCESS.findall(body)} | {short(p) for f, p in INTRINSICS.items() if f + "(" in body}
        if len(ptx) > 1:
            sys.exit(f"primitives.h: {name} has several kinds of accesses: {', '.join(sorted(ptx))}")
        if ptx:
            found.setdefault(name, ptx.pop())
    return found


class Op:
    def __init__(self, thread, text, known):
        name, *rest = text.split()
        self.thread, self.name = thread, name
        if name.startswith("hk_") and name not in known:
            sys.exit(f"primitives.h has no {name} that accesses or orders memory, but a litmus test uses it")
        self.ptx = known.get(name) or short(name)
        self.rest = rest
        self.label = f"{name}({rest[0]})" if "bar" in name else \
            f"{thread[2]}:{name}" + (f"({rest[0].split('@')[0]})" if rest else "")

    def weaker(self):
        """Forms that order less, with what was taken away."""
        kind, *how = self.ptx.split(".")
        if kind == "bar" or self.ptx == "fence.proxy.alias":
            return [("order", None)]
        if not how:
            return []
        order, scope = how
        down = {"sc": "acq_rel", "acquire": "relaxed", "release": "relaxed", "acq_rel": None, "relaxed": "weak"}[order]
        if kind == "fence":
            forms = [("order", f"fence.{down}.{scope}" if down else None)]
        elif order == "acq_rel":
            forms = [("order", f"{kind}.acquire.{scope}"), ("order", f"{kind}.release.{scope}")]
        else:
            forms = [("order", kind if down == "weak" else f"{kind}.{down}.{scope}")]
        if scope == "sys":
            forms.append(("scope", f"{kind}.{order}.gpu"))
        return forms

    def events(self, ptx, registers):
        kind, *how = ptx.split(".")
        if kind in ("bar", "end", "begin"):  # end of a kernel, begin of the next one in its stream: synchronises, too
            return [Event("B", self.thread, place=("kernel " if kind != "bar" else "") + self.rest[0])]
        if ptx == "fence.proxy.alias":
            return [Event("A", self.thread)]
        order, scope = how if how else ("weak", "sys")
        if kind == "fence":
            return [Event("F", self.thread, order, scope)]
        places, _, address = self.rest[0].partition("@")
        value, made = self.rest[1], []
        for i, place in enumerate(places.split("+")):
            where = (order, scope, place, f"{place}@{address}" if address else place)
            if kind == "ld":
                poll = re.fullmatch(r"(>?=)(\d+)", value)
                wanted = (lambda v: True) if value[0] == "?" else None
                value = value.lstrip("?")
                if poll:
                    least, most = int(poll[2]), int(poll[2]) if poll[1] == "=" else 1 << 30
                    wanted = lambda v, a=least, b=most: a <= v <= b
                e = Event("R", self.thread, *where, wanted=wanted, name=value)
                e.name = f"{self.thread[2]}.{place} {value}" if poll else value + (str(i) if "+" in places else "")
                registers[self.thread, e.name] = e
            else:
                source = registers.get((self.thread, value))
                stored = Computed([source], lambda v: v) if source else int(value)
                e = Event("W", self.thread, *where, value=stored)
            made.append(e)
        return made


class Test:
    def __init__(self, name, known):
        self.name, self.known, self.text = name, known, []
        self.threads, self.outcome, self.allowed, self.needs, self.one_address = [], None, False, None, ()
        self.bound = False

    def line(self, line):
        word, _, rest = line.partition(" ")
        if word in ("never", "may"):
            self.outcome, self.allowed = rest, word == "may"
        elif word == "needs":
            self.needs = (self.needs or []) + rest.split()
        elif word == "one_address":
            self.one_address = rest.split()
        elif line == "bound":
            self.bound = True
        else:
            m = re.fullmatch(r"(\w+)\.(\w+) ([\w.]+): (.*)", line)
            if not m:
                sys.exit(f"{self.name}: what is '{line}'?")
            thread = (m[1], m[2], m[3])  # two lines of one thread follow each other
            ops = [Op(thread, t, self.known) for t in m[4].split(";") if t.strip()]
            if self.threads and self.threads[-1][0].thread == thread:
                self.threads[-1] += ops
            else:
                self.threads.append(ops)

    def happens(self, changed=None, ptx=None):
        """Whether an execution has the outcome; `changed`: a label whose operations are `ptx` instead (None: none)."""
        registers, threads = {}, []
        for ops in self.threads:
            events = []
            for op in ops:
                form = ptx if op.label == changed else op.ptx
                if form:
                    events += op.events(form, registers)
            threads.append(events)
        for r in executions(Program(threads, self.one_address, self.bound)):
            if eval(self.outcome, {}, r):
                return True
        return False

    def needed(self):
        """(label, what) of each operation that cannot be weaker."""
        found = []
        for label, op in {op.label: op for ops in self.threads for op in ops}.items():
            for what in ("order", "scope"):
                if any(w == what and self.happens(label, form) for w, form in op.weaker()):
                    found.append((label, what))
        return found


def read(path, known):
    tests = []
    for number, line in enumerate(Path(path).read_text().split("\n"), 1):
        line = line.strip()
        if line.startswith("test "):
            tests.append(Test(line[5:], known))
        elif line and not line.startswith("#"):
            if not tests:
                sys.exit(f"{path}:{number}: before the first test")
            tests[-1].line(line)
    return tests


def check(test):
    """What is wrong with it, and what of it is needed."""
    if test.happens() != test.allowed:
        return [f"{test.name}: '{test.outcome}' {'can' if not test.allowed else 'cannot'} happen"], []
    if test.allowed or test.needs is None:
        return [], []
    needed = test.needed()
    order = [label for label, what in needed if what == "order"]
    wrong = [f"{test.name}: does not need {x}" for x in test.needs if x not in order]
    return wrong + [f"{test.name}: needs {x}, and does not say so" for x in order if x not in test.needs], needed


def primitive_comments(known, needed):
    """Of the ordered primitives: what their comments do not say, or say wrongly; and which of them tests need."""
    wrong, ordered, seen, file = [], set(), set(), "primitives.h"
    for name, comment, _ in functions((HEADERS / file).read_text()):
        if name in seen or name not in known or known[name] in ("ld", "st"):
            continue
        seen.add(name)
        needs = {"order": set(), "scope": set()}
        for t, found in needed.items():
            for op, what in found:
                if name in re.split(r"\W", op):
                    needs[what].add(t)
        said = tags(comment)
        if said == ["none"]:
            wrong += [f"{file}: {name} names no litmus test, but {t} needs it" for t in sorted(needs["order"])]
            continue
        ordered.add(name)
        wrong += [f"{file}: {name} names {t}, which does not need it" for t in said if t not in needs["order"]]
        if not said:
            wrong.append(f"{file}: {name} ({known[name]}) names no litmus test that fails without it")
        if known[name].endswith(".sys") and not needs["scope"]:
            wrong.append(f"{file}: no litmus test needs the scope of {name}")
    return wrong, {name for name in ordered if known[name] != "bar"}


def call_comments(ordered, tests):
    """Each function of the kernels that calls an ordered primitive names a test that has it."""
    wrong, has = [], {t.name: {op.name for ops in t.threads for op in ops} for t in tests}
    for file in ("move.h", "wide.h", "reduce.h", "in_switch.h", "link.h", "small.h", "exec.cu"):
        for name, comment, body in functions((HEADERS / file).read_text()):
            said = tags(f"{comment}; {body}")
            wrong += [f"{file}: {name} names {t}, no litmus test" for t in said if t not in has and t != "none"]
            for call in sorted(ordered & set(re.findall(r"\w+(?=\()", body))):
                if "none" not in said and not any(call in has.get(t, ()) for t in said):
                    wrong.append(f"{file}: {name} calls {call} and names no litmus test that has it")
    return wrong


def main(files):
    verbose, here = "-v" in files, Path(__file__).parent
    known = primitives()
    tests = [t for f in ("known.litmus", "links.litmus", "host.litmus") for t in read(here / f, known)]
    wrong, needed = [], {}
    for t in tests:
        found, needed[t.name] = check(t)
        wrong += found
        if verbose:
            print(t.name, "may" if t.allowed else "never", *(f"{label}[{what}]" for label, what in needed[t.name]))
    found, ordered = primitive_comments(known, needed)
    wrong += found + call_comments(ordered, tests)
    for w in wrong:
        print(w)
    weaker = sum(map(len, needed.values()))
    print(f"{len(tests)} litmus tests, {weaker} operations that cannot be weaker, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
