# SPDX-License-Identifier: Apache-2.0
"""Runs one cell: its ranks as processes, with a hard limit of time, on one host or on namespaces."""
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

RANKS = 4
BUILD = os.environ.get("HK_BUILD", "build/gcc")
SLACK = max(1.0, float(os.environ.get("HOCKET_TEST_SLACK", "1")))
LIMIT = 45  # seconds a cell may take beyond its bound before it counts as a hang


class Hosts:
    """Four hosts as network namespaces, made and removed by tests/netns/lib.sh in a shell of its own."""

    def __init__(self):
        script = f". tests/netns/lib.sh; netns_need; netns_hosts {RANKS}; echo ready $netns_prefix; read -r _"
        self.shell = subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.shell.stdout.readline().split()
        self.prefix = words[1] if words[:1] == ["ready"] else None
        self.why = "" if self.prefix else " ".join(words) + self.shell.stdout.read()

    def command(self, rank):
        return ["ip", "netns", "exec", f"{self.prefix}h{rank + 1}"]

    def end(self):
        self.shell.stdin.close()
        self.shell.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(cell, rank):
    """The environment of a cell's ranks.  The limits are short so that their effects show within seconds."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "HOCKET_"))}
    env.update(HOCKET_DEVICE="host", NCCL_DEBUG="WARN", HOCKET_PEER_TIMEOUT="3", HOCKET_BOOTSTRAP_TIMEOUT="20",
               HOCKET_TEST_SLACK=str(SLACK))
    env.update(pair.split("=") for pair in cell.place.environment.split())
    fault = cell.fault.name
    if cell.place.namespaces == "1":
        env.update(NCCL_HOSTID=f"host{rank}", HOCKET_SPIN="50")
    if fault in ("stop", "late", "window"):
        env.update(HOCKET_PEER_TIMEOUT="2", HOCKET_WATCHDOG="2")
    if fault in ("missing", "peer", "skip", "extra"):
        env.update(HOCKET_WATCHDOG="2", HOCKET_WATCHDOG_ABORT="1")
    if fault in ("missing", "skip", "extra", "nranks", "duplicate", "job"):
        env.update(HOCKET_BOOTSTRAP_TIMEOUT="3")
    if fault == "emfile" and cell.operation.name == "init":
        env.update(HOCKET_BOOTSTRAP_TIMEOUT="3")
    if fault == "logs":
        env.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/dev/full")
    if cell.at:
        env.update(HOCKET_TEST_FAIL_AT=str(cell.at))
    if fault in ("enomem", "emfile"):
        env.update(LD_PRELOAD=os.path.abspath(f"{BUILD}/faults/libfail.so"))
    return env


def stacks(pid):
    """Where a process that hangs is, if gdb is here."""
    if not shutil.which("gdb"):
        return ""
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except subprocess.TimeoutExpired:
        return "gdb did not end"
    return "\n".join(line for line in said.splitlines() if line.startswith(("#", "Thread")))


class Job:
    def __init__(self, cell, hosts):
        self.cell = cell
        self.folder = tempfile.mkdtemp(prefix="hk-faults-")
        self.codes, self.stacks, self.hung = [None] * RANKS, [""] * RANKS, [False] * RANKS
        with open(f"{self.folder}/board", "wb") as f:
            f.write(bytes(4096))
        with open(f"{self.folder}/board", "r+b") as f:
            self.board = mmap.mmap(f.fileno(), 4096)
        address = "10.77.0.1" if cell.place.namespaces == "1" else "127.0.0.1"
        self.comm_id = f"{address}:{free_port()}"
        self.processes = [self.start(rank, hosts) for rank in range(RANKS)]

    def start(self, rank, hosts):
        cell = self.cell
        env = environment(cell, rank)
        if cell.fault.name == "job":
            env.update(NCCL_COMM_ID=self.comm_id, HOCKET_JOB="two" if rank == cell.victim else "one")
        before = hosts.command(rank) if cell.place.namespaces == "1" else []
        arguments = [os.path.abspath(f"{BUILD}/faults/rank"), cell.fault.name, cell.operation.name, str(rank),
                     str(cell.victim), self.folder]
        with open(f"{self.folder}/out.{rank}", "wb") as out:
            return subprocess.Popen(before + arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                                    start_new_session=True)

    def run(self):
        begin = time.monotonic()
        limit = begin + self.cell.seconds * SLACK + LIMIT
        while None in self.codes:
            for rank, process in enumerate(self.processes):
                if self.codes[rank] is None and process.poll() is not None:
                    self.codes[rank] = process.returncode
                    self.board[rank] = 1  # the others wait for it no longer
            if time.monotonic() > limit:
                self.kill()
                break
            time.sleep(0.005)
        self.seconds = time.monotonic() - begin
        for rank, process in enumerate(self.processes):  # what the rank has started, too
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def kill(self):
        for rank, process in enumerate(self.processes):
            if self.codes[rank] is None:
                self.hung[rank] = True
                self.stacks[rank] = stacks(process.pid)
        for rank, process in enumerate(self.processes):
            if self.hung[rank]:
                process.kill()
                self.codes[rank] = process.wait()

    def end(self):
        """What the ranks said: facts by rank (None where there are none), and all output."""
        facts, output = [], ""
        for rank in range(RANKS):
            with open(f"{self.folder}/out.{rank}", encoding="utf-8", errors="replace") as f:
                said = f.read()
            line = next((s[6:] for s in said.splitlines() if s.startswith("FACTS ")), None)
            facts.append(json.loads(line) if line else None)
            output += f"--- rank {rank}: exit code {self.codes[rank]}\n{said}{self.stacks[rank]}\n"
        self.board.close()
        shutil.rmtree(self.folder)
        return facts, output
