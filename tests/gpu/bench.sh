#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-bench: bus bandwidth and latency on the GPU at hand, Hocket in turns with any other libnccl.so.2, with the same perf
# binary; what kernels alone move, what goes through pinned memory, init, and what the algorithms take of the memory's rate.  Under
# ten minutes; a report in $OUT (default: the build).  steps.sh has more variables.
#   OTHER=/path/to/libnccl.so.2   the library to compare with (NCCL built with NCCL_MULTI_RANK_GPU_ENABLE=1 for ranks that share a GPU)
#   HK_GPU_RANKS="2 4 8", HK_GPU_LARGEST=1G, ONLY=text of a title
# shellcheck disable=SC2154 # steps.sh sets build, out and seconds
set -u
HK_GPU_SECONDS=${HK_GPU_SECONDS:-540}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
library=$(realpath -e "$build/lib/libnccl.so.2") || { echo "SKIP: no library in $build: make gpu-pack"; exit 77; }
mkdir -p "$out"
report=$out/gpu-bench-$(date +%F).md
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
largest=${HK_GPU_LARGEST:-1G} ranks=${HK_GPU_RANKS:-2 4 8}
export NCCL_DEBUG=WARN NCCL_MULTI_RANK_GPU_ENABLE=1
memory=0 pinned=0
dir=$(mktemp -d) && trap 'rm -rf "$dir" "$step_output"' EXIT
say() { echo "$*" | tee -a "$report"; }
late() { [ "$(left)" -le 0 ]; }

# measure LIBRARY FILE PROGRAM ARGUMENTS...: sizes, microseconds and bus bandwidth, out of place.
measure() {
  local library=$1 file=$2 program=$3
  shift 3
  late && return 1
  LD_PRELOAD=$library timeout 120 "$build/bin/${program}_perf" "$@" -c 0 >"$dir/log" 2>&1 ||
    { tail -n 2 "$dir/log"; return 1; }
  awk '/^ *[0-9]+ +[0-9]+ +[a-z]/ { print $1, $6, $8 }' "$dir/log" >"$file"
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
title() { # TITLE: is it wanted, and is there time?
  [[ $1 == *"${ONLY:-}"* ]] && ! late || return
  say "## $1"
  say
}
# Rates of the links and of the memory, which the others are held against.
rates() {
  # Of the first GPU: the slower way between it and pinned memory; what a copy engine reads and writes.
  "$build/bin/hocket" doctor copies --json 2>"$dir/log" |
    sed -n 's,.*"GPU 0: \([0-9.]*\) GB/s from .* memory\, \([0-9.]*\) GB/s back; \([0-9.]*\) .*,\1 \2 \3,p' >"$dir/links"
  read -r pinned back memory <"$dir/links" || { say "$(tail -n 1 "$dir/log")"; return; }
  read -r pinned memory <<<"$(awk "BEGIN { print $back < $pinned ? $back : $pinned, 2 * $memory }")"
  title "memory" || return
  say "A copy by the driver reads and writes $memory GB/s, $pinned GB/s go to pinned memory and back."
  say
}
# What goes through pinned host memory: a broadcast's bytes go that way once.
staging() {
  [ "$pinned" != 0 ] && title "staged in pinned memory, broadcast, 2 ranks" || return
  export NCCL_P2P_DISABLE=1
  measure "$library" "$dir/ours" broadcast -t 2 -b "$largest" -e "$largest" -n 5 || say "did not run"
  unset NCCL_P2P_DISABLE
  awk -v p="$pinned" '{ printf "%.2f GB/s, %.0f%% of %.2f GB/s, the rate of pinned copies\n", $3, 100 * $3 / p, p }' "$dir/ours" >"$dir/rows"
  say "$(cat "$dir/rows")"
  say
}
init() {
  local lib
  title "init of 8 ranks" || return
  for lib in "$library" ${OTHER:+"$OTHER"}; do
    for _ in 1 2 3; do
      LD_PRELOAD=$lib timeout 60 "$build/bin/all_reduce_perf" -t 8 -M 1 -b 8 -e 8 -n 1 -w 0 -c 0 2>&1
    done | sed -n 's/^# Initialization time *: //p' | sort -n | head -n 1 >"$dir/rows"
    say "$([ "$lib" = "$library" ] && echo Hocket || echo "$lib"): $(cat "$dir/rows"), the best of 3 processes"
  done
  say
}
# ceiling PROGRAM RANKS: the bytes that the algorithm of the largest size moves, all ranks' together, and what of the memory's rate
# it so takes.
ceiling() {
  [ "$memory" != 0 ] && title "$1, $2 ranks, memory" || return
  NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING NCCL_DEBUG_FILE=$dir/plans \
    measure "$library" "$dir/ours" "$1" -t "$2" -b "$largest" -e "$largest" -n 5 -w 1 || { say "did not run"; return; }
  read -r bytes us _ <"$dir/ours"
  # With several ranks on the GPU large messages go by reference: without copies into slots.
  sed -n 's/.* by \([a-z]*\): .* it moves \([0-9.]*\) bytes for one of the message, \([0-9.]*\) by reference$/\1 \3/p' "$dir/plans" |
    awk -v b="$bytes" -v us="$us" -v m="$memory" '{ n = $1; x += $2 }
      END { printf "%s: %.2f bytes for one of the message, %.1f GB/s, %.0f%% of what a copy reads and writes\n", n, x, x * b / us / 1e3, x * b / us / 10 / m }' >"$dir/rows"
  say "$(cat "$dir/rows")"
  say
}
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo "# gpu-bench: ${card:-emulated}, $(date '+%F %H:%M'), Hocket $(git rev-parse --short HEAD 2>/dev/null)" | tee "$report"
say
rates
staging
init
side_by_side "allreduce, calls alone (-C 1), 2 ranks" all_reduce -t 2 -b 1K -e 1M -f 32 -n 200 -w 20 -C 1
for n in $ranks; do
  for c in all_reduce all_gather reduce_scatter broadcast alltoall; do
    side_by_side "$c, $n ranks" $c -t "$n" -b 1K -e "$largest" -f 4 -n 20 -w 5
    ceiling $c "$n"
  done
done
side_by_side "allreduce, bfloat16, 2 ranks" all_reduce -t 2 -d bfloat16 -b "$largest" -e "$largest" -n 10
late && say "SKIP: time was over before the end (HK_GPU_SECONDS=$seconds)"
"$build/bin/hocket" doctor copies p2p >>"$report" 2>&1
echo "results: $report"
