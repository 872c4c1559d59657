# SPDX-License-Identifier: Apache-2.0
"""A trace of torch.profiler has every operation, with NCCL's name for it, its sizes and its group."""
import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import hocket.torch


def operations(rank, size):
    """Each kind of operation once."""
    x, two, all_of = torch.ones(8), [torch.ones(4) for _ in range(size)], torch.zeros(8 * size)
    dist.all_reduce(x)
    dist.all_reduce(torch.ones(2, dtype=torch.bfloat16), async_op=True).wait()
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.all_gather_into_tensor(all_of, x)
    dist.all_gather(two, torch.ones(4))
    dist.reduce_scatter_tensor(x, all_of)
    dist.reduce_scatter(torch.ones(4), two)
    dist.all_to_all_single(torch.ones(8), x)
    dist.gather(x, [torch.ones(8) for _ in range(size)] if rank == 0 else None, 0)
    dist.scatter(x, [torch.ones(8) for _ in range(size)] if rank == 0 else None, 0)
    with dist._coalescing_manager():
        for _ in range(3):
            dist.all_reduce(x)
    dist.barrier()
    if rank == 0:
        dist.send(x, 1, tag=5)
    else:
        dist.recv(x, 0, tag=5)


# Of each operation: its name, elements in and out, their type, whether it is asynchronous. Pairs are rank 0's and rank
# 1's.
WANTED = [("all_reduce", 8, 8, "Float", False), ("all_reduce", 2, 2, "BFloat16", True),
          ("broadcast", 8, 8, "Float", False), ("reduce", 8, 8, "Float", False),
          ("_all_gather_base", 8, 16, "Float", False),
          ("all_gather", 4, 8, "Float", False), ("_reduce_scatter_base", 16, 8, "Float", False),
          ("reduce_scatter", 8, 4, "Float", False), ("all_to_all", 8, 8, "Float", False),
          ("gather", 8, (16, 0), "Float", False), ("scatter", (16, 8), 8, "Float", False),
          ("coalesced", 24, 24, "Float", False), ("barrier", 1, 1, "Long", False)]


def main():
    hocket.torch.register()
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert size == 2
    operations(rank, size)  # not in the trace
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as traced:
        operations(rank, size)
    operations(rank, size)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        traced.export_chrome_trace(path)
        with open(path) as trace:
            events = [e for e in json.load(trace)["traceEvents"] if e.get("name", "").startswith("hocket:")]
    events.sort(key=lambda e: e["ts"])
    wanted = [*WANTED, (("send 0->1", "recv 1<-0")[rank], 8, 8, "Float", True)]
    seen = []
    for e in events:
        a = e["args"]
        assert e["dur"] > 0 and a["Collective name"] == e["name"].removeprefix("hocket:"), e
        assert (a["Group size"], a["Rank"], a["Process Group Name"]) == (size, rank, dist.group.WORLD.group_name), a
        seen.append((a["Collective name"], a["In msg nelems"], a["Out msg nelems"], a["dtype"],
                     a["Is asynchronized op"] in (True, "True", "true", 1)))
    mine = [tuple(f[rank] if isinstance(f, tuple) else f for f in each) for each in wanted]
    assert seen == mine, f"rank {rank}:\nwanted {mine}\nseen   {seen}"
    sums = [e for e in events if e["name"] == "hocket:all_reduce"]
    assert sums[0]["args"]["Input Dims"] == [[8]] and sums[0]["args"]["Seq"] + 1 == sums[1]["args"]["Seq"], sums
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        dist.all_reduce(torch.ones(1))
    assert "hocket:all_reduce" in [e.name for e in traced.events()]
    dist.destroy_process_group()
    if rank == 0:
        print(f"the trace has {len(seen)} operations with their names, sizes, types and group")


main()
