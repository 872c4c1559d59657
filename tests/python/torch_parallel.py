# SPDX-License-Identifier: Apache-2.0
"""Tensor, sequence and pipeline parallel training as PyTorch's documentation shows it gives the losses that Gloo gives.

python -m hocket.run -n N tests/python/torch_parallel.py
"""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import hocket.torch

hocket.torch.register()
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
STEPS, WORDS, WIDTH, HEADS, LENGTH, BATCH = 6, 48, 32, 8, 8, 8


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.net2 = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.net2(F.relu(self.net1(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape  # the heads of this rank only: -1
        q, k, v = (w(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 64)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(k): Block() for k in range(blocks)})
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embeddings(tokens) if self.embeddings is not None else tokens
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x)) if self.norm is not None else x


def seeded(make):
    torch.manual_seed(1)
    return make()


def text(part=0):
    torch.manual_seed(2 + part)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def optimise(model, loss_of):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(loss_of(model))
        optimizer.step()
    return losses


def toy(sequence):
    """The first example: columns, then rows; with a sharded sequence the ends differ."""
    mesh = init_device_mesh("cpu", (size,))
    first, last = (ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))) if sequence else \
        (ColwiseParallel(), RowwiseParallel())
    model = parallelize_module(seeded(Toy), mesh, {"net1": first, "net2": last})

    def loss_of(model):
        torch.manual_seed(3 + (rank if sequence else 0))
        loss = model(torch.rand(20, 16)).square().sum()
        loss.backward()
        return loss.item()
    return optimise(model, loss_of)


def split(model, mesh):
    """The plan of the tutorial for a language model: sequence parallel norms, a sharded vocabulary."""
    model = parallelize_module(model, mesh, {
        "embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1))})
    return model


def language_loss(part):
    def loss_of(model):
        tokens, wanted = text(part)
        with loss_parallel():
            loss = F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())
            loss.backward()
        return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item()
    return loss_of


def language():
    return optimise(split(seeded(Transformer), init_device_mesh("cpu", (size,))), language_loss(0))


def language_2d():
    """Tensor parallel in pairs, FSDP2 across them."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model = split(seeded(Transformer), mesh["tp"])
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh["dp"])
    return optimise(fully_shard(model, mesh=mesh["dp"]), language_loss(mesh["dp"].get_local_rank()))


def stage_of(index, stages):
    """Part of the model: the first part has the embeddings, the last one the output."""
    model = seeded(lambda: Transformer(stages))
    for key in list(model.layers):
        if int(key) != index:
            del model.layers[key]
    if index:
        model.embeddings = None
    if index != stages - 1:
        model.norm = model.output = None
    return PipelineStage(model, index, stages, torch.device("cpu"))


def pipeline(kind, parts):
    """The tutorial's pipeline: `parts` stages on each rank."""
    stages = [stage_of(rank + k * size, size * parts) for k in range(parts)]
    schedule = kind(stages if parts > 1 else stages[0], n_microbatches=4,
                    loss_fn=lambda out, wanted: F.cross_entropy(out.flatten(0, 1), wanted.flatten()))

    def loss_of(_):
        losses, (tokens, wanted) = [], text()
        given = (tokens,) if rank == 0 else ()
        wish = {"target": wanted, "losses": losses} if rank == size - 1 else {}
        schedule.step(*given, **wish)
        return sum(x.item() for x in losses) / max(len(losses), 1)
    return optimise(nn.ModuleList(stage.submod for stage in stages), loss_of)


EXAMPLES = {
    "tensor parallel": lambda: toy(False),
    "sequence parallel": lambda: toy(True),
    "a transformer with sharded vocabulary": language,
    "GPipe": lambda: pipeline(ScheduleGPipe, 1),
    "1F1B": lambda: pipeline(Schedule1F1B, 1),
    "interleaved 1F1B": lambda: pipeline(ScheduleInterleaved1F1B, 2),
}
if size >= 4 and size % 2 == 0:
    EXAMPLES["FSDP2 and tensor parallel"] = language_2d


def train_all(backend):
    dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=size)
    losses = {name: example() for name, example in EXAMPLES.items()}
    dist.barrier()
    dist.destroy_process_group()
    return losses


theirs, ours = train_all("gloo"), train_all("hocket")
for what, want in theirs.items():
    got = ours[what]
    if not all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(got, want, strict=True)):
        raise SystemExit(f"rank {rank}: {what}: losses {got} instead of {want}")
    if want[0] and not want[-1] < want[0]:
        raise SystemExit(f"rank {rank}: {what}: nothing was learnt, so that nothing is shown: {want}")
if rank == 0:
    print(f"{size} ranks: {', '.join(theirs)} train to Gloo's losses")
