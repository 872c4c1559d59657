# SPDX-License-Identifier: Apache-2.0
"""nccl4py's bindings, made for NCCL 2.32: three ranks as processes on host memory; a fourth one joins them."""
import multiprocessing
import sys

import numpy as np
import ranks

FLOAT32, SUM, COUNT = 7, 0, 5000


def calls(rank, pipe, new_pipe):
    from nccl.bindings import nccl as n

    uid = n.UniqueId.from_buffer(bytearray(pipe.recv_bytes()))

    def allreduce(comm, nranks):
        x = np.arange(COUNT, dtype=np.float32) + rank
        y = np.zeros_like(x)
        n.all_reduce(x.ctypes.data, y.ctypes.data, COUNT, FLOAT32, SUM, comm, 0)
        want = np.arange(COUNT) * nranks + sum(range(nranks))
        assert (y == want).all(), (rank, y[:4], want[:4])

    if rank < 3:
        comm = n.comm_init_rank(3, uid, rank)
        assert n.comm_count(comm) == 3 and n.comm_user_rank(comm) == rank
        allreduce(comm, 3)
        if rank == 0:
            new_pipe.send_bytes(bytes(n.comm_get_unique_id(comm)))
        grown = n.comm_grow(comm, 4, 0, -1, 0)
        n.comm_destroy(comm)
    else:
        grown = n.comm_grow(n.Comm(0), 4, uid.ptr, 3, 0)
    allreduce(grown, 4)
    n.comm_destroy(grown)


def main():
    from nccl.bindings import nccl as n

    import nccl.core as core

    assert "NCCL_DEBUG" in n.param_get_all_keys(), n.param_get_all_keys()
    assert n.param_get_parameter("NCCL_IB_RETRY_CNT") == "6"
    uid = n.get_unique_id()
    for_new = multiprocessing.Pipe()
    pipes = [multiprocessing.Pipe() for _ in range(3)] + [for_new]

    def send_ids():
        for r in range(3):
            pipes[r][0].send_bytes(bytes(uid))

    ranks.run(calls, [(r, pipes[r][1], for_new[0]) for r in range(4)], send_ids)
    info = core.get_version()
    print(f"nccl4py {info.nccl4py} for NCCL {info.nccl_bindings}: allreduce, growth, parameters")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
