#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nvidia.sh PART: NVIDIA's own programs, compiled by nvcc from their sources, with Hocket on emulated GPUs (docs/cudaemu.md). Their
# kernels, which fill and check data or call NCCL's device API, run from their PTX. check.sh calls each part.
#   examples     NCCL's docs/examples
# and of nccl-tests:
#   build        the programs, with the headers of NCCL 2.32.3 and, if Open MPI is installed, for several processes
#   collectives  each program, a thread with four GPUs
#   threads      each program, four threads with a GPU each, registered buffers, graphs
#   types        what reduces, all types and operators
#   device       the kernels that reduce and exchange by NCCL's device API: LSA and multimem
#   processes    each program, four processes
#   ptx          collectives with Hocket's kernels from their PTX, too
# Environment: NCCL_TESTS=DIR (sources of github.com/NVIDIA/nccl-tests), NCCL_EXAMPLES=DIR (docs/examples of github.com/NVIDIA/nccl),
# HK_BUILD, HK_MAKE, NVCC.
# The time of each run is bounded; the figures that it prints are no measure of anything here.
set -u
skip() { echo "SKIP: $*"; exit 77; }
folder=$PWD/build/frameworks home=$PWD/build/frameworks/nccl-home built=$PWD/build/frameworks/nccl-$1 make=${HK_MAKE:-make}
[ "$1" = examples ] || built=$folder/nccl-tests
log=$built/log
mkdir -p "$built"
lib=$PWD/$HK_BUILD/lib emulator=$PWD/$HK_BUILD/cudaemu
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)}
programs="all_gather all_reduce alltoall alltoallv broadcast gather hypercube reduce reduce_scatter scatter sendrecv"
arch=-gencode=arch=compute_90,code=compute_90
[ -n "$nvcc" ] || skip "there is no nvcc (make NVCC=yes gets one, the CUDA toolkit has one)"
[ -e "$emulator/kernels.so" ] || skip "the emulated CUDA driver and its kernels are not built (g++)"

openmpi=/usr/lib/$(gcc -print-multiarch 2>/dev/null)/openmpi

sources() { # variable folder file: are the sources there?
  [ -n "$2" ] || skip "$1=DIR names its sources"
  [ -e "$2/$3" ] || skip "$1=$2: $3 is not there"
}

