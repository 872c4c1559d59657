#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Quantised and ordinary allreduce over a network of 1 Gb/s: hosts are network namespaces, one rank each, and tc limits
# what a host sends.   bench/quantised.sh [HOSTS]...   Needs root.
set -u
. tests/netns/lib.sh
netns_need
command -v tc >/dev/null || netns_skip "no tc command (package iproute2)"
build=${HK_BUILD:-build/gcc}
logs=$(mktemp -d)
for hosts in "${@:-2}"; do
  netns_hosts "$hosts"
  for ((i = 1; i <= hosts; i++)); do
    tc -n "$(netns_name "$i")" qdisc add dev eth0 root tbf rate 1gbit burst 256k limit 64m ||
      netns_skip "tc cannot limit the rate"
  done
  for type in float bfloat16; do
    for quantised in 0 1; do
      HOCKET_QUANTISED=$quantised HOCKET_TUNE_FILE=none netns_ranks "$logs/log" \
        "$build/bin/all_reduce_perf" -b 64K -e 16M -f 16 -d "$type" -n 5 -w 1 -c 0
      netns_wait 120
      echo "# $hosts hosts, $type, $([ $quantised = 1 ] && echo quantised || echo ordinary): bytes, us, bus GB/s"
      awk '$1 ~ /^[0-9]+$/ { print $1, $6, $8 }' "$logs/log.1"
    done
  done
  netns_end
done
rm -rf "$logs"
