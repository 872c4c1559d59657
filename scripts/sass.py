#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of the GPU kernels (nvdisasm -c) and counts what decides their speed: docs/results/sass.md
says what each figure means.

    sass.py FILE...            a table for each file (SASS of one architecture)
    sass.py --gate FILE...     the same, and exit code 1 if a figure is worse than GATES allows
    sass.py --page PAGE FILE...    the same, and the figures of all files go into the page, between its marks
    sass.py --function TEXT FILE   the code of the functions whose name contains TEXT
    sass.py --line TEXT FILE       of the kernels whose symbol contains TEXT, also other libraries': what comes before
                                   the first line of LL is stored, on the shortest way
"""
import heapq
import os
import re
import sys

INSTR = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"^([.$A-Za-z_][^\s:]*):$")
FUNCTION = re.compile(r"^\s*\.type\s+(\S+),@function")
REGISTER = re.compile(r"\bR(\d+)(\.64)?")
TARGET = re.compile(r"`\(([^)]+)\)")
TABLE = re.compile(r"\.L\w+")
ENDS = ("BRA", "RET", "EXIT", "BRX", "JMP", "JMX", "KILL", "BPT")
WIDE = 16


class Instr:
    def __init__(self, at, predicate, op, rest):
        self.at, self.predicate, self.op, self.rest = at, predicate, op, rest
        self.base = op.split(".")[0]
        self.target = TARGET.search(rest).group(1) if TARGET.search(rest) else None
        self.load = self.base in ("LDG", "LD", "LDGMC", "LDG_MC")
        self.store = self.base in ("STG", "ST", "STS", "STL", "RED", "ATOM", "ATOMG", "ATOMS")
        self.vector = ".128" in op
        self.strong = ".STRONG.SYS" in op
        parts = split_operands(rest)
        self.writes, reads = set(), parts
        if parts and not self.store and self.base not in ("BRA", "RET", "CALL", "BAR", "MEMBAR", "EXIT"):
            first = REGISTER.match(parts[0])
            if first:
                double = ".64" in op or ".WIDE" in op or self.base in ("DADD", "DMUL", "DFMA")
                n = 4 if self.vector else 2 if double else 1
                self.writes = {int(first.group(1)) + i for i in range(n)}
                reads = parts[1:]
            elif re.match(r"U?P[0-9T]", parts[0]):
                reads = parts[1:]
        self.reads = set()
        for i, part in enumerate(reads):
            for number, wide in REGISTER.findall(part):
                data = self.store and i == len(reads) - 1
                n = 4 if data and self.vector else 2 if wide or (data and ".64" in op) or self.base[0] == "D" else 1
                self.reads |= {int(number) + k for k in range(n)}


def split_operands(text):
    parts, depth, now = [], 0, ""
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(now.strip())
            now = ""
        else:
            now += c
    return parts + [now.strip()] if now.strip() else parts


class Function:
    def __init__(self, name):
        self.symbol, self.name = name, plain_name(name)
        self.code, self.labels = [], {}  # labels: index of the instruction after them

    def branch_targets(self):
        return {i.target for i in self.code if i.target and i.base not in ("CALL", "RET")}

    def loops(self):
        """(first, last) instruction of each backward branch."""
        found = []
        for k, i in enumerate(self.code):
            to = self.labels.get(i.target)
            if i.base == "BRA" and to is not None and to < k:
                found.append((to, k))
        return found

    def loads_outside_loops(self):
        spans = self.loops()
        return [(k, k) for k, i in enumerate(self.code) if i.base == "LDG" and not any(a <= k <= b for a, b in spans)]

    def flights(self, wanted):
        """How many of the `wanted` loads are under way whenever the first of them is used, or control joins or ends."""
        pending, count, found = set(), 0, []
        targets = self.branch_targets()
        joins = {self.labels[t] for t in targets if t in self.labels}
        for k, i in enumerate(self.code):
            if count and (k in joins or i.reads & pending or i.base == "CALL"):
                found.append(count)
                pending, count = set(), 0
            pending -= i.writes
            if wanted(i):
                pending |= i.writes
                count += 1
            if i.base in ENDS and not i.predicate and count:
                found.append(count)
                pending, count = set(), 0
        return sorted(found, reverse=True)

    def locals_in_loops(self):
        spans = self.loops()
        local = [k for k, i in enumerate(self.code) if i.base in ("LDL", "STL")]
        return sum(1 for k in local if any(a <= k <= b for a, b in spans))

    def locals_in_polls(self):
        """In the smallest loop that loads vectors with an order."""
        polls = [k for k, i in enumerate(self.code) if i.load and i.strong and i.vector]
        spans = [(b - a, a, b) for a, b in self.loops() if any(a <= k <= b for k in polls)]
        _, a, b = min(spans, default=(0, 0, -1))
        return sum(1 for i in self.code[a : b + 1] if i.base in ("LDL", "STL"))

    def count(self, test):
        return sum(1 for i in self.code if test(i))


def plain_name(symbol):
    """Of a mangled symbol: the function's own name."""
    last = symbol.split("$")[-1]
    m = re.match(r"_ZN?L?(\d+)", last)
    while m:
        n = int(m.group(1))
        name, rest = last[m.end() : m.end() + n], last[m.end() + n :]
        m = re.match(r"(\d+)", rest) if symbol.find("_ZN") >= 0 else None
        if not m:
            return name
        last = rest
    return last


