#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=300
# Every perf binary with every type, operator and root, odd sizes and offsets: every element right.
set -u
bin=$HK_BUILD/bin rows=0
. tests/support/suite.sh
[ -x "$bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }

all_right() { # arguments...
  timeout 120 "$bin/$1" "${@:2}" >"$tmp/out" 2>"$tmp/err" || complain "$* ends with code $?: $(tail -n 3 "$tmp/out" "$tmp/err")"
  grep -q 'Out of bounds values : 0 OK' "$tmp/out" || complain "$*: wrong elements: $(grep -vE '^#' "$tmp/out" | awk '$9 != 0 || ($13 != 0 && $13 != "N/A")' | head -n 3)"
  rows=$((rows + $(grep -cvE '^#|^$' "$tmp/out")))
}
few="-n 2 -w 1 -c 1"
for perf in "$bin"/*_perf; do
  name=$(basename "$perf")
  # shellcheck disable=SC2086 # words
  for ranks in "-g 1" "-g 3" "-t 2 -g 2"; do
    all_right "$name" $ranks $few -d all -o all -r all -b 12 -e 3K -f 15 -u 1
  done
  # shellcheck disable=SC2086
  all_right "$name" --procs 2 $few -b 4 -e 4M -f 32 -R 1
done
# More than one chunk of the check, an odd count, two checks, groups of operations.
all_right all_reduce_perf --procs 3 -n 2 -c 2 -b 65540 -e 65540 -d half
all_right reduce_scatter_perf -t 3 -n 2 -c 2 -m 3 -b 200000 -e 200000 -o mulsum -d int64
all_right all_reduce_perf -g 17 -n 2 -b 4K -e 4K -d all -o all

# The check is real: a library that flips one bit of one rank's result is caught, once an operation.
cat >"$tmp/flip.c" <<'END'
#include <nccl.h>
ncclResult_t ncclAllReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t x) {
  int rank;
  pncclCommUserRank(c, &rank);
  ncclResult_t e = pncclAllReduce(s, r, n, t, op, c, x);
  if (rank == 1 && n > 77) ((unsigned char *)r)[4 * 77] ^= 1;
  return e;
}
END
if ${CC:-gcc} -DHOCKET_NO_CUDA_HEADERS -Iinclude -shared -fPIC -o "$tmp/flip.so" "$tmp/flip.c" 2>"$tmp/err"; then
  LD_PRELOAD=$tmp/flip.so "$bin/all_reduce_perf" --procs 3 -b 1K -e 1K >"$tmp/out" 2>"$tmp/err"
  code=$?
  [ $code = 7 ] || complain "a wrong element gives exit code $code, not 7"
  [ "$(awk '/^ / { print $9, $13 }' "$tmp/out")" = "1 1" ] || complain "one wrong element is not counted as such: $(cat "$tmp/out" "$tmp/err")"
  grep -q 'Out of bounds values : 2 FAILED' "$tmp/out" || complain "the summary does not report wrong elements"
else
  complain "cannot build the interposing library: $(cat "$tmp/err")"
fi
finish "$rows rows, all elements right"
