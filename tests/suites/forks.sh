#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120
# Forks while other threads make and end communicators: no child hangs (tests/helpers/forks.c). `make check-faults` makes 2000, with
# a log as well.
set -u
forks=$HK_BUILD/helpers/forks
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
"$forks" "${FORKS:-300}" >"$dir/out" 2>&1 || { grep "^fork \|^process " "$dir/out"; exit 1; }
NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$dir/log "$forks" "${FORKS:-300}" >"$dir/out" 2>&1 || { grep "^fork \|^process " "$dir/out"; exit 1; }
tail -n 1 "$dir/out"
