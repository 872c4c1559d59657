#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The GPU kernels compile with nvcc, fit their size, and keep 512 threads a block within a multiprocessor's registers.
set -u
cd "$(dirname "$0")/../.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
[ -n "$nvcc" ] || { echo "SKIP: no nvcc: the GPU kernels are not compiled"; exit 77; }
"$nvcc" --list-gpu-arch | grep -q compute_90 || { echo "SKIP: $nvcc does not know sm_90"; exit 77; }
cubin=build/cuda/sm_90.cubin
mkdir -p build/cuda
flock build/cuda/lock "${HK_MAKE:-make}" -s NVCC="$nvcc" $cubin || exit 1 # the suite sass makes it, too
bytes=$(wc -c < $cubin)
# Nine times this is what the library carries: 20 MB is all that it may have.
[ "$bytes" -le 2000000 ] || { echo "the kernels for one architecture have $bytes bytes"; exit 1; }
registers=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' $cubin.log | sort -n | tail -1)
[ "$registers" -le 128 ] || { echo "$registers registers a thread"; exit 1; }
echo "kernels for sm_90: $bytes bytes, $registers registers"
