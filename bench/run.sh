#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make bench`: Hocket and its peers side by side, then Hocket's own limits; results in the build folder.
# Options go to run.py: --quick, --help and so on.
set -eu
cd "$(dirname "$0")/.."
HK_BUILD=${HK_BUILD:-build/gcc}
command -v python3 >/dev/null || { echo "bench/run.py needs python3"; exit 1; }
mkdir -p "$HK_BUILD/bench"
for mpi in openmpi mpich; do
  # Debian's openmpi-bin has the compiler's wrapper, and mpi.h is in another package.
  if ! compiler=$(command -v "mpicc.$mpi") || ! echo '#include <mpi.h>' | "$compiler" -fsyntax-only -x c - 2>/dev/null; then
    echo "no mpicc.$mpi with an mpi.h: going on without $mpi (make deps installs both)"
    continue
  fi
  out=$HK_BUILD/bench/mpi_perf.$mpi
  if [ ! -e "$out" ] || [ bench/mpi_perf.c -nt "$out" ]; then "$compiler" -O2 -o "$out" bench/mpi_perf.c; fi
done
exec python3 -B bench/run.py --build "$HK_BUILD" "$@"
