# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job find each other: by MPI, or as the library finds them (hocketCommFromEnvironment)."""
from __future__ import annotations

import os
import sys
from ctypes import byref, c_char_p, c_int, c_void_p
from typing import Any, NamedTuple

from ._comm import Communicator
from ._lib import check, config, integer, lib, unique_id


class Place(NamedTuple):
    """What a launcher says about this process."""

    launcher: str  #: "ompi", "pmi", "torchrun", "slurm", or "none"
    rank: int
    size: int
    local_size: int  #: ranks on this host; 0: not known


def place() -> Place:
    """Rank and size of this process by the variables of Open MPI, MPICH, torchrun or Slurm; else 0 of 1."""
    launcher, rank, size, local_size = c_char_p(), c_int(), c_int(), c_int()
    check(lib.hocketRankFromEnvironment(byref(rank), byref(size), byref(local_size), byref(launcher)))
    return Place((launcher.value or b"").decode(), rank.value, size.value, local_size.value)


def init(address: str | None = None, rank: int | None = None, size: int | None = None, *, mpi: Any = None,
         **options: int | str) -> Communicator:
    """The communicator of all processes of this job.

    Without arguments the launcher's environment says who they are: mpirun (for several hosts mpi4py is needed), srun,
    torchrun or `python -m hocket.run`. A program that no launcher started is the only rank.

    mpi: a communicator of mpi4py, whose ranks become the ranks. address: "host:port" on rank 0's host, with rank and
    size unless a launcher gives them. Options are fields of ncclConfig_t.

    RemoteError: ranks are missing after HOCKET_BOOTSTRAP_TIMEOUT seconds (300); the text says which.
    """
    if mpi is None and address is None and rank is None and size is None:
        mpi = _mpi_world()
    if mpi is not None:
        return from_mpi(mpi, **options)
    handle = c_void_p()
    check(lib.hocketCommFromEnvironment(
        byref(handle), None if address is None else address.encode(), -1 if size is None else integer("size", size),
        -1 if rank is None else integer("rank", rank), byref(config(options))))
    return Communicator(handle.value or 0)


def from_mpi(mpi: Any, **options: int | str) -> Communicator:
    """A communicator with the ranks of a communicator of mpi4py. All of its ranks call it."""
    rank, size = mpi.Get_rank(), mpi.Get_size()
    made = mpi.bcast(unique_id() if rank == 0 else None, root=0)
    return Communicator.from_id(made, rank, size, **options)


def _mpi_world() -> Any:
    """mpi4py's communicator of all ranks, if it is needed: MPI is not started only because it is installed."""
    here = place()
    if here.launcher not in ("ompi", "pmi") or os.environ.get("NCCL_COMM_ID") or "MASTER_ADDR" in os.environ:
        return None
    if "mpi4py.MPI" not in sys.modules and here.local_size == here.size:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: there is no MPI library
        return None
    if MPI.COMM_WORLD.Get_size() == here.size:
        return MPI.COMM_WORLD
    # Under the mpirun of another MPI every process is the only one of its world, and MPI has given it a job of its own.
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):
        if variable not in os.environ:
            os.unsetenv(variable)
    return None
