# SPDX-License-Identifier: Apache-2.0
"""check.py NCCLRAS FOLDER: clients of the RAS service of a job of four processes, good and bad ones."""
from __future__ import annotations

import json
import os
import pty
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

NCCLRAS, FOLDER = sys.argv[1:]
RANKS, PATIENCE_S = 4, 20.0
COUNTS = {"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter"}
wrong = 0


def check(fine: bool, what: str) -> None:
    global wrong
    if not fine:
        wrong += 1
        print(f"FAIL: {what}", flush=True)


def free_port() -> int:
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


port = free_port()
address = ("127.0.0.1", port)


def connect() -> socket.socket:
    return socket.create_connection(address, timeout=5)


def read_all(s: socket.socket) -> bytes:
    data = b""
    while chunk := s.recv(65536):
        data += chunk
    return data


def say(text: bytes, end: bool = False) -> bytes:
    """All that the service answers."""
    with connect() as s:
        s.sendall(text)
        if end:
            s.shutdown(socket.SHUT_WR)
        return read_all(s)


def report() -> dict:
    return json.loads(say(b"SET FORMAT json\nSTATUS\n").split(b"\n", 1)[1])


def answers() -> bool:
    try:
        return bool(report()["communicators"])
    except (OSError, ValueError, IndexError):
        return False


def communicator(seen: dict) -> dict:
    return next(c for c in seen["communicators"] if c["hash"] == hash_of_job)


def counts(c: dict) -> dict:
    return {r["rank"]: r["collective_counts"] for r in c["ranks"]}


def until(what: str, test) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if test():
            return
        time.sleep(0.1)
    check(False, f"never: {what}")


def touch(name: str) -> None:
    open(os.path.join(FOLDER, name), "w").close()


def server_of(pids: list) -> int:
    """The process that has the listening socket."""
    with open("/proc/net/tcp") as f:
        inode = next(w[9] for w in map(str.split, f) if w[1].endswith(f":{port:04X}") and w[3] == "0A")
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]":
                    return pid
            except OSError:
                continue
    raise LookupError("no process of the job listens")


