#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket sim: tables, JSON, links, timelines, pictures, several machines, and wrong input.
# check: covers=src/sim/
set -u
. tests/golden/lib.sh

gives 0 "$hocket" sim dgx-h100 -b 1M -e 1M
says "AllReduce on 8 ranks, event by event"
gives 0 "$hocket" sim dgx-a100 dgx-h100 -a ring,tree -b 64K -e 1M -p simple -l
says "dgx-a100: AllReduce"
says "Busiest for 1 MiB by tree on dgx-h100"
gives 0 "$hocket" sim -a all -b 64K -e 64K "nodes=2 of dgx-h100"
says "hiertree"
gives 0 "$hocket" sim --ranks-per-host 2 -b 1K -e 1K "1xcpu cores=2"
says "on 2 ranks"
gives 0 "$hocket" sim -b 1M -e 1M --flow "nodes=4 of dgx-h100"
says "at flow level"
gives 0 "$hocket" sim -b 8 -e 8 --graph dgx-h100
says "  flat       LL               1  2.20 us"
gives 0 "$hocket" sim --json -b 64K -e 1M dgx-h100
says '"busbw_gbps"'
gives 0 "$hocket" sim dgx-h100 -a ring -b 64K -e 64K --trace "$tmp/trace.json"
if command -v jq > /dev/null; then
  jq . "$tmp/trace.json" > "$tmp/out" || exit 1
  says '"traceEvents"'
else
  echo "SKIP: no jq to read the timeline with"
fi
gives 2 "$hocket" sim "nodes=16 of dgx-h100" -b 64K -e 64K --trace "$tmp/trace.json"
says "flow level, which has no timeline"
# Channels are a multiple of the rings, or nearly: one ring more on 15 would double the time.
gives 0 "$hocket" sim -b 1G -e 1G mi300x
says "  Simple          28  5."
gives 0 "$hocket" sim -a ring -b 1G -e 1G "nodes=2 of dgx-h100 nic=15x200"
says "  ring       Simple          15  8."
# The library's parameters count, unless an option says otherwise.
gives 0 env NCCL_ALGO=tree NCCL_MIN_NCHANNELS=3 NCCL_MAX_NCHANNELS=3 "$hocket" sim -b 64M -e 64M dgx-h100
says "  tree       Simple           3"
gives 0 env NCCL_ALGO=tree NCCL_MAX_NCHANNELS=3 "$hocket" sim -b 64M -e 64M -a ring --channels 4 dgx-h100
says "  ring       Simple           4"
refuses "--file is given twice" sim -f "$tmp/a.xml" -f "$tmp/b.xml"
refuses "did you mean 'ring'?" sim -a rign dgx-h100
refuses "does not do this collective" sim -a pairwise dgx-h100
refuses "needs" sim -a nvls dgx-a100
refuses "factor" sim --factor 1 dgx-h100
if command -v gnuplot > /dev/null; then
  gives 0 "$hocket" sim dgx-h100 -a ring,nvls -b 64K --plot "$tmp/a.svg"
  grep -q "<svg" "$tmp/a.svg" || exit 1
else
  echo "SKIP: no gnuplot for --plot"
fi
finish "$cases commands behave as they should"
