#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hocket and its peers side by side: medians of interleaved repeats, written to <build>/bench/results.md and .json.

All candidates measure an operation on a transport with a number of ranks, one after the other, before the next such case,
and all cases come again in each repeat, so that drift of the machine meets all alike.
"""
import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys

import limits
from peers import candidates

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv",
              "all_gatherv", "reduce_scatterv", "alltoallv"]
SIZES = [8, 32, 8192, 131072, 2 << 20, 32 << 20, 128 << 20]


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default="build/gcc", help="where the perf binaries are")
    p.add_argument("--operations", default=",".join(OPERATIONS))
    p.add_argument("--transports", default="shm,tcp")
    p.add_argument("--ranks", default="2,4,8")
    p.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, K and M allowed")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--batches", type=int, default=5, help="measurements a repeat; their median counts")
    p.add_argument("--seconds", type=float, default=0.05, help="about how long a batch is")
    p.add_argument("--candidates", default="", help="names to measure, all by default")
    p.add_argument("--rewrite", action="store_true",
                   help="the input is written before each call, outside of the time: unchanged buffers stay in caches")
    p.add_argument("--neighbours", type=int, default=0, help="busy processes that run at the same time, as on a shared machine")
    p.add_argument("--only", choices=["peers", "limits"], help="one part")
    p.add_argument("--quick", action="store_true", help="one repeat, few sizes, a few minutes")
    p.add_argument("--out", help="path without .md (<build>/bench/results)")
    a = p.parse_args()
    if a.quick:
        a.repeats, a.batches, a.seconds = 1, 3, 0.02
        a.sizes = "8,8K,2M"
    a.operations, a.transports = a.operations.split(","), a.transports.split(",")
    a.ranks = [int(r) for r in a.ranks.split(",")]
    a.sizes = [bytes_of(s) for s in a.sizes.split(",")]
    return a


def bytes_of(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper(), 0)
    return int(text[:-1] if unit else text) << unit


def busy_seconds():
    """CPU seconds that the whole machine has spent, and its idle ones."""
    with open("/proc/stat", encoding="ascii") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(v) - v[3] - v[4]) / tick, (v[3] + v[4]) / tick


def foreign_load(pause=1.0):
    """Cores that others use while we sleep."""
    before = busy_seconds()
    subprocess.run(["sleep", str(pause)], check=True)
    return (busy_seconds()[0] - before[0]) / pause


def machine():
    model = "CPU"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{os.cpu_count()} cores, {model}, {memory} GiB, Linux {os.uname().release.split('-')[0]}"


def blocked(operation):
    return operation in ("all_gather", "reduce_scatter", "alltoall")


def cells(a):
    for operation in a.operations:
        for transport in a.transports:
            for ranks in a.ranks:
                sizes = [s for s in a.sizes if not blocked(operation) or s >= 16 * ranks]
                yield operation, transport, ranks, sizes


def show(text):
    """Where the run is, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(a, everyone):
    """{(operation, transport, ranks, bytes): {candidate: [us, one a repeat]}} and what went wrong."""
    table, faults = {}, {}
    todo = list(cells(a))
    for repeat in range(a.repeats):
        for number, (operation, transport, ranks, sizes) in enumerate(todo):
            for c in everyone:
                if transport not in c.transports:
                    continue
                show(f"{repeat + 1}/{a.repeats} {number + 1}/{len(todo)} {operation} {transport} {ranks} ranks "
                     f"{c.name}")
                found, fault = c.measure(operation, transport, ranks, sizes, a.batches, a.seconds)
                if fault:
                    faults.setdefault((c.name, operation, transport, ranks), fault)
                for size, batches in found.items():
                    table.setdefault((operation, transport, ranks, size), {}).setdefault(c.name, []).append(
                        statistics.median(batches))
    show("")
    return table, faults


@contextlib.contextmanager
def neighbours(number):
    """Processes that always want a core."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for p in busy:
            p.kill()
            p.wait()


def figure(us):
    return f"{us:.3g}" if us < 1000 else f"{us:.0f}"


def size_text(size):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def write_table(f, table, names):
    ours, peers = [n for n in names if n.startswith("hocket")], [n for n in names if not n.startswith("hocket")]
    f.write("| operation | transport | ranks | bytes | " + " | ".join(names)
            + " | best peer / hocket |" + (" best peer / registered |" if len(ours) > 1 else "") + "\n")
    f.write("|---" * (5 + len(names) + (len(ours) > 1)) + "|\n")
    for key in sorted(table, key=lambda k: (OPERATIONS.index(k[0]), k[1:])):
        row = {n: statistics.median(v) for n, v in table[key].items()}
        best = min((row[n] for n in peers if n in row), default=None)
        text = [key[0], key[1], str(key[2]), size_text(key[3])]
        text += [("**%s**" if row[n] == best else "%s") % figure(row[n]) if n in row else "" for n in names]
        text += [f"{best / row[n]:.2f}" if best and n in row else "" for n in ours]
        f.write("| " + " | ".join(text) + " |\n")


def write_results(a, everyone, absent, table, faults, limit_lines, load):
    date = datetime.date.today().isoformat()
    out = a.out or f"{a.build}/bench/results"
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    names = [c.name for c in everyone]
    with open(out + ".md", "w", encoding="utf-8") as f:
        f.write(f"# CPU results, {date}\n\n{machine()}. Before the run others used {load:.2f} cores.\n\n")
        f.write(f"By `bench/run.sh {' '.join(sys.argv[1:])}`. ")
        if table:
            f.write(f"Microseconds an operation, floats, out of place (broadcast, which MPI has in place only: in place): the median of {a.repeats} interleaved repeats, each the"
                    f" median of {a.batches} batches of about {a.seconds} s. Bold: the best peer. A ratio above 1 means that Hocket is"
                    " faster. hocket-reg has buffers of ncclMemAlloc that are registered.\n\n")
            for c in everyone:
                f.write(f"- {c.name}: {c.describe()}\n")
            for name, reason in absent:
                f.write(f"- {name}: not measured: {reason}\n")
            f.write("\n")
            write_table(f, table, names)
        for (name, operation, transport, ranks), fault in sorted(faults.items()):
            f.write(f"\n{name}, {operation}, {transport}, {ranks} ranks: {fault}\n")
        if limit_lines:
            f.write("\n## Limits\n\n| what | measured | bar | |\n|---|---|---|---|\n")
            f.writelines(f"| {line} |\n" for line in limit_lines)
    with open(out + ".json", "w", encoding="utf-8") as f:
        json.dump({"date": date, "machine": machine(), "limits": limit_lines,
                   "us": [dict(operation=k[0], transport=k[1], ranks=k[2], bytes=k[3], **{n: v for n, v in row.items()})
                          for k, row in table.items()]}, f, indent=0)
    print(f"written to {out}.md and .json")


def main():
    a = parse_arguments()
    load = foreign_load()
    if load > 0.2:
        print(f"others use {load:.1f} cores now: the results will suffer", file=sys.stderr)
    everyone, absent = candidates(a.build, a.rewrite)
    if a.candidates:
        everyone = [c for c in everyone if c.name in a.candidates.split(",")]
    for name, reason in absent:
        print(f"SKIP: {name}: {reason}")
    table, faults, limit_lines = {}, {}, []
    if a.only != "limits":
        with neighbours(a.neighbours):
            table, faults = measure(a, everyone)
    if a.only != "peers":
        limit_lines = limits.measure(a.build, a.quick)
    write_results(a, everyone, absent, table, faults, limit_lines, load)


if __name__ == "__main__":
    sys.exit(main())
