# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For check.sh and bench.sh: which card, a build with kernels for it, results.  They need no network.
#   NVCC=PATH          nvcc; else the one in PATH or /usr/local/cuda/bin
#   HK_GPU_BUILD=DIR   a build to use as it is, kernels included (HOCKET_CUDA_IMAGE), instead of making one
#   HK_GPU_MINUTES=N   after so many nothing new is started (9)
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
began=$SECONDS
minutes=${HK_GPU_MINUTES:-9}
skip_all() { echo "SKIP: $*"; exit 77; }
late() { [ $((SECONDS - began)) -ge $((minutes * 60)) ]; }

# prepare NAME: $build, $card, $driver, $gpus, $report.
prepare() {
  local capability
  if [ -n "${HK_GPU_BUILD:-}" ]; then
    build=$HK_GPU_BUILD
    [ -x "$build/bin/all_reduce_perf" ] || skip_all "no programs in HK_GPU_BUILD=$build"
  else
    command -v nvidia-smi >/dev/null || skip_all "no GPU here: there is no nvidia-smi"
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)
    [ -n "$capability" ] || skip_all "no GPU here: nvidia-smi shows none"
    NVCC=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
    [ -n "$NVCC" ] || skip_all "no nvcc: name it with NVCC=/path/to/nvcc"
    build=build/gpu
    make -j"$(nproc)" BUILD=$build NVCC="$NVCC" GPU_ARCHS="$capability" lib perf tool examples >"$build.log" 2>&1 ||
      { mkdir -p build; tail -n 20 "$build.log"; echo "the build failed: $build.log"; exit 1; }
  fi
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l)
  report=$build/$1-$(date +%F).md
  card=${card:-emulated}
  echo "# ${1}: $card, driver ${driver:-none}, $gpus GPUs, $(date '+%F %H:%M'), Hocket $(git rev-parse --short HEAD 2>/dev/null)" >"$report"
  echo >>"$report"
  cat "$report"
}
