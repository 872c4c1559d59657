#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The operations of our perf binaries with Gloo through PyTorch, timed the same way: floats, out of place, TCP.

  gloo_perf.py RANKS OPERATION BATCHES SECONDS BYTES ...

Starts the ranks itself.  Prints a line for each batch and size: bytes, and microseconds an operation averaged over ranks.
A batch has as many operations as take about SECONDS.
"""
import os
import sys
import tempfile
import time


def operation(dist, torch, name, whole, rank, ranks):
    """A function that runs the operation once, or None where this version of Gloo does not have it."""
    block = whole // ranks & ~3
    inp = torch.arange(whole, dtype=torch.float32) % 7
    out = torch.zeros(whole, dtype=torch.float32)
    parts = list(out[: block * ranks].chunk(ranks)) if block else []
    if name == "all_reduce":  # in place only: the nearest to ours
        return lambda: dist.all_reduce(inp)
    if name == "all_gather":
        return lambda: dist.all_gather(parts, inp[:block])
    if name == "broadcast":
        return lambda: dist.broadcast(inp, 0)
    if name == "alltoall":
        return lambda: dist.all_to_all_single(out[: block * ranks], inp[: block * ranks])
    if name == "sendrecv":
        def ring():
            sent = dist.isend(inp, (rank + 1) % ranks)
            dist.recv(out, (rank - 1) % ranks)
            sent.wait()
        return ring
    return None


def batch(dist, torch, call, iterations):
    """Seconds an operation, averaged over ranks."""
    call()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    mean = torch.tensor([(time.perf_counter() - begin) / iterations], dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def iterations_for(dist, torch, call, seconds):
    """Grows the number until a batch takes a tenth of the time, then extrapolates; the same on all ranks."""
    n = 1
    while True:
        one = batch(dist, torch, call, n)
        if one * n > seconds / 10 or n > 1 << 20:
            return max(2, int(seconds / one))
        n *= 4


def run(rank, ranks, name, batches, seconds, sizes, store):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    for size in sizes:
        call = operation(dist, torch, name, size // 4, rank, ranks)
        if call is None or (name in ("all_gather", "alltoall") and size < 16 * ranks):
            continue
        n = iterations_for(dist, torch, call, seconds)
        for _ in range(batches):
            us = batch(dist, torch, call, n) * 1e6
            if rank == 0:
                print(size, f"{us:.4f}", flush=True)
    dist.destroy_process_group()


def main():
    ranks, name, batches, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    sizes = [int(x) for x in sys.argv[5:]]
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            pid = os.fork()  # before torch is imported: its threads do not survive a fork
            if pid == 0:
                code = 1
                try:
                    run(rank, ranks, name, batches, seconds, sizes, folder + "/store")
                    code = 0
                except Exception as error:  # pylint: disable=broad-except
                    print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
                os._exit(code)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