def read(path):
    functions, names, here, kernel = [], set(), None, ""
    for line in open(path, encoding="utf-8"):
        line = line.rstrip("\n")
        f = FUNCTION.match(line)
        if f:
            names.add(f.group(1))
        label = LABEL.match(line)
        if label:
            name = label.group(1)
            if name in names:
                here = Function(name)
                functions.append(here)
                kernel = kernel if "$" in name else name
                here.kernel = kernel
            elif here:
                here.labels[name] = len(here.code)
            continue
        i = INSTR.match(line)
        if i and here:
            here.code.append(Instr(int(i.group(1), 16), i.group(2), i.group(3), i.group(4)))
    return functions


def prologue(functions, kernel, generic):
    """Round trips to memory on the shortest way through the kernel to the first call that moves data. A thread issues in
    order, so one that uses what a load returns waits for it, and loads that are under way together cost one. Loops that
    load are not left out. Loads by generic addresses count if `generic`: shared memory is read by them, too."""
    movers = {g.symbol for g in functions if g.kernel == kernel and re.match(r"(copy|reduce|store)_", g.name)}
    f = next((g for g in functions if g.name == kernel), None)
    return shortest(f, lambda i: i.base == "CALL" and i.target in movers, generic) if f else None


def small_before(functions):
    """Instructions and round trips to memory before the first line of a small message, in a thread that has an end of a
    link and a part of the message: loads in loops are for waits that are not over at once, and for longer messages."""
    of_kernel = {f.symbol: f for f in functions if f.kernel == SMALL}
    f = of_kernel.get(SMALL)
    if not f:
        return None, None
    must = f.loads_outside_loops()
    return fewest(f, of_kernel, is_line_store, {}, must=must), shortest(f, is_line_store, False, must)


def sum_before(functions):
    of_kernel = {f.symbol: f for f in functions if f.kernel == "hk_run_batch"}
    f = next((g for g in functions if g.name == "hk_run_batch"), None)
    return fewest(f, of_kernel, lambda i: i.base == "LDGMC", {}) if f else None


def is_line_store(i):
    return i.store and i.vector and i.strong


