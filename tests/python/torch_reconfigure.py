# SPDX-License-Identifier: Apache-2.0
"""Groups whose members change: enable_reconfigure of PyTorch 2.15, with the contract of its
test_c10d_fault_tolerance.py.

python -m hocket.run -n 3 tests/python/torch_reconfigure.py
"""
import datetime
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import hocket.torch

hocket.torch.register()
os.environ.setdefault("NCCL_DEBUG", "NONE")  # a rank dies
ME, ALL = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SECONDS = datetime.timedelta(seconds=60)


def handles(store, name):
    """Of all processes, in their order."""
    store.set(f"{name} {ME}", dist._get_reconfigure_handle())
    return [store.get(f"{name} {n}").decode() for n in range(ALL)]


def formed(uuid, members):
    """The new group has these members, and works."""
    dist._reconfigure(uuid, members, timeout=SECONDS).wait()
    size, rank = len(members), dist.get_rank()
    assert dist.get_world_size() == size
    if isinstance(members, list):
        assert members[rank] == dist._get_reconfigure_handle()
    for asynchronous in (False, True):
        x = torch.full((4,), rank + 1.0)
        work = dist.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            work.wait()
        assert x.tolist() == [size * (size + 1) / 2] * 4, x
    if size > 1:
        backend, y = dist.group.WORLD._get_backend(torch.device("cpu")), torch.empty(1)
        works = [backend.send([torch.full((1,), float(rank))], (rank + 1) % size, 0),
                 backend.recv([y], (rank - 1) % size, 0)]
        for work in works:
            work.wait()
        assert y.item() == (rank - 1) % size
    dist.barrier()


def refused(text, call):
    try:
        call()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"not refused: {text}")


def main():
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        if ME == 0:
            print(f"SKIP: PyTorch {torch.__version__} has no groups that change")
        return
    dist.init_process_group("hocket", timeout=SECONDS, enable_reconfigure=True)
    store, group = dist.distributed_c10d._get_default_store(), dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    assert group.supports_reconfigure and backend.supports_reconfigure
    refused("call reconfigure() first", lambda: dist.all_reduce(torch.ones(1)))
    every = handles(store, "first")
    formed(1, every)
    formed(2, every[::-1])  # other ranks
    formed(3, set(every))
    formed(100 + ME, [every[ME]])  # each alone
    formed(4, every)
    half = every[:ALL // 2] if ME < ALL // 2 else every[ALL // 2:]
    formed(200 + (ME < ALL // 2), half)  # two groups, then one again
    formed(5, every)
    if ME != 1:
        formed(6, [handle for n, handle in enumerate(every) if n != 1])
    formed(7, every)
    refused("already used", lambda: dist._reconfigure(7, every))
    refused("none of the handles", lambda: dist._reconfigure(8, ["another"]))
    backend.abort()
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    formed(9, every)
    times = []
    for k in range(10):
        begin = time.perf_counter()
        dist._reconfigure(300 + k, every).wait()
        times.append(time.perf_counter() - begin)
        dist.barrier()
    if ME == ALL - 1:
        os._exit(0)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except dist.DistBackendError:
        pass
    formed(10, every[:-1])
    if ME == 0:
        print(f"groups that change, {ALL} processes: one takes {1000 * statistics.median(times):.1f} ms")
    dist.destroy_process_group()


sys.exit(main())
