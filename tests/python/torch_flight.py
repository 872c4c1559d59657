# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own flight recorder sees the backend's operations, and its reader torchfrtrace finds the rank that has not
made the last call. Rank 0 reads the dumps of all ranks."""
import json
import os
import subprocess
import sys
import tempfile

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
import torch.distributed as dist

import hocket.torch

try:
    from torch._C._distributed_c10d import _dump_fr_trace_file, _dump_fr_trace_json
except ImportError:
    if os.environ["RANK"] == "0":
        print(f"SKIP: PyTorch {torch.__version__} records the operations of its own backends only")
    sys.exit(0)
READER = os.path.join(os.path.dirname(sys.executable), "torchfrtrace")


def recorded():
    """Of each operation: its name, and whether it is over."""
    return [(e["profiling_name"], e["retired"]) for e in json.loads(_dump_fr_trace_json(backend="hocket"))["entries"]]


def main():
    folder = tempfile.TemporaryDirectory()
    hocket.torch.register()
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    late, store = size - 1, dist.distributed_c10d._get_default_store()
    given = [folder.name]
    dist.broadcast_object_list(given, 0)
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(given[0], "trace_")
    before = len(recorded())
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.all_gather([torch.empty(4) for _ in range(size)], x)
    dist.barrier()
    wanted = [(f"hocket:{name}", True) for name in ("all_reduce", "all_gather", "barrier")]
    assert recorded()[before:] == wanted, recorded()
    assert x[0] == size

    last = torch.ones(3)
    work = None if rank == late else dist.all_reduce(last, async_op=True)
    _dump_fr_trace_file(rank, backend="hocket")
    store.set(f"dumped {rank}", b"")
    store.wait([f"dumped {r}" for r in range(size)])
    if work is None:
        dist.all_reduce(last)
    else:
        work.wait()
    assert last[0] == size
    if rank == 0:
        out = subprocess.run([READER, given[0], "--prefix", "trace_"], capture_output=True, text=True, timeout=100)
        text = out.stdout + out.stderr
        assert out.returncode == 0 and "Not all ranks joining collective" in text, text
        assert "collective: hocket:all_reduce" in text and f"missing ranks: {{{late}}}" in text, text
        print(f"torchfrtrace: missing ranks: {{{late}}} in hocket:all_reduce")
    dist.destroy_process_group()


main()
