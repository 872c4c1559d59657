#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket topo: tables, picture and JSON of synthetic machines, and of this one.
# check: covers=src/topo/
set -u
. tests/golden/lib.sh

golden topo-dgx-h100.txt topo -m dgx-h100
golden topo-dgx-v100.txt topo -m dgx-v100
golden topo-pcie.txt topo -m '8xa100:pcie2 nic=2x200'
golden topo-cpu.txt topo -m '2xcpu cores=32 nic=1x100'
golden topo-nvl72.txt topo -m nvl72
golden topo-cluster.txt topo -m 'nodes=4 of dgx-a100 and nodes=2 of pcie-1s fabric=rail,fattree,oversub=2'
golden topo-gbps.txt topo -m dgx-v100 --gbps
golden topo-channels.txt topo -m 'nodes=2 of dgx-h100' --channels
golden topo-graph.dot topo -m '2xa100:pairs nic=1x200' --dot
gives 0 "$hocket" topo --presets
says "dgx-h100"
gives 0 "$hocket" topo # whatever it is
narrow topo
says "CPU0"
# A GPU that is not listed: the same figures by words and by name are the same prices.
gives 0 "$hocket" sim -b 64M -e 64M --json '8xgpu:nvswitch sm=90 memory=3350 nvlink=18 pci=5'
sed 's/"machine":"[^"]*"//' "$tmp/out" >"$tmp/by-words"
gives 0 "$hocket" sim -b 64M -e 64M --json 8xh100:nvswitch
sed 's/"machine":"[^"]*"//' "$tmp/out" | cmp - "$tmp/by-words" || complain "a GPU in words is another one"
gives 0 "$hocket" topo -m '2xgpu:pairs nvlink=4x50'
says "their lanes and links count as 20 GB/s each, a default"
refuses "18x20.6" topo -m '8xgpu nvlink=0x3'
# What is possible, but may not be meant.
gives 0 "$hocket" topo -m 'dgx-h100 switch=3'
says "8 GPUs are divided unevenly among 3 PCIe switches"
gives 0 "$hocket" plan -m 1xh100
says "18 NVLinks lead nowhere"
gives 0 "$hocket" sim -b 1K -e 1K 'dgx-h100 and 1xcpu cores=2 nic=1x100'
says "ranks on GPUs or on CPUs"
refuses 'did you mean dgx-h100?' topo -m dgx-h10
refuses 'unexpected argument' topo dgx-h100
if "$hocket" topo --lint tests/topologies/ndv2-topo.xml 2>&1 | grep -q 'install expat'; then
  echo "SKIP: expat is not installed: files are not read"
