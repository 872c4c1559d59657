# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's ProcessGroupNCCL does apart from collectives, one part a run (torchrun ... torch_process_group.py PART)."""
import os
import sys
import time
from datetime import timedelta

part = sys.argv[1]
if part in ("timeout", "abort"):
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # wait() reports the time-out, instead of the end of the process
    os.environ["TORCH_FR_DUMP_ON_TIMEOUT"] = "0"
if part in ("watchdog", "lost"):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"  # an error ends the call, and not the process
    os.environ["TORCH_FR_DUMP_ON_TIMEOUT"] = "0"
import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
of_ranks = world * (world - 1) // 2


def backend(group=None):
    return (group or dist.group.WORLD)._get_backend(device)


def check_sum(group=None, members=None, count=1000):
    members = members or list(range(world))
    x = torch.full((count,), float(rank)).to(device)
    dist.all_reduce(x, group=group)
    assert torch.equal(x.cpu(), torch.full((count,), float(sum(members)))), x[:4]


def start(**more):
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, **more)


def skip(why):
    """The last line says so: check.sh reads it."""
    global result
    result = "SKIP: " + " ".join(str(why).split())


def expect(text, call):
    """The call fails, and the message has the text."""
    try:
        call()
    except Exception as e:  # noqa: BLE001 # PyTorch has several kinds
        assert text.lower() in str(e).lower(), f"{type(e).__name__}: {e}"
        return
    raise SystemExit(f"rank {rank}: no error; expected: {text}")


def nonblocking():
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 0
    options.config.min_ctas, options.config.max_ctas = 1, 2
    options.config.comm_name = "nonblocking"
    start(pg_options=options)
    check_sum()
    half = dist.split_group(split_ranks=[list(range(i, world, 2)) for i in range(2)])
    check_sum(half, list(range(rank % 2, world, 2)))
    for _ in range(3):
        x = torch.zeros(10).to(device)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % world),
                                            dist.P2POp(dist.irecv, torch.empty_like(x), (rank - 1) % world)]):
            work.wait()


def timeout():
    """Rank 0 calls alone: its wait ends with an error, and a group of the same ranks can be made afterwards."""
    start()
    group = dist.new_group(timeout=timedelta(seconds=5))
    check_sum(group)
    if rank == 0:
        x = torch.zeros(1000).to(device)
        began = time.monotonic()
        expect("timeout", lambda: dist.all_reduce(x, group=group))
        assert 4 < time.monotonic() - began < 60
    dist.barrier(device_ids=[rank])
    check_sum(dist.new_group())


def watchdog():
    """No thread waits for the call: the watchdog ends it, and the process goes on."""
    start()
    group = dist.new_group(timeout=timedelta(seconds=5))
    check_sum(group)
    dist.barrier(device_ids=[rank])
    if rank == 0:
        dist.all_reduce(torch.zeros(1000).to(device), group=group, async_op=True)
        for _ in range(600):
            if "SUCCESS" not in str(backend(group).get_error()):
                break
            time.sleep(0.1)
        assert "TIMEOUT" in str(backend(group).get_error()), backend(group).get_error()
        torch.cuda.synchronize()
    dist.barrier(device_ids=[rank])
    check_sum()


def abort():
    """abort() while a collective waits for ranks that do not call."""
    start()
    group = dist.new_group()
    check_sum(group)
    if rank == 0:
        dist.all_reduce(torch.zeros(1000).to(device), group=group, async_op=True)
    dist.barrier(device_ids=[rank])
    backend(group).abort()
    torch.cuda.synchronize()
    check_sum()


def lost():
    """A rank ends: the others' next call is an error that names it."""
    start()
    check_sum()
    if rank == world - 1:
        os._exit(0)
    time.sleep(1)
    x = torch.zeros(1000).to(device)

    def call():
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        for _ in range(600):
            error = backend().get_error()
            if "SUCCESS" not in str(error):
                raise RuntimeError(str(error))
            time.sleep(0.1)
    expect("error", call)
    if rank == 0:
        print(result, flush=True)
    os._exit(0)  # the group cannot be ended in order


def pool():
    """Memory of ncclMemAlloc in a pool that is registered: collectives use it without a copy."""
    start()
    check_sum()
    nccl = backend()
    memory = torch.cuda.MemPool(nccl.mem_allocator)
    with torch.cuda.use_mem_pool(memory):
        first = torch.empty(1 << 20, device=device)
    nccl.register_mem_pool(memory)
    with torch.cuda.use_mem_pool(memory):
        second = torch.empty(1 << 20, device=device)
    for x in (first, second):
        x.copy_(torch.full((1 << 20,), float(rank)))
        dist.all_reduce(x)
        assert torch.equal(x.cpu(), torch.full((1 << 20,), float(of_ranks)))
    nccl.deregister_mem_pool(memory)
    dist.all_reduce(first)
    assert first[5].item() == of_ranks * world


def suspend():
    start()
    check_sum()
    nccl = backend()
    try:
        before = nccl.memory_stats()
    except RuntimeError as e:
        skip(e)
        return
    nccl.suspend()
    suspended = nccl.memory_stats()
    nccl.resume()
    check_sum()
    if rank == 0:
        print(before, suspended)


def shrink():
    start()
    check_sum()
    left = [r for r in range(world) if r != world - 1]
    if rank == world - 1:
        dist.barrier(device_ids=[rank])
        dist.destroy_process_group()
        return
    dist.barrier(device_ids=[rank])
    dist.shrink_group([world - 1])
    assert dist.get_world_size() == world - 1
    check_sum(members=left)


def symmetric():
    """Memory that all ranks register together, and its handle."""
    import torch.distributed._symmetric_memory as symm_mem
    start()
    check_sum()
    symm_mem.set_backend("NCCL")
    x = symm_mem.empty(4096, device=device)
    x.copy_(torch.full((4096,), float(rank)))
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    assert handle.rank == rank and handle.world_size == world
    dist.all_reduce(x)
    assert torch.equal(x.cpu(), torch.full((4096,), float(of_ranks)))
    x.copy_(torch.full((4096,), float(rank)))
    dist.barrier(device_ids=[rank])
    try:
        peer = handle.get_buffer((rank + 1) % world, (4096,), torch.float32)
    except RuntimeError as e:
        skip(e)
        return
    assert torch.equal(peer.cpu(), torch.full((4096,), float((rank + 1) % world)))
    dist.barrier(device_ids=[rank])


result = f"{world} processes, PyTorch {torch.__version__}: {part}"
globals()[part]()
if dist.is_initialized():
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()
if rank == 0:
    print(result)
