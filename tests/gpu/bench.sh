#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-bench: bus bandwidth and latency on the GPU at hand, Hocket beside any other libnccl.so.2, with the same perf
# binary.  Under ten minutes.
#   OTHER=/path/to/libnccl.so.2   the library beside it (NCCL built with NCCL_MULTI_RANK_GPU_ENABLE=1 for ranks that share a GPU)
#   HK_GPU_RANKS="2 4 8", HK_GPU_LARGEST=1G, ONLY=text of a title
# shellcheck disable=SC2154 # lib.sh sets build, library, report and minutes
set -u
. "$(dirname "$0")/lib.sh"
mkdir -p build
command -v jq >/dev/null || skip_all "no jq, which reads the results"
prepare gpu-bench
largest=${HK_GPU_LARGEST:-1G} ranks=${HK_GPU_RANKS:-2 4 8}
export NCCL_DEBUG=WARN NCCL_MULTI_RANK_GPU_ENABLE=1
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
say() { echo "$*" | tee -a "$report"; }

# measure LIBRARY FILE PROGRAM ARGUMENTS...: sizes, microseconds and bus bandwidth, out of place.
measure() {
  local library=$1 file=$2 program=$3
  shift 3
  late && return 1
  LD_PRELOAD=$library timeout 120 "$build/bin/${program}_perf" "$@" -c 0 -J "$dir/out.json" \
    >"$dir/log" 2>&1 || { tail -n 2 "$dir/log"; return 1; }
  jq -r '.results[] | "\(.size) \(.out_of_place.time) \(.out_of_place.bus_bw)"' "$dir/out.json" >"$file"
}
# side_by_side TITLE PROGRAM ARGUMENTS...
side_by_side() {
  local title=$1
  shift
  [[ $title == *"${ONLY:-}"* ]] || return
  say "## $title"
  say
  measure "$library" "$dir/ours" "$@" || { say "Hocket: did not run"; return; }
  : >"$dir/theirs"
  [ -n "${OTHER:-}" ] && { measure "$OTHER" "$dir/theirs" "$@" || say "$OTHER: did not run"; }
  say "| bytes | us | GB/s |${OTHER:+ us, other | GB/s, other | ratio |}"
  say "|--:|--:|--:|${OTHER:+--:|--:|--:|}"
  while read -r bytes us gbps; do
    line=$(printf '| %s | %.2f | %.3f |' "$bytes" "$us" "$gbps")
    other=$(grep "^$bytes " "$dir/theirs") && line+=$(echo "$other" | awk -v mine="$gbps" '{printf " %.2f | %.3f | %.2f |", $2, $3, $3 > 0 ? mine / $3 : 0}')
    say "$line"
  done <"$dir/ours"
  say
}
for n in $ranks; do
  for c in all_reduce all_gather reduce_scatter broadcast alltoall; do
    side_by_side "$c, $n ranks" $c -t "$n" -b 1K -e "$largest" -f 8 -n 20 -w 5
  done
done
side_by_side "allreduce, calls alone (-C 1), 2 ranks" all_reduce -t 2 -b 1K -e 1M -f 32 -n 200 -w 20 -C 1
side_by_side "allreduce, bfloat16, 2 ranks" all_reduce -t 2 -d bfloat16 -b "$largest" -e "$largest" -n 10
late && say "SKIP: time was over before the end (HK_GPU_MINUTES=$minutes)"
"$build/bin/hocket" bandwidth --floor 0 >>"$report" 2>&1
echo "results: $report"
