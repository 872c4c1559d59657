#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NCCL_TOPO_FILE and NCCL_TOPO_DUMP_FILE at init: the dump of rank 0 can be read back, an error in a file is reported, and
# ranks of one host with different files are refused.
# check: timeout=60 covers=src/topo/,src/comm/rings,src/comm/topology
set -u
perf=$HK_BUILD/bin/all_reduce_perf
[ -x "$perf" ] || { echo "SKIP: $perf is not built"; exit 77; }
if "$HK_BUILD/bin/hocket" topo --lint tests/topologies/ndv2-topo.xml 2>&1 | grep -q 'install expat'; then
  echo "SKIP: expat is not installed: files are not read"
  exit 77
fi
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_DEBUG_SUBSYS=GRAPH
checked=0 bad=0
fail() { echo "FAIL: $*"; bad=1; }
ring() { "$perf" -t 2 -b 64 -e 64 -n 1 -w 0; } # two ranks of one process
# says TEXT: $dir/out has it.
says() {
  checked=$((checked + 1))
  grep -qF -- "$1" "$dir/out" || { fail "no '$1'"; cat "$dir/out"; }
}

# Without the variables nothing is read.
NCCL_DEBUG=INFO ring >"$dir/out" || fail "a plain run fails"
grep -q topology "$dir/out" && fail "the machine is examined without need"

NCCL_DEBUG=INFO NCCL_TOPO_DUMP_FILE=$dir/dump.xml ring >"$dir/out" || fail "a run with a dump fails"
says "the machine's topology is in $dir/dump.xml"
hash=$(sed -n 's/.*network ports, hash //p' "$dir/out")
[ "$(wc -l <<<"$hash")" = 1 ] || fail "more than one rank dumps"
grep -q '<cpu numaid=' "$dir/dump.xml" || fail "the dump has no CPU: $(cat "$dir/dump.xml")"

# The dump read back over detection is the same machine.
NCCL_DEBUG=INFO NCCL_TOPO_FILE=$dir/dump.xml ring >"$dir/out" || { fail "the dump cannot be read"; cat "$dir/out"; }
says "network ports, hash $hash"
NCCL_DEBUG=INFO NCCL_TOPO_DUMP_FILE_RANK=1 NCCL_TOPO_DUMP_FILE=$dir/dump1.xml ring >"$dir/out" || fail "rank 1 does not dump"
cmp -s "$dir/dump.xml" "$dir/dump1.xml" || fail "ranks of one host dump different machines"

# Errors are reported; a dump that fails does not end init.
echo '<system version="1"><cpu numaid="0"></system>' >"$dir/broken.xml"
NCCL_TOPO_FILE=$dir/broken.xml ring >"$dir/out" 2>&1 && fail "a broken file is taken"
says "$dir/broken.xml:1:"
NCCL_TOPO_FILE=$dir/none.xml ring >"$dir/out" 2>&1 && fail "a file that is not there is taken"
says "$dir/none.xml"
NCCL_TOPO_DUMP_FILE=$dir/no/folder.xml ring >"$dir/out" 2>&1 || fail "a dump that fails stops the job"
says "cannot write $dir/no/folder.xml"

# The file of a virtual machine's service has priority over what is detected, and a broken one does not end init.
as_vm() { # file
  unshare -rm bash -c 'mount -t tmpfs none /run && mkdir /run/nvidia-topologyd && cp "$1" /run/nvidia-topologyd/virtualTopology.xml &&
    NCCL_DEBUG=INFO NCCL_TOPO_DUMP_FILE=$2 exec "$3" -t 2 -b 64 -e 64 -n 1 -w 0' as_vm "$1" "$dir/vm.xml" "$perf" >"$dir/out" 2>&1
}
if unshare -rm mount -t tmpfs none /run 2>/dev/null; then
  as_vm "$dir/dump.xml" || { fail "a virtual machine's file ends init"; cat "$dir/out"; }
  says "virtualTopology.xml has priority over what is detected"
  as_vm "$dir/broken.xml" || { fail "a virtual machine's broken file ends init"; cat "$dir/out"; }
  says "virtualTopology.xml:1:"
  [ -s "$dir/vm.xml" ] || fail "with a broken file the machine is not detected"
else
  echo "SKIP: this user may not make a namespace: the file of a virtual machine is not tried"
fi

# Two processes of one host, one with a file of its own.
port=$((20000 + RANDOM % 10000))
for rank in 0 1; do
  env RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "NCCL_TOPO_FILE=$([ $rank = 0 ] && echo "$dir/dump.xml")" "$perf" -b 64 -e 64 -n 1 -w 0 >"$dir/out$rank" 2>&1 &
