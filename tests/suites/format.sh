#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180
# All C and CUDA sources have the form that clang-format gives them.  Only the version of Debian 12 counts: others differ.
# `tests/suites/format.sh --write` puts the files into that form.
set -u
cd "$(dirname "$0")/../.." || exit 1
format=$(command -v clang-format-14 || command -v clang-format) || { echo "SKIP: clang-format is not installed"; exit 77; }
[[ $($format --version) == *"version 14."* ]] || { echo "SKIP: $($format --version); the form is that of version 14"; exit 77; }
write=${1:-}

# shellcheck disable=SC2317 # xargs calls it
one() { # file: complains of it, or rewrites it
  # A header gets another name, or clang-format takes some of them for Objective-C.
  local name=${1/%.h/_header.c} out
  out=$(mktemp)
  "$format" --assume-filename="$name" <"$1" >"$out"
  if ! cmp -s "$1" "$out"; then
    if [ "$write" = --write ]; then cat "$out" >"$1"; else echo "$1:"; diff "$1" "$out" | head -n 6; fi
  fi
  rm -f "$out"
}
export -f one
export format write
# shellcheck disable=SC2016 # for the inner shell
bad=$(find src include tests examples bench \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -print0 | LC_ALL=C sort -z |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'one "$0"')
# shellcheck disable=SC2016 # awk's own variables
long=$(find src include tests examples bench \( -name '*.[ch]' -o -name '*.cu' -o -path 'src/*.def' \) -print0 |
  xargs -0 awk 'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns" }')
[ -z "$long" ] || { echo "$long" | head -n 40; echo "lines have at most 120 columns"; exit 1; }
[ -z "$bad" ] && { echo "every file has the form of .clang-format"; exit 0; }
echo "$bad" | head -n 60
echo "tests/suites/format.sh --write puts them right"
exit 1
