#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The exported functions and the types of their arguments are those of the newest release (tests/abi/, by libabigail): what is new is
# listed, what is gone or another is a fault. `tests/suites/abi.sh --write` takes the library at hand as that release; before the first
# one it is what the newest change of the ABI left.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
lib=$HK_BUILD/lib/libnccl.so.2 base=tests/abi/libnccl.so.2.xml
command -v abidiff >/dev/null || { echo "libabigail is not here (Debian: abigail-tools)"; exit 77; }
[[ $(file -bL "$lib" 2>/dev/null || readelf -h "$lib") == *[xX]86-64* ]] || { echo "the base is that of x86_64"; exit 77; }
readelf -S "$lib" | grep -q '\.debug_info' || { echo "$lib has no debug information"; exit 77; }
if [ "${1:-}" = --write ]; then
  abidw --headers-dir include --drop-private-types --drop-undefined-syms --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed \
    --out-file $base "$lib" && echo "$base is written"
  exit
fi
# Bits of the exit code: 1 and 2 are faults of the tool or its use, 4 a difference, 8 one that breaks programs.
breaks() { # base
  said=$(abidiff --headers-dir2 include --drop-private-types "$1" "$lib" 2>&1)
  [ $(($? & 11)) != 0 ] || grep -qE '[1-9][0-9]* (Removed|Changed)' <<<"$said"
}
if breaks $base; then
  echo "$said"
  echo "programs that were built with the newest release may break. Before the first release: tests/suites/abi.sh --write"
  exit 1
fi
added=$(grep -c '^  \[A\]' <<<"$said")
# A release with a function more, and one with another type of an argument.
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
sed "s/name='hocketVersion'/name='hocketGone'/" $base >"$tmp/more.xml"
sed "s/<parameter type-id='[^']*' name='position'/<parameter type-id='type-id-1' name='position'/" $base >"$tmp/other.xml"
for other in "$tmp"/*.xml; do breaks "$other" || { echo "it does not see that $(basename "$other" .xml) is another ABI: $said"; exit 1; }; done
echo "the ABI of $base, and $added functions that are new"
