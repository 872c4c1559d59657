# SPDX-License-Identifier: Apache-2.0
"""How ranks find each other: launchers are imitated by their variables, and mpirun is real where it is installed."""
import importlib.util
import os
import shutil
import socket
import subprocess
import sys

from hocket import run

RANK = """
import array, hocket, sys
c, x = hocket.init({}), array.array('i', [1])
c.all_reduce(x)
sys.stdout.write('rank %d of %d\\n' % (c.rank, x[0]))
"""
LAUNCHERS = ("OMPI_", "PMI", "SLURM_", "MASTER_", "NCCL_", "HOCKET_", "RANK", "WORLD_SIZE")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def ranks(size, variables, arguments="", seconds=30, program=RANK):
    """Runs ranks with the variables that variables(rank) gives; their outputs and exit codes."""
    started = [subprocess.Popen([sys.executable, "-c", program.format(arguments)], env={**CLEAN, **variables(r)},
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(size)]
    ends = []
    for process in started:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said = "killed after its time: " + process.communicate()[0]
        ends.append((said, process.returncode))
    return ends


def well(what, size, variables, arguments=""):
    for r, (said, code) in enumerate(ranks(size, variables, arguments)):
        if code or f"rank {r} of {size}" not in said:
            sys.exit(f"{what}: rank {r} of {size} ended with code {code}: {said}")


def badly(what, text, size, variables, arguments=""):
    for r, (said, code) in enumerate(ranks(size, variables, arguments)):
        if not code or text not in said:
            sys.exit(f"{what}: rank {r} ended with code {code} and does not say {text!r}: {said}")


def master(port, **more):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


well("no launcher", 1, lambda r: {})
port = run.free_port()
well("torchrun", 3, lambda r: master(port, RANK=str(r), WORLD_SIZE="3"))
port = run.free_port()
well("torchrun's store", 2, lambda r: master(port, RANK=str(r), WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True"))
local = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_NAMESPACE": f"job{os.getpid()}"}
well("mpirun's variables", 3, lambda r: {**local, "OMPI_COMM_WORLD_RANK": str(r)})
well("MPICH's variables", 2, lambda r: {"PMI_RANK": str(r), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"})
well("Slurm", 3, lambda r: {"SLURM_PROCID": str(r), "SLURM_NTASKS": "3", "SLURM_JOB_ID": str(os.getpid()),
                            "SLURM_JOB_NODELIST": "127.0.0.1"})
address = f"127.0.0.1:{run.free_port()}"
well("an address", 2, lambda r: {"R": str(r)}, f"'{address}', int(__import__('os').environ['R']), 2")
port = run.free_port()
well("NCCL_COMM_ID", 2, lambda r: {"NCCL_COMM_ID": f"127.0.0.1:{port}", "RANK": str(r), "WORLD_SIZE": "2"})

badly("no address", "nothing says where rank 0 is", 2,
      lambda r: {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
badly("a bad rank", "is not below", 1, lambda r: {"RANK": "2", "WORLD_SIZE": "2"})
badly("a bad address", "is no address", 2, lambda r: {}, "'nowhere', 0, 2")
with socket.create_server(("127.0.0.1", 0)) as other:
    taken = other.getsockname()[1]
    badly("a port that is taken", "rank 0 cannot listen at", 1, lambda r: {}, f"'127.0.0.1:{taken}', 0, 2")
port = run.free_port()
ends = ranks(2, lambda r: master(port, RANK=str(r), WORLD_SIZE="3", HOCKET_BOOTSTRAP_TIMEOUT="2"))
if "rank 2 of 3 has not joined" not in ends[0][0] or not ends[0][1] or not ends[1][1]:
    sys.exit(f"a rank that never comes: {ends}")
port = run.free_port()
ends = ranks(2, lambda r: master(port, RANK=str(r), WORLD_SIZE=str(2 + r), HOCKET_BOOTSTRAP_TIMEOUT="2"))
if "all must give the same number" not in ends[1][0]:
    sys.exit(f"different sizes: {ends}")
port = run.free_port()
ends = ranks(2, lambda r: master(port, RANK=str(r), WORLD_SIZE="2", HOCKET_BOOTSTRAP_TIMEOUT="2", HOCKET_JOB=str(r)))
if "give each job a port of its own" not in ends[1][0]:
    sys.exit(f"two jobs: {ends}")

# A launcher's variables that are set in part, and a port that is none.
for part in ({"RANK": "1"}, {"WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_RANK": "1"}, {"PMI_SIZE": "3"}):
    (said, code), = ranks(1, lambda r: part)
    if code or f"{list(part)[0]}={list(part.values())[0]} is set but" not in said or "rank 0 of 1" not in said:
        sys.exit(f"{part}: code {code}: {said}")
badly("a port that is none", "MASTER_PORT=70000 is not a port", 1, lambda r: master(70000, RANK="0", WORLD_SIZE="2"))


# The launcher: one rank fails, and the other, which waits for it, ends too; its code is the result.
failing = "import hocket, os, time; c = hocket.init(); c.rank or os._exit(7); c.barrier()"
script = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"hocket-test-{os.getpid()}.py")
with open(script, "w") as file:
    file.write(failing)
try:
    ended = subprocess.run([sys.executable, "-m", "hocket.run", "-n", "2", script], env=CLEAN, capture_output=True,
                           text=True, timeout=30)
finally:
    os.unlink(script)
if ended.returncode != 7 or "rank 0 ended with code 7" not in ended.stderr or "RemoteError" not in ended.stderr:
    sys.exit(f"a rank that fails: code {ended.returncode}: {ended.stderr}")



def mpi(mpirun, arguments="", options=(), wrapper=()):
    """Two ranks under a launcher; what it says if MPI itself does not start, which comes before any of our code."""
    ended = subprocess.run([mpirun, "-n", "2", *options, *wrapper, sys.executable, "-c", RANK.format(arguments)],
                           env={**CLEAN, **MPI}, capture_output=True, text=True, timeout=60)
    if "It looks like MPI_INIT failed" in ended.stderr:
        return ended.stderr
    if ended.returncode or sorted(ended.stdout.splitlines()) != ["rank 0 of 2", "rank 1 of 2"]:
        sys.exit(f"{mpirun} {arguments} {options} {wrapper}: code {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ""


done = "launchers, addresses, faults"
mpi4py = importlib.util.find_spec("mpi4py") is not None
if not mpi4py:
    print("SKIP: communicators of mpi4py: it is not installed")
for mpirun in ("mpirun.openmpi", "mpirun.mpich"):
    if not shutil.which(mpirun):
        print(f"SKIP: {mpirun} is not installed")
    else:
        mpi(mpirun)
        mpi(mpirun, wrapper=("sh", "-c", '"$@"; exit $?', "sh"))  # a script of the user's between launcher and rank
        done += f", {mpirun}"
        if mpirun == "mpirun.mpich":  # two names of this machine are two hosts, whose ranks have no name of the job
            mpi(mpirun, options=("-hosts", "localhost,127.0.0.1", "-genv", "MASTER_ADDR", "127.0.0.1", "-genv",
                                 "MASTER_PORT", str(run.free_port())))
        elif mpi4py:  # Debian's is Open MPI's
            failed = mpi(mpirun, "mpi=__import__('mpi4py.MPI').MPI.COMM_WORLD")
            if failed:
                print("SKIP: communicators of mpi4py: MPI does not start here: " + " ".join(failed.split())[:900])
            else:
                done += ", mpi4py"
print(done)
