# SPDX-License-Identifier: Apache-2.0
"""Collective communication between processes, on CPUs and GPUs.

    import hocket, numpy as np
    comm = hocket.init()                 # who the ranks are: from mpirun, srun, torchrun or `python -m hocket.run`
    x = np.full(1000, comm.rank, np.float32)
    comm.all_reduce(x)                   # in place; every rank has the sum

docs/python.md is a tutorial. `import hocket.torch` gives PyTorch the backend "hocket" (docs/torch.md).
"""
from __future__ import annotations

import os

from ._bootstrap import Place, from_mpi, init, place
from ._buffers import Buffer, DataType, buffer
from ._comm import Communicator, Op, Registration, empty, view
from ._generated import VERSION as __version__
from ._lib import (FOLDER, LIBRARY, CudaError, Error, InternalError, InvalidArgument, InvalidUsage, RemoteError,
                   SystemFailure, device_count, nccl_version, unique_id, version)
from ._stream import Stream, group

SUM, PROD, MAX, MIN, AVG = Op

__all__ = [
    "AVG", "Buffer", "Communicator", "CudaError", "DataType", "Error", "InternalError", "InvalidArgument",
    "InvalidUsage", "MAX", "MIN", "Op", "PROD", "Place", "Registration", "RemoteError", "SUM", "Stream",
    "SystemFailure", "__version__", "buffer", "device_count", "empty", "from_mpi", "get_include", "get_library",
    "group", "init", "nccl_version", "place", "unique_id", "version", "view"]


def get_include() -> str:
    """The folder of nccl.h and hocket.h, for a C compiler's -I."""
    return os.path.join(FOLDER, "include")


def get_library() -> str:
    """The shared library, to link with: cc program.c -I$include $library."""
    return LIBRARY
