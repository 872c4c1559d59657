#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls that inference servers make through ctypes, on the memory of GPUs: two processes, on however many GPUs.

    python3 tests/gpu/ctypes_nccl.py LIBRARY [driver|torch [ranks]]

driver: memory and streams of the CUDA driver, with nothing but Python.  torch: tensors' memory, and torch's streams.
"""
import array
import ctypes
import multiprocessing
import sys
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

FLOAT, SUM, COLL_SYMMETRIC = 7, 0, 1
COUNT, SECONDS = 3000, 90


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


BUFFERS = [c_void_p, c_void_p, c_size_t]
SIGNATURES = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclCommCount": [c_void_p, POINTER(c_int)],
    "ncclCommCuDevice": [c_void_p, POINTER(c_int)],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclAllReduce": BUFFERS + [c_int, c_int, c_void_p, c_void_p],
    "ncclReduce": BUFFERS + [c_int, c_int, c_int, c_void_p, c_void_p],
    "ncclReduceScatter": BUFFERS + [c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": BUFFERS + [c_int, c_void_p, c_void_p],
    "ncclBroadcast": BUFFERS + [c_int, c_int, c_void_p, c_void_p],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclMemAlloc": [POINTER(c_void_p), c_size_t],
    "ncclMemFree": [c_void_p],
    "ncclCommWindowRegister": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int],
    "ncclCommWindowDeregister": [c_void_p, c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
}


class Library:
    """Each call as a method of the same name; an error is an exception with the library's own text."""

    def __init__(self, path):
        self.file = ctypes.CDLL(path)
        self.file.ncclGetErrorString.restype = self.file.ncclGetLastError.restype = c_char_p
        self.file.ncclGetLastError.argtypes = [c_void_p]
        for name, arguments in SIGNATURES.items():
            function = getattr(self.file, name)
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, self.checked(name, function))

    def checked(self, name, function):
        def call(*arguments):
            code = function(*arguments)
            if code:
                text = self.file.ncclGetLastError(None) or self.file.ncclGetErrorString(code)
                raise RuntimeError(f"{name}: {code}: {text.decode()}")
        return call


class Driver:
    """Memory, copies and a stream on one GPU's primary context, which is torch's too."""

    def __init__(self, rank):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        devices, device, context, self.stream = c_int(), c_int(), c_void_p(), c_void_p()
        self.call("cuInit", c_uint(0))
        self.call("cuDeviceGetCount", byref(devices))
        self.number = rank % devices.value
        self.call("cuDeviceGet", byref(device), c_int(self.number))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), c_uint(1))  # non-blocking

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUDA's error {code}")

    def allocate(self, count):
        at = c_uint64()
        self.call("cuMemAlloc_v2", byref(at), c_size_t(4 * count))
        return at.value

    def write(self, at, values):
        data = array.array("f", values)
        self.call("cuMemcpyHtoD_v2", c_uint64(at), c_void_p(data.buffer_info()[0]), c_size_t(4 * len(data)))

    def read(self, at, count):
        self.call("cuStreamSynchronize", self.stream)
        data = array.array("f", bytes(4 * count))
        self.call("cuMemcpyDtoH_v2", c_void_p(data.buffer_info()[0]), c_uint64(at), c_size_t(4 * count))
        return list(data)


class Torch(Driver):
    """Tensors' memory, and a stream of torch's; the driver copies."""

    def __init__(self, rank):
        import torch
        self.torch, self.kept = torch, []
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.cuda.init()
        super().__init__(rank)
        self.side = torch.cuda.Stream()
        self.stream = c_void_p(self.side.cuda_stream)

    def allocate(self, count):
        self.kept.append(self.torch.zeros(count, dtype=self.torch.float32, device="cuda"))
        self.torch.cuda.synchronize()
        return self.kept[-1].data_ptr()


