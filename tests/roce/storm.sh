#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# storm.sh [THREADS]: in the guest: ranks as threads of two processes, 32 or THREADS on each device, all of which connect to all
# of the other process at once.  The time limits are for hangs: all of them share two emulated processors.
set -u
. tests/roce/ranks.sh
threads=${1:-32}
logs=$(mktemp -d)
roce_ranks 2 "$logs/run" env NCCL_NET=IB NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET HOCKET_PEER_TIMEOUT=400 HOCKET_SLOTS=2 \
  HOCKET_SLOT_BYTES=8192 NCCL_MAX_NCHANNELS=2 NCCL_ALGO=pairwise "$HK_BUILD/bin/alltoall_perf" -t "$threads" -n 1 -w 0 -c 1 -b 16K -e 16K
roce_wait 900
for r in 0 1; do
  [ "${roce_codes[r]}" = 0 ] && continue
  echo "process $r ended with code ${roce_codes[r]}"
  grep -h WARN "$logs"/run.* | head -n 20
  grep -h "send again" "$logs"/run.* | head -n 20
  exit 1
done
grep -q 'Out of bounds values : 0 OK' "$logs/run.0" || { echo "wrong results"; exit 1; }
n=$(grep -c "queue pair" "$logs/run.0")
rm -rf "$logs"
echo "$((2 * threads)) ranks made $n connections between two devices"
