#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=300
# Everything builds without a warning with clang too (and with gcc where clang was the first).
set -u
[ -z "${QUICK:-}" ] || { echo "QUICK=1 leaves it out"; exit 77; }
other=clang flags=-O1 # clang warns of the same however much it optimizes (and takes long over reductions with -O0); gcc does not
[[ $HK_BUILD == *clang* ]] && other=gcc flags=-O2
command -v $other >/dev/null || { echo "$other is not installed"; exit 77; }
$HK_MAKE --no-print-directory -j"$(nproc)" CC=$other SAN= CFLAGS="$flags" all tests || exit 1
echo "$other: $($other --version | head -n 1)"
