#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# faults.sh: in the guest: what a broken cable, a dead rank and wrong settings do.  Results are right, or there is an error that
# says what is wrong, on every rank, in time.
set -u
. tests/roce/ranks.sh
logs=$(mktemp -d)
ran=0
fail() {
  echo "$*"
  tail -n 12 "$logs"/run.*
  exit 1
}
perf=("$HK_BUILD/bin/all_reduce_perf" -b 64K -e 64K -w 1 -c 1)

begin() { # ranks command...
  local n=$1
  shift
  rm -f "$logs"/run.*
  roce_ranks "$n" "$logs/run" env NCCL_NET=IB NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET "$@"
}
# Until the ranks are at it.
under_way() { # seconds
  local until=$((SECONDS + 20))
  while ! grep -qs "queue pair" "$logs/run.0" && [ $SECONDS -lt $until ]; do sleep 0.05; done
  sleep "$1"
}
succeeds() { # what
  local code
  roce_wait 200
  wire ok
  for code in "${roce_codes[@]}"; do [ "$code" = 0 ] || fail "$1: ended with codes ${roce_codes[*]}"; done
  grep -q 'Out of bounds values : 0 OK' "$logs/run.0" || fail "$1: wrong results"
  ran=$((ran + 1))
  echo "ok: $1"
}
# Every rank ends with an error, in time, and the words are there.
ends() { # what seconds words...
  local what=$1 code words
  roce_wait "$2"
  shift 2
  for code in "${roce_codes[@]}"; do
    case $code in 0 | 124) fail "$what: ended with codes ${roce_codes[*]}" ;; esac
  done
  for words in "$@"; do grep -qE -- "$words" "$logs"/run.* || fail "$what: no rank says '$words'"; done
  ran=$((ran + 1))
  echo "ok: $what"
}
repaired() { grep -q "after a failure" "$logs"/run.* || fail "$1: no queue pair was replaced: the test tests nothing"; }

wire loss 1%
begin 2 "${perf[@]}" -n 15
succeeds "1% of the packets lost"
wire delay 2ms reorder 25% 50%
begin 2 "${perf[@]}" -n 20
succeeds "packets late and out of order"
wire corrupt 1%
begin 2 "${perf[@]}" -n 20
succeeds "1% of the packets damaged"

begin 2 "${perf[@]}" -n 800
under_way 0.3
wire down; sleep 0.6; wire up
succeeds "the link down for 0.6 s"
repaired "the link down for 0.6 s"
begin 4 "${perf[@]}" -n 80
under_way 0
wire loss 100%; sleep 3; wire ok
succeeds "nothing comes through for 3 s"
repaired "nothing comes through for 3 s"
begin 2 env NCCL_IB_QPS_PER_CONNECTION=2 NCCL_IB_SPLIT_DATA_ON_QPS=1 "$HK_BUILD/bin/sendrecv_perf" -b 3 -e 3M -f 10 -w 1 -c 1 -n 60 -R 1
under_way 0.3
for i in 1 2 3; do wire loss 100%; sleep 0.8; wire ok; sleep 0.5; done
succeeds "three outages of 0.8 s"
repaired "three outages of 0.8 s"

for way in "-R 2" "-R 0"; do # from registered memory, and copied
  # shellcheck disable=SC2086 # words
  begin 2 env NCCL_IB_QPS_PER_CONNECTION=2 "$HK_BUILD/bin/put_perf" -b 8 -e 8M -f 100 -w 1 -c 1 -n 60 $way
  under_way 0.3
  for i in 1 2 3; do wire loss 100%; sleep 0.8; wire ok; sleep 0.5; done
  succeeds "three outages of 0.8 s amid puts ($way)"
  repaired "three outages of 0.8 s amid puts ($way)"
done
begin 2 env HOCKET_PEER_TIMEOUT=4 "$HK_BUILD/bin/put_perf" -b 8 -e 8 -w 1 -c 1 -n 1000000
under_way 0.3
wire down
ends "the link stays down amid puts" 20 "one-sided operations|lost the connection to rank"
wire up

begin 2 env HOCKET_PEER_TIMEOUT=4 "${perf[@]}" -n 1000000
under_way 0.3
wire down
ends "the link stays down" 20 "RETRY_EXC_ERR|LOC_QP_OP_ERR|cannot be connected|is DOWN" "rxe[01]" "check"
if ldconfig -p | grep -q librdmacm.so.1; then
  grep -q "the kernel says: " "$logs"/run.* || fail "the link stays down: no rank asks the kernel"
fi
wire up
begin 2 "${perf[@]}" -n 3
succeeds "a new communicator after that"

begin 2 env HOCKET_IB_REPLAY=0 "${perf[@]}" -n 1000000
under_way 0.3
wire loss 100%
ends "no replay is wanted" 20 "RETRY_EXC_ERR" "nothing was answered"
wire ok

begin 3 "${perf[@]}" -n 1000000
under_way 0.5
kill -KILL "${roce_pids[2]}"
ends "a rank is killed" 20 "rank 2"

ROCE_HCA==mlx5_7 begin 2 "${perf[@]}" -n 1
ends "no such device" 20 "NCCL_IB_HCA==mlx5_7 names none of the RDMA devices here"
begin 2 env NCCL_IB_GID_INDEX=77 "${perf[@]}" -n 1
ends "no such GID" 20 "has no GID that NCCL_IB_GID_INDEX"
begin 2 setpriv --bounding-set -all --inh-caps -all --ambient-caps -all --reuid 65534 --clear-groups bash -c 'ulimit -l 48; exec "$@"' - "${perf[@]}" -n 1
ends "too little memory may be locked" 20 "may lock 48 KiB"

begin 2 env NCCL_NET= setpriv --bounding-set -all --inh-caps -all --ambient-caps -all --reuid 65534 --clear-groups bash -c 'ulimit -l 48; exec "$@"' - "${perf[@]}" -n 3
succeeds "too little memory may be locked, and TCP takes over"
grep -q "TCP carries channel" "$logs/run.0" || fail "no rank says that TCP carries it"

# One rank has no RDMA: they meet over TCP.
rm -f "$logs"/run.*
ROCE_HCA="=rxe0" roce_ranks 2 "$logs/run" bash -c 'if [ "$RANK" = 1 ]; then export NCCL_IB_DISABLE=1; fi; NCCL_DEBUG=INFO exec "$@"' - "${perf[@]}" -n 3
succeeds "a rank without RDMA"
grep -q "network IB is off: NCCL_IB_DISABLE=1" "$logs/run.1" || fail "a rank without RDMA does not say why"

# What the doctor says of it.
says() { # words command...
  local words=$1
  shift
  "$@" >"$logs/run.0" 2>&1
  grep -qE -- "$words" "$logs/run.0" || fail "hocket doctor does not say '$words'"
  ran=$((ran + 1))
}
doctor=("$HK_BUILD/bin/hocket" doctor verbs)
says "rxe0:1 opens and takes memory: RoCE, MTU 4096" "${doctor[@]}"
says "rxe1 takes no memory" setpriv --bounding-set -all --inh-caps -all --ambient-caps -all --reuid 65534 --clear-groups \
  bash -c 'ulimit -l 48; exec "$@"' - "${doctor[@]}"
says "NCCL_IB_HCA=mlx names none" env NCCL_IB_HCA=mlx "${doctor[@]}"
rm -rf "$logs"
echo "$ran faults did what they should"
