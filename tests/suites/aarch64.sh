#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120
# What has a part of its own for aarch64 (NEON, pauses) and all around it compiles for it without a warning.
set -u
[ -z "${QUICK:-}" ] || { echo "QUICK=1 leaves it out"; exit 77; }
command -v clang >/dev/null || { echo "clang is not installed"; exit 77; }
headers=/usr/aarch64-linux-gnu/include
[ -e $headers/stdio.h ] || { echo "the C library's headers for aarch64 (libc6-dev-arm64-cross) are not installed"; exit 77; }
cc() { clang --target=aarch64-linux-gnu -isystem $headers "${flags[@]}" "$@"; }
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
flags=(-std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Iinclude -Wall -Wextra -Werror -pthread)
code=0
for file in src/{api,base,collectives,comm,core,device,failure,kernels,program,rma,run,transport,transport/{cuda,net,net/*,shm}}/*.c; do
  cc -fsyntax-only "$file" || code=1
done
cc -O1 -S -o "$scratch/reduce.s" src/kernels/host/reduce_base.c || exit 1
# The point of it: additions of four floats at once.
grep -c 'fadd.*v[0-9]*\.4s' "$scratch/reduce.s" | sed 's/$/ vector additions of floats/'
grep -q 'fadd.*v[0-9]*\.4s' "$scratch/reduce.s" || code=1
exit $code