def collectives(nccl, gpu, comm, rank, nranks):
    own = [rank + i % 100 for i in range(COUNT)]
    sums = [sum(range(nranks)) + nranks * (i % 100) for i in range(COUNT)]
    parts = [r + i % 100 for r in range(nranks) for i in range(COUNT)]
    stream, small, large, result = gpu.stream, gpu.allocate(COUNT), gpu.allocate(nranks * COUNT), gpu.allocate(nranks * COUNT)

    def expect(what, at, want):
        got = gpu.read(at, len(want))
        if got != want:
            first = next(i for i in range(len(want)) if got[i] != want[i])
            raise RuntimeError(f"rank {rank}: {what}: {got[first]} instead of {want[first]} at {first}")

    gpu.write(small, own)
    nccl.ncclAllReduce(small, result, COUNT, FLOAT, SUM, comm, stream)
    expect("ncclAllReduce", result, sums)
    nccl.ncclAllGather(small, large, COUNT, FLOAT, comm, stream)
    expect("ncclAllGather", large, parts)
    nccl.ncclReduceScatter(large, result, COUNT, FLOAT, SUM, comm, stream)
    expect("ncclReduceScatter", result, [nranks * x for x in own])
    nccl.ncclBroadcast(small, result, COUNT, FLOAT, nranks - 1, comm, stream)
    expect("ncclBroadcast", result, [nranks - 1 + i % 100 for i in range(COUNT)])
    nccl.ncclReduce(small, result, COUNT, FLOAT, SUM, 0, comm, stream)
    if rank == 0:
        expect("ncclReduce", result, sums)
    after, before = (rank + 1) % nranks, (rank - 1) % nranks
    nccl.ncclGroupStart()
    nccl.ncclSend(small, COUNT, FLOAT, after, comm, stream)
    nccl.ncclRecv(result, COUNT, FLOAT, before, comm, stream)
    nccl.ncclGroupEnd()
    expect("ncclSend and ncclRecv", result, [before + i % 100 for i in range(COUNT)])

    # A symmetric window over memory of ncclMemAlloc, as servers make with a pool of that memory.
    memory, window = c_void_p(), c_void_p()
    nccl.ncclMemAlloc(byref(memory), 4 * COUNT)
    nccl.ncclCommWindowRegister(comm, memory, 4 * COUNT, byref(window), COLL_SYMMETRIC)
    for _ in range(3):
        gpu.write(memory.value, own)
        nccl.ncclAllReduce(memory, memory, COUNT, FLOAT, SUM, comm, stream)
        expect("ncclAllReduce in a window", memory.value, sums)
    nccl.ncclCommWindowDeregister(comm, window)
    nccl.ncclMemFree(memory)


def abort(nccl, gpu, comm, rank, nranks):
    """A kernel whose last peer never comes leaves when another thread aborts; that peer gets an error."""
    last, code, data = nranks - 1, c_int(), gpu.allocate(COUNT)
    nccl.ncclAllReduce(data, data, COUNT, FLOAT, SUM, comm, gpu.stream)  # the first call waits for its peers' links
    nccl.ncclGroupStart()  # the last one has come so far
    for peer in range(last) if rank == last else [last]:
        (nccl.ncclSend if rank == last else nccl.ncclRecv)(data, COUNT, FLOAT, peer, comm, gpu.stream)
    nccl.ncclGroupEnd()
    gpu.call("cuStreamSynchronize", gpu.stream)
    if rank != last:
        nccl.ncclAllReduce(data, data, COUNT, FLOAT, SUM, comm, gpu.stream)
        aborts = threading.Timer(0.2, nccl.ncclCommAbort, [comm])
        aborts.start()
        gpu.call("cuStreamSynchronize", gpu.stream)
        aborts.join()
        return
    while not code.value:
        nccl.ncclCommGetAsyncError(comm, byref(code))
        time.sleep(0.01)
    nccl.ncclCommAbort(comm)


def run(path, kind, rank, nranks, unique_id, second_id):
    nccl, gpu = Library(path), {"driver": Driver, "torch": Torch}[kind](rank)
    comm, number = c_void_p(), c_int()
    nccl.ncclCommInitRank(byref(comm), nranks, UniqueId.from_buffer_copy(unique_id), rank)
    nccl.ncclCommCount(comm, byref(number))
    if number.value != nranks:
        raise RuntimeError(f"ncclCommCount: {number.value}")
    nccl.ncclCommCuDevice(comm, byref(number))
    if number.value != gpu.number:
        raise RuntimeError(f"ncclCommCuDevice: {number.value} instead of {gpu.number}")
    collectives(nccl, gpu, comm, rank, nranks)
    nccl.ncclCommGetAsyncError(comm, byref(number))
    if number.value:
        raise RuntimeError(f"ncclCommGetAsyncError: {number.value}")
    again, comm_id = c_void_p(), UniqueId.from_buffer_copy(second_id)
    nccl.ncclCommInitRank(byref(again), nranks, comm_id, rank)
    nccl.ncclCommDestroy(comm)
    abort(nccl, gpu, again, rank, nranks)


def main():
    path, kind = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "driver"
    nranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    nccl, version, unique_id, second_id = Library(path), c_int(), UniqueId(), UniqueId()
    nccl.ncclGetVersion(byref(version))
    nccl.ncclGetUniqueId(byref(unique_id))
    nccl.ncclGetUniqueId(byref(second_id))
    context = multiprocessing.get_context("spawn")  # a fork would copy neither the id's root nor a driver's state
    ranks = [context.Process(target=run, args=(path, kind, r, nranks, bytes(unique_id), bytes(second_id)))
             for r in range(nranks)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join(SECONDS)
        if r.is_alive():
            r.kill()
            r.join()
    if any(r.exitcode for r in ranks):
        raise SystemExit(f"exit codes of the ranks: {[r.exitcode for r in ranks]}")
    print(f"version {version.value}, {nranks} processes, memory of {kind}: all as it should be")


if __name__ == "__main__":
    main()
