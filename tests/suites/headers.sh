#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The public headers compile alone, in every language and mode that clients use, with and without CUDA's headers.
set -u
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0 done=0

# A client that takes every function's address (both names of it), so that each is declared.
{
  for header in include/*.h; do echo "#include \"$(basename "$header")\""; done
  echo 'typedef void (*any)(void);'
  echo 'extern any all[]; any all[] = {'
  sed -n 's/^[WT] \(p\{0,1\}nccl[A-Z].*\)/  (any)\1,/p' tests/exports.txt | grep -v ResetDebugInitInternal
  echo '};'
  echo 'extern ncclConfig_t config; ncclConfig_t config = NCCL_CONFIG_INITIALIZER;'
  echo 'extern ncclSimInfo_t info; ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;'
} >"$tmp/client.c"
cp "$tmp/client.c" "$tmp/client.cc"

try() { # what command...
  local what=$1
  shift
  done=$((done + 1))
  "$@" -Iinclude -fsyntax-only 2>"$tmp/errors" || { echo "$what:"; head -n 5 "$tmp/errors"; bad=1; }
}
strict=(-Wall -Wextra -Werror -pedantic-errors)
for compiler in gcc clang; do
  command -v $compiler >/dev/null || { echo "SKIP: headers with $compiler: it is not installed"; continue; }
  for std in c99 c11 gnu17; do
    try "$compiler, $std" $compiler -std=$std "${strict[@]}" -DHOCKET_NO_CUDA_HEADERS "$tmp/client.c"
    try "$compiler, $std, CUDA's headers allowed" $compiler -std=$std -Wall -Werror "$tmp/client.c"
  done
done
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || { echo "SKIP: headers with $compiler: it is not installed"; continue; }
  for std in c++11 c++17; do
    try "$compiler, $std" $compiler -std=$std "${strict[@]}" -DHOCKET_NO_CUDA_HEADERS "$tmp/client.cc"
  done
done
# Each header alone, first in its file.
for header in include/*.h; do
  echo "#include \"$(basename "$header")\"" >"$tmp/alone.c"
  try "$header alone" gcc -std=c11 "${strict[@]}" -DHOCKET_NO_CUDA_HEADERS "$tmp/alone.c"
done

# With CUDA's headers where they are; their types must agree with ours.
cuda=
for folder in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-* /usr; do
  [ -e "$folder/include/cuda_runtime.h" ] && { cuda=$folder/include; break; }
done
if [ -n "$cuda" ]; then
  try "gcc with $cuda" gcc -std=c11 -Wall -isystem "$cuda" "$tmp/client.c"
  command -v g++ >/dev/null && try "g++ with $cuda" g++ -std=c++17 -Wall -isystem "$cuda" "$tmp/client.cc"
else
  echo "SKIP: headers together with CUDA's: cuda_runtime.h is not here"
  # In its place, a stand-in with the two types that the header needs from it: the two must not clash.
  mkdir "$tmp/fake"
  echo 'typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;' >"$tmp/fake/cuda_runtime.h"
  : >"$tmp/fake/cuda_fp16.h"
  try "gcc with a stand-in for CUDA's headers" gcc -std=c11 "${strict[@]}" -isystem "$tmp/fake" "$tmp/client.c"
fi

# Every public function has a docstring.
for header in include/*.h; do
  awk -v header="$header" '/\*\/[ \t]*$/ { doc = FNR }
    /^NCCL_DECLARE_|^[A-Za-z].*(nccl|hocket)[A-Za-z]+\(/ { if (doc != FNR - 1) { print header ":" FNR ": no docstring: " $0; bad = 1 } }
    END { exit bad }' "$header" || bad=1
done
[ $bad = 0 ] && echo "$done compilations"
exit $bad