else
  # Files: what is written is read back as the same machine; an error is reported with its line.
  gives 0 "$hocket" topo -m dgx-h100 --xml
  cp "$tmp/out" "$tmp/h100.xml"
  golden topo-dgx-h100.txt topo --file "$tmp/h100.xml"
  gives 0 "$hocket" topo -m dgx-h100 --channels --xml
  says '<graph id="0" pattern='
  cp "$tmp/out" "$tmp/graph.xml"
  gives 0 env NCCL_GRAPH_FILE="$tmp/graph.xml" "$hocket" plan allreduce 1G -m dgx-h100
  gives 2 env NCCL_GRAPH_FILE="$tmp/none.xml" "$hocket" plan allreduce 1G -m dgx-h100
  gives 0 "$hocket" topo --lint "$tmp/h100.xml"
  says "0 errors, 0 remarks"
  printf '<system version="1">\n  <cpu numaid="zero">\n  </cpu>\n</system>\n' >"$tmp/wrong.xml"
  gives 1 "$hocket" topo --lint "$tmp/wrong.xml"
  says "wrong.xml:2:"
  says "error: "
  # Without expat only XML is lost, and what to install is said: the loader looks no further once it meets a broken file.
  mkdir "$tmp/broken" && : >"$tmp/broken/libexpat.so.1"
  gives 1 env LD_LIBRARY_PATH="$tmp/broken" "$hocket" topo --lint "$tmp/h100.xml"
  says 'install expat (Debian: libexpat1), which reads XML: '
  gives 0 env LD_LIBRARY_PATH="$tmp/broken" "$hocket" topo -m dgx-h100
  gives 2 "$hocket" topo --file "$tmp/wrong.xml"
  gives 2 "$hocket" topo --lint "$tmp/none.xml"
  says "No such file"
  printf '<system version="1"><cpu numaid="0"><pci busid="1:0.0" class="0x030200" link_speed="16 GT/s" link_width="0"/></cpu></system>' >"$tmp/width.xml"
  gives 0 "$hocket" topo --lint "$tmp/width.xml"
  says "without link_width counts as 16 lanes"
  # A cloud's file has PCI devices only: the words complete it, and several hosts can be like it.
  clouds=$PWD/tests/topologies
  gives 0 "$hocket" plan allreduce 1G -f "$clouds/ndv4-topo.xml"
  says "no links between the 8 GPUs"
  says "a default"
  gives 0 "$hocket" topo -m "$clouds/ndv4-topo.xml as dgx-a100"
  says "8 a100, NVSwitch, 8 x 200 Gb/s network, 4 NUMA nodes"
  gives 0 "$hocket" topo -m "$clouds/ndv2-topo.xml as 8xv100:cube nic=1x100"
  says "GPU0    X  NV1  NV1  NV2  NV2  NVB  NVB  NVB  PHB"
  gives 0 "$hocket" sim -b 1M -e 1M "nodes=4 of $clouds/ndv4-topo.xml as dgx-a100" "$tmp/h100.xml"
  says "AllReduce on 32 ranks"
  refuses "has 8 GPUs, but 4 were named" topo -m "$clouds/ndv4-topo.xml as 4xa100"
  refuses "has 8 NICs, but 4 were named" topo -m "$clouds/ndv4-topo.xml as 8xa100 nic=4x200"
  refuses "has no GPUs of one host" topo -m "$clouds/ndv4-topo.xml as 2xcpu"
  refuses "cannot be read" topo -m "$tmp/none.xml"
  refuses "--machine 'nodes=2 of $tmp/h100.xml'" plan -f "$tmp/h100.xml" -n 16
  refuses "--machine 'nodes=2 of dgx-h100 switch=4'" plan -m 'nodes=1 of dgx-h100 switch=4' -n 16
  # The same host twice is not two hosts.
  { sed '/<\/system/d; s/<cpu /<cpu host_hash="0x1" /' "$tmp/h100.xml"
    sed '/<system/d; s/<cpu /<cpu host_hash="0x2" /' "$tmp/h100.xml"; } >"$tmp/twice.xml"
  gives 1 "$hocket" topo --lint "$tmp/twice.xml"
  says "the same host twice"
  refuses "two machines" topo -m dgx-h100 -f "$tmp/h100.xml"
  refuses "2 kinds of hosts" topo -m 'dgx-h100 and dgx-a100' --xml
  for file in tests/topologies/*.xml tests/topologies/synthetic/*.xml; do
    gives 0 "$hocket" topo --lint "$file"
    gives 0 "$hocket" topo --file "$file"
    narrow "topo --file $file"
  done
fi
if command -v jq >/dev/null; then
  gives 0 "$hocket" topo -m dgx-h100 --json
  got=$(jq -c '[.hosts, (.topologies[0].nodes | map(select(.kind == "GPU")) | length),
    (.topologies[0] as $t | $t.paths | map(select($t.nodes[.from].kind == "GPU" and $t.nodes[.to].kind == "GPU")) | map(.class) | unique)]' "$tmp/out")
  [ "$got" = '[1,8,["NVL"]]' ] || complain "--json reports of a DGX H100: $got"
else
  echo "SKIP: jq is not installed: JSON is not read"
fi
if command -v dot >/dev/null; then
  gives 0 "$hocket" topo -m dgx-h100 --dot
  dot -Tsvg "$tmp/out" | grep -q '<svg' || complain "dot draws no picture of --dot's graph"
else
  echo "SKIP: Graphviz is not installed: no picture is drawn"
fi
finish "$cases commands behave as they should"
