# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives with the library at hand, several processes on however many GPUs (torchrun ... torch_c10d.py)."""
import torch
import torch.distributed as dist
from torch_ranks import device, fail, finish, have_numpy, rank, same, skip, start, world

after, before = (rank + 1) % world, (rank - 1) % world
of_ranks = world * (world - 1) // 2  # 0 + 1 + ...


def basis(n, dtype):
    """What rank 0 gives; rank r gives r more of everything."""
    return (torch.arange(n) % 13).to(dtype)


def tensors(dtype, n):
    """The calls that work on one tensor."""
    base = basis(n, dtype)
    mine = (base + rank).to(device)
    x = mine.clone()
    dist.all_reduce(x)
    same("all_reduce", x, base * world + of_ranks)
    x = mine.clone()
    dist.broadcast(x, src=world - 1)
    same("broadcast", x, base + world - 1)
    out = torch.empty(world * n, dtype=dtype, device=device)
    dist.all_gather_into_tensor(out, mine)
    same("all_gather_into_tensor", out, torch.cat([base + r for r in range(world)]))
    part = torch.empty(n, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(part, out)
    same("reduce_scatter_tensor", part, (base + rank) * world)
    swapped = torch.empty_like(out)
    dist.all_to_all_single(swapped, out)
    same("all_to_all_single", swapped, torch.cat([base + rank] * world))
    x = mine.clone()
    dist.reduce(x, dst=0)
    if rank == 0:
        same("reduce", x, base * world + of_ranks)


def lists(dtype, n):
    """The calls that work on lists: copied through one tensor, or groups of sends and receives where sizes differ."""
    base = basis(n, dtype)
    mine = (base + rank).to(device)
    got = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(got, mine)
    for r in range(world):
        same("all_gather of a list", got[r], base + r)
    uneven = [torch.empty(n + r, dtype=dtype, device=device) for r in range(world)]
    dist.all_gather(uneven, (basis(n + rank, dtype) + rank).to(device))
    for r in range(world):
        same("all_gather of uneven parts", uneven[r], basis(n + r, dtype) + r)
    part = torch.empty_like(mine)
    dist.reduce_scatter(part, [(base + rank + r).to(device) for r in range(world)])
    same("reduce_scatter of a list", part, (base + rank) * world + of_ranks)
    part = torch.empty(n + rank, dtype=dtype, device=device)
    dist.reduce_scatter(part, [(basis(n + r, dtype) + rank).to(device) for r in range(world)])
    same("reduce_scatter of uneven parts", part, basis(n + rank, dtype) * world + of_ranks)
    got = [torch.empty_like(mine) for _ in range(world)]
    dist.all_to_all(got, [mine + r for r in range(world)])
    for r in range(world):
        same("all_to_all of a list", got[r], base + r + rank)
    # Rank r sends i + 1 elements to rank i.
    given = torch.cat([mine[:1].expand(i + 1) for i in range(world)])
    parts = torch.empty(world * (rank + 1), dtype=dtype, device=device)
    dist.all_to_all_single(parts, given, [rank + 1] * world, [i + 1 for i in range(world)])
    same("all_to_all_single of uneven parts", parts, torch.arange(world).repeat_interleave(rank + 1).to(dtype))
    got = [torch.empty_like(mine) for _ in range(world)] if rank == world - 1 else None
    dist.gather(mine, got, dst=world - 1)
    for r, x in enumerate(got or []):
        same("gather", x, base + r)
    part = torch.empty_like(mine)
    dist.scatter(part, [(base + 2 * r).to(device) for r in range(world)] if rank == 0 else None, src=0)
    same("scatter", part, base + 2 * rank)


def point_to_point(dtype, n):
    base = basis(n, dtype)
    mine, got = (base + rank).to(device), torch.empty(n, dtype=dtype, device=device)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    same("send and receive", got, base + before)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(got, 1)
    elif rank == 1:
        dist.recv(got, 0)
        dist.send(mine, 0)
    if rank < 2:
        same("send, then receive", got, base + 1 - rank)


def operators():
    for name, want in (("SUM", of_ranks + world), ("PRODUCT", torch.arange(1, world + 1).prod().item()), ("MIN", 1),
                       ("MAX", world), ("AVG", (world + 1) / 2)):
        x = torch.full((777,), float(rank + 1), device=device)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        same(name, x, torch.full((777,), float(want)))
    x = torch.full((777,), float(rank + 1), device=device)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    same("PREMUL_SUM", x, torch.full((777,), (of_ranks + world) / 2))
    x = torch.full((777,), complex(rank, 1), device=device)
    dist.all_reduce(x)
    same("complex numbers", x, torch.full((777,), complex(of_ranks, world)))
    x = torch.tensor([True, rank == 0, False], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    same("truth values", x, torch.tensor([True, True, False]))


def several_at_once():
    """Calls that wait for nothing, and calls that PyTorch puts into one group."""
    many = [torch.full((1 << k,), float(rank), device=device) for k in range(16)]
    for work in [dist.all_reduce(x, async_op=True) for x in many]:
        work.wait()
    for x in many:
        same("async_op", x, torch.full(x.shape, float(of_ranks)))
    many = [torch.full((1 << k,), float(rank), device=device) for k in range(16)]
    with dist._coalescing_manager(device=device):
        for x in many:
            dist.all_reduce(x)
    for x in many:
        same("coalesced all_reduce", x, torch.full(x.shape, float(of_ranks)))
    outs = [torch.empty(world << k, device=device) for k in range(8)]
    with dist._coalescing_manager(device=device):
        for k, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((1 << k,), float(rank + k), device=device))
    for k, out in enumerate(outs):
        same("coalesced all_gather", out, (torch.arange(world) + float(k)).repeat_interleave(1 << k))
    parts = [torch.empty(1 << k, device=device) for k in range(8)]
    with dist._coalescing_manager(device=device):
        for part, out in zip(parts, outs):
            dist.reduce_scatter_tensor(part, out)
    for k, part in enumerate(parts):
        same("coalesced reduce_scatter", part, torch.full((1 << k,), float(world * (rank + k))))


def check_group(what, group, members):
    if rank not in members:
        return
    x = torch.full((5000,), float(rank), device=device)
    dist.all_reduce(x, group=group)
    same(what, x, torch.full((5000,), float(sum(members))))
    x = torch.full((100,), float(rank), device=device)
    dist.broadcast(x, src=members[-1], group=group)
    same(f"broadcast in {what}", x, torch.full((100,), float(members[-1])))
    dist.barrier(group=group, device_ids=[device.index])


def groups():
    """Groups of some of the ranks: the communicator is split."""
    halves = [list(range(i, world, 2)) for i in range(2)]
    for members, group in [(members, dist.new_group(members)) for members in halves]:
        check_group("a new group", group, members)
        if rank in members:
            dist.destroy_process_group(group)
    backwards = list(range(world))[::-1]
    check_group("a group of all", dist.new_group(backwards), sorted(backwards))
    check_group("a split group", dist.split_group(split_ranks=halves), halves[rank % 2])


def objects():
    if not have_numpy():
        skip("objects of Python", "PyTorch wants NumPy for them")
        return
    thing, got = {"rank": rank, "text": "x" * (100 * rank)}, [None] * world
    dist.all_gather_object(got, thing)
    wanted = [{"rank": r, "text": "x" * (100 * r)} for r in range(world)]
    if got != wanted:
        fail(f"all_gather_object: {got}")
    got = [None] * world if rank == 0 else None
    dist.gather_object(thing, got, dst=0)
    if rank == 0 and got != wanted:
        fail(f"gather_object: {got}")
    got = [thing, rank]
    dist.broadcast_object_list(got, src=world - 1, device=device)
    if got != [wanted[-1], world - 1]:
        fail(f"broadcast_object_list: {got}")
    got = [None]
    dist.scatter_object_list(got, wanted if rank == 0 else None, src=0)
    if got != [thing]:
        fail(f"scatter_object_list: {got}")
    got = [thing]
    if rank == 0:
        dist.send_object_list(got, dst=1, device=device)
    elif rank == 1:
        dist.recv_object_list(got, src=0, device=device)
        if got != [wanted[0]]:
            fail(f"recv_object_list: {got}")


def captured():
    """Captured, and replayed with other data."""
    x = torch.zeros(4096, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    for i in range(20):
        x.fill_(i + rank)
        graph.replay()
        same("a captured all_reduce", x, torch.full((4096,), float(i * world + of_ranks)))


start()
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8):
    tensors(dtype, 1000)
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    for n in (1, 1000, 1 << 20):
        tensors(dtype, n)
        point_to_point(dtype, n)
    lists(dtype, 1000)
    lists(dtype, 100000)
dist.barrier(device_ids=[device.index])
operators()
several_at_once()
groups()
objects()
captured()
finish("collectives, sends, groups, objects, graphs")
