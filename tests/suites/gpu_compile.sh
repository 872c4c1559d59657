#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The GPU kernels compile with nvcc, fit their size, keep 512 threads a block within a multiprocessor's registers, and need
# no more local memory than a context has from the beginning.  ARCHS="80 90 100" (make sass): of more than one architecture.
set -u
cd "$(dirname "$0")/../.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
[ -n "$nvcc" ] || { echo "SKIP: no nvcc: the GPU kernels are not compiled"; exit 77; }
mkdir -p build/cuda
failed=0 compiled=0
fail() { echo "$*"; failed=1; }
for arch in ${ARCHS:-90}; do
  "$nvcc" --list-gpu-arch | grep -q "compute_$arch" || { echo "SKIP: $nvcc does not know sm_$arch"; continue; }
  cubin=build/cuda/sm_$arch.cubin
  flock build/cuda/lock "${HK_MAKE:-make}" -s NVCC="$nvcc" "$cubin" || exit 1 # the suite sass makes it, too
  compiled=$((compiled + 1))
  bytes=$(wc -c <"$cubin")
  # Nine times this is what the library carries: 20 MB is all that it may have.
  [ "$bytes" -le 2000000 ] || fail "the kernels for sm_$arch have $bytes bytes"
  kernels=0
  # "Used N registers, ... N bytes cumulative stack size" comes after the name of the kernel; without a stack it is left out.
  while read -r kernel registers stack; do
    kernels=$((kernels + 1))
    [ "$registers" -le 128 ] || fail "$kernel for sm_$arch has $registers registers a thread"
    # A kernel that needs more waits at its first launch until all work on the device is over (docs/gpu.md).
    [ "$stack" -le 1024 ] || fail "$kernel for sm_$arch has a stack of $stack bytes, more than 1024"
    echo "sm_$arch: $kernel: $registers registers, $stack bytes of stack"
  done < <(sed -n "s/.*Compiling entry function '\([a-z_]*\)'.*/kernel \1/p
                   s/.*Used \([0-9]*\) registers.* \([0-9]*\) bytes cumulative stack.*/used \1 \2/p; t
                   s/.*Used \([0-9]*\) registers.*/used \1 0/p" "$cubin.log" |
    awk '$1 == "kernel" { name = $2 } $1 == "used" { print name, $2, $3 }')
  [ "$kernels" = 3 ] || fail "ptxas describes $kernels kernels for sm_$arch, not 3: $cubin.log"
  echo "sm_$arch: $bytes bytes"
done
[ "$compiled" -gt 0 ] || exit 77
exit $failed
