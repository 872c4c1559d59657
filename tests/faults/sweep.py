#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Refuses one request of memory, or for a descriptor, at a time: the first, the second, ... until an operation makes no more.
The rank may go on without it, or fail; then all ranks report that.  Nothing hangs, and nothing is left.

  sweep.py [--only TEXT] [--rank N] [--from N] [--most N] [--jobs N]

--only takes sweeps whose name (fault-operation-transport) contains one of the words of the text.  --rank 0 refuses requests of
the rank that has made the unique id.  Exit code 0: all hold."""
import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

sys.dont_write_bytecode = True  # nothing next to the sources
import os
from cells import all_cells
from jobs import Job
from judge import SUCCESS, judge

OPERATIONS, PLACES = ("init", "split", "shrink", "small", "sendrecv"), ("shm", "tcp")
LOGS = "build/faults"


def run(cell):
    """Complaints, and whether a request was refused."""
    job = Job(cell, None)
    job.run()
    facts, output = job.end()
    victim = facts[cell.victim]
    failed = [f for f in facts if f and f["code"] != SUCCESS]
    cell.outcome = "local" if failed else "survive"
    complaints = judge(cell, job, facts, output)
    if victim and failed and victim["code"] == SUCCESS:
        complaints.append("other ranks fail, but not the victim")
    if complaints:
        with open(f"{LOGS}/{cell.name}.{cell.at}.log", "w", encoding="utf-8") as f:
            f.write("\n".join(complaints) + "\n" + output)
    return complaints, bool(victim and victim["hits"])


def sweep(cell, o, pool):
    """Cells that do not hold, and how many requests there were."""
    bad, at = 0, o.first
    while at < o.first + o.most:
        numbers = range(at, min(at + o.jobs, o.first + o.most))
        results = list(pool.map(run, [replace(cell, at=n, rank=o.rank) for n in numbers]))
        for n, (complaints, hit) in zip(numbers, results):
            for complaint in complaints:
                print(f"FAIL  {cell.name}, request {n}: {complaint}", flush=True)
            bad += bool(complaints)
        at += o.jobs
        if not any(hit for complaints, hit in results if not complaints) and any(not c for c, _ in results):
            break
    print(f"{'FAIL' if bad else 'ok  '}  {cell.name:20} {at - o.first} requests tried, {bad} not right", flush=True)
    return bad


def main():
    p = argparse.ArgumentParser(description="Refuses one request at a time.")
    p.add_argument("--only", default="", help="sweeps whose name contains one of these words")
    p.add_argument("--rank", type=int, default=1, help="the rank whose requests are refused")
    p.add_argument("--from", type=int, default=1, dest="first", help="the first request that is refused")
    p.add_argument("--most", type=int, default=1000, help="requests tried in a sweep")
    p.add_argument("--jobs", type=int, default=4, help="cells at a time")
    o = p.parse_args()
    os.makedirs(LOGS, exist_ok=True)
    cells = [c for c in all_cells() if c.fault.name in ("enomem", "emfile") and c.operation.name in OPERATIONS
             and c.place.name in PLACES and (not o.only or any(w in c.name for w in o.only.split()))]
    with ThreadPoolExecutor(o.jobs) as pool:
        bad = sum(sweep(c, o, pool) for c in cells)
    print(f"{len(cells)} sweeps, {bad} requests that are not refused well")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
