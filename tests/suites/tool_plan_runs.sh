#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What hocket plan says is what a job on this machine then runs: processes on shared memory and on sockets.
set -u
. tests/golden/lib.sh
[ -x "$HK_BUILD/bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING HOCKET_TUNE_FILE=none

# same COLLECTIVE BINARY RANKS SIZE
same() {
  local ran said
  cases=$((cases + 1))
  ran=$(timeout 60 "$HK_BUILD/bin/$2" --procs "$3" -b "$4" -e "$4" -n 1 -w 0 -c 0 2>&1 |
    sed -n 's/.* rank 0: '"$1"' by \([a-z0-9]*\):.*/\1/p' | sort -u | tr '\n' ' ')
  said=$("$hocket" plan "$1" "$4" --ranks "$3" 2>/dev/null | sed -n '/^Runs/{n;s/^  \([a-z0-9]*\),.*/\1 /p}')
  [ -n "$said" ] && [ "$ran" = "$said" ] ||
    complain "$1 of $4 between $3 ranks (NCCL_SHM_DISABLE=${NCCL_SHM_DISABLE:-0}): plan says '$said', '$ran' ran"
}
for off in 0 1; do
  export NCCL_SHM_DISABLE=$off
  for size in 64 16K 1M 16M; do
    same AllReduce all_reduce_perf 2 $size
    same AllReduce all_reduce_perf 4 $size
  done
  same AllGather all_gather_perf 4 64K
  same ReduceScatter reduce_scatter_perf 3 64K
  same Broadcast broadcast_perf 4 256K
  same AlltoAll alltoall_perf 3 64K
done
export NCCL_ALGO=allreduce:tree
same AllReduce all_reduce_perf 3 64K
finish "$cases commands behave as they should"
