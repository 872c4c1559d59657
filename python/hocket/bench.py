# SPDX-License-Identifier: Apache-2.0
"""How fast collectives are when Python calls them: python -m hocket.bench

Without a launcher it starts two processes on this machine. Every result is checked. The columns are those of the *_perf
programs, which measure without Python.
"""
from __future__ import annotations

import argparse
import array
import sys
import time

from . import Communicator, init, place, run, version

_SECONDS = 0.2  # of measuring, for each size


def _size(text: str) -> int:
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.rstrip("KMGkmg")
    return int(number) * units[text[len(number):].upper()]


def _measure(comm: Communicator, nbytes: int) -> float:
    """Seconds of an allreduce in place."""
    count = max(nbytes // 4, 1)
    one = array.array("f", [1.0]) * count
    comm.all_reduce(one)
    if one[0] != comm.size or one[-1] != comm.size:
        raise SystemExit(f"rank {comm.rank}: wrong sums for {nbytes} bytes")
    data = array.array("f", [0.0]) * count  # sums of zeros never overflow
    for _ in range(5):
        comm.all_reduce(data)
    begin = time.perf_counter()
    comm.all_reduce(data)
    rounds = array.array("i", [int(_SECONDS / max(time.perf_counter() - begin, 2e-6))])
    comm.all_reduce(rounds, op="min")
    n = max(rounds[0], 5)
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(n):
        comm.all_reduce(data)
    took = array.array("d", [(time.perf_counter() - begin) / n])
    comm.all_reduce(took, op="max")
    return took[0]


def main() -> int:
    parser = argparse.ArgumentParser("python -m hocket.bench", description="Measures allreduce from Python.")
    parser.add_argument("-n", "--ranks", type=int, default=2, help="processes to start, if no launcher did (2)")
    parser.add_argument("-b", "--begin", type=_size, default=8, help="smallest size in bytes (8)")
    parser.add_argument("-e", "--end", type=_size, default=32 << 20, help="largest size (32M)")
    parser.add_argument("-f", "--factor", type=int, default=8, help="from one size to the next (8)")
    given = parser.parse_args()
    if given.begin < 4 or given.factor < 2:
        parser.error("--begin is 4 or more, --factor 2 or more")
    if place().launcher == "none":
        return run.start([sys.executable, "-m", "hocket.bench", *sys.argv[1:]], given.ranks)
    with init() as comm:
        if comm.rank == 0:
            print(f"# hocket {version()}, allreduce of float in place, {comm.size} ranks, called from Python "
                  f"{sys.version.split()[0]}\n{'bytes':>12} {'us':>12} {'GB/s':>8} {'bus GB/s':>9}", flush=True)
        nbytes = given.begin
        while nbytes <= given.end:
            seconds = _measure(comm, nbytes)
            if comm.rank == 0:
                rate = nbytes / seconds / 1e9
                print(f"{nbytes:12} {seconds * 1e6:12.2f} {rate:8.2f} {rate * 2 * (comm.size - 1) / comm.size:9.2f}",
                      flush=True)
            nbytes *= given.factor
    return 0


if __name__ == "__main__":
    sys.exit(main())
