#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plugins made for NCCL, with our own examples: net plugins of every version, right and wrong ones.
# check: timeout=180 covers=src/transport/net/plugin/,src/base/plugin,src/base/env_plugin
set -u
bin=$PWD/$HK_BUILD/bin plugins=$PWD/$HK_BUILD/plugins
. tests/support/suite.sh
export HOCKET_TUNE_FILE=none LD_LIBRARY_PATH=$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# An operation between processes that share no memory.
operation=all_reduce ranks=2 from=8
run() { # settings...
  env NCCL_SHM_DISABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET,INIT "$@" timeout 60 "$bin/${operation}_perf" \
    --procs $ranks -b $from -e 4M -f 64 -n 2 -w 0 >"$tmp/out" 2>&1
}
right() { # what
  has "Out of bounds values : 0 OK" "$1"
  has "Using network Example" "$1"
  has "by net plugin Example" "$1"
}

# Every version, by name; the newest of a library's.
version=6
for name in six seven eight nine ten eleven twelve; do
  run NCCL_NET_PLUGIN=$name || fault "net plugin $name: exit code $?"
  has "net plugin Example \(v$version\) from libnccl-net-$name.so" "net plugin $name"
  right "net plugin $name"
  version=$((version + 1))
done
has "example net: context 1 ends" "finalize of v11"
ranks=3
for operation in sendrecv alltoall reduce_scatter; do
  run NCCL_NET_PLUGIN="$plugins/libnccl-net-nine.so" || fault "$operation by plugin: exit code $?"
  right "$operation by plugin"
done
operation=all_reduce ranks=2

# Lists, the default name, and who is chosen.
ln -s "$plugins/libnccl-net-ten.so" "$tmp/libnccl-net.so"
run LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" || fault "the default name: exit code $?"
has "net plugin Example \(v10\) from libnccl-net.so" "the default name"
right "the default name"
run NCCL_NET_PLUGIN=absent,lacking,seven NCCL_NET=example || fault "a list: exit code $?"
has "net plugin absent cannot be loaded" "a list"
has "net plugin Example \(v8, libnccl-net-lacking.so\) is not used: it has no irecv" "a list"
has "Example \(v7\)" "a list"
right "a list"
run NCCL_NET_PLUGIN=late NCCL_NET=example || fault "a plugin that init fills: exit code $?"
has "net plugin Late example \(v8\)" "a plugin that init fills"
right "a plugin that init fills"
run LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" NCCL_NET_PLUGIN=none || fault "none: exit code $?"
has "Using network Socket" "none"
hasnt "net plugin" "none"
run NCCL_NET_PLUGIN=six NCCL_NET=socket || fault "another network than the plugin: exit code $?"
has "Using network Socket" "another network than the plugin"
run NCCL_NET_PLUGIN=six NCCL_NET=pigeon && fault "a network that does not exist is taken"
has "is 'pigeon', which names no network provider and no plugin" "a network that does not exist"

# What cannot begin is said in a line, and the next network is taken.
for wrong in init:"its init fails with code 2 \(system error\)" devices:"devices fails with code 3" \
  none:"it has no device" gpu-only:"device lo-1 cannot send from host memory"; do
  run NCCL_NET_PLUGIN=eleven HOCKET_TEST_NET=${wrong%%:*} || fault "a plugin with ${wrong%%:*} wrong: exit code $?"
  has "net plugin Example \(v11, libnccl-net-eleven.so\) is not used: ${wrong#*:}.*Going on with the next network" "${wrong%%:*}"
  has "Using network Socket" "a plugin with ${wrong%%:*} wrong"
done

# What fails later is an error that says plugin, call, code, device and peer; nothing hangs.
broken() { # mode, what the error says
  run NCCL_NET_PLUGIN=eight HOCKET_TEST_NET="$1" HOCKET_PEER_TIMEOUT=2
  local rc=$?
  [ $rc = 0 ] && fault "a plugin whose $1 is wrong passes"
  [ $rc = 124 ] && fault "a plugin whose $1 is wrong hangs"
  has "$2" "a plugin whose $1 is wrong"
}
for call in listen connect accept isend irecv test; do
  broken $call "net plugin Example \(v8, libnccl-net-eight.so\) fails in $call.* with code [0-9] \([a-z ]+\), (to|from) rank [01], device lo-0"
done
broken half "no connection .* by net plugin Example \(v8\), device lo-0, channel 0: the plugin's connect and accept did not end"
broken short "got a message of 3 bytes from rank [01] by net plugin Example .* that makes no sense: number 5 where 5 was due"

# ---- the environment ----
# A plugin's values count in place of the environment's, and of NCCL's variables only.
env_says() { # what, settings...
  local what=$1
  shift
  env "$@" timeout 30 "$bin/hocket" env >"$tmp/out" 2>&1
  [ $? -le 1 ] || fault "$what: hocket env fails" # 1: something is wrong with the settings
}
for name in one two; do
  env_says "env plugin $name" NCCL_ENV_PLUGIN=$name NCCL_ALGO=tree EXAMPLE_ALGO=ring HOCKET_SLOTS=16 EXAMPLE_DEBUG=INFO
  has "NCCL_ALGO +ring" "env plugin $name"
  has "HOCKET_SLOTS +16" "env plugin $name"
  has "environment plugin Example \(v[12]\) from libnccl-env-$name.so" "env plugin $name"
  has "example environment: finalize" "env plugin $name"
