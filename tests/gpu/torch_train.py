# SPDX-License-Identifier: Apache-2.0
"""Training with PyTorch on several ranks ends where one process ends that has all the data: DDP, its PowerSGD hook, FSDP2."""
import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import device, fail, finish, have_numpy, rank, skip, start, world

STEPS = 20


def network():
    """The same one on every rank."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 48), torch.nn.Tanh(),
                               torch.nn.Linear(48, 1))


def examples(each, inputs, outputs, dtype):
    """Those of all ranks, and where this rank's are."""
    torch.manual_seed(2)
    data, wanted = torch.randn(each * world, inputs), torch.randn(each * world, outputs)
    return data.to(device, dtype), wanted.to(device, dtype), slice(rank * each, rank * each + each)


def train(net, data, wanted):
    """The losses of all steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(data), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def compare(what, ours, alone, tolerance):
    """Losses: the mean of all ranks' is that of all the data."""
    ours = ours.clone()
    dist.all_reduce(ours)
    ours /= world
    if not torch.allclose(ours, alone, rtol=tolerance, atol=0):
        fail(f"{what}: losses {ours[[0, 1, -1]].tolist()} instead of {alone[[0, 1, -1]].tolist()} (first, second, last)")
    if not alone[-1] < alone[0]:
        fail(f"{what}: nothing was learnt, so that nothing is shown")


def compare_parameters(what, ours, alone, tolerance):
    for p, q in zip(ours, alone, strict=True):
        if not torch.allclose(p, q, rtol=tolerance, atol=tolerance / 100):
            fail(f"{what} ends with other parameters than one process")


def with_ddp():
    model = network().to(device, torch.float64)
    alone = copy.deepcopy(model)
    data, wanted, mine = examples(64, 32, 1, torch.float64)
    losses = train(DistributedDataParallel(model, bucket_cap_mb=0.01), data[mine], wanted[mine])
    compare("DDP", losses, train(alone, data, wanted), 1e-9)
    compare_parameters("DDP", model.parameters(), alone.parameters(), 1e-9)


def with_powersgd():
    """With one example a rank the gradient's rank is that of the hook's matrices, so that compressing it loses nothing."""
    if not have_numpy():
        skip("PowerSGD", "the hook wants NumPy")
        return
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(128, 128, bias=False), torch.nn.Tanh()).to(device, torch.float64)
    alone = copy.deepcopy(model)
    data, wanted, mine = examples(1, 128, 128, torch.float64)
    ddp = DistributedDataParallel(model)
    state = powersgd.PowerSGDState(process_group=None, matrix_approximation_rank=world, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powersgd.powerSGD_hook)
    losses = train(ddp, data[mine], wanted[mine])
    if not state.compression_stats()[0] > 1:
        fail(f"PowerSGD compressed nothing: {state.compression_stats()}")
    compare("PowerSGD", losses, train(alone, data, wanted), 1e-6)


def with_fsdp(what, mesh, dtype, tolerance):
    """float32 gradients are averaged by the library, float64 ones are summed up and divided by PyTorch."""
    model = network().to(device, dtype)
    alone = copy.deepcopy(model)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    data, wanted, mine = examples(64, 32, 1, dtype)
    losses = train(model, data[mine], wanted[mine])
    compare(what, losses, train(alone, data, wanted), tolerance)
    compare_parameters(what, [p.full_tensor() for p in model.parameters()], alone.parameters(), 10 * tolerance)


start()
with_ddp()
with_powersgd()
everyone = init_device_mesh("cuda", (world,))
with_fsdp("FSDP2, float32", everyone, torch.float32, 1e-4)
with_fsdp("FSDP2, float64", everyone, torch.float64, 1e-9)
if world % 2 == 0 and world > 2:
    both = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    with_fsdp("FSDP2, replicated and sharded", both, torch.float32, 1e-4)
finish("DDP, PowerSGD, FSDP2")
