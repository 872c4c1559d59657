# SPDX-License-Identifier: Apache-2.0
"""Groups made of groups: split, merge, shrink and reconfigure; errors, hooks of an abort, times, memory. PyTorch 2.15.

python -m hocket.run -n 3 tests/python/torch_elastic.py
"""
import datetime
import os
import sys
import threading

import torch
import torch.distributed as dist

import hocket.torch

hocket.torch.register()
CPU = torch.device("cpu")


def total(group=None):
    x = torch.full((4,), dist.get_rank(group) + 1.0)
    dist.all_reduce(x, group=group)
    y = torch.full((4,), dist.get_rank(group) + 1.0)
    dist.all_reduce(y, group=group, async_op=True).get_future().wait()
    assert torch.equal(x, y)
    return x[0].item()


def splits(rank, size):
    group = dist.split_group(split_ranks=[[size - 1, 0], [1]])
    assert group.size() == (1 if rank == 1 else 2) and type(group) is type(dist.group.WORLD)
    assert dist.get_rank(group) == (1 if rank == 0 else 0)
    assert total(group) == (1 if rank == 1 else 3)
    dist.destroy_process_group(group)
    group = dist.split_group(split_ranks=[[0, 1]])
    assert (rank < 2 and total(group) == 3) or group == dist.GroupMember.NON_GROUP_MEMBER
    store = dist.PrefixStore("merge", dist.distributed_c10d._get_default_store())
    merged = dist.group.WORLD.merge_remote_group(store, size, datetime.timedelta(seconds=30), group_name="all")
    x = torch.ones(2)
    merged.allreduce([x], dist.AllreduceOptions()).wait()
    assert merged.size() == size and x[0] == size
    merged.shutdown()


def rest(rank):
    group, backend = dist.group.WORLD, dist.group.WORLD._get_backend(CPU)
    kinds = torch._C._distributed_c10d.ErrorType
    assert backend.get_error() == kinds.SUCCESS
    t = backend.allocate_tensor(1000, dtype=torch.float32, device=CPU)
    assert backend.supports_tensor_alloc(CPU) and not backend.supports_tensor_alloc(torch.device("meta"))
    t.fill_(rank + 1)
    dist.all_reduce(t)
    assert t.unique().tolist() == [6.0]
    group._enable_collectives_timing()
    work = dist.all_reduce(t, async_op=True)
    work.get_future().wait()
    assert 0 < work._get_duration() < 60000
    late = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        ended = threading.Event()
        late.register_abort_hook(1, ended.set)
        try:
            dist.all_reduce(t, group=late)
            raise SystemExit("an operation ends without the others")
        except RuntimeError as error:
            assert "Timed out" in str(error), error
        assert ended.is_set() and late._get_backend(CPU).get_error() == kinds.TIMEOUT
    dist.barrier()


def shrinks(rank, size):
    """The last rank dies; the others go on without it."""
    if rank == size - 1:
        os._exit(0)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except dist.DistBackendError:
        pass
    kinds = torch._C._distributed_c10d.ErrorType
    assert dist.group.WORLD._get_backend(CPU).get_error() == kinds.REMOTE_ERROR
    dist.shrink_group([size - 1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    assert dist.get_world_size() == size - 1 and dist.get_rank() == rank and total() == 3
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(1, 3)).sum().backward()
    if rank == 0:
        dist.recv(x := torch.zeros(1), 1)
        assert x == 7
    else:
        dist.send(torch.full((1,), 7.0), 0)


def main():
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        if os.environ["RANK"] == "0":
            print(f"SKIP: PyTorch {torch.__version__} has no groups that change")
        return
    os.environ.setdefault("NCCL_DEBUG", "NONE")  # ranks die, and come late
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    splits(rank, size)
    rest(rank)
    shrinks(rank, size)
    if rank == 0:
        print("split, merge, shrink after a death, errors, abort hooks, times, memory")


sys.exit(main())