def shortest(f, is_goal, generic, must=None):
    """Over (instruction -> time, what is under way until when), each the least of all ways: none is shorter than the
    result. Only ways that leave out none of the spans of `must`, and call nothing; loops that load, if None."""
    loops = must or ([(a, b) for a, b in f.loops() if any(i.base == "LDG" for i in f.code[a : b + 1])] if must is None else [])
    best, work, answer = {0: (0, {})}, [0], None
    while work:
        k = work.pop()
        now, ready = best[k]
        while k < len(f.code):
            i = f.code[k]
            now = max([now] + [ready[r] for r in i.reads if r in ready])
            ready = {r: t for r, t in ready.items() if t > now and r not in i.writes}
            if answer is not None and now >= answer:
                break
            if is_goal(i):
                answer = now
                break
            if i.load and (generic or i.base != "LD"):
                ready.update({r: now + 1 for r in i.writes})
            follow = []
            if i.base == "BRA" and i.target in f.labels:
                to = f.labels[i.target]
                conditional = i.predicate or re.search(r"\bU?P\d", i.rest.split("`")[0])
                if not (conditional or must) or not any(k < a and b < to for a, b in loops):
                    follow.append(to)
                if conditional:
                    follow.append(k + 1)
            elif i.base in ("EXIT", "RET", "BRX", "KILL") and not i.predicate or must and i.base == "CALL":
                break
            else:
                k += 1
                continue
            for to in follow:
                state = (now, dict(ready))
                if to in best:
                    a, b = best[to]  # on a way on which nothing is under way to r it is not used before that way's time
                    both = {r: min(ready.get(r, now), b.get(r, a)) for r in ready.keys() | b.keys()}
                    state = (min(a, now), {r: t for r, t in both.items() if t > min(a, now)})
                    if state == best[to]:
                        continue
                best[to] = state
                work.append(to)
            break
    return answer


def fewest(function, of_kernel, is_goal, known, within=(), must=()):
    """Instructions up to a goal on the shortest way, calls with theirs; to the function's return if is_goal is None.
    Only ways that leave out none of the function's own spans `must`."""
    key = (function.symbol, is_goal is None)
    if key in known or function.symbol in within:
        return known.get(key)
    within += (function.symbol,)
    least, ways, best = {0: 0}, [(0, 0)], None
    while ways:
        now, k = heapq.heappop(ways)
        if best is not None and now >= best:
            break
        if now > least[k] or k >= len(function.code):
            continue
        i, cost, follow = function.code[k], 1, [k + 1]
        if is_goal(i) if is_goal else i.base == "RET":
            best = now + 1
            break
        if i.base == "BRX":  # through a table, whose places nvdisasm lists
            follow = [function.labels[t] for t in TABLE.findall(i.rest) if t in function.labels]
        elif i.base in ENDS and i.target not in function.labels and not i.predicate:
            continue
        elif i.base == "BRA" and i.target in function.labels:
            conditional = i.predicate or re.search(r"\bU?P\d", i.rest.split("`")[0])
            to = function.labels[i.target]
            passes = not any(k < a and b < to for a, b in must)
            follow = ([to] if passes else []) + ([k + 1] if conditional else [])
        elif i.base == "CALL" and i.target in of_kernel:
            callee = of_kernel[i.target]
            inside = fewest(callee, of_kernel, is_goal, known, within) if is_goal else None
            if inside is not None:
                best = min(now + 1 + inside, now + 1 + inside if best is None else best)
            cost += fewest(callee, of_kernel, None, known, within) or 0
        for to in follow:
            if now + cost < least.get(to, now + cost + 1):
                least[to] = now + cost
                heapq.heappush(ways, (now + cost, to))
    known[key] = best
    return best


def before_a_line(path, text):
    functions = [f for f in read(path) if f.code]
    for f in functions:
        if text in f.symbol and "$" not in f.symbol:
            of_kernel = {g.symbol: g for g in functions if g.kernel == f.kernel}
            least, trips = fewest(f, of_kernel, is_line_store, {}), shortest(f, is_line_store, True)
            print(f"{f.symbol}: {len(f.code)} instructions, {least} and {trips or '?'} round trips before the first line;")
            print(f"  polls in flight {some(f.flights(lambda i: i.load and i.strong))}")


def figures(functions):
    rows = []
    for f in functions:
        if not f.code:
            continue
        plain = f.flights(lambda i: i.load and i.vector and not i.strong)
        strong = f.flights(lambda i: i.load and i.vector and i.strong)
        rows.append(
            {
                "kernel": f.kernel,
                "name": f.name,
                "instructions": len(f.code),
                "plain": plain,
                "strong": strong,
                "sums": f.flights(lambda i: i.base == "LDGMC"),
                "line_stores": f.count(is_line_store),
                "fences": f.count(lambda i: i.base == "MEMBAR" and "SYS" in i.op),
                "locals": f.locals_in_loops(),
                "poll_locals": f.locals_in_polls(),
                "registers": max((r for i in f.code for r in i.writes | i.reads if r < 255), default=0) + 1,
            }
        )
    return rows


