#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NVIDIA's device code on this library: programs and kernels that are compiled with the nccl_device.h of 2.32.3 and 2.28.9 (LONG=1:
# 2.30.7 and 2.29.7, too) run on emulated GPUs (loads and stores, LSA barriers, LL exchanges, multicast memory; threads and
# processes), and nvcc compiles the kernels for sm_90 with the newest and the oldest. The headers are read out of NVIDIA's wheels in
# the package index, and stay in build/nccl-headers.
# check: timeout=500
set -u
unset HOCKET_DEVICE
folder=$PWD/build/nccl-headers device=tests/headers/device
emulator=$(cd "$HK_BUILD/cudaemu" 2>/dev/null && pwd) lib=$(cd "$HK_BUILD/lib" && pwd) bad=0 ran=
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
[ -e "$emulator/kernels.so" ] || { echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: there is no python3"; exit 77; }
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$lib:$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so CUDAEMU_DEVICES=8 CUDAEMU_THREADS=64 CUDAEMU_WEAK=1
export CUDAEMU_STRICT=1 HOCKET_SLOT_BYTES=8192 HOCKET_SLOTS=4 NCCL_MAX_NCHANNELS=4 NCCL_DEBUG=NONE

# NVIDIA's headers of a version, from the package index if they are not here; false, with the reason in $reason.
headers() { # version
  [ -e "$folder/$1/nccl_device.h" ] && return
  timeout 120 python3 -B tests/headers/wheel_file.py nvidia-nccl-cu13 "$1" nvidia/nccl/include/ "$tmp/$1" 2>"$tmp/log" ||
    { reason=$(tail -n 1 "$tmp/log"); return 1; }
  mkdir -p "$folder/$1" && cp -r "$tmp/$1/nccl_device" "$folder/$1" && cp "$tmp/$1"/*.h "$folder/$1"
}

# The version's program and kernels, in $tmp/VERSION.
build() { # version
  local to=$tmp/$1
  python3 -B $device/inline.py "$folder/$1" "$to/cpu" &&
    g++ -x c++ -std=c++17 -O1 -fno-exceptions -fno-rtti -w -DHK_CUDAEMU -D_GNU_SOURCE -Itests/cudaemu -I$device -I"$to/cpu" -fPIC -shared \
      -o "$to/kernels.so" $device/kernels.cu &&
    g++ -std=c++17 -O1 -w -D_GNU_SOURCE -I$device -I"$folder/$1" -o "$to/program" $device/program.cpp "$lib/libnccl.so.2" "$emulator/libcuda.so.1"
}

run() { # version multicast ranks processes
  CUDAEMU_MULTICAST=$2 timeout 100 "$tmp/$1/program" "$tmp/$1/kernels.so" "$3" "$4" >"$tmp/out" 2>&1 && return
  echo "FAIL: device code of $1, $3 ranks in $4 processes, multicast $2:"
  tail -n 5 "$tmp/out"
  bad=1
}

for version in 2.32.3 ${CHECK_LONG:+2.30.7 2.29.7} 2.28.9; do
  headers $version || { echo "SKIP: the headers of NCCL $version: $reason"; continue; }
  mkdir -p "$tmp/$version"
  build $version || { echo "FAIL: with the headers of $version it does not compile"; bad=1; continue; }
  run $version 0 2 1
  run $version 1 4 2
  run $version 1 4 1
  run $version 0 4 4
  case $version in
    2.32.3) sources="$device/kernels.cu $(echo examples/device/*.cu)" ;;
    2.28.9) sources=$device/kernels.cu ;; # the example's requirements have no initializer yet
    *) sources= ;;
  esac
  [ -n "$nvcc" ] || { sources=; echo "SKIP: nvcc with the headers of $version: there is none"; }
  for source in $sources; do
    "$nvcc" -cubin -std=c++17 -arch=sm_90 -w -I"$folder/$version" -o "$tmp/cubin" "$source" 2>"$tmp/log" ||
      { echo "FAIL: nvcc, $source with the headers of $version:"; head -n 10 "$tmp/log"; bad=1; }
  done
  ran="$ran, $version"
done
[ -n "$ran" ] || exit 77
[ $bad = 0 ] && echo "device code of ${ran#, }"
exit $bad