done
wait
cat "$dir/out0" "$dir/out1" >"$dir/out"
says "different topology files (one has none): set NCCL_TOPO_FILE equally on all ranks of a host"

# Channels: the dump, and rings that a file turns about.
NCCL_DEBUG=INFO NCCL_GRAPH_DUMP_FILE=$dir/graph.xml ring >"$dir/out" || fail "a run with a dump of channels fails"
says "the channels of rank 0's host are in $dir/graph.xml"
[ "$(grep -c '<graph ' "$dir/graph.xml")" = 2 ] || fail "the dump of channels does not have rings and trees"
NCCL_DEBUG=INFO NCCL_GRAPH_FILE=$dir/graph.xml ring >"$dir/out" || { fail "the channels dumped cannot be read"; cat "$dir/out"; }
says "Channel 00/01 : 0 1"
NCCL_GRAPH_FILE=$dir/dump.xml ring >"$dir/out" 2>&1 && fail "a topology is taken for channels"
says "$dir/dump.xml:"
NCCL_GRAPH_FILE=$dir/none.xml "$perf" -b 64 -e 64 >"$dir/out" 2>&1 && fail "one rank does not notice that the file of channels is not there"
says "$dir/none.xml cannot be read"
if taskset -c 0,1 true 2>/dev/null; then
  cat >"$dir/two.xml" <<END
<system version="1">
  <cpu numaid="0" affinity="00000001" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
  <cpu numaid="1" affinity="00000002" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
END
  cat >"$dir/rings.xml" <<END
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="3" speedinter="0" latencyinter="0" typeintra="SYS"
         typeinter="LOC" samechannels="0">
    <channel><hk_cpu numaid="0"/><hk_cpu numaid="0"/><hk_cpu numaid="1"/><hk_cpu numaid="1"/></channel>
    <channel><hk_cpu numaid="1"/><hk_cpu numaid="1"/><hk_cpu numaid="0"/><hk_cpu numaid="0"/></channel>
  </graph>
</graphs>
END
  # Ranks 0 and 2 are bound to the first CPU, 1 and 3 to the second.
  port=$((20000 + RANDOM % 10000))
  for rank in 0 1 2 3; do
    env RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_ALGO=ring NCCL_DEBUG=INFO \
      "NCCL_TOPO_FILE=$dir/two.xml" "NCCL_GRAPH_FILE=$dir/rings.xml" taskset -c $((rank % 2)) \
      "$perf" -b 64K -e 64K -n 1 -w 0 >"$dir/out$rank" 2>&1 &
  done
  wait
  cp "$dir/out0" "$dir/out"
  says "Channel 00/02 : 0 2 1 3"
  says "Channel 01/02 : 1 3 0 2"
  says "# Out of bounds values : 0 OK"
  # The file of ranks 1 and 3, by the same name in another folder, has other channels: then their host's ranks go in their own order, and rank 0 alone says why.
  tac "$dir/rings.xml" | sed -n '/<channel>/p' >"$dir/channels"
  mkdir "$dir/turned"
  sed -e "/<channel>/d" -e "/typeinter=/r $dir/channels" "$dir/rings.xml" >"$dir/turned/rings.xml"
  port=$((20000 + RANDOM % 10000))
  for rank in 0 1 2 3; do
    env -C "$dir/$([ $((rank % 2)) = 0 ] || echo turned)" RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port NCCL_ALGO=ring NCCL_DEBUG=INFO "NCCL_TOPO_FILE=$dir/two.xml" NCCL_GRAPH_FILE=rings.xml \
      taskset -c $((rank % 2)) "$(realpath -s "$perf")" -b 64K -e 64K -n 1 -w 0 >"$dir/out$rank" 2>&1 &
  done
  wait
  cp "$dir/out0" "$dir/out"
  says "WARN ranks 0 and 1 are on one host and read from NCCL_GRAPH_FILE different channels"
  says "# Out of bounds values : 0 OK"
  checked=$((checked + 1))
  grep -q 'different channels' "$dir"/out[123] && fail "another rank than 0 reports different channels"
else
  echo "SKIP: rings of ranks on two processors: only one is there, or no taskset"
fi

# The machine recorded is the machine itself.
checked=$((checked + 1))
scripts/record-machine.sh "$dir/recorded" >"$dir/out" || fail "this machine cannot be recorded"
xml() { "$HK_BUILD/bin/hocket" topo --xml "$@" | sed 's/<system .*>/<system>/'; }
diff <(xml) <(xml --file "$dir/recorded") >"$dir/out" || { fail "the recorded machine is another one"; cat "$dir/out"; }

[ $bad = 0 ] && echo "$checked things looked at"
exit $bad
