#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Networks that add up: processes on several hosts, by name, with the example CollNet plugin of every version, right and wrong.
# check: timeout=120 covers=src/collectives/collnet,src/run/collnet,src/transport/net/collnet/
set -u
bin=$PWD/$HK_BUILD/bin plugins=$PWD/$HK_BUILD/plugins
. tests/support/suite.sh
unset "${!NCCL_@}" "${!HOCKET_TEST_@}"
export HOCKET_TUNE_FILE=none NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING,INIT,NET NCCL_SOCKET_IFNAME=lo NCCL_COLLNET_ENABLE=1

port=$((21000 + RANDOM % 8000))
declare -A own=() more=() # settings and options of some ranks
hosts() { # "host names" binary options...
  local names rank rc=0 pids=() binary=$2
  read -ra names <<<"$1"
  shift 2
  port=$((port + 1))
  rm -f "$tmp"/out.*
  for ((rank = ${#names[@]} - 1; rank >= 0; rank--)); do
    env RANK=$rank WORLD_SIZE=${#names[@]} MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_HOSTID="${names[$rank]}" \
      ${own[$rank]+${own[$rank]}} timeout 60 "$bin/$binary" "$@" ${more[$rank]-} --launcher torchrun -n 1 -w 0 >"$tmp/out.$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  cat "$tmp"/out.* >"$tmp/out"
  return $rc
}
by() { export NCCL_NET_PLUGIN=$plugins/libnccl-net-adds-$1.so; }
right() { # what, after a run that ended well
  has "AllReduce by collnet" "$1"
  has "Out of bounds values : 0 OK" "$1"
  has "asked for [1-9][0-9]* sums, 0 regions left" "$1"
}

# Each version: two hosts, one rank each and two ranks each; from one element to several waves.
for version in eight nine ten eleven twelve; do
  by $version
  NCCL_ALGO=CollnetDirect hosts "a b" all_reduce_perf -b 4 -e 2M -f 181 || fault "version $version: exit code $?"
  right "version $version"
  has "number 1 of 2 in a group of CollNet plugin Adder" "version $version"
done
by twelve
for names in "a a b b" "a b b a" "a a a b" "a b c d a b c d"; do
  NCCL_ALGO=CollnetChain hosts "$names" all_reduce_perf -b 4 -e 2M -f 181 || fault "hosts $names: exit code $?"
  right "hosts $names"
done

# Allgather and reduce-scatter by the network's own: of one element to several rounds; with ranks beyond those that take part
# in groups, and hosts that are not in the order of ranks. Without such calls, or with uneven hosts or blocks: by others.
moves() { # what, program, hosts
  NCCL_ALGO=collnet hosts "$3" "$2_perf" -b 256 -e 3M -f 181 -d float || fault "$1: exit code $?"
  has "Out of bounds values : 0 OK" "$1"
}
for version in eight ten twelve; do
  by $version
  for program in all_gather reduce_scatter; do
    moves "$program of version $version" $program "a a b b"
    has "(AllGather|ReduceScatter) by collnet" "$program of version $version"
    has "asked for [1-9][0-9]* sums, 0 regions left" "$program of version $version"
  done
done
for names in "a b c" "b a a b" "a b a b a b a b a b a b a b a b a b"; do
  for program in all_gather reduce_scatter; do
    moves "$program on $names" $program "$names"
    has "(AllGather|ReduceScatter) by collnet" "$program on $names"
  done
done
# A round has a block of each host, so blocks of more than eight hosts are shorter than a slot.
for program in all_gather reduce_scatter; do
  NCCL_ALGO=collnet hosts "a b c d e f g h i" ${program}_perf -b 9M -e 9M || fault "$program on nine hosts: exit code $?"
  has "Out of bounds values : 0 OK" "$program on nine hosts"
  has "(AllGather|ReduceScatter) by collnet" "$program on nine hosts"
done
HOCKET_SLOTS=2 HOCKET_SLOT_BYTES=8192 moves "small slots" reduce_scatter "a a b b c c"
NCCL_ALGO=collnet hosts "a b" reduce_scatter_perf -b 1K -e 1K -o avg || fault "an average: exit code $?"
has "ReduceScatter by collnet" "an average"
moves "uneven hosts" all_gather "a a b"
hasnt "AllGather by collnet" "uneven hosts"
moves "uneven blocks" all_gatherv "a b"
hasnt "by collnet" "uneven blocks"
by nine
moves "a plugin without iallgather" all_gather "a b"
hasnt "AllGather by collnet" "a plugin without iallgather"
by twelve

# The model takes it where it is cheapest, and other algorithms without the plugin, or for what it does not add up.
hosts "a b c d e f" all_reduce_perf -b 4M -e 4M || fault "the model's choice: exit code $?"
right "the model's choice"
NCCL_COLLNET_ENABLE=0 hosts "a b" all_reduce_perf -b 1K -e 1K || fault "not enabled: exit code $?"
hasnt "example collnet|by collnet" "not enabled"
NCCL_ALGO=collnetdirect,ring hosts "a a b b" all_reduce_perf -b 1K -e 20K -f 20 -d all -o all || fault "all types: exit code $?"
right "all types"
has "AllReduce by ring" "types that the plugin does not add up"
NCCL_ALGO=collnet hosts "a b" alltoall_perf -b 1K -e 1K || fault "a collective that it does not have: exit code $?"
has "Out of bounds values : 0 OK" "a collective that it does not have"

# Why it is not used: said once, and the call goes on by other means.
refused() { # setting, reason, hosts
  local name=${1%%=*} had
  had=${!name-}
  export "${1?}"
  NCCL_ALGO=collnet,ring hosts "${3-a b}" all_reduce_perf -b 1K -e 1K || fault "$1: exit code $?"
  export "$name=$had"
  has "CollNet is not used: $2" "$1"
  [ "$(grep -c "CollNet is not used" "$tmp/out")" = 1 ] || fault "$1: said more than once"
  has "Out of bounds values : 0 OK" "$1"
  hasnt "by collnet" "$1"
}
for mode in init:"rank 0: CollNet plugin Adder \(v12\): init fails with code 2" none:".*it has no device that adds up host memory" \
  refuse:".*it adds up no type" connect:"rank 0: CollNet plugin Adder: connect fails with code 6"; do
  refused HOCKET_TEST_COLLNET="${mode%%:*}" "${mode#*:}"
done
refused NCCL_NET_PLUGIN="$plugins/libnccl-net-twelve.so" "rank 0: no library of NCCL_NET_PLUGIN has a CollNet plugin"
refused NCCL_COLLNET_NODE_THRESHOLD=3 "the ranks are on 2 hosts, and at least 3 are needed" "a b b"
refused NCCL_COLLNET_NODE_THRESHOLD=2 "the ranks are on 1 host," "a a"
own=([1]="HOCKET_NET_PLUGIN_VERSION=11 NCCL_NET_PLUGIN=$plugins/libnccl-net-adds-eleven.so")
refused NCCL_COLLNET_NODE_THRESHOLD=2 "rank 1: its plugin is Adder \(v11\), rank 0's is Adder \(v12\)"
# One rank's connect fails, and the other one's does not return: it is left there.
own=([1]="HOCKET_TEST_COLLNET=connect")
export HOCKET_LEAVE_TIMEOUT=1
refused HOCKET_PEER_TIMEOUT=2 "rank 0: CollNet plugin Adder: connect does not return within 2 s"
has "rank 0: CollNet plugin Adder \(v12\) has not returned from a call for 1 s" "a connect that does not return"
unset HOCKET_LEAVE_TIMEOUT HOCKET_PEER_TIMEOUT
own=([1]="NCCL_COLLNET_ENABLE=0")
hosts "a b" all_reduce_perf -b 1K -e 1K && fault "enabled on one rank only is taken"
has "have different values of .*NCCL_COLLNET_ENABLE" "enabled on one rank only"
own=()

# A plugin that fails: all ranks end with the cause. One that does not go on: the watchdog says so.
export HOCKET_TEST_COLLNET NCCL_ALGO=collnet
for call in iallreduce test; do
  HOCKET_TEST_COLLNET=$call hosts "a a b b" all_reduce_perf -b 4M -e 4M && fault "a plugin that fails in $call: exit code 0"
  n=$(grep -lE "CollNet plugin Adder \(v12, .*\), device lo-[01]: $call fails with code" "$tmp"/out.* | wc -l)
  [ "$n" = 4 ] || fault "a plugin that fails in $call: $n of 4 ranks say why"
done
for call in iallgather ireducescatter; do
  [ $call = iallgather ] && program=all_gather || program=reduce_scatter
  HOCKET_TEST_COLLNET=$call hosts "a a b b" ${program}_perf -b 4M -e 4M && fault "a plugin that fails in $call: exit code 0"
  n=$(grep -lE "CollNet plugin Adder \(v12, .*\), device lo-[01]: $call fails with code" "$tmp"/out.* | wc -l)
  [ "$n" = 4 ] || fault "a plugin that fails in $call: $n of 4 ranks say why"
done
more=([1]="-o max")
hosts "a b" all_reduce_perf -b 1K -e 1K && fault "hosts that call different things: exit code 0"
has "rank [01].*AllReduce\(256 x float, (sum|max)\)" "hosts that call different things"
more=()
HOCKET_TEST_COLLNET=slow HOCKET_WATCHDOG=1 HOCKET_WATCHDOG_ABORT=1 hosts "a b" all_reduce_perf -b 1K -e 1K &&
  fault "a sum that never comes: exit code 0"
has "rank [01].*wait" "a sum that never comes"
finish "sums of the network are right, or are refused for a reason"
