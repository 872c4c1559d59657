#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The machine code that nvcc makes of the GPU kernels has what their speed rests on: loads in flight, few fences, no local
# memory in loops (scripts/sass.py, docs/results/sass.md). make sass: ARCHS="80 90 100", of more than one architecture, and
# PAGE=docs/results/sass.md, into which their figures go.
# check: timeout=300
set -u
cd "$(dirname "$0")/../.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
[ -n "$nvcc" ] || { echo "SKIP: no nvcc: the GPU kernels are not compiled"; exit 77; }
nvdisasm=$(scripts/nvdisasm.sh) || { echo "SKIP: no nvdisasm: make sass gets it from the package index"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
mkdir -p build/cuda
files=()
for arch in ${ARCHS:-90}; do
  "$nvcc" --list-gpu-arch | grep -q "compute_$arch" || { echo "SKIP: $nvcc does not know sm_$arch"; continue; }
  cubin=build/cuda/sm_$arch.cubin
  flock build/cuda/lock "${HK_MAKE:-make}" -s NVCC="$nvcc" "$cubin" || exit 1 # the suite gpu_compile makes it, too
  "$nvdisasm" -c "$cubin" >"$cubin.sass" || exit 1
  files+=("$cubin.sass")
done
[ ${#files[@]} -gt 0 ] || exit 77
if [ -n "${PAGE:-}" ]; then
  python3 scripts/sass.py --page "$PAGE" "${files[@]}"
else
  python3 scripts/sass.py --gate "${files[@]}"
fi
