#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=120 covers=src/ops/
# `hocket ps` on a host of the job, and on one outside of it by the RAS service, names a slow, a mismatching, a stopped and a dead
# rank of another host, each within seconds.
set -u
. tests/netns/lib.sh
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || netns_skip "the Python package is not built: make python"
command -v python3 >/dev/null || netns_skip "there is no python3"
netns_need
netns_hosts 4
folder=$(mktemp -d) limit=4 slowest=0
export PYTHONPATH=$PWD/$HK_BUILD/python PYTHONDONTWRITEBYTECODE=1 NCCL_RAS_ADDR=0.0.0.0:28028

fail() { # text
  echo "$1"
  cat "$folder"/out.* "$folder/ps" 2>/dev/null
  exit 1
}

# A job on hosts 1 to 3.
begin() {
  rm -f "$folder"/*
  netns_count=3
  netns_ranks "$folder/out" python3 tests/netns/looked_at.py "$folder"
  for _ in $(seq 400); do
    [ -e "$folder/ready0" ] && [ -e "$folder/ready1" ] && [ -e "$folder/ready2" ] && return
    sleep 0.05
  done
  fail "the job does not begin"
}

end() {
  touch "$folder/end"
  netns_wait 20
  [ "${netns_codes[0]}" = 0 ] || fail "rank 0 ends with ${netns_codes[0]}"
}

# What happened just now is said on host 1, and after that on host 4.
named() { # pattern
  local at host took
  for host in 1 4; do
    at=$EPOCHREALTIME
    while :; do
      # shellcheck disable=SC2046 # no argument on host 1
      netns_run $host "$HK_BUILD/bin/hocket" ps $([ $host = 1 ] || netns_ip 1) >"$folder/ps" 2>&1
      took=$(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
      tr '\n' ' ' <"$folder/ps" | tr -s ' ' | grep -qE "$1" && break
      awk -v t="$took" -v l=$limit 'BEGIN { exit t < l }' && fail "after $took s hocket ps on host $host does not say: $1"
    done
    slowest=$(awk -v a="$slowest" -v b="$took" 'BEGIN { print (a > b ? a : b) }')
  done
}

begin
[ -z "$(netns_run 4 "$HK_BUILD/bin/hocket" ps | grep Communicator)" ] || fail "host 4 is not outside of the job"
touch "$folder/slow"
named 'rank 1 is late, by [0-9.]+ ms on average'
rm "$folder/slow"
touch "$folder/differ"
named 'rank 1 made another call as operation [0-9]+: AllReduce\(8 x float, sum\), and rank [02] AllReduce\(4 x float, sum\)'
end

begin
pid=$(netns_run 2 "$HK_BUILD/bin/hocket" ps --json | sed -n 's/.*"rank":1,"host":"[^"]*","pid":\([0-9]*\).*/\1/p')
kill -STOP "$pid"
named 'rank 1 does not answer'
kill -CONT "$pid"
kill -KILL "$pid"
named 'rank 1 is gone'
end
rm -rf "$folder"
echo "a slow, a mismatching, a stopped and a dead rank were each named on another host and from outside after $slowest s at most"