# What must hold, of the functions whose name matches in the kernel of collectives: see docs/results/sass.md.
GATES = [
    ("reduce_(?!rest|wide|any)", "16-byte loads in flight in all three loops", lambda r: r["plain"][:3] == [8, 8, 8]),
    ("copy_move", "16-byte loads in flight", lambda r: r["plain"][:1] == [8]),
    ("reduce_rest", "polls in flight: two lines of eight sources", lambda r: r["strong"][:1] == [16]),
    ("reduce_wide_|copy_wide", "LL128 lines in flight", lambda r: r["strong"][:1] == [4]),
    ("add_in_switch", "sums of the switch in flight, if it makes any", lambda r: min(r["sums"], default=4) >= 4),
    ("(copy|reduce)_(?!rest|any)", "no local memory in loops", lambda r: r["locals"] == 0),
    ("reduce_rest|load_any", "no local memory in the loop that polls", lambda r: r["poll_locals"] == 0),
    ("", "128 registers at most", lambda r: r["registers"] <= 128),
    ("(?!finish|hk_run_batch)", "no system fence", lambda r: r["fences"] == 0),
    ("finish", "one system fence, and one between aliases", lambda r: r["fences"] <= 2),
    ("hk_run_batch", "one system fence between aliases", lambda r: r["fences"] <= 1),
]
ROUND_TRIPS = 2  # before data is moved
SUM_BEFORE = 580  # instructions before the first sum of the switch is loaded, on a way that has sent nothing
# The same in the kernel of small messages.
SMALL = "hk_run_small"
SMALL_GATES = [
    ("small_(?!any|of|refresh)", "polls in flight: a line of eight sources", lambda r: r["strong"][:1] == [8]),
    ("small_(?!any|of|refresh)", "no local memory in the loop that polls", lambda r: r["poll_locals"] == 0),
    ("", "128 registers at most", lambda r: r["registers"] <= 128),
    ("", "no system fence", lambda r: r["fences"] == 0),
]
SMALL_BEFORE = 140, 1  # instructions and round trips before the first line


def judge(path, functions, rows):
    """Prints what does not hold; gives how much."""
    bad = 0
    for kernel, gates in (("hk_run_batch", GATES), (SMALL, SMALL_GATES)):
        of_kernel = [r for r in rows if r["kernel"] == kernel and not r["name"].startswith("__cuda")]
        for name, what, holds in gates:
            of = [r for r in of_kernel if re.match(name, r["name"])]
            if not of:
                print(f"{path}: no function of {kernel} is like {name}: change its gates")
                bad += 1
            for r in of:
                if not holds(r):
                    print(f"{path}: {r['name']} fails: {what}")
                    bad += 1
    before = small_before(functions)
    if any(n is None or n > most for n, most in zip(before, SMALL_BEFORE)):
        print(f"{path}: {before} instructions and round trips before a small message's first line; {SMALL_BEFORE} are the most")
        bad += 1
    sums = sum_before(functions)
    if any(r["sums"] for r in rows) and (sums is None or sums > SUM_BEFORE):
        print(f"{path}: {sums} instructions before the first sum of the switch; {SUM_BEFORE} are the most")
        bad += 1
    trips = prologue(functions, "hk_run_batch", False)
    if trips is None or trips > ROUND_TRIPS:
        print(f"{path}: {trips} round trips before data is moved; {ROUND_TRIPS} are the most")
        bad += 1
    return bad


def some(counts):
    """8 8 8 2 1 as `8x3 2 1`."""
    out = []
    for n in sorted(set(counts), reverse=True):
        times = counts.count(n)
        out.append(f"{n}x{times}" if times > 1 else str(n))
    return " ".join(out[:4]) or "-"


MARKS = "<!-- make sass writes what follows -->\n", "<!-- to here -->\n"


def from_ptxas(path):
    """Of each kernel: registers, and bytes of stack; from what ptxas says (FILE.cubin.log next to FILE.cubin.sass)."""
    kernel, out = "", {}
    for line in open(path.removesuffix(".sass") + ".log", encoding="utf-8"):
        name = re.search(r"Compiling entry function '(\w+)'", line)
        kernel = name.group(1) if name else kernel
        used = re.search(r"Used (\d+) registers", line)
        stack = re.search(r"(\d+) bytes cumulative stack", line)
        if used:
            out[kernel] = int(used.group(1)), int(stack.group(1)) if stack else 0
    return out


