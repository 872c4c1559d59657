#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=240
# Three hosts: a cable that is out for a moment is survived; one that stays out, an interface that goes down, one of two that
# is lost, and a killed process end every rank in bounded time, with the name of the rank that is gone.
set -u
. tests/netns/lib.sh
netns_pids=() netns_codes=()
logs=$(mktemp -d)
netns_need
netns_hosts 3

fail() { # text
  echo "$1"
  tail -n 8 "$logs"/run.*
  exit 1
}

# Starts an endless allreduce and waits until it is under way.
begin() { # options
  rm -f "$logs"/run.*
  netns_ranks "$logs/run" "$@"
  for _ in $(seq 200); do
    grep -q 'us)' "$logs/run.1" && break
    sleep 0.05
  done
  sleep 1
}
endless=("$HK_BUILD/bin/all_reduce_perf" -b 1M -e 1M -n 1000000 -w 1 -c 0)

# Every rank but `except` ends with an error that names one of the ranks in the pattern.
expect_named() { # what seconds pattern except
  netns_wait "$2"
  for i in 0 1 2; do
    [ "$i" = "$4" ] && continue
    [ "${netns_codes[i]}" = 124 ] && fail "$1: rank $i hangs"
    [ "${netns_codes[i]}" = 0 ] && fail "$1: rank $i ended as if all were well"
    grep -qE "$3" "$logs/run.$((i + 1))" || fail "$1: rank $i does not say who is gone ($3)"
  done
}

# A line for each of many sizes: lines after the cut show that it went on.
begin "$HK_BUILD/bin/all_reduce_perf" -b 256K -e 64M -i 4096 -n 4 -w 0 -c 1
netns_cut 2
sleep 2
before=$(wc -l <"$logs/run.1")
netns_mend 2
for _ in $(seq 400); do
  after=$(wc -l <"$logs/run.1")
  [ "$after" -gt $((before + 20)) ] && break
  sleep 0.05
done
[ "$after" -gt $((before + 20)) ] || fail "after a cable was out for 2 s nothing went on ($before lines, then $after)"
awk '$1 ~ /^[0-9]+$/ && ($9 != 0 || $13 != 0) { exit 1 }' "$logs/run.1" || fail "after a cable was out the results are wrong"
kill -KILL "${netns_pids[@]}"
netns_wait 5

begin "${endless[@]}"
# `hocket ps` on another host names a stopped process, and a host that cannot be reached.
says() { # text
  netns_run 1 "$HK_BUILD/bin/hocket" ps --late 500 >"$logs/ps" || true
  grep -q "$1" "$logs/ps" || { cat "$logs/ps"; fail "hocket ps on another host does not say: $1"; }
}
# NCCL's RAS there has the other host's counts, and names a rank that it misses. The report takes less than a second.
ras_says() { # text
  netns_run 1 timeout 1 "$HK_BUILD/bin/ncclras" -f json >"$logs/ras" || true
  grep -qE "$1" "$logs/ras" || { cat "$logs/ras"; fail "ncclras on another host does not say: $1"; }
}
ras_says '"rank":1,[^}]*},"collective_counts":\{"AllReduce":[1-9]'
stopped=$(netns_run 2 "$HK_BUILD/bin/hocket" ps --json | sed -n 's/.*"rank":1,"host":"[^"]*","pid":\([0-9]*\).*/\1/p')
kill -STOP "$stopped"
says "rank 1 does not answer"
ras_says '"rank":1,[^}]*"unresponsive":true,"considered_dead":false'
kill -CONT "$stopped"
netns_cut 2
sleep 1
says "rank 1 cannot be reached"
ras_says '"rank":1,[^}]*"unresponsive":true,"considered_dead":false'
netns_mend 2
sleep 1
kill -KILL "${netns_pids[1]}"
at=$EPOCHREALTIME
expect_named "kill -9 of rank 1" 10 "rank 1" 1
took=$(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')

export HOCKET_PEER_TIMEOUT=3
begin "${endless[@]}"
netns_cut 2
expect_named "a cable that stays out" 30 "rank 1" 1
netns_mend 2
sleep 0.2

begin "${endless[@]}"
netns_run 3 ip link set eth0 down
expect_named "an interface that goes down" 30 "rank 2" 2
netns_run 3 ip link set eth0 up

# One of two interfaces is lost. The ranks still reach each other over the other one, and the error names the one.
netns_net 1
NCCL_SOCKET_IFNAME=eth begin "${endless[@]}"
netns_cut 2 1
expect_named "one of two interfaces" 30 "rank [0-2] .*interface eth1" none
rm -rf "$logs"
echo "a short cut was survived; a killed rank was named after $took s, silent hosts within their limit"
