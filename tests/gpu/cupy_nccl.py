#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's binding of NCCL: ranks of one process and ranks in processes, on however many GPUs.  Without CuPy: exit code 77.

Arrays are made and compared with NumPy, so that CuPy has to compile nothing.
"""
import multiprocessing
import sys

try:
    import cupy
    import numpy
    from cupy.cuda import nccl
except ImportError as why:
    print(f"SKIP: {why}")
    sys.exit(77)

N, RANKS, SECONDS = 10000, 2, 90
FLOAT, SUM = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
BASE = numpy.arange(N, dtype=numpy.float32) % 100  # rank r's data is r more
TOTAL = RANKS * BASE + sum(range(RANKS))


class Rank:
    """A communicator, its GPU, stream and arrays."""

    def __init__(self, comm, device):
        self.comm, self.device, self.rank = comm, device, comm.rank_id()
        if (comm.size(), comm.device_id()) != (RANKS, device):
            raise RuntimeError(f"size {comm.size()}, device {comm.device_id()} instead of {RANKS}, {device}")
        with cupy.cuda.Device(device):
            self.queue = cupy.cuda.Stream(non_blocking=True)
            self.own, self.all = cupy.empty(N, "f"), cupy.empty(RANKS * N, "f")
            self.got, self.got_all = cupy.empty(N, "f"), cupy.empty(RANKS * N, "f")
            self.own.set(BASE + self.rank)
            self.all.set(self.every())
            cupy.cuda.Device().synchronize()
        self.stream = self.queue.ptr

    @staticmethod
    def every():
        return numpy.concatenate([BASE + r for r in range(RANKS)])

    def expect(self, what, array, want):
        with cupy.cuda.Device(self.device):
            self.queue.synchronize()
            got = array.get()
        if not numpy.array_equal(got, want):
            raise RuntimeError(f"rank {self.rank}: {what}: {got[:4]} instead of {want[:4]}")
        self.comm.check_async_error()


def exchange(me):
    me.comm.send(me.own.data.ptr, N, FLOAT, (me.rank + 1) % RANKS, me.stream)
    me.comm.recv(me.got.data.ptr, N, FLOAT, (me.rank - 1) % RANKS, me.stream)


# What each rank calls; where the result is; what it must be, None on ranks that get nothing.
CALLS = {
    "allReduce": (lambda me: me.comm.allReduce(me.own.data.ptr, me.got.data.ptr, N, FLOAT, SUM, me.stream),
                  lambda me: me.got, lambda rank: TOTAL),
    "reduce": (lambda me: me.comm.reduce(me.own.data.ptr, me.got.data.ptr, N, FLOAT, SUM, 1, me.stream),
               lambda me: me.got, lambda rank: TOTAL if rank == 1 else None),
    "broadcast": (lambda me: me.comm.broadcast(me.own.data.ptr, me.got.data.ptr, N, FLOAT, 1, me.stream),
                  lambda me: me.got, lambda rank: BASE + 1),
    "allGather": (lambda me: me.comm.allGather(me.own.data.ptr, me.got_all.data.ptr, N, FLOAT, me.stream),
                  lambda me: me.got_all, lambda rank: Rank.every()),
    "reduceScatter": (lambda me: me.comm.reduceScatter(me.all.data.ptr, me.got.data.ptr, N, FLOAT, SUM, me.stream),
                      lambda me: me.got, lambda rank: RANKS * (BASE + rank)),
    "send and recv": (exchange, lambda me: me.got, lambda rank: BASE + (rank - 1) % RANKS),
    "bcast": (lambda me: me.comm.bcast(me.own.data.ptr, N, FLOAT, 0, me.stream),  # the last one: it changes the input
              lambda me: me.own, lambda rank: BASE),
}


def all_calls(ranks):
    """Calls of several ranks of one thread make a group; so do a send and its receive."""
    for name, (call, result, wanted) in CALLS.items():
        nccl.groupStart()
        for me in ranks:
            with cupy.cuda.Device(me.device):
                call(me)
        nccl.groupEnd()
        for me in ranks:
            if wanted(me.rank) is not None:
                me.expect(name, result(me), wanted(me.rank))


def one_of_several(rank, unique_id):
    device = rank % cupy.cuda.runtime.getDeviceCount()
    with cupy.cuda.Device(device):
        comm = nccl.NcclCommunicator(RANKS, unique_id, rank)
        all_calls([Rank(comm, device)])
        comm.destroy()


def main():
    devices = [r % cupy.cuda.runtime.getDeviceCount() for r in range(RANKS)]
    comms = nccl.NcclCommunicator.initAll(devices)
    all_calls([Rank(comm, device) for comm, device in zip(comms, devices)])
    for comm in comms:
        comm.destroy()
    unique_id = nccl.get_unique_id()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=one_of_several, args=(r, unique_id)) for r in range(RANKS)]
    for p in processes:
        p.start()
    for p in processes:
        p.join(SECONDS)
        if p.is_alive():
            p.kill()
            p.join()
    if any(p.exitcode for p in processes):
        raise SystemExit(f"exit codes of the ranks: {[p.exitcode for p in processes]}")
    print(f"CuPy {cupy.__version__}, NCCL {nccl.get_version()}: initAll and {RANKS} processes as they should be")


if __name__ == "__main__":
    main()
