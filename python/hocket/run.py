# SPDX-License-Identifier: Apache-2.0
"""Starts a program several times on this machine, as ranks that hocket.init() finds: python -m hocket.run -n 4 train.py

The processes get the variables that torchrun gives (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...). If one fails, the
others are ended. For several machines use mpirun, srun or torchrun.
"""
from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import time

_GRACE_SECONDS = 5.0  # for the others to report what they noticed


def free_port() -> int:
    """A TCP port that is free now on the loopback interface, and that the kernel gives to no connection meanwhile."""
    while True:
        port = random.randrange(10000, 20000)  # below every usual net.ipv4.ip_local_port_range
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What a rank finds in its environment."""
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def start(command: list[str], size: int) -> int:
    """Runs the command `size` times and returns the exit code of the first one that failed, or 0."""
    port, code, deadline = free_port(), 0, 0.0
    ranks = [subprocess.Popen(command, env=environment(r, size, port)) for r in range(size)]
    try:
        left = list(ranks)
        while left:
            for process in left[:]:
                if process.poll() is None:
                    continue
                left.remove(process)
                if process.returncode and not code:
                    code, deadline = process.returncode, time.monotonic() + _GRACE_SECONDS
                    print(f"hocket.run: rank {ranks.index(process)} {_end(code)}", file=sys.stderr, flush=True)
            if left and code and time.monotonic() > deadline:
                break
            if left:
                try:
                    left[0].wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return code if code >= 0 else 128 - code


def _end(code: int) -> str:
    return f"ended with code {code}" if code > 0 else f"was ended by signal {signal.Signals(-code).name}"


def main() -> int:
    parser = argparse.ArgumentParser("python -m hocket.run", description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, default=2, help="how many processes (2)")
    parser.add_argument("-m", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.ranks < 1:
        parser.error("--ranks is 1 or more")
    return start([sys.executable, *(["-m"] if given.m else []), given.program, *given.arguments], given.ranks)


if __name__ == "__main__":
    sys.exit(main())