def column(path):
    """The page's figures of one architecture."""
    functions = read(path)
    rows, ptxas = figures(functions), from_ptxas(path)
    least = lambda name, what, n, kernel="hk_run_batch": min(
        f for r in rows if r["kernel"] == kernel and re.match(name, r["name"]) for f in r[what][:n]
    )
    most = lambda name, what: max(r[what] for r in rows if r["kernel"] == "hk_run_batch" and re.match(name, r["name"]))
    kernels = "hk_run_batch", SMALL, "hk_run_transfers"
    before = small_before(functions)
    return [
        ("registers of a thread: collectives, small messages, sends and receives", ", ".join(str(ptxas[k][0]) for k in kernels)),
        ("bytes of stack, the same (at most 1024)", ", ".join(str(ptxas[k][1]) for k in kernels)),
        ("bytes of code, all kernels", f"{os.path.getsize(path.removesuffix('.sass')):,}"),
        ("16-byte loads of a thread in flight: reductions of all types, copy", f"{least('reduce_(?!rest|wide|any)', 'plain', 3)}, {least('copy_move', 'plain', 1)}"),
        ("LL lines in flight, a vector of eight sources", str(least("reduce_rest", "strong", 1))),
        ("LL128 lines in flight, copy and two sources", str(least("reduce_wide_|copy_wide", "strong", 1))),
        ("local memory in the loop that polls LL lines of eight sources", str(most("reduce_rest", "poll_locals"))),
        ("the same, in the loops of copies and reductions", str(most("(copy|reduce)_(?!rest|any)", "locals"))),
        ("round trips before data is moved, as the gate counts them", str(prologue(functions, "hk_run_batch", False))),
        ("small messages: instructions, and round trips, before the first line", f"{before[0]}, {before[1]}"),
        ("small messages: polls in flight, 8 ranks", str(least("small_(?!any|of|refresh)", "strong", 1, SMALL))),
    ]


def write_page(page, paths):
    columns = [column(p) for p in paths]
    names = [re.search(r"sm_\d+", p).group() for p in paths]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    lines += [f"| {row[0][0]} | {' | '.join(c[1] for c in row)} |" for row in zip(*columns)]
    text = open(page, encoding="utf-8").read()
    head, rest = text.split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    with open(page, "w", encoding="utf-8") as f:
        f.write(head + MARKS[0] + "\n" + "\n".join(lines) + "\n\n" + MARKS[1] + tail)


def main(args):
    if args[:1] == ["--function"]:
        for f in read(args[2]):
            if args[1] in f.name:
                print(f"{f.kernel}: {f.name}")
                at = {k: n for n, k in f.labels.items()}
                for k, i in enumerate(f.code):
                    if k in at:
                        print(at[k] + ":")
                    print(f"  {i.at:05x} {i.predicate or '':5} {i.op} {i.rest}")
        return 0
    if args[:1] == ["--line"]:
        before_a_line(args[2], args[1])
        return 0
    page = args[1] if args[:1] == ["--page"] else None
    args = args[1:] if page else args
    gate = args[:1] == ["--gate"] or page is not None
    failed = 0
    for path in args[gate:]:
        functions = read(path)
        rows = figures(functions)
        known, all_loads = (prologue(functions, "hk_run_batch", generic) for generic in (False, True))
        print(f"{path}: {known} round trips before data is moved ({all_loads} with generic loads)")
        print("{}: {} instructions and {} round trips before a small message's first line".format(path, *small_before(functions)))
        titles = f"{'function':22}{'instr':>7}{'regs':>5}  {'loads in flight':24}{'polls in flight':20}"
        print(titles + f"{'fences':>7}{'local':>6}")
        for r in rows:
            if r["kernel"] == "hk_run_batch" or r["name"].startswith("small_") or r["name"] == SMALL:
                print(
                    f"{r['name']:22}{r['instructions']:7}{r['registers']:5}  {some(r['plain']):24}"
                    f"{some(r['strong']):20}{r['fences']:7}{r['locals']:6}"
                )
        if gate:
            failed += judge(path, functions, rows)
    if page and not failed:
        write_page(page, args[1:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