done
env_says "an env plugin that refuses" NCCL_ENV_PLUGIN=two HOCKET_TEST_ENV=refuse NCCL_ALGO=tree
has "libnccl-env-two.so is not used: its init fails with code 3" "an env plugin that refuses"
has "NCCL_ALGO +tree" "an env plugin that refuses"
env_says "no such env plugin" NCCL_ENV_PLUGIN=absent NCCL_ALGO=tree
has "environment plugin .*absent.* is not used" "no such env plugin"
env_says "env plugin none" NCCL_ENV_PLUGIN=none NCCL_ALGO=tree
has "NCCL_ALGO +tree" "env plugin none"

# ---- profilers ----
# Every event that starts stops once, parents are of the kind that the version says, numbers of collectives rise.
check_trace() { # version, file
  awk -v version="$1" '
    function wrong(text) { print FILENAME ":" FNR ": " text ": " $0; bad = 1 }
    $1 == "start" {
      id = $2; kind[id] = $7; open[id] = 1; seen[$7]++
      parent = $4 ? kind[$4] : "-"
      want = $7 == "coll" ? (version >= 5 ? "collapi" : "group") : $7 == "p2p" ? (version >= 5 ? "p2papi" : "group") : \
             $7 == "collapi" || $7 == "p2papi" || $7 == "launch" ? "groupapi" : $7 == "kernel" ? (parent == "p2p" ? parent : "coll") : $7 == "phase" ? "kernel" : \
             $7 == "net" ? parent : "-"
      if (parent != want && (parent != "-" || seen[want])) wrong("its parent is " parent ", not " want)
      if ($7 == "coll" && $10 != next_sequence++) wrong("number " next_sequence - 1 " was due")
    }
    $1 == "stop" { if (open[$2]-- != 1) wrong("not open") }
    $1 == "state" { if (!open[$2] || $NF == "wrong") wrong("a state of nothing"); states[$3]++ }
    $1 == "finalize" { over++ }
    END {
      for (id in open) if (open[id]) wrong("event " id " (" kind[id] ") is left open")
      if (!over) wrong("no finalize")
      printf "seen:"
      n = split("group coll p2p kernel phase net groupapi collapi p2papi launch", names, " ")
      for (i = 1; i <= n; i++) if (seen[names[i]]) printf " %s", names[i]
      printf "; states:"
      for (i = 20; i < 32; i++) if (states[i]) printf " %d", i
      print ""
      exit bad
    }' "$2"
}
profile() { # version, operation, what must be seen, settings...
  local version=$1 what=$3 file
  operation=$2
  shift 3
  rm -f "$tmp"/trace.*
  run HOCKET_TEST_TRACE="$tmp/trace" "$@" || fault "profiler v$version: exit code $?"
  has "profiler plugin Example \(v$version\)" "profiler v$version"
  for file in "$tmp"/trace.*; do
    check_trace "$version" "$file" >"$tmp/seen" 2>&1 || fault "profiler v$version: $(head -n 5 "$tmp/seen")"
    grep -q "^seen: $what$" "$tmp/seen" || fault "profiler v$version, $operation: $(tail -n 1 "$tmp/seen"), not $what"
  done
}
profile 2 all_reduce "group coll; states:" NCCL_PROFILER_PLUGIN=two
profile 3 all_reduce "group coll kernel net; states:" NCCL_PROFILER_PLUGIN=three NCCL_NET_PLUGIN=ten
profile 4 all_reduce "group coll kernel net; states: 21 22" NCCL_PROFILER_PLUGIN=four NCCL_NET_PLUGIN=eleven
has "example profiler: .*, 1 hosts, rank 1 of 2$" "profiler v4"
all="group coll kernel net groupapi collapi launch"
profile 5 all_reduce "$all; states: 21 22 23 24" NCCL_PROFILER_PLUGIN=five NCCL_NET_PLUGIN=ten
grep -hq "coll AllReduce sequence 0 count [0-9]* type ncclFloat32 channels 1 algorithm [a-z]* protocol SIMPLE" "$tmp"/trace.* ||
  fault "profiler v5: no line of an AllReduce: $(grep -h " coll " "$tmp"/trace.* | head -n 2)"
profile 6 all_reduce "$all; states: 21 22 23 24" NCCL_PROFILER_PLUGIN=six NCCL_NET_PLUGIN=twelve
profile 7 all_reduce "${all/kernel/kernel phase}; states: 21 22 23 24 31" NCCL_PROFILER_PLUGIN=seven NCCL_NET_PLUGIN=twelve
profile 5 sendrecv "group p2p kernel groupapi p2papi; states: 22 23 24" NCCL_PROFILER_PLUGIN=five
profile 5 all_reduce "coll; states:" NCCL_PROFILER_PLUGIN=five HOCKET_TEST_PROFILER=2
operation=all_reduce
for wrong in refuse:"refuses its init with code 3" fail:"fails in startEvent with code 3"; do
  run NCCL_PROFILER_PLUGIN=five HOCKET_TEST_TRACE="$tmp/trace" HOCKET_TEST_PROFILER=${wrong%%:*} || fault "a profiler that is to ${wrong%%:*}: exit code $?"
  has "the profiler plugin Example ${wrong#*:}" "a profiler that is to ${wrong%%:*}"
  has "Out of bounds values : 0 OK" "a profiler that is to ${wrong%%:*}"
done
run NCCL_PROFILER_PLUGIN=absent || fault "no such profiler: exit code $?"
has "NCCL_PROFILER_PLUGIN is absent, which cannot be loaded" "no such profiler"

finish "net plugins of seven versions, profilers of six and environments of two work, and broken ones are named"
