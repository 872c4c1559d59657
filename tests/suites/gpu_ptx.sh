#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The GPU kernels as nvcc makes them: their PTX runs in the emulated driver (tests/ptxemu/, docs/cudaemu.md), and the matrix
# test_gpu_matrix notices what is broken in it (tests/gpu/ptx_mutations.py).  PTX=all (make gpu-ptx): every test of GPUs, the large
# matrix, more architectures, the first and the last mutation of each rule; with MORE=1 more seeds and all mutations. Without
# it the small matrix and a few mutations. PART=TEXT: only the runs whose line has the text (the broken PTX: mutations).
# check: timeout=300
set -u
cd "$(dirname "$0")/../.." || exit 1
unset HOCKET_DEVICE
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)}
[ -n "$nvcc" ] || { echo "SKIP: there is no nvcc (the package nvidia-cuda-nvcc has one)"; exit 77; }
for file in tests/test_gpu_matrix cudaemu/kernels.so; do
  [ -e "$HK_BUILD/$file" ] || { echo "SKIP: $file is not built"; exit 77; }
done
log=$(mktemp) && trap 'rm -f "$log"' EXIT
ptx() { # what to make; the suites gpu_compile and sass make it, too
  flock build/cuda/lock "${HK_MAKE:-make}" --no-print-directory NVCC= ONE_NVCC="$nvcc" "$@" >"$log" 2>&1 && return
  echo "FAIL: nvcc, $*"; tail -n 10 "$log"; exit 1
}
mkdir -p build/cuda
ptx build/cuda/90/kernels.ptx build/cuda/90/test_kernels.ptx
export CUDAEMU_PTX=$PWD/build/cuda/90 NCCL_DEBUG=NONE CK_VERBOSITY=minimal CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-120}
bad=0 ran=0

try() { # program [VARIABLE=value...]
  [[ $* == *"${PART:-}"* ]] || return
  local program=$HK_BUILD/tests/$1 begin=$SECONDS
  shift
  ran=$((ran + 1))
  if env "$@" timeout -k 5 "${LIMIT:-250}" "$program" >"$log" 2>&1; then
    [ "${PTX:-}" = all ] && echo "PASS  $(basename "$program") $*, $((SECONDS - begin)) s"
    return
  fi
  echo "FAIL  $(basename "$program") $*:"
  tail -n 10 "$log"
  bad=1
}
mutations() { # options of ptx_mutations.py
  [[ mutations == *"${PART:-}"* ]] || return
  ran=$((ran + 1))
  command -v python3 >/dev/null || { echo "SKIP: mutations of the PTX: there is no python3"; return; }
  python3 -B tests/gpu/ptx_mutations.py build/cuda/90/kernels.ptx "$HK_BUILD/tests/test_gpu_matrix" "$@" || bad=1
}

try test_cudaemu
try test_gpu_matrix CUDAEMU_SEED=7 CUDAEMU_WEAK=2
try test_gpu_matrix CUDAEMU_SEED=7 CUDAEMU_WEAK=2 CUDAEMU_APART=1 CK_RUN_CASE=order
if [ "${PTX:-}" = all ]; then
  LIMIT=${LIMIT:-500}
  for source in tests/integration/test_gpu_*.c; do
    try "$(basename "$source" .c)" CUDAEMU_SEED=3
    [ -z "${MORE:-}" ] || try "$(basename "$source" .c)"
  done
  for seed in 1 ${MORE:+2 3}; do try test_gpu_matrix MATRIX=all CUDAEMU_SEED=$seed; done
  ptx build/cuda/80/kernels.ptx build/cuda/100/kernels.ptx
  try test_gpu_matrix CUDAEMU_PTX="$PWD/build/cuda/100" CUDAEMU_SM=100
  for case in order types places ends; do try test_gpu_matrix CUDAEMU_PTX="$PWD/build/cuda/80" CUDAEMU_SM=80 CK_RUN_CASE=$case; done
  mutations ${MORE:+--all}
else
  mutations --quick
fi
[ $ran = 0 ] && echo "FAIL: no run has $PART in its line" && bad=1
[ $bad = 0 ] && echo "$ran runs of the kernels' PTX"
exit $bad
