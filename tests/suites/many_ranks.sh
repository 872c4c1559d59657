#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=300
# More ranks than anybody needs on two cores: 256 in one process, within a common limit of open files, and 64 processes.
set -u
bin=$HK_BUILD/bin bad=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
[ -x "$bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }

good() { # binary arguments...
  timeout 120 "$bin/$1" "${@:2}" >"$tmp/out" 2>&1 || { echo "'$*' ends with code $?: $(tail -5 "$tmp/out")"; bad=1; }
  grep -q 'values : 0 OK' "$tmp/out" || { echo "'$*': wrong elements"; bad=1; }
  if grep -m3 'NCCL WARN' "$tmp/out"; then echo "'$*' warns"; bad=1; fi
}
for name in all_reduce_perf alltoall_perf; do
  (ulimit -Sn 1024; good $name -g 256 -b 2K -e 64K -f 32 -n 1 -w 1; exit $bad) || bad=1
  good $name --procs 64 -b 2K -e 64K -f 32 -n 1 -w 1
done
exit $bad
