#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make mutations` works: of a few mutants of one small file its test notices most, and the report says which.
# check: timeout=300
set -u
[ -e "$HK_BUILD/libsupport.a" ] || { echo "SKIP: the tests are not built"; exit 77; }
case $HK_BUILD in *-*) echo "SKIP: tried with the plain build only"; exit 77 ;; esac
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
HK_MUTATIONS=$dir SEED=7 MINUTES=3 SANITIZE=0 RECORD=0 FILES='src/base/addr.c:' TESTS='^test_addr$' MOST=8 \
  scripts/mutations.sh >"$dir/out" 2>&1
noticed=$(grep -cE '^noticed   src/base/addr\.c:[0-9]+  .*\[test_' "$dir/results")
tail -n 1 "$dir/out"
[ "$noticed" -ge 4 ] || { cat "$dir/out"; exit 1; }
