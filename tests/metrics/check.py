# SPDX-License-Identifier: Apache-2.0
"""check.py HOCKET FOLDER: `hocket metrics` with a job of four processes: its text, its file, its HTTP server, good and bad
clients, a real Prometheus if there is one."""
from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

HOCKET, FOLDER = sys.argv[1:]
RANKS, PATIENCE_S = 4, 20.0
LINE = re.compile(r'([a-z_0-9]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (-?[0-9.]+(?:e[-+][0-9]+)?)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
FIRST = ["slurm_job_id", "node", "gpu", "comm_name", "comm", "n_nodes", "nranks", "rank", "pid"]
wrong = 0


def check(fine: bool, what: str) -> None:
    global wrong
    if not fine:
        wrong += 1
        print(f"FAIL: {what}", flush=True)


def until(what: str, test) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if test():
            return
        time.sleep(0.1)
    check(False, f"never: {what}")


def touch(name: str) -> None:
    open(os.path.join(FOLDER, name), "w").close()


def hocket(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run([HOCKET, "metrics", *options], capture_output=True, text=True, timeout=30, check=False)


def parse(text: str) -> list:
    """Strictly: each metric has its help, its type and then all of its lines, and no line is there twice."""
    lines, current, seen = [], "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split()[2]
            check(current not in seen, f"{current} comes in two parts")
            seen.add(current)
        elif line.startswith("# TYPE "):
            check(line.split()[2] == current, f"the type of another metric: {line}")
            check(line.split()[3] == ("counter" if current.endswith("_total") else "gauge"), line)
        else:
            match = LINE.match(line)
            check(bool(match), f"no metric: {line}")
            if match:
                labels = dict(LABEL.findall(match[2] or ""))
                check(match[1] == current, f"{match[1]} among {current}")
                check((match[1], match[2]) not in seen, f"twice: {line}")
                seen.add((match[1], match[2]))
                lines.append((match[1], labels, float(match[3])))
    check(text.endswith("\n"), "the last line has no end")
    return lines


def of_job(text: str) -> list:
    """Other jobs of the host are there, too. The launcher's own connections are no communicator with counters."""
    return [x for x in parse(text) if x[1].get("slurm_job_id") == job_id and x[1].get("comm") == comm]


def values(text: str, name: str, **labels: str) -> dict:
    """By rank."""
    return {int(x[1]["rank"]): x[2] for x in of_job(text)
            if x[0] == name and all(x[1].get(k) == v for k, v in labels.items())}


def calls() -> dict:
    return values(hocket().stdout, "hocket_collective_calls_total", collective="AllReduce")


job_id = f"{os.getpid()}7"
rank = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ras", "rank.py")
job = subprocess.Popen([sys.executable, "-m", "hocket.run", "-n", str(RANKS), rank, FOLDER],
                       env={**os.environ, "SLURM_JOB_ID": job_id}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    until("the job's first operation", lambda: os.path.exists(os.path.join(FOLDER, "ready")))

    # ---- the text ----
    text = hocket().stdout
    comm = next((x[1]["comm"] for x in parse(text) if x[0] == "hocket_collective_calls_total" and
                 x[1]["slurm_job_id"] == job_id), "")
    check(len(calls()) == RANKS, f"calls of {RANKS} ranks: {calls()}")
    until("a hundred calls", lambda: min(calls().values()) > 100)
    text = hocket().stdout
    for name in ("calls", "bytes", "bus_bytes", "seconds"):
        seen = values(text, f"hocket_collective_{name}_total", collective="AllReduce", message_size="0B-64B")
        check(len(seen) == RANKS and min(seen.values()) > 0, f"{name}: {seen}")
    sizes = values(text, "hocket_collective_bytes_total", collective="AllReduce")
    count = values(text, "hocket_collective_calls_total", collective="AllReduce")
    check(all(sizes[r] == 16 * count[r] for r in count), f"16 bytes a call: {sizes}, {count}")
    bus = values(text, "hocket_collective_bus_bytes_total", collective="AllReduce")
    check(all(bus[r] == 1.5 * sizes[r] for r in count), f"the factor for 4 ranks is 1.5: {bus}, {sizes}")
    seconds = values(text, "hocket_collective_seconds_total", collective="AllReduce")
    gbs = values(text, "hocket_bus_bandwidth_gbs", collective="AllReduce")
    check(all(abs(gbs[r] / (1e-9 * bus[r] / seconds[r]) - 1) < 1e-4 for r in count), f"bandwidth: {gbs}")
    labels = next(x[1] for x in of_job(text))
    check(list(labels)[:len(FIRST)] == FIRST, f"labels: {list(labels)}")
    check(labels["node"] == socket.gethostname() and labels["gpu"] == "none" and labels["nranks"] == str(RANKS) and
          labels["n_nodes"] == "1", f"{labels}")
    for name in ("last_event_seconds", "wait_seconds", "waits_for_rank", "failed", "network_retries_total",
                 "network_failovers_total"):
        check(len(values(text, "hocket_" + name)) == RANKS, f"hocket_{name} of {RANKS} ranks")
    check(max(values(text, "hocket_last_event_seconds").values()) < 30, "a rank that runs has events")
    tool = shutil.which("promtool")
    if tool:
        done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"promtool: {done.stderr[:500]}")

    # ---- a rank that pauses ----
    touch("pause")
    until("ranks that wait for rank 1", lambda: {r for r, v in values(hocket().stdout, "hocket_wait_seconds").items()
                                                 if v >= 0.5} == {0, 2, 3})
    text = hocket().stdout
    for r in (0, 2, 3):
        check(values(text, "hocket_wait_seconds")[r] > 0 and values(text, "hocket_waits_for_rank")[r] >= 0, f"rank {r} waits")
    until("no event for a second", lambda: min(values(hocket().stdout, "hocket_last_event_seconds").values()) > 1)
    os.unlink(os.path.join(FOLDER, "pause"))
    before = calls()
    until("the counters rise again", lambda: all(calls()[r] > before[r] + 1 for r in before))

    # ---- a file for node_exporter ----
    path = os.path.join(FOLDER, "hocket.prom")
    for _ in range(2):
        check(hocket("--textfile", path).returncode == 0, "--textfile")
    check(len(of_job(open(path).read())) > 20 and os.stat(path).st_mode & 0o777 == 0o644, "the file is there for all")
    check([f for f in os.listdir(FOLDER) if "part" in f] == [], "a part of a file is left")
    done = hocket("--textfile", os.path.join(FOLDER, "absent", "hocket.prom"))
    check(done.returncode == 2 and "cannot be written" in done.stderr, f"a folder that does not exist: {done.stderr}")
    check(hocket("--textfile", path, "--listen", "0").returncode == 2, "two ways at once")

    # ---- HTTP ----
    server = subprocess.Popen([HOCKET, "metrics", "--listen", "0"], stderr=subprocess.PIPE, text=True)
    said = server.stderr.readline()
    match = re.search(r"at 127\.0\.0\.1<(\d+)>", said)
    check(bool(match), f"it listens on loopback only: {said}")
    port = int(match[1]) if match else 0

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=8)

    def answer(request: bytes) -> bytes:
        data = b""
        with connect() as s:
            try:
                s.sendall(request)
            except OSError:
                pass
            while chunk := s.recv(65536):
                data += chunk
        return data

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            check(reply.headers["Content-Type"].startswith("text/plain; version=0.0.4"), "the type of the content")
            return reply.read().decode()

    check(len(of_job(get())) > 20, "GET /metrics")
    for request, status in ((b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"), (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
                            (b"GET / HTTP/1.1\r\n\r\n", b"404"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
                            (b"nonsense\r\n\r\n", b"400"), (b"\0\xff\x01 \n\n", b"400"),
                            (b"GET /metrics HTTP/1.1\r\nX: " + 4200 * b"a", b"431")):
        check(answer(request).startswith(b"HTTP/1.1 " + status), f"{request[:40]!r} gives {status!r}")
    check(answer(b"HEAD /metrics HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n"), "HEAD has no body")

    # Half a request, a head of 1 MB, a client that reads nothing, a hundred that say nothing: others are served.
    idle = [connect() for _ in range(100)]
    half = connect()
    half.sendall(b"GET /met")
    deaf = connect()
    deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

    def flood() -> None:
        try:
            with connect() as s:
                s.sendall(b"GET /metrics HTTP/1.1\r\nX: " + 1048576 * b"a")
                while s.recv(65536):
                    pass
        except OSError:
            pass

    floods = [threading.Thread(target=flood) for _ in range(4)]
    for thread in floods:
        thread.start()
    for _ in range(20):
        begin = time.monotonic()
        check(len(of_job(get())) > 20, "GET among clients that are slow or wrong")
        check(time.monotonic() - begin < 5, "it takes long among them")
    half.settimeout(15)
    try:
        check(half.recv(100) == b"", "half a request is dropped")
    except ConnectionResetError:
        pass
    except TimeoutError:
        check(False, "half a request stays for ever")
    for s in [*idle, half, deaf]:
        s.close()
    for thread in floods:
        thread.join()
    check(server.poll() is None, "the server runs on")
    with open(f"/proc/{server.pid}/status") as f:
        check(int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) < 65536, "it takes little memory")

    # ---- a real Prometheus ----
    prometheus = shutil.which("prometheus")
    if prometheus:
        config = os.path.join(FOLDER, "prometheus.yml")
        rules = os.path.abspath("examples/operations/alerts.yml")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            own = s.getsockname()[1]
        with open(config, "w") as f:
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [rules],
                       "scrape_configs": [{"job_name": "hocket", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}, f)
        daemon = subprocess.Popen([prometheus, f"--config.file={config}", f"--storage.tsdb.path={FOLDER}/tsdb",
                                   f"--web.listen-address=127.0.0.1:{own}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def query(expression: str) -> list:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/query?" +
                                            urllib.parse.urlencode({"query": expression}), timeout=5) as reply:
                    return json.load(reply)["data"]["result"]
            except OSError:
                return []

        until("Prometheus has two scrapes", lambda: len(query(
            f'rate(hocket_collective_calls_total{{slurm_job_id="{job_id}",collective="AllReduce"}}[30s]) > 0')) == RANKS)
        daemon.terminate()
        daemon.wait()
    else:
        print("SKIP: there is no Prometheus (Debian: prometheus): no real server has read the metrics")
    server.terminate()
    server.wait()
finally:
    touch("end")
    job.wait(timeout=30)
check(job.returncode == 0, f"the job ends with {job.returncode}")
check("hocket_processes" in hocket().stdout, "without a job there are metrics, too")
sys.exit(wrong > 0)
