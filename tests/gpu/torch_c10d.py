# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives and a small DDP training with the library at hand, several processes on however many GPUs."""
import copy
import os
import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)


def same(what, got, want):
    if not torch.equal(got.cpu(), want.cpu()):
        raise SystemExit(f"rank {rank}: {what}: {got.flatten()[:4]} instead of {want.flatten()[:4]}")


for dtype in (torch.float32, torch.bfloat16, torch.int64):
    for n in (1, 1000, 1 << 20):
        mine = (torch.arange(n, device=device) % 13 + rank).to(dtype)
        base = (torch.arange(n) % 13).to(dtype)
        x = mine.clone()
        dist.all_reduce(x)
        same("all_reduce", x, base * world + world * (world - 1) // 2)
        x = mine.clone()
        dist.broadcast(x, src=world - 1)
        same("broadcast", x, base + world - 1)
        out = torch.empty(world * n, dtype=dtype, device=device)
        dist.all_gather_into_tensor(out, mine)
        same("all_gather", out, torch.cat([base + r for r in range(world)]))
        part = torch.empty(n, dtype=dtype, device=device)
        dist.reduce_scatter_tensor(part, out)
        same("reduce_scatter", part, (base + rank) * world)
        swapped = torch.empty_like(out)
        dist.all_to_all_single(swapped, out)
        same("all_to_all", swapped, torch.cat([base + rank] * world))
        x = mine.clone()
        dist.reduce(x, dst=0)
        if rank == 0:
            same("reduce", x, base * world + world * (world - 1) // 2)
        got = torch.empty_like(mine)
        for op in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank + 1) % world),
                                          dist.P2POp(dist.irecv, got, (rank - 1) % world)]):
            op.wait()
        same("send and receive", got, base + (rank - 1) % world)
dist.barrier()

# Captured, and replayed with other data.
x = torch.zeros(4096, device=device)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(x)
for i in range(20):
    x.fill_(i + rank)
    graph.replay()
    same("a captured all_reduce", x, torch.full((4096,), float(i * world + world * (world - 1) // 2)))

# DDP learns what one process learns from all the data.
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device).double()
alone = copy.deepcopy(model)
ddp = torch.nn.parallel.DistributedDataParallel(model)
data, wanted = torch.randn(64 * world, 32).double().to(device), torch.randn(64 * world, 1).double().to(device)
for net, part in ((ddp, slice(rank * 64, rank * 64 + 64)), (alone, slice(None))):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(data[part]), wanted[part]).backward()
        optimizer.step()
for p, q in zip(model.parameters(), alone.parameters()):
    if not torch.allclose(p, q, rtol=1e-9, atol=1e-12):
        raise SystemExit(f"rank {rank}: DDP ends with other parameters than one process")
dist.destroy_process_group()
if rank == 0:
    print(f"{world} processes, PyTorch {torch.__version__}: all as it should be")
