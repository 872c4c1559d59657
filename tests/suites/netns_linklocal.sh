#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=60
# Two hosts that reach each other by link-local addresses only, and have an interface each that leads nowhere, with one address on
# both hosts: another address of the peer is tried, through each interface.
set -u
. tests/netns/lib.sh
netns_need
netns_hosts 2
dir=$(mktemp -d) && trap 'rm -rf "$dir"; netns_end' EXIT
pids=()
for i in 1 2; do
  netns_run $i ip addr flush dev eth0 scope global
  netns_run $i ip link add name d0 type veth peer name d1
  netns_run $i ip addr add 169.254.3.1/16 dev d0
  netns_run $i ip link set d0 up
  netns_run $i ip link set d1 up
done
root=$(netns_run 1 ip -6 -o addr show dev eth0 scope link | sed 's/.*inet6 \([^/]*\).*/\1/')
[ -n "$root" ] || netns_skip "this system has no IPv6"
for i in 1 2; do
  netns_start $i "$dir/run.$i" env RANK=$((i - 1)) WORLD_SIZE=2 MASTER_ADDR="$root%eth0" MASTER_PORT=29500 HOCKET_BOOTSTRAP_TIMEOUT=30 \
    "$HK_BUILD/bin/all_reduce_perf" -b 8 -e 1M -f 1024 -n 2
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || { tail -n 12 "$dir"/run.*; exit 1; }; done
grep -q "Out of bounds values : 0 OK" "$dir/run.1" || { tail -n 12 "$dir"/run.*; exit 1; }
echo "link-local addresses of another interface are found"
