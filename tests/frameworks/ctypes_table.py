# SPDX-License-Identifier: Apache-2.0
"""The class by which vLLM and SGLang call NCCL: their own file, with its table of functions for ctypes, on host memory.

usage: ctypes_table.py FILE LIBRARY NAME VERSION

FILE is pynccl_wrapper.py out of the wheel of NAME.  Three ranks are processes.  Every method of the class is called; one that
is not known here is named and makes the run fail.  PyTorch and the rest of the package are replaced by stand-ins without
content: the class takes addresses, and needs them for annotations, the log and the platform's name.  Gates on NCCL's version
that are outside this file are compared with the number that the class reads.
"""
import ctypes
import importlib.util
import mmap
import multiprocessing
import sys
from unittest.mock import MagicMock

import numpy as np
import ranks

RANKS, COUNT, FLOAT32, SUM, MAGIC = 3, 6000, 7, 0, 0xcafebeef
# What the packages ask of the version, as ncclGetVersion gives it, before they use it.
GATES = {"symmetric memory": 22703, "suspend": 22907}


def load(path, library):
    for name in ("torch", "torch.distributed", "vllm", "vllm.envs", "vllm.logger", "vllm.platforms", "vllm.utils",
                 "vllm.utils.nccl", "sglang", "sglang.srt", "sglang.srt.environ", "sglang.srt.utils"):
        sys.modules[name] = MagicMock()
    sys.modules["vllm.platforms"].current_platform.is_rocm.return_value = False
    spec = importlib.util.spec_from_file_location("pynccl_wrapper", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynccl_wrapper"] = module
    spec.loader.exec_module(module)
    return module, module.NCCLLibrary(library)


class Calls:
    """The library's methods; remembers which were called."""

    def __init__(self, library):
        self.library, self.called = library, set()

    def has(self, name):
        return hasattr(type(self.library), name)

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(self.library, name)


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


def collectives(n, comm, rank):
    total, own = sum(range(RANKS)), np.arange(COUNT, dtype=np.float32)
    x, y = own + rank, np.zeros(COUNT, dtype=np.float32)
    n.ncclAllReduce(address(x), address(y), COUNT, FLOAT32, SUM, comm, None)
    assert (y == own * RANKS + total).all(), "ncclAllReduce"
    part = COUNT // RANKS
    n.ncclReduceScatter(address(x), address(y), part, FLOAT32, SUM, comm, None)
    assert (y[:part] == (own * RANKS + total)[rank * part:(rank + 1) * part]).all(), "ncclReduceScatter"
    n.ncclAllGather(address(x), address(y), part, FLOAT32, comm, None)
    assert (y == np.concatenate([own[:part] + r for r in range(RANKS)])).all(), "ncclAllGather"
    n.ncclBroadcast(address(x), address(y), COUNT, FLOAT32, 1, comm, None)
    assert (y == own + 1).all(), "ncclBroadcast"
    if n.has("ncclReduce"):
        n.ncclReduce(address(x), address(y), COUNT, FLOAT32, SUM, 2, comm, None)
        assert rank != 2 or (y == own * RANKS + total).all(), "ncclReduce"
    right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
    if n.has("ncclGroupStart"):
        n.ncclGroupStart()
        n.ncclSend(address(x), COUNT, FLOAT32, right, comm, None)
        n.ncclRecv(address(y), COUNT, FLOAT32, left, comm, None)
        n.ncclGroupEnd()
        assert (y == own + left).all(), "ncclSend, ncclRecv in a group"
    first, second = ((n.ncclSend, x, right), (n.ncclRecv, y, left)) if rank == 0 else ((n.ncclRecv, y, left), (n.ncclSend, x, right))
    for call, buffer, peer in (first, second):
        call(address(buffer), COUNT, FLOAT32, peer, comm, None)
    assert (y == own + left).all(), "ncclSend, ncclRecv"


def windows(n, comm):
    own = np.frombuffer(mmap.mmap(-1, 4 << 16), dtype=np.float32)  # whole pages
    at = n.ncclMemAlloc(own.nbytes) if n.has("ncclMemAlloc") else own.ctypes.data
    window = n.ncclCommWindowRegister(comm, ctypes.c_void_p(at), own.nbytes, 1)
    n.ncclAllReduce(ctypes.c_void_p(at), ctypes.c_void_p(at), own.size, FLOAT32, SUM, comm, None)
    n.ncclCommWindowDeregister(comm, window)
    if n.has("ncclMemAlloc"):
        n.ncclMemFree(at)


def properties(module, n, comm, rank):
    """vLLM calls this one by the table itself."""
    p = module.ncclCommProperties()
    p.size, p.magic = ctypes.sizeof(p), MAGIC
    p.version = min(n.ncclGetRawVersion(), module.NCCL_COMM_PROPERTIES_LAYOUT_VERSION)
    n.NCCL_CHECK(n.library._funcs["ncclCommQueryProperties"](comm, ctypes.byref(p)))
    assert (p.rank, p.nRanks) == (rank, RANKS) and p.commHash != 0, (p.rank, p.nRanks, p.commHash)


def suspended(n, comm, rank):
    n.ncclCommSuspend(comm, 1)
    try:
        collectives(n, comm, rank)
        raise SystemExit("a suspended communicator works")
    except RuntimeError as e:
        assert "ncclCommResume" in str(e), e
    n.ncclCommResume(comm)
    collectives(n, comm, rank)


def errors(n):
    try:
        n.NCCL_CHECK(4)
        raise SystemExit("NCCL_CHECK(4) raises nothing")
    except RuntimeError as e:
        assert n.ncclGetErrorString(4) in str(e), e


def unique_id(module, n, rank, pipe):
    if rank == 0:
        uid = n.ncclGetUniqueId()
        for p in pipe:
            p.send_bytes(bytes(uid.internal))
        return uid
    data = pipe.recv_bytes()
    if n.has("unique_id_from_bytes"):
        return n.unique_id_from_bytes(data)
    uid = module.ncclUniqueId()
    ctypes.memmove(ctypes.byref(uid), data, len(data))
    return uid


def rank_calls(rank, path, library, pipe, results, all_done):
    module, loaded = load(path, library)
    n = Calls(loaded)
    comm = n.ncclCommInitRank(RANKS, unique_id(module, n, rank, pipe), rank)
    collectives(n, comm, rank)
    if n.has("ncclCommWindowRegister"):
        windows(n, comm)
    if hasattr(module, "ncclCommProperties"):
        properties(module, n, comm, rank)
    if n.has("ncclCommSuspend"):
        assert n.has_symbol("ncclCommSuspend")
        suspended(n, comm, rank)
    if n.has("ncclGetLastError"):
        n.ncclGetLastError()
    errors(n)
    if n.has("ncclCommInitRankConfig"):
        second = n.ncclCommInitRankConfig(RANKS, unique_id(module, n, rank, pipe), rank)
        collectives(n, second, rank)
        n.ncclCommDestroy(second)
    if n.has("ncclCommAbort"):
        second = n.ncclCommInitRank(RANKS, unique_id(module, n, rank, pipe), rank)
        collectives(n, second, rank)
        all_done.wait()
        n.ncclCommAbort(second)
    version = n.ncclGetVersion(), n.ncclGetRawVersion()
    n.ncclCommDestroy(comm)
    results.send((n.called, version))


def main(path, library, name, release):
    module, loaded = load(path, library)
    in_table = {f.name for k, v in vars(module.NCCLLibrary).items() if k.startswith("exported_functions") for f in v}
    assert in_table == set(loaded._funcs), f"not found: {sorted(in_table - set(loaded._funcs))}"
    pipes = [multiprocessing.Pipe(False) for _ in range(RANKS - 1)]
    of_rank = [[p[1] for p in pipes]] + [p[0] for p in pipes]
    results = [multiprocessing.Pipe(False) for _ in range(RANKS)]
    all_done = multiprocessing.Barrier(RANKS)
    ranks.run(rank_calls, [(r, path, library, of_rank[r], results[r][1], all_done) for r in range(RANKS)])
    called, versions = set(), set()
    for receiving, _ in results:
        more, version = receiving.recv()
        called |= more
        versions.add(version)
    methods = {m for m in vars(module.NCCLLibrary) if not m.startswith("_") and callable(getattr(module.NCCLLibrary, m))}
    assert methods <= called, f"methods that were not called: {sorted(methods - called)}"
    (version, raw), = versions
    closed = [what for what, at_least in GATES.items() if raw < at_least]
    assert not closed, f"version {version} is too old for {closed}"
    print(f"{name} {release}: {len(in_table)} functions of its table, all {len(methods)} methods on 3 ranks; it reads version {version}")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main(*sys.argv[1:]))
