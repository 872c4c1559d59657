#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=240
# Three hosts with a slow and lossy network between them: every element of every result is right.
set -u
. tests/netns/lib.sh
netns_codes=()
logs=$(mktemp -d)
netns_need
netns_hosts 3
ran=0
run() { # what program options...
  local what=$1 program=$2 i
  shift 2
  netns_ranks "$logs/$program" "$HK_BUILD/bin/${program}_perf" -n 2 -w 1 -c 1 "$@"
  netns_wait 60
  for i in 0 1 2; do
    [ "${netns_codes[i]}" = 0 ] && continue
    echo "$program over $what: rank $i ended with code ${netns_codes[i]}"
    tail -n 12 "$logs/$program".*
    exit 1
  done
  grep -q 'Out of bounds values : 0 OK' "$logs/$program.1" || {
    echo "$program over $what: wrong results"
    cat "$logs/$program.1"
    exit 1
  }
  ran=$((ran + 1))
}

run "a plain network" all_reduce -b 8 -e 8M -f 8
run "a plain network" all_gather -b 1000 -e 1000000 -f 10 -d int8
netns_switch 2 1
run "2 ms of delay and 1% of loss" all_reduce -b 8 -e 2M -f 16
run "2 ms of delay and 1% of loss" alltoall -b 96 -e 1M -f 100
run "2 ms of delay and 1% of loss" sendrecv -b 4 -e 1M -f 64
run "2 ms of delay and 1% of loss" broadcast -b 4 -e 1M -f 64
export NCCL_NSOCKS_PERTHREAD=4
run "4 sockets, 2 ms of delay and 1% of loss" reduce_scatter -b 96 -e 4M -f 200
rm -rf "$logs"
echo "$ran runs between 3 hosts gave the right results"
