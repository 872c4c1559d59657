#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Warnings are errors where tests are built, and only there: a user's build goes on with a compiler that warns of more.
# What was built without a warning is not built again for the tests; what was built with one is, and fails.
# check: timeout=60
set -u
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0
unset WERROR V MAKEFLAGS # the make above this one has set them
fail() { bad=1; echo "FAIL: $1"; cat "$tmp/out"; }
build() { # CFLAGS variable...
  make --no-print-directory BUILD="$tmp/gcc" CFLAGS="-O0 $1" "${@:2}" "$tmp/gcc/src/base/dl.o" >"$tmp/out" 2>&1
}
compiles() { grep -q '^  CC' "$tmp/out"; }

build -Wpadded && compiles && grep -q 'warning: ' "$tmp/out" || fail "a user's build ends at a warning"
{ build -Wpadded && ! compiles; } || fail "the same build compiles again"
build -Wpadded WERROR=-Werror && fail "the tests' build after it goes on"
grep -q 'error: ' "$tmp/out" || fail "the tests' build after it shows no error"
build '' && compiles || fail "a user's build without a warning"
{ build '' WERROR=-Werror && ! compiles; } || fail "the tests' build after it compiles again"
make -pn help >"$tmp/out" 2>&1
for target in check check-san check-tsan check-roce fuzz; do
  grep -qx "$target: WERROR := -Werror" "$tmp/out" && continue
  bad=1
  echo "FAIL: make $target does not make errors of warnings"
done
[ $bad = 0 ] && echo "a user's build and the tests': warnings, errors, what is compiled again"
exit $bad
