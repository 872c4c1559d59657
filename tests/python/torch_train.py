# SPDX-License-Identifier: Apache-2.0
"""Training with PyTorch's own parallel wrappers on the backend hocket gives the losses that Gloo gives.

python -m hocket.run -n N tests/python/torch_train.py
"""
import importlib.util

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import hocket.torch

hocket.torch.register()
STEPS = 10
torch.set_num_threads(1)
dist.init_process_group("hocket")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 48),
                               torch.nn.BatchNorm1d(48), torch.nn.Linear(48, 1))


def train(model, optimizer=None):
    """The losses of all steps, with this rank's part of the data."""
    torch.manual_seed(2 + rank)
    data, wanted = torch.randn(64, 32), torch.randn(64, 1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(what, run, tolerance=1e-6):
    """run(group) trains; the two backends add in another order, so that last digits may differ."""
    ours, theirs = run(dist.group.WORLD), run(gloo)
    if not all(abs(a - b) <= tolerance * abs(b) for a, b in zip(ours, theirs, strict=True)):
        raise SystemExit(f"rank {rank}: {what}: losses {ours} instead of {theirs}")
    if not ours[-1] < ours[0]:
        raise SystemExit(f"rank {rank}: {what}: nothing was learnt, so that nothing is shown")


def ddp(group, **options):
    return DistributedDataParallel(network(), process_group=group, **{"bucket_cap_mb": 0.01, **options})


def with_hook(group, hook, state, **options):
    model = ddp(group, **options)
    model.register_comm_hook(state, hook)
    return train(model)


def sharded(group):
    model = network()
    del model[3]
    mesh = init_device_mesh("cpu", (size,)) if group is dist.group.WORLD else \
        dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return train(fully_shard(model, mesh=mesh))


def zero(group):
    model = ddp(group)
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01))


def unused(group):
    """Parameters that get no gradient: DDP asks the other ranks."""
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.other = network(), torch.nn.Linear(32, 1)

        def forward(self, x):
            return self.net(x) + (self.other(x) if rank == 0 else 0)
    return train(DistributedDataParallel(Two(), process_group=group, find_unused_parameters=True))


compare("DDP", lambda g: train(ddp(g)))
compare("DDP with views of buckets", lambda g: train(ddp(g, gradient_as_bucket_view=True)))
compare("DDP with a static graph", lambda g: train(ddp(g, static_graph=True)))
compare("DDP with unused parameters", unused)
compare("fp16 compression", lambda g: with_hook(g, default_hooks.fp16_compress_hook, g), 2e-2)
compare("bf16 compression", lambda g: with_hook(g, default_hooks.bf16_compress_hook, g), 5e-2)
# PowerSGD's callbacks make calls of their own. With more than one bucket their order differs between ranks on every
# backend whose work is complete some time later, Gloo's too.
if importlib.util.find_spec("numpy"):
    compare("PowerSGD", lambda g: with_hook(g, powersgd.powerSGD_hook, powersgd.PowerSGDState(
        g, matrix_approximation_rank=2, start_powerSGD_iter=2), bucket_cap_mb=25), 1e-3)
elif rank == 0:
    print("SKIP: PowerSGD: the hook wants NumPy")
compare("ZeRO optimizer", zero)
compare("FSDP2", sharded)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    print(f"{size} ranks: DDP, hooks, PowerSGD, ZeRO, FSDP2 train to Gloo's losses")
