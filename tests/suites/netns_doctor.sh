#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=60
# `hocket doctor` between two hosts with two networks: which interfaces reach each other, and which does not when its
# network is dead; an interface that a firewall closes.
set -u
. tests/netns/lib.sh
hocket=$HK_BUILD/bin/hocket
[ -x "$hocket" ] || netns_skip "the command hocket is not built"
dir=$(mktemp -d)
netns_need
netns_hosts 2
netns_net 1
port=7461 checks=0
fail() { echo "$1"; cat "$dir/listen" "$dir/out"; exit 1; }
says() { checks=$((checks + 1)); grep -q -- "$1" "$dir/out" || fail "no '$1'"; }

netns_start 2 "$dir/listen" "$hocket" doctor --listen $port
for _ in $(seq 50); do grep -qs listening "$dir/listen" && break; sleep 0.1; done
netns_run 1 "$hocket" doctor peer interfaces --peer "$(netns_ip 2)" >"$dir/out" ||
  fail "two hosts that reach each other: exit code not 0"
says "eth0 ($(netns_ip 1)) here reaches eth0 ($(netns_ip 2)) there"
says "eth1 ($(netns_ip 1 1)) here reaches eth1 ($(netns_ip 2 1)) there"
says "eth0 $(netns_ip 1).* is taken"
says "eth1 $(netns_ip 1 1).* works too"

# The second network drops everything silently; over the first one the other host still reports what it has.
netns_cut 2 1
netns_run 1 "$hocket" doctor peer --peer "$(netns_ip 2):$port" >"$dir/out"
says "eth0 ($(netns_ip 1)) here reaches eth0 ($(netns_ip 2)) there"
says "eth1 ($(netns_ip 1 1)) here does not reach eth1 ($(netns_ip 2 1)) there"
says "ip route get $(netns_ip 2 1)"

# No process listens there; the host does not exist.
netns_run 1 "$hocket" doctor peer --peer "$(netns_ip 2):9" >"$dir/out" && fail "a port without a listener is not reported as a problem"
says "hocket doctor --listen 9"

if command -v iptables >/dev/null && netns_run 1 iptables -A INPUT -i lo -d "$(netns_ip 1 1)" -p tcp -j DROP 2>/dev/null; then
  netns_run 1 "$hocket" doctor interfaces >"$dir/out" && fail "a firewall before an interface is no problem"
  says "eth1 $(netns_ip 1 1).*cannot connect to itself there"
  says "NCCL_SOCKET_IFNAME=^eth1"
else
  echo "SKIP: no iptables: a firewall is not tried"
fi
rm -r "$dir"
echo "$checks texts found"