def is_of_job(pid: int) -> bool:
    """Other jobs of the host are in the reports, too."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return f"NCCL_RAS_ADDR=localhost:{port}".encode() in f.read()
    except OSError:
        return False


def client(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run([NCCLRAS, "-h", "127.0.0.1", "-p", str(port), *options], capture_output=True, text=True,
                          timeout=20, check=False)


def start(**variables: str) -> subprocess.Popen:
    shutil.rmtree(FOLDER)
    os.mkdir(FOLDER)
    job = begin_job(FOLDER, **variables)
    until("the job's first operation", lambda: os.path.exists(os.path.join(FOLDER, "ready")))
    return job


def begin_job(folder: str, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}", "HOCKET_JOB": f"job{port}", **variables}
    rank = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
    return subprocess.Popen([sys.executable, "-m", "hocket.run", "-n", str(RANKS), rank, folder], env=environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# ---- NCCL_RAS_ENABLE=0 ----
job = start(NCCL_RAS_ENABLE="0")
with socket.socket() as s:
    check(s.connect_ex(address) != 0, "with NCCL_RAS_ENABLE=0 nothing listens")
touch("end")
check(job.wait(30) == 0, "the job without a service ends right")

# ---- a good client ----
job = start()
seen = report()
mine = [c for c in seen["communicators"] if c["ranks"] and all(is_of_job(r["pid"]) for r in c["ranks"])]
check(len(mine) == 1, "the job has one communicator in the report")
hash_of_job = mine[0]["hash"]
pids = [r["pid"] for r in mine[0]["ranks"]]
check(set(seen) >= {"nccl_version", "cuda_runtime_version", "cuda_driver_version", "timestamp", "communicators_count",
                    "ras"}, f"keys of a report: {list(seen)}")
check(set(mine[0]) >= {"hash", "secondary_hash", "size", "ranks_count", "missing_ranks_count", "ranks",
                       "missing_ranks"}, f"keys of a communicator: {list(mine[0])}")
first = mine[0]["ranks"][0]
check(set(first) >= {"rank", "host", "pid", "cuda_dev", "nvml_dev", "status", "collective_counts", "operation"},
      f"keys of a rank: {list(first)}")
check(first["status"] == {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                          "abort_flag": False}, f"state of a rank: {first['status']}")
check(set(first["collective_counts"]) >= COUNTS, f"collectives: {first['collective_counts']}")
check(mine[0]["ranks_count"] == RANKS and not mine[0]["missing_ranks"], "no rank is missing")
check(seen["ras"]["timeouts_count"] == 0 or len(seen["communicators"]) > 1, f"no time-outs: {seen['ras']}")
before = counts(mine[0])
until("counts of all ranks grow under the same hash",
      lambda: all(counts(communicator(report()))[r]["AllReduce"] > before[r]["AllReduce"] for r in range(RANKS)))
text = say(b"client protocol 2\r\ntimeout 3.5\r\nverbose status\r\n").decode()
check(text.startswith("SERVER PROTOCOL 2\nOK\nNCCL version ") and hash_of_job[2:] in text and
      "Rank 3 -- process" in text, f"a text: {text}")
check(b"Communicators" in say(b"status\n", end=True), "a client that has shut down its side gets its report")
said = say(b"hello\nSET FORMAT xml\nTIMEOUT -1\nTIMEOUT x\nMONITOR nothing\nSET FORMAT text\nSTATUS\n").split(b"\n")
check([line[:6] for line in said[:5]] == [b"ERROR:"] * 5 and said[5] == b"OK", f"wrong commands: {said[:6]}")
done = client("-f", "json", "-t", "8")
check(done.returncode == 0 and json.loads(done.stdout)["communicators_count"] >= 1, f"ncclras -f json: {done}")
done = client("-v")
check(done.returncode == 0 and "Rank 0 -- process" in done.stdout, f"ncclras -v: {done}")
done = subprocess.run([NCCLRAS, "-p", str(free_port())], capture_output=True, text=True, check=False)
check(done.returncode == 2 and "no RAS service" in done.stderr, f"ncclras without a service: {done}")

# ---- bad clients ----
progress = counts(communicator(report()))
for garbage in (b"\0" * 4096, os.urandom(100000), b"x" * 5000 + b"\n", b"\n" * 1000, b"STATUS" * 100,
                b"TIMEOUT " + b"9" * 200):
    try:
        say(garbage, end=True)
    except OSError:
        pass
check(b"ERROR" in say(b"y" * 300), "a line that is too long")
with connect() as s:  # a client that reads nothing until all buffers are full loses no answer
    lines = 0
    while lines < 100000 and select.select([], [s], [], 0.2)[1]:
        lines += s.send(b"\n" * 1000, socket.MSG_DONTWAIT)
    time.sleep(0.5)
    s.shutdown(socket.SHUT_WR)
    errors = read_all(s).count(b"ERROR: ")
    check(errors == lines, f"{errors} answers to {lines} lines")
deaf = [connect() for _ in range(4)]
for s in deaf:
    s.sendall(b"SET FORMAT json\nVERBOSE STATUS\n")
idle = [socket.socket() for _ in range(200)]
for s in idle:
    s.setblocking(False)
    s.connect_ex(address)
begin = time.monotonic()
check(communicator(report())["ranks_count"] == RANKS, "a report with 200 idle connections")
took = time.monotonic() - begin
check(took < 5, f"200 idle connections: {took:.1f} s until a report")
for s in idle + deaf:
    s.close()
with connect() as quiet:
    begin = time.monotonic()
    quiet.settimeout(10)
    check(quiet.recv(1) == b"" and 3 < time.monotonic() - begin < 8, "an idle connection is closed after five seconds")

# ---- some 2,000 connections a second to the port, and to the local sockets, as the user and as another one ----
HOCKET = os.path.join(os.path.dirname(NCCLRAS), "hocket")


def flood(where: str, *uid: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "flood.py"),
                             where, *uid])


def ps(*options: str) -> dict:
    done = subprocess.run([HOCKET, "ps", "--json", *options], capture_output=True, text=True, timeout=20, check=False)
    return next((c for c in json.loads(done.stdout)["communicators"] if c["id"] == hash_of_job), {"ranks": []})


def local_sockets() -> list:
    with open("/proc/net/unix") as f:
        return [name for name in (line.split()[-1] for line in f)
                if name.startswith("@hocket/") and int(name[8:].split(".")[0]) in pids]


floods = [flood(str(port))]
time.sleep(1)
check(floods[0].poll() is None, "the flood goes on")
begin = time.monotonic()
until("a report during a flood of the port", answers)
check(time.monotonic() - begin < 3, f"a report during a flood takes {time.monotonic() - begin:.1f} s")
users = ["65534", "0"] if os.geteuid() == 0 else [str(os.geteuid())]
floods += [flood(name, uid) for name in local_sockets()[:2] for uid in users]
check(len(floods) > 2, "there are local sockets")
time.sleep(1)
begin = time.monotonic()
states = [r["state"] for r in ps()["ranks"]]
check(states == ["runs"] * RANKS and time.monotonic() - begin < 3, f"hocket ps during floods: {states}")
for f in floods:
    f.kill()
    f.wait()
check([r["state"] for r in ps(f"127.0.0.1:{port}")["ranks"]] == ["runs"] * RANKS, "hocket ps HOST after a flood")
check(not ps("--job", "no such job")["ranks"] and ps("--job", f"HOCKET_JOB=job{port}")["ranks"], "hocket ps --job")

# ---- hocket ps HOST of other services: NCCL's keys alone, and what is no report ----
NCCL = {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{
    "hash": "0xab12", "secondary_hash": "0x1:0x2", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
    "ranks": [{"rank": r, "host": "h\x1b[2J", "pid": 7 + r, "cuda_dev": r, "nvml_dev": r, "status": {"init_state": 0},
               "collective_counts": {"AllReduce": 5}} for r in range(2)],
    "missing_ranks": [{"rank": 2, "host": "h", "pid": 9, "status": {"unresponsive": True, "considered_dead": True}}]}]}


def ps_of(answer: bytes, *options: str) -> subprocess.CompletedProcess:
    """What hocket ps says of a service whose report is `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asks = subprocess.Popen([HOCKET, "ps", f"127.0.0.1:{server.getsockname()[1]}", *options], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with server.accept()[0] as s, s.makefile("rb") as lines:
            for line in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", answer):
                lines.readline()
                s.sendall(line)
        out, errors = asks.communicate(timeout=20)
        return subprocess.CompletedProcess(asks.args, asks.returncode, out, errors)


done = ps_of(json.dumps(NCCL).encode(), "--json")
if "jansson" in done.stderr:
    print("SKIP: hocket ps HOST: jansson is not installed")
else:
    c = json.loads(done.stdout)["communicators"][0]
    check(c["id"] == "0xab12" and [r["state"] for r in c["ranks"]] == ["runs", "runs", "is gone"], f"NCCL's report: {c}")
    check("\x1b" not in ps_of(json.dumps(NCCL).encode()).stdout, "control characters of a host's name")
    small = json.dumps(NCCL).replace('"size": 3', '"size": 2')
    for bad in (b"", b"not json", b'{"communicators": 3}', json.dumps(NCCL).encode()[:200], small.encode(),
                json.dumps(NCCL).replace('"size": 3', '"size": 100000000000').encode(), b"[" * 100000):
        done = ps_of(bad)
        check(done.returncode == 2 and done.stderr.startswith("hocket ps: "), f"a report that is wrong: {bad[:40]!r} {done}")

# ---- hocket watch, in a terminal and in a pipe ----
watch = [HOCKET, "watch", "--comm", hash_of_job, "--interval", "0.2", "--times", "2"]
terminal, theirs = pty.openpty()
done = subprocess.Popen(watch, stdout=theirs, env={**os.environ, "TERM": "xterm"})
os.close(theirs)
shown = b""
try:
    while chunk := os.read(terminal, 65536):
        shown += chunk
except OSError:  # its end
    pass
check(done.wait(20) == 0 and shown.count(b"\033[H\033[2J") == 2 and shown.count(b"WAITS FOR") == 2, f"watch: {shown}")
lines = subprocess.run([*watch, "--json"], capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
check([json.loads(s)["communicators"][0]["id"] for s in lines] == [hash_of_job] * 2, f"hocket watch --json: {lines}")
check(subprocess.run([*watch, "--interval", "0"], capture_output=True, check=False).returncode == 2, "no pause")
if os.geteuid() == 0:
    done = subprocess.run([HOCKET, "ps", "--json"], capture_output=True, text=True, timeout=20, check=False, user=65534)
    check(json.loads(done.stdout)["communicators"] == [] and json.loads(done.stdout)["of_other_users"] >= RANKS,
          f"hocket ps of another user: {done}")

until("the job goes on despite bad clients",
      lambda: all(counts(communicator(report()))[r]["AllReduce"] > progress[r]["AllReduce"] for r in range(RANKS)))

# ---- a rank that is late: all run, their counts differ and stay ----
touch("pause")
until("a verdict on the late rank", lambda: (communicator(report())["verdict"] or "").startswith("rank 1 runs outside"))
c = communicator(report())
check(sorted(counts(c)) == list(range(RANKS)), "all ranks are in the report")
check(counts(c)[1]["Broadcast"] < counts(c)[0]["Broadcast"], f"the late rank's counts: {counts(c)}")
check(all(r["waits_for"] >= 0 and r["for_ms"] > 0 for r in c["ranks"] if r["rank"] == 0), "a rank that waits")
os.remove(os.path.join(FOLDER, "pause"))
until("it goes on", lambda: not communicator(report())["verdict"])

# ---- a rank that is stopped, then killed ----
victim = next(r for r in range(RANKS) if pids[r] != server_of(pids))
monitor = subprocess.Popen([NCCLRAS, "-h", "127.0.0.1", "-p", str(port), "-f", "json", "-m", "all"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
monitor.stderr.readline()
os.kill(pids[victim], signal.SIGSTOP)
until("the stopped rank is unresponsive",
      lambda: [(m["rank"], m["status"]) for m in communicator(report())["missing_ranks"]] ==
      [(victim, {"unresponsive": True, "considered_dead": False})])
begin = time.monotonic()
report()
check(time.monotonic() - begin < 1, "a report with a stopped rank takes less than a second")
time.sleep(1.2)
os.kill(pids[victim], signal.SIGCONT)
until("it is back", lambda: not communicator(report())["missing_ranks"])
time.sleep(1.2)
os.kill(pids[victim], signal.SIGKILL)
until("the killed rank is dead",
      lambda: [(m["rank"], m["status"]) for m in communicator(report())["missing_ranks"]] ==
      [(victim, {"unresponsive": True, "considered_dead": True})])
until("the others have an error", lambda: all(r["status"]["async_error"] for r in communicator(report())["ranks"]))
time.sleep(1.2)
touch("end")
job.wait(30)
events, errors = monitor.communicate(timeout=30)
mine = [e for e in map(json.loads, events.splitlines()) if e.get("peer", {}).get("pid") == pids[victim]]
check([e["event"] for e in mine] == ["PEER_UNRESPONSIVE", "PEER_RECOVERED", "PEER_DEAD"], f"events: {events}{errors}")
with socket.socket() as s:
    check(s.connect_ex(address) != 0, "after the job nothing listens")

# ---- the process that answers belongs to a job that ends: one of another job takes its place ----
job = start()
short = os.path.join(FOLDER, "short")
os.mkdir(short)
later = begin_job(short)
until("the second job's first operation", lambda: os.path.exists(os.path.join(short, "ready")))
touch("end")
check(job.wait(30) == 0, "the first of two jobs ends right")
until("the second job answers", answers)
open(os.path.join(short, "end"), "w").close()
check(later.wait(30) == 0, "the second of two jobs ends right")

# ---- the process that answers is killed: another one takes its place ----
job = start()
mine = [c for c in report()["communicators"] if c["ranks"] and all(is_of_job(r["pid"]) for r in c["ranks"])]
hash_of_job = mine[0]["hash"]
pids = [r["pid"] for r in mine[0]["ranks"]]
first = server_of(pids)
os.kill(first, signal.SIGKILL)
until("another process answers", answers)
until("the first one is dead",
      lambda: [(m["pid"], m["status"]["considered_dead"]) for m in communicator(report())["missing_ranks"]] ==
      [(first, True)])
touch("end")
job.wait(30)
sys.exit(wrong != 0)
