# SPDX-License-Identifier: Apache-2.0
"""What PyTorch asks of a backend, hooks around operations, and groups that come and go.

python -m hocket.run -n N tests/python/torch_life.py
"""
import gc
import os
import sys
import time

import torch
import torch.distributed as dist

import hocket.torch

hocket.torch.register()
GROUPS, SECONDS = 50, 0.05  # of each, in the best ten in a row: other processes may have the cores meanwhile


def answers(group, backend):
    """Each property has an answer, and it is the same by the group. Windows are the group's: C++ code cannot ask this
    backend for one."""
    for name in [name for name in dir(backend) if "supports_" in name and name != "supports_tensor_alloc"]:
        value = getattr(backend, name)
        assert value in (True, False), (name, value)
        assert getattr(group, name, value) == (value or name == "supports_window"), name


def hooks(group):
    """They see every operation as long as they are registered, and operations cost nothing more after that."""
    kind, seen, x = type(group), [], torch.ones(3)
    group.register_pre_hook(1, lambda call: seen.append(("pre", call.name.name, len(call.input_tensors))))
    group.register_post_hook(2, lambda call: seen.append(("post", call.name.name)))
    dist.all_reduce(x)
    dist.broadcast(x, 0, async_op=True).wait()
    dist.barrier()
    group.unregister_pre_hook(1)
    assert [entry for entry in seen if entry[0] == "pre"] == [
        ("pre", "ALLREDUCE", 1), ("pre", "BROADCAST", 1), ("pre", "BARRIER", 0)], seen
    assert [entry[1] for entry in seen if entry[0] == "post"] == ["ALLREDUCE", "BROADCAST", "BARRIER"], seen
    dist.all_reduce(x)
    assert seen[-1] == ("post", "ALLREDUCE") and len(seen) == 7, seen
    group.unregister_post_hook(2)
    dist.all_reduce(x)
    assert len(seen) == 7 and type(group) is kind and x[0] == dist.get_world_size() ** 3, (seen, x)


def held():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def come_and_go(rank, size):
    """Many groups, one after the other: how long each takes, and that no thread or descriptor stays."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, size, rank == 0)
    gc.disable()  # what only a collection ends would hide in its own time
    ends, x = [time.monotonic()], torch.ones(4)
    for k in range(GROUPS):
        dist.init_process_group("hocket", store=dist.PrefixStore(str(k), store), rank=rank, world_size=size)
        dist.all_reduce(x.clone())
        dist.all_reduce(x.clone(), async_op=True).get_future().wait()
        dist.destroy_process_group()
        ends.append(time.monotonic())
        if k == 10:
            first = held()
    until = time.monotonic() + 30  # threads that hold nothing may need a moment to be gone
    while any(now > then for now, then in zip(held(), first)) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(now <= then for now, then in zip(held(), first)), f"threads, descriptors: {first}, then {held()}"
    gc.enable()
    each = min((b - a) / 10 for a, b in zip(ends, ends[10:]))
    assert each < SECONDS, f"{each:.3f} s a group"
    store.set(f"done {rank}", b"")
    if rank == 0:  # it has the store
        store.wait([f"done {r}" for r in range(size)])
    return each, first


def main():
    dist.init_process_group("hocket")
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    if hasattr(group, "register_pre_hook"):
        answers(group, group._get_backend(torch.device("cpu")))
        hooks(group)
    dist.destroy_process_group()
    each, (threads, descriptors) = come_and_go(rank, size)
    if rank == 0:
        print(f"properties and hooks; {GROUPS} groups of {size}, {1000 * each:.1f} ms each, {threads} threads, "
              f"{descriptors} descriptors")


sys.exit(main())