# What programs are compiled with: NCCL's headers, this library, and CUDA's shared runtime, whose place the emulated one takes
# when they run.
make_home() {
  local headers=$folder/nccl-2.32.3 runtime
  cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
  runtime=$(find "$cuda"/lib64/ "$cuda"/lib/ "$cuda"/targets/*/lib/ -name 'libcudart.so*' 2>/dev/null | head -n 1)
  if [ -z "$runtime" ] || [ ! -e "$cuda/include/cuda_runtime.h" ]; then skip "$cuda has no libcudart.so with its headers"; fi
  [ -e "$headers/nccl_device.h" ] || python3 -B tests/headers/wheel_file.py nvidia-nccl-cu13 2.32.3 nvidia/nccl/include/ "$headers" >"$log" 2>&1 ||
    skip "the headers of NCCL 2.32.3: $(tail -n 1 "$log")"
  rm -rf "$home" && mkdir -p "$home/lib" && ln -s "$headers" "$home/include" && ln -s "$lib/libnccl.so.2" "$home/lib/libnccl.so"
  ln -s "$runtime" "$home/lib/libcudart.so"
  printf '#!/bin/sh\nexec "%s" -cudart none "$@"\n' "$nvcc" >"$home/nvcc" && chmod +x "$home/nvcc"
  tests/cudaemu/runtime/build.sh "$cuda/include" "$emulator" "$home/libcudart.so.13" >"$log" 2>&1 || { tail -n 5 "$log"; exit 1; }
}

build() {
  local mpi=(MPI=0)
  sources NCCL_TESTS "${NCCL_TESTS:-}" src/all_reduce.cu
  make_home
  [ -e "$openmpi/include/mpi.h" ] && mpi=(MPI=1 MPI_HOME="$openmpi")
  "$make" -C "$NCCL_TESTS" -j"$(nproc)" "${mpi[@]}" NVCC="$home/nvcc" CUDA_HOME="$cuda" CUDA_LIB="$home/lib" NCCL_HOME="$home" \
    NVCC_GENCODE="$arch" BUILDDIR="$built" src.build >"$log" 2>&1 || { grep -i error "$log" | head; exit 1; }
  echo "compiled by nvcc $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), ${mpi[0]}"
}

# Each example with four GPUs. Those that need GIN say that it is not there. The ring example moves 1 GB on each GPU: too much here.
examples() {
  local main name of start ran=0
  sources NCCL_EXAMPLES "${NCCL_EXAMPLES:-}" common/src/utils.cc
  make_home
  cd "$NCCL_EXAMPLES" || exit 1
  for main in 0*/*/c/main.c[cu]; do
    name=${main%/c/*} of=() start=()
    case $main in *_gin/* | *_hybrid/* | *ring_pattern*) continue ;; esac
    if [[ $main == *_mpi/* ]]; then
      if [ ! -e "$openmpi/include/mpi.h" ] || ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then continue; fi
      of=(-DMPI_SUPPORT -DOMPI_SKIP_MPICXX -I"$openmpi/include" -L"$openmpi/lib" -lmpi) start=(mpirun -np 4)
    fi
    "$home/nvcc" -std=c++17 -w "$arch" -Icommon/include -I07_kernel_fusion/include -I"$home/include" "$main" common/src/utils.cc \
      -o "$built/example" "${of[@]}" -L"$home/lib" -lnccl -lcudart >"$log" 2>&1 || { echo "$name:"; grep -i error "$log" | head; exit 1; }
    if ! launch "${start[@]}" -- "$built/example" || grep -qiE 'error|failed|incorrect' "$built/out"; then
      echo "$name:"
      tail -n 15 "$built/out"
      exit 1
    fi
    ran=$((ran + 1))
  done
  echo "$ran of NCCL's examples, those of its device API among them: right"
}

# A program with Hocket and the emulated driver in the place of NCCL and CUDA; its output is in $built/out.
launch() { # command (mpirun...) -- program options...
  local before=()
  while [ "$1" != -- ]; do before+=("$1"); shift; done
  shift
  timeout -k 5 120 "${before[@]}" env LD_LIBRARY_PATH="$emulator" LD_PRELOAD="$home/libcudart.so.13 $lib/libnccl.so.2" CUDAEMU_DEVICES=4 \
    CUDAEMU_THREADS=64 HOCKET_CUDA_IMAGE="$emulator/kernels.so" CUDA_DEVICE_MAX_CONNECTIONS=32 "$@" >"$built/out" 2>&1
}
run() { # one of nccl-tests: command (mpirun...) -- program options...
  local before=()
  while [ "$1" != -- ]; do before+=("$1"); shift; done
  local program=$2
  shift 2
  launch "${before[@]}" -- "$built/${program}_perf" -n 2 -w 1 "$@" && grep -q 'Out of bounds values : 0 OK' "$built/out" && return
  echo "${program}_perf $*:"
  tail -n 15 "$built/out"
  exit 1
}

case $1 in
  build | examples) ;;
  *) [ -x "$built/all_reduce_perf" ] || skip "its programs are not built" ;;
esac
unset HOCKET_DEVICE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
case $1 in
  build) build ;;
  examples) CUDAEMU_MULTICAST=1 examples ;;
  collectives)
    for program in $programs; do
      # hypercube_perf sends in a group what it receives in the same group: with a thread's four GPUs it is wrong with any library
      # (NVIDIA/nccl-tests#190).
      run -- "$program" -b 8 -e 256K -f 32 -g "$([ "$program" = hypercube ] && echo 2 || echo 4)"
    done
    echo "its 11 programs, a thread with 4 emulated GPUs: no wrong value" ;;
  threads)
    for program in $programs; do
      run -- "$program" -b 8 -e 64K -f 64 -t 4 -g 1 -R 1
      run -- "$program" -b 1K -e 1K -t 4 -g 1 -R 2 -G 2
    done
    echo "its 11 programs, 4 threads, registered buffers and windows, graphs: no wrong value" ;;
  types)
    for program in all_reduce reduce_scatter reduce; do run -- "$program" -b 1K -e 1K -g 4 -d all -o all; done
    echo "allreduce, reduce-scatter and reduce of all types and operators: no wrong value" ;;
  device)
    export CUDAEMU_MULTICAST=1
    for way in 1 2 3 4; do run -- all_reduce -b 1K -e 64K -f 8 -g 4 -D $way -R 2; done
    for way in 1 2; do run -- alltoall -b 1K -e 64K -f 8 -g 4 -D $way -R 2; done
    echo "its kernels of NCCL's device API, allreduce by LSA and multimem, alltoall by LSA: no wrong value" ;;
  processes)
    mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip "there is no mpirun of Open MPI"
    nm -D --undefined-only "$built/all_reduce_perf" | grep -q MPI_Init || skip "its programs are built without MPI"
    for program in $programs; do run mpirun -np 4 -- "$program" -b 8 -e 64K -f 64 -g 1; done
    echo "its 11 programs, 4 processes of Open MPI: no wrong value" ;;
  ptx)
    mkdir -p build/cuda
    flock build/cuda/lock "$make" --no-print-directory NVCC= ONE_NVCC="$nvcc" build/cuda/90/kernels.ptx >"$built/out" 2>&1 || { tail -n 5 "$built/out"; exit 1; }
    export CUDAEMU_PTX=$PWD/build/cuda/90 CUDAEMU_WEAK=1
    for program in all_reduce all_gather alltoall broadcast; do run -- "$program" -b 8 -e 64K -f 64 -g 4; done
    echo "collectives with Hocket's kernels from their PTX, too, on weak memory: no wrong value" ;;
  *) echo "unknown part: $1"; exit 2 ;;
esac
