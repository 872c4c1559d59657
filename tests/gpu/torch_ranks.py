# SPDX-License-Identifier: Apache-2.0
"""For torch_c10d.py and torch_train.py, under torchrun: this rank, its GPU (shared, where there are more ranks), and verdicts."""
import os

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())


def start():
    """With a device_id the communicator is made at once, and new_group() may split it."""
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)


def finish(what):
    dist.barrier(device_ids=[device.index])
    dist.destroy_process_group()
    if rank == 0:
        print(f"{world} processes, PyTorch {torch.__version__}: {what} as it should be")


def fail(text):
    raise SystemExit(f"rank {rank}: {text}")


def same(what, got, want):
    if not torch.equal(got.cpu(), want.cpu()):
        fail(f"{what}: {got.flatten()[:4]} instead of {want.flatten()[:4]}")


def skip(what, why):
    """check.sh counts the line."""
    if rank == 0:
        print(f"SKIP: {what}: {why}")


def have_numpy():
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True
