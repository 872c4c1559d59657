#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What users set to change what runs, seen from outside: tuning files, tuner plugins, several hosts, disagreement.
# check: timeout=120 covers=src/decide/,src/collectives/,src/run/tuner,src/comm/hosts,src/comm/agree
set -u
bin=$PWD/$HK_BUILD/bin plugins=$PWD/$HK_BUILD/plugins
. tests/support/suite.sh
export HOCKET_TUNE_FILE=none

# An allreduce of 64 B and one of 64 KiB between two processes, with the lines of selection.
run() { # settings...
  env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING,INIT "$@" timeout 60 "$bin/all_reduce_perf" --procs 2 -b 64 -e 64K -f 1024 \
    -n 2 -w 0 >"$tmp/out" 2>&1
}

cat >"$tmp/rules.csv" <<'END'
# collective, from, to, ranks, hosts, algorithm, protocol, channels
allreduce,0,1K,2,1,halving,*,*
allreduce,*,*,*,*,direct,Simple,*
END
run HOCKET_TUNING_FILE="$tmp/rules.csv" || fault "a tuning file: exit code $?"
has "AllReduce by halving" "a tuning file"
has "AllReduce by direct" "a tuning file"
echo "allreduce,0,1K,2,1,halvign,*,*" >"$tmp/wrong.csv"
run HOCKET_TUNING_FILE="$tmp/wrong.csv" && fault "a wrong tuning file is taken"
has "wrong.csv:1: field 6 \(algorithm\) is \"halvign\"" "a wrong tuning file"

# The plugin by its path and by its name; what it prefers runs.
for version in two three four five six; do
  run LD_LIBRARY_PATH="$plugins" NCCL_TUNER_PLUGIN=$version || fault "tuner $version: exit code $?"
  has "tuner plugin $version \(v" "tuner $version"
  has "example tuner: 2 ranks, 1 hosts" "tuner $version"
  has "AllReduce by tree" "tuner $version"
  has "AllReduce by ring" "tuner $version"
  has "example tuner: asked [1-9]" "tuner $version"
done
run LD_LIBRARY_PATH="$plugins" NCCL_TUNER_PLUGIN=five || fault "the newest version of a plugin: exit code $?"
has "tuner plugin five \(v5\)" "the newest version of a plugin"
run NCCL_TUNER_PLUGIN="$plugins/libnccl-tuner-four.so" HOCKET_TEST_TUNER=channels || fault "channels by plugin: exit code $?"
has "AllReduce by ring: [0-9]+ lanes, [0-9]+ links, [0-9]+ instructions, 2 channels" "channels by plugin"
run LD_LIBRARY_PATH="$plugins" NCCL_TUNER_PLUGIN=six HOCKET_TEST_TUNER=chunk || fault "chunks by plugin: exit code $?"
has "example tuner: chunk of function 4, [0-9]+ bytes, [01]/2, 1 channels: [0-9]+" "chunks by plugin"
for mode in silent fail refuse; do
  run NCCL_TUNER_PLUGIN="$plugins/libnccl-tuner-three.so" HOCKET_TEST_TUNER=$mode || fault "tuner that is to $mode: exit code $?"
  hasnt "AllReduce by (ring|tree)" "a tuner that is to $mode"
done
has "refuses its init" "a tuner that refuses"
run NCCL_TUNER_PLUGIN=absent || fault "no such tuner: exit code $?"
has "NCCL_TUNER_PLUGIN is absent, which cannot be loaded" "no such tuner"
run NCCL_NET_PLUGIN="$plugins/libnccl-tuner-three.so" || fault "a tuner in a net plugin's library: exit code $?"
has "tuner plugin three \(v3\)" "a tuner in a net plugin's library"
run LD_LIBRARY_PATH="$plugins" NCCL_TUNER_PLUGIN=three NCCL_ALGO=^tree || fault "tuner and NCCL_ALGO: exit code $?"
hasnt "AllReduce by tree" "NCCL_ALGO and a tuner"

# ---- several hosts, by name ----
port=$((21000 + RANDOM % 8000))
hosts() { # "host names" command...
  local names rank rc=0 pids=()
  read -ra names <<<"$1"
  shift
  port=$((port + 1))
  for ((rank = ${#names[@]} - 1; rank >= 0; rank--)); do
    env RANK=$rank WORLD_SIZE=${#names[@]} MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_HOSTID="${names[$rank]}" \
      ${own[$rank]+${own[$rank]}} timeout 60 "$@" >"$tmp/out.$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  cat "$tmp"/out.* >"$tmp/out"
  return $rc
}
declare -A own=()
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING,INIT
for names in "a a b b" "a b a b" "a a a b"; do
  for algorithm in hier hiertree ring; do
    NCCL_ALGO=$algorithm hosts "$names" "$bin/all_reduce_perf" --launcher torchrun -b 8 -e 256K -f 181 -n 1 -w 0 ||
      fault "$algorithm on hosts $names: exit code $?"
    has "AllReduce by $algorithm" "hosts $names"
    has "Out of bounds values : 0 OK" "$algorithm on hosts $names"
  done
done
for operation in all_gather reduce_scatter alltoall; do
  NCCL_ALGO=rail hosts "a b b a" "$bin/${operation}_perf" --launcher torchrun -b 64 -e 256K -f 64 -n 1 -w 0 ||
    fault "$operation along rails: exit code $?"
  has "by rail" "$operation along rails"
done

# Ranks that disagree get an error that names what to set, on every rank.
disagree() { # setting of rank 1, what the error says
  own=([1]="$1")
  hosts "a a" "$bin/all_reduce_perf" --launcher torchrun -b 8 -e 8 -n 1 -w 0 && fault "$1 on one rank only is taken"
  has "have different values of .*$2" "$1 on one rank only"
  own=()
}
disagree NCCL_ALGO=ring NCCL_ALGO
disagree NCCL_PROTO=Simple NCCL_PROTO
disagree NCCL_MAX_NCHANNELS=2 NCCL_MAX_NCHANNELS
disagree HOCKET_TUNING_FILE="$tmp/rules.csv" HOCKET_TUNING_FILE
mkdir "$tmp/programs" && awk -v n=2 -f tests/support/msccl-ring.awk >"$tmp/programs/ring.xml"
disagree HOCKET_PROGRAMS="$tmp/programs" HOCKET_PROGRAMS
disagree NCCL_TUNER_PLUGIN="$plugins/libnccl-tuner-three.so" NCCL_TUNER_PLUGIN
disagree NCCL_P2P_LEVEL=SYS NCCL_P2P_LEVEL
disagree NCCL_BUFFSIZE=4194304 "HOCKET_SLOT_BYTES .or NCCL_BUFFSIZE."

# Constants measured on one rank's host only do no harm: rank 0's count.
printf 'switch_us = 9\nmemory_alpha_us = 5\n' >"$tmp/tune.conf"
own=([1]="HOCKET_TUNE_FILE=$tmp/tune.conf")
hosts "a a" "$bin/all_reduce_perf" --launcher torchrun -b 8 -e 1M -f 8 -n 1 -w 0 || fault "measured on one host: exit code $?"

finish "rules, plugins, hosts and disagreement are as they should be"
