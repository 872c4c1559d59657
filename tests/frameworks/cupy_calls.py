# SPDX-License-Identifier: Apache-2.0
"""CuPy's own module for NCCL: three ranks as processes on host memory, whose addresses NumPy gives."""
import multiprocessing
import sys

import numpy as np
import ranks

COUNT = 3000


def calls(rank, nranks, uid):
    from cupy.cuda import nccl

    comm = nccl.NcclCommunicator(nranks, uid, rank)
    assert comm.size() == nranks and comm.rank_id() == rank
    x, y = np.arange(COUNT, dtype=np.float32) + rank, np.zeros(COUNT, dtype=np.float32)
    comm.allReduce(x.ctypes.data, y.ctypes.data, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    assert (y == np.arange(COUNT) * nranks + sum(range(nranks))).all()
    comm.broadcast(x.ctypes.data, y.ctypes.data, COUNT, nccl.NCCL_FLOAT32, 1, 0)
    assert (y == np.arange(COUNT) + 1).all()
    nccl.groupStart()
    comm.send(x.ctypes.data, COUNT, nccl.NCCL_FLOAT32, (rank + 1) % nranks, 0)
    comm.recv(y.ctypes.data, COUNT, nccl.NCCL_FLOAT32, (rank - 1) % nranks, 0)
    nccl.groupEnd()
    assert (y == np.arange(COUNT) + (rank - 1) % nranks).all()
    comm.destroy()


def main():
    import cupy
    from cupy.cuda import nccl

    uid = nccl.get_unique_id()
    ranks.run(calls, [(r, 3, uid) for r in range(3)])
    print(f"CuPy {cupy.__version__}, built for NCCL {nccl.get_build_version()}: allreduce, broadcast, send and receive")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
