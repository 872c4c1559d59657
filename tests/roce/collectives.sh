#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# collectives.sh [short]: in the guest: every collective over both RDMA devices, every element of every result right.
set -u
. tests/roce/ranks.sh
logs=$(mktemp -d)
ran=0
explain() { # what: with what the ranks logged, so that a failure explains itself
  echo "$* (after $SECONDS s)"
  tail -n 40 "$logs"/*.[0-9]*
  grep . /sys/class/infiniband/rxe*/ports/1/hw_counters/* | grep -v ':0$'
  exit 1
}
run() { # ranks program options...
  local n=$1 program=$2 r
  shift 2
  rm -f "$logs"/*
  roce_ranks "$n" "$logs/$program" ${settings:-env} NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET "$HK_BUILD/bin/${program}_perf" -n 1 -w 0 -c 1 "$@"
  roce_wait 200 # a limit for hangs: emulated processors of a busy machine are slow
  for ((r = 0; r < n; r++)); do
    [ "${roce_codes[r]}" = 0 ] || explain "$program on $n ranks (${settings:-}): rank $r ended with code ${roce_codes[r]}"
  done
  grep -q 'Out of bounds values : 0 OK' "$logs/$program.0" || explain "$program on $n ranks (${settings:-}): wrong results"
  ran=$((ran + 1))
}

all="all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv put hypercube"
if [ "${1:-}" = short ]; then
  run 2 all_reduce -b 24 -e 2M -f 90
  run 2 sendrecv -b 4 -e 1M -f 60 -R 1
  run 4 alltoall -b 64 -e 256K -f 60
  run 3 put -b 4 -e 4M -f 60
  run 4 reduce_scatter -b 64 -e 256K -f 60
  settings="env NCCL_IB_QPS_PER_CONNECTION=3 NCCL_IB_SPLIT_DATA_ON_QPS=1" run 3 all_reduce -b 1000 -e 1M -f 32 -d int8
else
  for n in 2 3 4 8; do
    for program in $all; do
      [ "$program" = hypercube ] && [ "$n" = 3 ] && continue
      run "$n" "$program" -b $((n * 8)) -e 1M -f 23
    done
  done
  for settings in "NCCL_IB_QPS_PER_CONNECTION=4" "NCCL_IB_QPS_PER_CONNECTION=3 NCCL_IB_SPLIT_DATA_ON_QPS=1" \
    "NCCL_IB_USE_INLINE=0" "NCCL_IB_GID_INDEX=0" "NCCL_IB_ROCE_VERSION_NUM=1" "NCCL_IB_ADDR_FAMILY=AF_INET6" \
    "NCCL_IB_PCI_RELAXED_ORDERING=0" "HOCKET_SLOTS=2" "HOCKET_SLOT_BYTES=8192" "HOCKET_SLOTS=32 HOCKET_SLOT_BYTES=1048576" \
    "NCCL_IB_TC=106 NCCL_IB_SL=3"; do
    settings="env $settings"
    run 2 all_reduce -b 24 -e 2M -f 37
    run 3 sendrecv -b 24 -e 1M -f 53 -R 1
  done
  # Both devices as one network device of each rank.
  for settings in "NCCL_NET_FORCE_MERGE=rxe0,rxe1" "NCCL_NET_FORCE_MERGE=rxe0,rxe1 NCCL_IB_SPLIT_DATA_ON_QPS=1"; do
    settings="env NCCL_DEBUG=INFO $settings"
    ROCE_HCA=rxe run 2 all_reduce -b 24 -e 2M -f 37
    grep -q "also over rxe" "$logs/all_reduce.0" || explain "two ports do not act as one"
  done
fi
rm -rf "$logs"
echo "$ran runs over RDMA gave the right results"
