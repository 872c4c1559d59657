#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-check: is everything right on the GPU at hand?  Collectives x types x operators x sizes x ranks, threads and
# processes, odd alignments, sanitizers, PyTorch.  One line for each run; the last one counts.  Under ten minutes.
#   HK_GPU_LARGEST=1G  the largest message
#   HK_GPU_RANKS="1 2 4 8", ONLY=text of a line
# shellcheck disable=SC2154 # lib.sh sets build, report and minutes
set -u
. "$(dirname "$0")/lib.sh"
mkdir -p build
prepare gpu-check
largest=${HK_GPU_LARGEST:-1G} ranks=${HK_GPU_RANKS:-1 2 4 8}
passed=0 failed=0 skipped=0
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
out=$(mktemp) && trap 'rm -f "$out"' EXIT

verdict() { # WORD TEXT
  case $1 in PASS) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; SKIP) skipped=$((skipped + 1)) ;; esac
  echo "$1  $2" | tee -a "$report"
}
# try NAME COMMAND...: passes where the command ends with 0; nothing is started when time is over.
try() {
  local name=$1
  shift
  [[ $name == *"${ONLY:-}"* ]] || return
  late && { verdict SKIP "$name: no time left (HK_GPU_MINUTES=$minutes)"; return; }
  local from=$SECONDS
  if timeout 150 "$@" >"$out" 2>&1; then
    verdict PASS "$name ($((SECONDS - from)) s)"
  else
    verdict FAIL "$name: exit code $?"
    tail -n 8 "$out" | sed 's/^/      /' | tee -a "$report"
  fi
}
perf() { # NAME PROGRAM ARGUMENTS...
  try "$1" "$build/bin/$2_perf" "${@:3}" -w 1
}
all="all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv"

# Every type and operator, at sizes round the ends of lines and slots.
for n in $ranks; do
  perf "all types and operators, allreduce, $n ranks" all_reduce -t "$n" -d all -o all -b 4 -e 40000 -f 100 -n 1
  perf "all types and operators, reduce-scatter, $n ranks" reduce_scatter -t "$n" -d all -o all -b 4096 -e 40960 -f 10 -n 1
done
# Every collective from nothing to the largest, in threads of one process.
for c in $all; do
  for n in $ranks; do
    [ "$c-$n" = sendrecv-1 ] && continue
    perf "$c, $n ranks, 0 to 1M" "$c" -t "$n" -b 0 -e 1M -i 149796 -n 2
  done
  perf "$c, 4 ranks, unaligned" "$c" -t 4 -b 1000 -e 10M -f 100 -d uint8 -u 1 -n 2
  perf "$c, 2 ranks, to $largest" "$c" -t 2 -b 1M -e "$largest" -f 32 -n 2
done
# Several ranks a thread: groups; registered memory and windows; every root.
perf "allreduce, 4 ranks of one thread" all_reduce -g 4 -b 1K -e 16M -f 128 -n 4
perf "allreduce, ncclMemAlloc, registered" all_reduce -t 2 -R 1 -b 1K -e 64M -f 64 -n 4
perf "allgather, symmetric windows" all_gather -t 2 -R 2 -b 1K -e 64M -f 64 -n 4
perf "broadcast, every root" broadcast -t 4 -r all -b 64K -e 64K -n 2
# Processes, on one GPU and on all.
for c in all_reduce all_gather alltoall; do
  for n in 2 4; do perf "$c, $n processes" "$c" --procs "$n" -b 1K -e 16M -f 128 -n 4; done
done
# Graphs.
if "$build/bin/all_reduce_perf" -t 2 -G 2 -b 1K -e 1K -n 2 >"$out" 2>&1; then
  verdict PASS "captured graphs"
else
  verdict SKIP "captured graphs: $(tail -n 1 "$out" | cut -c1-90)"
fi
try "the links (hocket bandwidth)" "$build/bin/hocket" bandwidth --floor 0
cat "$out" >>"$report"
# NVIDIA's sanitizers on a small run.
for tool in memcheck racecheck; do
  if command -v compute-sanitizer >/dev/null; then
    try "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 \
      "$build/bin/all_reduce_perf" -t 2 -b 4K -e 256K -f 8 -n 1 -w 0
  else
    verdict SKIP "compute-sanitizer $tool: not installed"
  fi
done
# PyTorch with this library in place of its own.
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  for n in 2 4; do
    try "PyTorch c10d and DDP, $n processes" env LD_PRELOAD="$PWD/$build/lib/libnccl.so.2" \
      python3 -m torch.distributed.run --standalone --nproc-per-node $n tests/gpu/torch_c10d.py
  done
else
  verdict SKIP "PyTorch: not installed, or it sees no GPU"
fi
echo "$passed passed, $failed failed, $skipped skipped; $report" | tee -a "$report"
[ "$failed" = 0 ]
