#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# racks.sh [ROUNDS]: compares examples/program_hierarchical.py with the built-in algorithms on four hosts (network namespaces) of two ranks
# in two racks with 1 Gbit/s between the racks, interleaved, ROUNDS times (5): the median time of an allreduce in place.
# Needs root, tc, and the Python package (`make python`).
set -u
cd "$(dirname "$0")/.." || exit 1
export HK_BUILD=${HK_BUILD:-build/gcc}
# shellcheck source=tests/netns/lib.sh
. tests/netns/lib.sh
netns_codes=()
rounds=${1:-5}
dir=$(mktemp -d)
netns_need
command -v tc >/dev/null || netns_skip "no tc command (package iproute2)"
netns_hosts 4
# The second rack: hosts 3 and 4 leave the bridge for another one, and a cable joins the two.
bridge=${netns_prefix}b
ip -n "$bridge" link add name br9 type bridge
ip -n "$bridge" link set br9 up
ip -n "$bridge" link set p0-3 master br9
ip -n "$bridge" link set p0-4 master br9
ip -n "$bridge" link add name up0 type veth peer name up9
for k in 0 9; do
  ip -n "$bridge" link set up$k master br$k up
  tc -n "$bridge" qdisc add dev up$k root tbf rate 1gbit burst 256k limit 64m || netns_skip "tc cannot limit the rate"
done
PYTHONPATH=$HK_BUILD/python python3 examples/program_hierarchical.py 2 2 2 "$dir/levels-2-2-2.json" || exit 1

measure() { # name, variables...
  local name=$1
  shift
  netns_ranks "$dir/log" env "$@" "$HK_BUILD/bin/all_reduce_perf" -t 2 -b 1K -e 16M -f 4 -n 5 -w 2 --places in
  netns_wait 120
  [ "${netns_codes[*]}" = "0 0 0 0" ] || { cat "$dir/log.1" >&2; exit 1; }
  awk -v name="$name" '$1 ~ /^[0-9]+$/ { print $1, name, $10 }' "$dir/log.1" >>"$dir/times"
}
for ((r = 0; r < rounds; r++)); do
  measure choice
  measure ring NCCL_ALGO=ring
  measure hier NCCL_ALGO=hier
  measure levels HOCKET_PROGRAMS="$dir" NCCL_ALGO=levels-2-2-2
done
sort -k1,1n -k2,2 -k3,3n "$dir/times" | awk -v rounds="$rounds" '
  BEGIN { printf "%10s %10s %10s %10s %10s %10s\n", "bytes", "choice/us", "ring/us", "hier/us", "levels/us", "choice:levels" }
  { at[$1 " " $2]++; if (at[$1 " " $2] == int((rounds + 1) / 2)) time[$1 " " $2] = $3; if (!seen[$1]++) size[++n] = $1 }
  END {
    for (k = 1; k <= n; k++) {
      s = size[k]
      printf "%10d %10.0f %10.0f %10.0f %10.0f %10.2f\n", s, time[s " choice"], time[s " ring"], time[s " hier"],
             time[s " levels"], time[s " choice"] / time[s " levels"]
    }
  }'
rm -rf "$dir"
