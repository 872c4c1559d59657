#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fault matrix: every fault in every operation on every transport, each held against what is expected of it.

  matrix.py [--short] [--only TEXT] [--again] [--repeat N] [--jobs N] [--list] [--write PAGE]

--only takes cells whose name (fault-operation-transport) contains one of the words of the text, or matches it as a
pattern with *.  --again takes the cells that did not hold in the last run, and keeps the other results.  --repeat runs each
cell N times; it holds if it holds every time.  HK_BUILD is where the binaries are (build/gcc), HOCKET_TEST_SLACK multiplies
every bound of time.  Output of cells that fail is in build/faults/.  Exit code 0: all hold; 1: some do not."""
import argparse
import fnmatch
import json
import os
import queue
import sys
import threading
import time

sys.dont_write_bytecode = True  # nothing next to the sources
import report
from cells import all_cells
from jobs import SLACK, Hosts, Job
from judge import judge, result_ms

LOGS = "build/faults"


def options():
    p = argparse.ArgumentParser(description="The fault matrix.")
    p.add_argument("--short", action="store_true", help="the cells of make check")
    p.add_argument("--only", default="", help="cells whose name contains one of these words, or matches it (*)")
    p.add_argument("--again", action="store_true", help="the cells that did not hold in the last run")
    p.add_argument("--repeat", type=int, default=1, help="how often each cell is run")
    p.add_argument("--jobs", type=int, default=2, help="cells at a time")
    p.add_argument("--list", action="store_true", help="print the cells and what is expected, run nothing")
    p.add_argument("--write", metavar="PAGE", help="write the tables into this page")
    return p.parse_args()


def chosen(cell, o):
    if o.short and not cell.short:
        return False
    return not o.only or any(p in cell.name or fnmatch.fnmatch(cell.name, p) for p in o.only.split())


class Matrix:
    def __init__(self, cells):
        self.todo, self.lock = queue.Queue(), threading.Lock()
        self.results, self.skipped = {}, ""
        for cell in cells:
            self.todo.put(cell)
        self.need_hosts = any(c.place.namespaces == "1" for c in cells)

    def one(self, cell, hosts):
        job = Job(cell, hosts)
        job.run()
        facts, output = job.end()
        complaints = judge(cell, job, facts, output)
        result = {"ok": not complaints, "ms": result_ms(cell, facts), "seconds": round(job.seconds, 1),
                  "complaints": complaints, "codes": [f["code"] if f else None for f in facts],
                  "texts": [f["text"] if f else "" for f in facts]}
        with self.lock:
            if cell.name not in self.results or self.results[cell.name]["ok"]:
                self.results[cell.name] = result
            print(f"{'ok  ' if result['ok'] else 'FAIL'}  {cell.name:28} {result['ms'] / 1000:6.2f} s of "
                  f"{cell.seconds:g}, {job.seconds:.1f} s in all", flush=True)
            for complaint in complaints:
                print(f"        {complaint}", flush=True)
            path = f"{LOGS}/{cell.name}.log"
            if complaints:
                with open(path, "w", encoding="utf-8") as f:
                    f.write("\n".join(complaints) + "\n" + output)
            elif self.results[cell.name]["ok"] and os.path.exists(path):
                os.remove(path)

    def work(self):
        hosts = Hosts() if self.need_hosts else None
        try:
            while True:
                cell = self.todo.get_nowait()
                if cell.place.namespaces == "1" and not hosts.prefix:
                    self.skipped = hosts.why
                    continue
                self.one(cell, hosts)
        except queue.Empty:
            pass
        finally:
            if hosts:
                hosts.end()

    def run(self, jobs):
        workers = [threading.Thread(target=self.work) for _ in range(jobs)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()


def main():
    o = options()
    cells = all_cells()
    wanted = [c for c in cells if c.applies and chosen(c, o)]
    if o.list:
        for c in cells:
            if chosen(c, o):
                print(f"{c.name:28} {c.outcome:9} {c.seconds:g} s  {c.reason}")
        print(f"{len(wanted)} cells are run, {sum(not c.applies for c in cells)} of {len(cells)} are not applicable")
        return 0
    os.makedirs(LOGS, exist_ok=True)
    kept = {}
    if o.again:
        with open(f"{LOGS}/results.json", encoding="utf-8") as f:
            kept = {name: r for name, r in json.load(f).items() if r["ok"]}
        wanted = [c for c in wanted if c.name not in kept]
    begin = time.monotonic()
    matrix = Matrix(wanted * o.repeat)
    matrix.run(o.jobs)
    matrix.results = {**kept, **matrix.results}
    failed = sorted(n for n, r in matrix.results.items() if not r["ok"])
    if not o.short and not o.only:
        with open(f"{LOGS}/results.json", "w", encoding="utf-8") as f:
            json.dump(matrix.results, f, indent=1, sort_keys=True)
    if o.write:
        report.write(o.write, cells, matrix.results, SLACK)
    if matrix.skipped:
        print(f"SKIP: cells between namespaces: {matrix.skipped}")
    if failed:
        print("failed: " + " ".join(failed))
    print(f"{len(matrix.results) - len(failed)} cells hold, {len(failed)} do not, "
          f"{sum(not c.applies for c in cells)} are not applicable; took {time.monotonic() - begin:.0f} s")
    return 1 if failed or not matrix.results else 0


if __name__ == "__main__":
    sys.exit(main())
