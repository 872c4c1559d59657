# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For check.sh and bench.sh: which card, a build with kernels for it, results.  They need no network.
#   NVCC=PATH          nvcc; else the one in PATH, CUDA_HOME/bin or /usr/local/cuda/bin
#   HK_GPU_BUILD=DIR   a build to use as it is, kernels included (HOCKET_CUDA_IMAGE), instead of making one
#   HK_GPU_MINUTES=N   after so many nothing new is started (9)
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# Ranks that are threads and share a GPU need a hardware queue for each stream; the default is 8.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
began=$SECONDS
minutes=${HK_GPU_MINUTES:-9}
skip_all() { echo "SKIP: $*"; exit 77; }
left() { echo $((minutes * 60 - (SECONDS - began))); }
late() { [ "$(left)" -le 0 ]; }
ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }
find_nvcc() { NVCC=${NVCC:-$(command -v nvcc "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc | head -n 1)}; }
find_capability() { capability=$(ask compute_cap | head -n 1 | tr -dc 0-9); }

# prepare NAME: $build, $library, $card, $driver, $gpus, $report.
prepare() {
  if [ -n "${HK_GPU_BUILD:-}" ]; then
    build=$HK_GPU_BUILD
    [ -x "$build/bin/all_reduce_perf" ] || skip_all "no programs in HK_GPU_BUILD=$build"
  else
    command -v nvidia-smi >/dev/null || skip_all "no GPU here: there is no nvidia-smi"
    find_capability
    [ -n "$capability" ] || skip_all "no GPU here: nvidia-smi shows none"
    find_nvcc
    [ -n "$NVCC" ] || skip_all "no nvcc: name it with NVCC=/path/to/nvcc"
    build=build/gpu
    make -j"$(nproc)" BUILD=$build NVCC="$NVCC" GPU_ARCHS="$capability" lib perf tool examples >"$build.log" 2>&1 ||
      { mkdir -p build; tail -n 20 "$build.log"; echo "the build failed: $build.log"; exit 1; }
  fi
  # shellcheck disable=SC2034 # for those that read this file
  library=$(realpath "$build/lib/libnccl.so.2")
  card=$(ask name | head -n 1) driver=$(ask driver_version | head -n 1) gpus=$(ask name | wc -l)
  report=$build/$1-$(date +%F).md
  card=${card:-emulated}
  echo "# ${1}: $card, driver ${driver:-none}, $gpus GPUs, $(date '+%F %H:%M'), Hocket $(git rev-parse --short HEAD 2>/dev/null)" >"$report"
  echo >>"$report"
  cat "$report"
}
