#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# include/nccl.h against NCCL's own headers: all names, values, sizes, offsets and function types of 2.32.3 are here; what older
# headers have is unchanged.  The headers are read out of NVIDIA's wheels in the package index, and stay in build/nccl-headers.
# check: timeout=250
set -u
folder=$PWD/build/nccl-headers
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0 compared=
command -v python3 >/dev/null || { echo "SKIP: there is no python3"; exit 77; }

# NCCL's header of a version, from the package index if it is not here; false, with the reason in $reason.
header() { # version
  [ -e "$folder/$1/nccl.h" ] && return
  mkdir -p "$folder/$1"
  timeout 60 python3 -B tests/headers/wheel_file.py nvidia-nccl-cu13 "$1" nvidia/nccl/include/nccl.h >"$tmp/nccl.h" 2>"$tmp/log" ||
    { reason=$(tail -n 1 "$tmp/log"); return 1; }
  mv "$tmp/nccl.h" "$folder/$1/nccl.h"
}

# NCCL's header includes CUDA's.
mkdir "$tmp/cuda"
echo 'typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;' >"$tmp/cuda/cuda_runtime.h"
: >"$tmp/cuda/cuda_fp16.h"

facts() { # NCCL's header, header to look at
  python3 tests/headers/facts.py "$1" "$2" >"$tmp/facts.c" && gcc -w -I"$tmp/cuda" -DHOCKET_NO_CUDA_HEADERS "$tmp/facts.c" -o "$tmp/facts" &&
    "$tmp/facts"
}

for version in 2.32.3 2.30.7 2.29.7 2.28.9; do
  header $version || { echo "SKIP: the header of NCCL $version: $reason"; continue; }
  theirs=$folder/$version/nccl.h
  facts "$theirs" "$theirs" >"$tmp/theirs" && facts "$theirs" "$PWD/include/nccl.h" >"$tmp/ours" ||
    { echo "the facts of $version do not compile"; bad=1; continue; }
  [ "$(wc -l <"$tmp/theirs")" -ge 70 ] || { echo "only $(wc -l <"$tmp/theirs") facts in the header of $version"; bad=1; }
  # Newer headers have another number, more result codes, and more fields at the ends of structures.
  [ $version = 2.32.3 ] ||
    sed -i -E '/^(NCCL_MINOR|NCCL_PATCH|NCCL_VERSION_CODE|ncclNumResults|sizeof ncclConfig_t) /d' "$tmp/theirs" "$tmp/ours"
  diff "$tmp/theirs" "$tmp/ours" >"$tmp/diff" || { echo "$version (<) differs from include/nccl.h (>):"; head -n 20 "$tmp/diff"; bad=1; }
  compared="$compared, $version ($(wc -l <"$tmp/theirs") facts)"
done
[ -n "$compared" ] || exit 77
[ $bad = 0 ] && echo "as ${compared#, }"
exit $bad
