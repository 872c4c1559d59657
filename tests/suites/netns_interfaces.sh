#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=180
# Two hosts with two networks: the interface that reaches the root is used, unless the user names another, or both; a dead
# network and container bridges are not; ports stay in their range; IPv6 works.
set -u
. tests/netns/lib.sh
netns_pids=() netns_codes=() netns_job=29500
logs=$(mktemp -d)
netns_need
netns_hosts 2
netns_net 1
for i in 1 2; do
  # What Docker makes on every host, with the same address on each.
  netns_run $i ip link add name docker0 type bridge
  netns_run $i ip addr add 172.17.0.1/16 dev docker0
  netns_run $i ip link set docker0 up
  netns_run $i ip -6 addr add "fd77::$i/64" dev eth1 nodad
done
checks=0

fail() { # text
  echo "$1"
  tail -n 15 "$logs"/run.*
  exit 1
}

# A short allreduce; then every data connection of both ranks must have gone through the interface.
uses() { # what interface VARIABLE=value...
  local what=$1 interface=$2 i lines
  shift 2
  netns_ranks "$logs/run" env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET "$@" \
    "$HK_BUILD/bin/all_reduce_perf" -b 8 -e 1M -f 1024 -n 2 -w 1 -c 1
  netns_wait 30
  [ "${netns_codes[*]}" = "0 0" ] || fail "$what: exit codes ${netns_codes[*]}"
  for i in 1 2; do
    lines=$(grep -E 'channel [0-9]+ to rank [0-9]+ over' "$logs/run.$i")
    [ -n "$lines" ] || fail "$what: rank $((i - 1)) made no connection"
    grep -v "interface $interface\$" <<<"$lines" && fail "$what: not all connections go through $interface"
  done
  checks=$((checks + 1))
}

uses "no wish" eth0 A=1
uses "NCCL_SOCKET_IFNAME=eth1" eth1 NCCL_SOCKET_IFNAME=eth1
uses "NCCL_SOCKET_IFNAME=^=eth0" eth1 NCCL_SOCKET_IFNAME=^=eth0
uses "NCCL_SOCKET_IFNAME=eth1 over IPv6" eth1 NCCL_SOCKET_IFNAME=eth1 NCCL_SOCKET_FAMILY=AF_INET6
grep -q 'fd77::1' "$logs/run.1" || fail "NCCL_SOCKET_FAMILY=AF_INET6 did not use IPv6"

# An address of both families means one socket for all, also where the system keeps the families apart.
netns_run 1 sysctl -qw net.ipv6.bindv6only=1
uses "net.ipv6.bindv6only" eth0 A=1
netns_run 1 sysctl -qw net.ipv6.bindv6only=0

# The kernel looks for a duplicate of a new IPv6 address, and refuses to bind to it meanwhile.
for i in 1 2; do
  netns_run $i ip -6 addr del "fd77::$i/64" dev eth1
  netns_run $i ip -6 addr add "fd78::$i/64" dev eth1
done
netns_run 2 ip -6 addr show dev eth1 tentative | grep -q fd78 || echo "SKIP: new IPv6 addresses are not tentative here"
uses "a tentative IPv6 address" eth1 NCCL_SOCKET_IFNAME=eth1 NCCL_SOCKET_FAMILY=AF_INET6

# Both that are named, the first one first, and large messages in equal parts: half of the bytes over each.
before=()
for k in 0 1; do before+=("$(netns_run 1 cat /sys/class/net/eth$k/statistics/tx_bytes)"); done
netns_ranks "$logs/run" env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME==eth1,eth0 \
  "$HK_BUILD/bin/all_reduce_perf" -b 4M -e 4M -n 10 -w 1 -c 1
netns_wait 30
[ "${netns_codes[*]}" = "0 0" ] || fail "two interfaces: exit codes ${netns_codes[*]}"
for k in 0 1; do
  share[k]=$(($(netns_run 1 cat /sys/class/net/eth$k/statistics/tx_bytes) - before[k]))
done
grep -q "channel 0 to rank [01] over .*interface eth1\$" "$logs/run.1" || fail "two interfaces: eth1 is not the first one"
grep -q "channel 0 to rank [01] also over .*interface eth0\$" "$logs/run.1" || fail "two interfaces: eth0 is not used"
[ $((share[0] + share[1])) -gt 32000000 ] || fail "two interfaces: ${share[*]} bytes were sent"
for k in 0 1; do
  [ $((10 * share[k])) -gt $((4 * (share[0] + share[1]))) ] || fail "two interfaces: ${share[*]} bytes, not half each"
done
checks=$((checks + 1))

netns_ranks "$logs/run" env NCCL_SOCKET_IFNAME=eth7 "$HK_BUILD/bin/all_reduce_perf" -b 8 -e 8
netns_wait 30
for i in 0 1; do
  case ${netns_codes[i]} in 0 | 124) fail "an interface that does not exist: exit code ${netns_codes[i]}" ;; esac
done
grep -q "NCCL_SOCKET_IFNAME='eth7'.*eth0 (IPv4)" "$logs/run.1" || fail "an interface that does not exist is not named"

unshare -n "$HK_BUILD/bin/all_reduce_perf" -b 8 -e 8 >"$logs/run.1" 2>&1 && fail "a host without any network: no error"
grep -q 'not even loopback' "$logs/run.1" || fail "a host without any network is not reported"

# The first network is up on both hosts and carries nothing.
netns_cut 2 0
export netns_master=1
uses "a dead network" eth1 A=1
uses "two networks, of which one is dead" eth1 NCCL_SOCKET_IFNAME=eth
netns_mend 2 0
export netns_master=0

netns_ranks "$logs/run" env NCCL_RAS_ENABLE=0 HOCKET_PORT_RANGE=41000-41003 "$HK_BUILD/bin/all_reduce_perf" -b 1M -e 1M -n 1000000 -w 1 -c 0
seen=0
for _ in $(seq 100); do
  for i in 1 2; do
    listening=$(netns_run $i ss -Htln | awk '{ sub(/.*:/, "", $4); print $4 }' | sort -u | grep -v "^$netns_job\$")
    for port in $listening; do
      [ "$port" -ge 41000 ] && [ "$port" -le 41003 ] || fail "rank $((i - 1)) listens on port $port, outside of its range"
      seen=$((seen + 1))
    done
  done
  [ $seen -ge 40 ] && break
  sleep 0.05
done
[ $seen -gt 0 ] || fail "no rank listens in HOCKET_PORT_RANGE"
kill -KILL "${netns_pids[@]}" 2>/dev/null
netns_wait 5

# A slow network makes a rank try the peer's next address. That is docker0's, which is this host's, too, and this process listens at
# the same port there.
netns_switch 150 0
uses "a slow network" eth0 NCCL_SOCKET_IFNAME=^eth1 HOCKET_PORT_RANGE=40000-40001
rm -rf "$logs"
echo "$((checks + 2)) choices of interfaces and ports were right"
