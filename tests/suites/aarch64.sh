#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120
# The folders in which something is written for a kind of processor (NEON, pauses, its name) compile for aarch64 without a warning.
set -u
[ -z "${QUICK:-}" ] || { echo "QUICK=1 leaves it out"; exit 77; }
command -v clang >/dev/null || { echo "clang is not installed"; exit 77; }
headers=/usr/aarch64-linux-gnu/include
[ -e $headers/stdio.h ] || { echo "the C library's headers for aarch64 (libc6-dev-arm64-cross) are not installed"; exit 77; }
cc() { clang --target=aarch64-linux-gnu -isystem $headers "${flags[@]}" "$@"; }
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
flags=(-std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Iinclude -Wall -Wextra -Werror -pthread)
code=0
# Nothing else is: a file with such words elsewhere is to be compiled here, too.
others=$(grep -rlE '__x86_64__|__aarch64__|__asm|asm volatile|intrin\.h|arm_neon' src include --include='*.[ch]' |
  grep -vE '^src/(base|comm|failure|kernels|run|transport|perf)/|^src/topo/detect_cpu\.c$')
[ -z "$others" ] || { echo "not compiled for aarch64: $others"; code=1; }
for file in src/{base,comm,failure,kernels,kernels/host,run,transport}/*.c src/topo/detect_cpu.c; do
  cc -fsyntax-only "$file" || code=1
done
cc -O1 -S -o "$scratch/reduce.s" src/kernels/host/reduce_base.c || exit 1
# The point of it: additions of four floats at once.
grep -c 'fadd.*v[0-9]*\.4s' "$scratch/reduce.s" | sed 's/$/ vector additions of floats/'
grep -q 'fadd.*v[0-9]*\.4s' "$scratch/reduce.s" || code=1
exit $code
