#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh: what session.sh and bench.sh run, built in build/gpu with kernels for the GPUs of this machine. Exit code 77: it has none, or
# no nvcc. NVCC=PATH names nvcc; HK_GPU_BUILD=DIR is a build to use as it is.
set -u
cd "$(dirname "$0")/../.." || exit 1
skip() { echo "SKIP: $*"; exit 77; }
if [ -n "${HK_GPU_BUILD:-}" ]; then
  [ -x "$HK_GPU_BUILD/bin/all_reduce_perf" ] || skip "no programs in HK_GPU_BUILD=$HK_GPU_BUILD"
  exit 0
fi
command -v nvidia-smi >/dev/null || skip "no GPU here: there is no nvidia-smi"
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -dc '0-9\n' | sort -nu | tr '\n' ' ')
[ -n "$archs" ] || skip "no GPU here: nvidia-smi shows none"
nvcc=${NVCC:-$(command -v nvcc "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc | head -n 1)}
[ -n "$nvcc" ] || skip "no nvcc: name it with NVCC=/path/to/nvcc"
mkdir -p build
${HK_MAKE:-make} -j"$(nproc)" BUILD=build/gpu NVCC="$nvcc" GPU_ARCHS="${archs% }" lib perf tool >build/gpu.log 2>&1 ||
  { tail -n 20 build/gpu.log; echo "the build failed: build/gpu.log"; exit 1; }
