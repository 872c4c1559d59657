# SPDX-License-Identifier: Apache-2.0
"""Windows of torch.distributed: put, signal and wait, blocking and not, between all ranks; wrong calls; time-outs."""
import datetime

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import hocket.torch

N = 5000


def error(kind, words, call, *arguments):
    try:
        call(*arguments)
    except kind as trouble:
        assert words in str(trouble), trouble
    else:
        raise AssertionError(f"no error: {words}")


def main():
    hocket.torch.register()
    if not hasattr(dist, "_new_window"):
        print(f"SKIP: PyTorch {torch.__version__} has no windows")
        return
    dist.init_process_group("hocket")
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    backend = dist.get_backend_impl(group, torch.device("cpu"))
    assert dist._supports_window() and group.supports_window
    mine = backend.allocate_tensor(size * N, dtype=torch.float32)
    mine.zero_()
    window = dist._new_window(mine)
    to, of = (rank + 1) % size, (rank - 1) % size

    for turn in range(20):  # a ring: each rank writes its row into the next rank's window
        later = turn % 2 == 1
        works = [window.put(torch.full((N,), 100.0 * turn + rank), to, rank * N, later), window.signal(to, later),
                 window.wait_signal(of, later)]
        for work in works:
            work.wait()
        assert (mine[of * N:(of + 1) * N] == 100.0 * turn + of).all(), (turn, mine[of * N])
        dist.barrier()
    window.put(torch.tensor([7, 8], dtype=torch.int64), rank, 1, False)  # into its own, with another type
    window.signal(rank, False)
    window.wait_signal(rank, False)
    assert mine.view(torch.int64)[1:3].tolist() == [7, 8]
    window.put(torch.arange(10.0)[::2], rank, 0, False)  # strided
    window.signal(rank, False)
    window.wait_signal(rank, False)
    assert mine[:5].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert window.get_attr(to).access_type == c10d.WindowAccessType.UNIFIED

    error(ValueError, "not in the window", window.put, torch.ones(N), to, size * N - 1, False)
    error(ValueError, "not a rank", window.signal, size, False)
    error(RuntimeError, "has a tensor", window.tensor_register, mine)
    error(RuntimeError, "put() only", window.map_remote_tensor, to)
    dist.barrier()  # all have read what the puts above wrote
    window.put(torch.full((1,), 5.0), to, 0, True)  # it arrives before tensor_deregister() ends
    window.tensor_deregister()
    assert mine[0] == 5.0
    error(RuntimeError, "has no tensor", window.put, torch.ones(1), to, 0, False)
    error(ValueError, "multiple of 4096", window.tensor_register, torch.ones(4097)[1:])
    window.tensor_register(mine)
    window.signal(to, False)
    window.wait_signal(of, False)

    second = group.new_window()  # a window without a tensor yet; it ends with its time-out, and alone
    second.tensor_register(backend.allocate_tensor(1, dtype=torch.uint8))
    options = c10d.WaitSignalOptions()
    options.timeout = datetime.timedelta(seconds=1)
    error(dist.DistBackendError, "Timed out", second.wait_signal, of, False, options)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size
    window.signal(to, False)
    window.wait_signal(of, False)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: puts, signals and waits arrive in their order; wrong ones are refused")


main()
