#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives as Python calls them, with Hocket, Gloo (both through torch.distributed) and mpi4py, in one run.

  from_python.py [--ranks 2,4] [--rounds 9] [--batch 0.06]

Each round measures every candidate once, one after the other in the same processes, so that whatever else the machine
does meets all of them; ratios are medians over the rounds' ratios. Needs PyTorch and Hocket's package (PYTHONPATH or
the wheel); mpi4py takes part if it is installed and mpirun is there. About two minutes on two cores.
"""
import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 1 * KIB, 8 * KIB, 128 * KIB, MIB, 8 * MIB, 64 * MIB)
OTHER_SIZES = (8 * KIB, MIB, 16 * MIB)
DECODE_SIZES = tuple(KIB << k for k in range(3, 9))
EXPENSIVE = 4  # rounds of what takes long


# ---- the process that starts the ranks ----

def start(ranks, arguments):
    """Runs this file as so many ranks; True if they end well."""
    from hocket.run import free_port
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
           "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HOCKET_BENCH_RANK": "1",
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    command = [sys.executable, os.path.abspath(__file__), *arguments]
    if importlib.util.find_spec("mpi4py") and mpirun:
        return subprocess.run([mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command],
                              env=env).returncode == 0
    print("# without mpi4py: it or mpirun is not installed", flush=True)
    children = [subprocess.Popen(command, env={**env, "RANK": str(r)}) for r in range(ranks)]
    return not any([child.wait() for child in children])


# ---- a rank ----

class Rank:
    """Measures candidates in turns, and prints on rank 0."""

    def __init__(self, rounds, batch):
        import torch
        import torch.distributed as dist

        import hocket.torch
        hocket.torch.register()
        self.torch, self.dist, self.rounds, self.batch = torch, dist, rounds, batch
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
        self.size = int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group("hocket", rank=self.rank, world_size=self.size)
        self.groups = {"hocket": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        self.mpi = None
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            import mpi4py
            mpi4py.rc.thread_level = "funneled"
            from mpi4py import MPI
            self.mpi = MPI

    def longest(self, seconds):
        """Of all ranks."""
        t = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(t, self.dist.ReduceOp.MAX)
        return t.item()

    def time(self, call, n):
        self.dist.barrier()
        begin = time.perf_counter()
        for _ in range(n):
            call()
        return self.longest((time.perf_counter() - begin) / n)

    def compare(self, what, candidates, rounds=None):
        """Rounds of all candidates (name: call); prints a row and gives seconds by name."""
        rounds, counts = rounds or self.rounds, {}
        for name, call in candidates.items():
            call()
            once = self.time(call, 2)
            once = self.time(call, max(1, min(20, int(self.batch / 5 / once))))
            counts[name] = max(1, min(20000, int(self.batch / once)))
        took = {name: [] for name in candidates}
        for k in range(rounds):
            names = list(candidates)
            for name in names[k % len(names):] + names[:k % len(names)]:
                took[name].append(self.time(candidates[name], counts[name]))
        self.row(what, took)
        return took

    def row(self, what, took):
        if self.rank:
            return
        ours = took["hocket"]
        cells = "".join(f"  {name} {statistics.median(t) * 1e6:11.1f}" for name, t in took.items())
        ratios = "".join(f"  {name}/hocket {statistics.median(a / b for a, b in zip(t, ours)):6.2f}"
                         for name, t in took.items() if name != "hocket")
        print(f"{self.size} ranks  {what:28}{cells}{ratios}", flush=True)

    # ---- what is measured ----

    def all_reduce(self, nbytes, dtype, mpi=True):
        """In place, of zeros."""
        x = self.torch.zeros(max(nbytes // dtype.itemsize, 1), dtype=dtype)
        made = {name: lambda g=g: self.dist.all_reduce(x, group=g) for name, g in self.groups.items()}
        if self.mpi and mpi:
            array, world, place = x.numpy(), self.mpi.COMM_WORLD, self.mpi.IN_PLACE
            made["mpi4py"] = lambda: world.Allreduce(place, array)
        return made

    def others(self, nbytes):
        """Operation to candidates; `nbytes` is the whole buffer on each rank."""
        d, torch, size = self.dist, self.torch, self.size
        n = max(nbytes // 4 // size, 1)
        part, whole, whole2 = torch.zeros(n), torch.zeros(n * size), torch.zeros(n * size)
        table = {
            "broadcast": lambda g: d.broadcast(whole, 0, group=g),
            "all_gather": lambda g: d.all_gather_into_tensor(whole, part, group=g),
            "reduce_scatter": lambda g: d.reduce_scatter_tensor(part, whole, group=g),
            "all_to_all": lambda g: d.all_to_all_single(whole2, whole, group=g)}
        made = {name: {b: lambda c=call, g=g: c(g) for b, g in self.groups.items()} for name, call in table.items()}
        if self.mpi:
            a, b, c, world = part.numpy(), whole.numpy(), whole2.numpy(), self.mpi.COMM_WORLD
            made["broadcast"]["mpi4py"] = lambda: world.Bcast(b, 0)
            made["all_gather"]["mpi4py"] = lambda: world.Allgather(a, b)
            made["reduce_scatter"]["mpi4py"] = lambda: world.Reduce_scatter_block(b, a)
            made["all_to_all"]["mpi4py"] = lambda: world.Alltoall(b, c)
        return made

    def asynchronous(self, nbytes):
        """What a call that returns at once costs in comparison with one that waits."""
        x, d = self.torch.zeros(nbytes // 4), self.dist
        took = self.compare(f"all_reduce {shown(nbytes)}, async", {
            "hocket": lambda: d.all_reduce(x), "hocket-async": lambda: d.all_reduce(x, async_op=True).wait()})
        if self.rank == 0:
            more = statistics.median(a - b for a, b in zip(took["hocket-async"], took["hocket"]))
            print(f"{self.size} ranks    an asynchronous call with wait() costs {more * 1e6:.1f} us more", flush=True)

    def training(self):
        """Steps of DistributedDataParallel with a transformer of 10 million parameters."""
        torch, steps = self.torch, {}
        for name, group in {**self.groups, "alone": None}.items():
            torch.manual_seed(1)
            layer = torch.nn.TransformerEncoderLayer(320, 8, 1280, dropout=0.0, batch_first=True)
            model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 8), torch.nn.Linear(320, 320))
            if group is not None:
                model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            optimizer, data = torch.optim.SGD(model.parameters(), lr=0.001), torch.randn(2, 32, 320)

            def step(model=model, optimizer=optimizer, data=data):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
            steps[name] = step
        parameters = sum(p.numel() for p in model.parameters())
        self.compare(f"DDP step, {parameters / 1e6:.1f}M parameters", steps, EXPENSIVE)


def shown(nbytes):
    unit = "MiB" if nbytes >= MIB else "KiB" if nbytes >= KIB else "B"
    return f"{nbytes // {'MiB': MIB, 'KiB': KIB, 'B': 1}[unit]} {unit}"


def measure(given):
    r = Rank(given.rounds, given.batch)
    if r.rank == 0:
        import hocket
        print(f"# {r.size} ranks, hocket {hocket.version()}, PyTorch {r.torch.__version__}, microseconds", flush=True)
    for nbytes in SIZES:
        r.compare(f"all_reduce {shown(nbytes)}", r.all_reduce(nbytes, r.torch.float32))
    for nbytes in DECODE_SIZES:  # MPI has no bfloat16
        r.compare(f"all_reduce bf16 {shown(nbytes)}", r.all_reduce(nbytes, r.torch.bfloat16, mpi=False))
    for nbytes in (8, 8 * KIB):
        r.asynchronous(nbytes)
    for nbytes in OTHER_SIZES:
        for name, candidates in r.others(nbytes).items():
            r.compare(f"{name} {shown(nbytes)}", candidates, EXPENSIVE)
    r.training()
    r.dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="2,4", help="numbers of processes (2,4)")
    parser.add_argument("--rounds", type=int, default=9, help="of each measurement (9)")
    parser.add_argument("--batch", type=float, default=0.06, help="seconds of a candidate in a round (0.06)")
    given = parser.parse_args()
    if "HOCKET_BENCH_RANK" in os.environ:
        measure(given)
        return 0
    begin = time.monotonic()
    good = all([start(int(n), sys.argv[1:]) for n in given.ranks.split(",")])
    print(f"# {time.monotonic() - begin:.0f} s")
    return not good


if __name__ == "__main__":
    sys.exit(main())
