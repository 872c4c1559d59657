# SPDX-License-Identifier: Apache-2.0
"""Hocket's bars that no peer is needed for: start-up, memory, many ranks, cliffs, TCP against iperf3.

Each check gives a line of the results' table: what, measured, bar, verdict.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import time

from peers import run


def verdict(good):
    return "met" if good else "MISSED"


def rows(out):
    """Out-of-place (size, time in us, busbw in GB/s) of a table."""
    found = []
    for line in out.splitlines():
        words = line.split()
        if line[:1] == " " and len(words) >= 12:
            found.append((int(words[0]), float(words[5]), float(words[7])))
    return found


def start_up(build):
    for ranks, bar in ((8, None), (64, 2.0)):
        times, fault = [], None
        for _ in range(5):
            begin = time.monotonic()
            _, fault = run([f"{build}/bin/all_reduce_perf", "--procs", str(ranks), "-b", "8", "-e", "8", "-n", "1", "-w", "0",
                            "-c", "0"], {})
            times.append(time.monotonic() - begin)
            if fault:
                break
        what = f"start, init, one allreduce and end of {ranks} processes"
        if fault:
            yield f"{what} | {fault} | | MISSED"
        else:
            best = statistics.median(times)
            yield f"{what} | {best:.2f} s | {f'{bar} s' if bar else ''} | {verdict(best < bar) if bar else ''}"


def memory(build):
    out, fault = run([f"{build}/bin/all_reduce_perf", "--procs", "64", "-b", "8", "-e", "8", "-n", "1", "-w", "0", "-c", "0",
                      "-M", "1"], {})
    m = re.search(r"Initialization ([\d.]+) (\S+)", out)
    if fault or not m:
        yield f"memory of init, a rank at 64 processes | {fault} | | MISSED"
        return
    size = float(m[1]) * {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}[m[2]]
    yield (f"resident memory that init adds, the largest of 64 processes | {m[1]} {m[2]} | 2 MiB |"
           f" {verdict(size <= 2 << 20)}")


def many_ranks(build):
    for name, ranks in (("256 ranks of one process", ["-g", "256"]), ("64 processes", ["--procs", "64"])):
        for operation in ("all_reduce", "alltoall"):
            out, fault = run([f"{build}/bin/{operation}_perf", *ranks, "-b", "1M", "-e", "1M", "-n", "3", "-w", "1"], {})
            right = "values : 0 OK" in out and not fault
            us = rows(out)[0][1] if right else 0
            yield f"{operation} of 1 MiB, {name} | {f'{us:.0f} us' if right else fault} | finishes | {verdict(right)}"


def cliffs(build, quick):
    """The largest jump of the time over sizes that grow by 1.1.  The best of several passes: others' load only adds.  Two
    neighbours that still look like a cliff are measured again, in turn: what is left after that is one."""
    sizes, size = [], 1024.0
    while size <= (1 << 20 if quick else 64 << 20):
        sizes.append(int(size) // 16 * 16)
        size *= 1.1
    for ranks in (2, 4):
        best = {}
        fault = None

        def measure(s):
            out, why = run([f"{build}/bin/all_reduce_perf", "--procs", str(ranks), "-b", str(s), "-e", str(s), "-n",
                            str(max(3, min(2000, (32 << 20) // s))), "-N", "3", "-c", "0"], {})
            if not why:
                best[s] = min([best.get(s, 1e12)] + [r[1] for r in rows(out)])
            return why

        for s in sizes * (1 if quick else 3):
            fault = fault or measure(s)
        if fault:
            yield f"cliffs, allreduce, {ranks} ranks | {fault} | | MISSED"
            continue

        def jump(i):
            return best[sizes[i + 1]] / best[sizes[i]]

        for i in range(len(sizes) - 1):
            for _ in range(20):
                if jump(i) <= 1.3:
                    break
                measure(sizes[i])
                measure(sizes[i + 1])
        worst = max(range(len(sizes) - 1), key=jump)
        yield (f"largest jump of allreduce's time from one size to 1.1 times it, {ranks} ranks, 1 KiB to"
               f" {sizes[-1] >> 10} KiB | {jump(worst):.2f} at {sizes[worst]} bytes | 1.3 | {verdict(jump(worst) <= 1.3)}")


class TwoHosts:
    """Two network namespaces with a veth pair; only root can make them."""

    def __enter__(self):
        self.names = [f"hkbench{os.getpid()}{side}" for side in "ab"]
        a, b = self.names
        self.ip("netns", "add", a)
        self.ip("netns", "add", b)
        self.ip("link", "add", "hkv0", "netns", a, "type", "veth", "peer", "name", "hkv0", "netns", b)
        for number, name in enumerate(self.names):
            self.ip("-n", name, "addr", "add", f"10.99.7.{number + 1}/24", "dev", "hkv0")
            self.ip("-n", name, "link", "set", "hkv0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def start(self, side, command, env=None):
        return subprocess.Popen(["ip", "netns", "exec", self.names[side], *command], env={**os.environ, **(env or {})},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def iperf(hosts, seconds):
    server = hosts.start(0, ["iperf3", "-s", "-1"])
    time.sleep(0.5)
    client = hosts.start(1, ["iperf3", "-c", "10.99.7.1", "-t", str(seconds), "-J"])
    out, _ = client.communicate(timeout=60)
    server.kill()
    server.communicate()
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8e9


def between_hosts(hosts, build):
    """GB/s of a broadcast from one host to the other: one direction, as iperf3's."""
    both = []
    for rank in (0, 1):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.99.7.1", "MASTER_PORT": "29500"}
        both.append(hosts.start(rank, [f"{build}/bin/broadcast_perf", "-b", "64M", "-e", "64M", "-n", "20", "-c", "0"], env))
    out = [p.communicate(timeout=120)[0] for p in both][0]
    return rows(out)[0][2]


def tcp(build, quick):
    what = "TCP between two network namespaces, 64 MiB, one direction"
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("iperf3"):
        yield f"{what} | not measured: needs root, ip and iperf3 | 90% of iperf3 | SKIP"
        return
    try:
        with TwoHosts() as hosts:
            theirs, ours = [], []
            for _ in range(1 if quick else 5):
                theirs.append(iperf(hosts, 1 if quick else 3))
                ours.append(between_hosts(hosts, build))
            a, b = statistics.median(ours), statistics.median(theirs)
            yield f"{what} | {a:.2f} GB/s, iperf3 {b:.2f} GB/s ({100 * a / b:.0f}%) | 90% of iperf3 | {verdict(a >= 0.9 * b)}"
    except (subprocess.SubprocessError, OSError, IndexError, KeyError, ValueError) as error:
        yield f"{what} | {type(error).__name__}: {str(error)[:120]} | 90% of iperf3 | MISSED"


def measure(build, quick):
    lines = []
    for check in (start_up(build), memory(build), many_ranks(build), tcp(build, quick), cliffs(build, quick)):
        for line in check:
            print(line.replace(" | ", ": ", 1))
            lines.append(line)
    return lines
