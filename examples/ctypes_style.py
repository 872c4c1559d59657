#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An allreduce from Python with nothing but ctypes, as inference servers call NCCL.

    make lib
    LD_LIBRARY_PATH=build/gcc/lib python3 examples/ctypes_style.py    # two ranks; or the library's path, and ranks:
    python3 examples/ctypes_style.py build/gcc/lib/libnccl.so.2 3

Each rank is a process; the buffers are ordinary memory (HOCKET_DEVICE=host).  With any library of NCCL's ABI and pointers
to a GPU's memory the calls would be the same.
"""
import array
import ctypes
import multiprocessing
import os
import sys

FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
COMM = ctypes.c_void_p


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def load(path):
    nccl = ctypes.CDLL(path)
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    nccl.ncclGetLastError.argtypes = [COMM]
    nccl.ncclGetUniqueId.argtypes = [ctypes.POINTER(UniqueId)]
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(COMM), ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                   COMM, ctypes.c_void_p]
    nccl.ncclCommDestroy.argtypes = [COMM]
    return nccl


def check(nccl, code):
    if code:
        text = nccl.ncclGetLastError(None) or nccl.ncclGetErrorString(code)
        raise RuntimeError(text.decode())


def run(path, rank, nranks, unique_id):
    nccl = load(path)
    comm = COMM()
    check(nccl, nccl.ncclCommInitRank(ctypes.byref(comm), nranks, UniqueId.from_buffer_copy(unique_id), rank))
    data = array.array("f", (rank + i for i in range(1000)))
    at, count = data.buffer_info()
    check(nccl, nccl.ncclAllReduce(at, at, count, FLOAT, SUM, comm, None))
    expected = [nranks * (nranks - 1) / 2 + nranks * i for i in range(1000)]
    if list(data) != expected:
        raise RuntimeError("rank %d has a wrong sum" % rank)
    check(nccl, nccl.ncclCommDestroy(comm))
    # One write, line end included: print() makes two where stdout is unbuffered, and ranks' lines would mix.
    sys.stdout.write("rank %d of %d: %d sums are right\n" % (rank, nranks, count))


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "libnccl.so.2"
    nranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    os.environ.setdefault("HOCKET_DEVICE", "host")
    nccl = load(path)
    version = ctypes.c_int()
    check(nccl, nccl.ncclGetVersion(ctypes.byref(version)))
    print("version %d" % version.value)
    unique_id = UniqueId()
    check(nccl, nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
    # The id's root lives in this process; a fork would copy its memory, but not its thread.
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=(path, r, nranks, bytes(unique_id))) for r in range(nranks)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join()
    return max(abs(r.exitcode) for r in ranks)


if __name__ == "__main__":
    sys.exit(main())
