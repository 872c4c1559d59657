#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-check: is everything right on the GPU at hand?  Collectives x types x operators x sizes x ranks, threads and
# processes, odd alignments, graphs, sanitizers; PyTorch, CuPy, ctypes, nccl-tests where they are.  One line for each run;
# the last one counts.  Under ten minutes, what shows most first: within a minute a line says whether the basics work.  What is
# not over in its time is described (stacks, what each rank and its proxy wait for, kernels) and ended.
#   HK_GPU_LARGEST=1G   the largest message
#   HK_GPU_RANKS="1 2 4 8", ONLY=text of a line
#   NCCL_TESTS=DIR      nccl-tests' sources.  They are built with this library, or with NCCL_HOME=DIR (those that want a header
#                       of NCCL's), and for MPI where MPI_HOME=DIR is given: its processes share a GPU, threads cannot
# shellcheck disable=SC2154 # lib.sh sets build, library, report, minutes, gpus and capability
set -u
. "$(dirname "$0")/lib.sh"
mkdir -p build
prepare gpu-check
largest=${HK_GPU_LARGEST:-1G} ranks=${HK_GPU_RANKS:-1 2 4 8}
passed=0 failed=0 skipped=0 seconds=150
# What waits for ten seconds is reported, by each rank for itself.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN} PYTHONDONTWRITEBYTECODE=1 HOCKET_WATCHDOG=${HOCKET_WATCHDOG:-10}
out=$(mktemp) && trap 'rm -f "$out"' EXIT

verdict() { # WORD TEXT
  case $1 in PASS) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; SKIP) skipped=$((skipped + 1)) ;; esac
  echo "$1  $2" | tee -a "$report"
}
wanted() { [[ $1 == *"${ONLY:-}"* ]]; }
skip() { # NAME REASON
  if wanted "$1"; then verdict SKIP "$1: $2"; fi
}
# What the processes of a session do: threads with their stacks, as far as a debugger is here, and kernels.  What each rank,
# its proxy and its links wait for the library has printed before: HOCKET_WATCHDOG.
describe() { # SESSION
  local pid task
  while read -r pid; do
    echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-120)"
    if command -v gdb >/dev/null; then
      timeout 15 gdb -p "$pid" -batch -ex 'set pagination off' -ex 'thread apply all backtrace 12' 2>/dev/null | grep '^Thread\|^#'
    else
      for task in "/proc/$pid/task"/*; do
        echo "  thread ${task##*/} $(cat "$task/comm" 2>/dev/null), in $(cat "$task/wchan" 2>/dev/null)"
      done
    fi
    if command -v cuda-gdb >/dev/null; then
      timeout 20 cuda-gdb -p "$pid" -batch -ex 'info cuda kernels' -ex 'info cuda blocks' 2>/dev/null | tail -n 40
    fi
  done < <(awk -v s="$1" '{ pid = $1; sub(/.*\) /, ""); if ($4 == s) print pid }' /proc/[0-9]*/stat 2>/dev/null)
}
# Runs a command with its output in $out; 124: it was not over in time.
bounded() { # SECONDS COMMAND...
  local limit=$1 pid watcher code
  shift
  rm -f "$out.late"
  setsid "$@" >"$out" 2>&1 </dev/null &
  pid=$!
  export -f describe
  # shellcheck disable=SC2016 # expanded by the other shell
  setsid bash -c 'sleep "$1"; : >"$3.late"; describe "$2" >>"$3" 2>&1; kill -TERM -- "-$2"; sleep 5; kill -KILL -- "-$2"' \
    watcher "$limit" "$pid" "$out" >/dev/null 2>&1 &
  watcher=$!
  wait "$pid"
  code=$?
  { kill -TERM -- "-$watcher"; wait "$watcher"; } 2>/dev/null
  [ -e "$out.late" ] && code=124
  rm -f "$out.late"
  return $code
}
# try NAME COMMAND...: passes where the command ends with 0; 77 says that something it needs is not there, and what.  Lines of
# a passing command that begin with SKIP count.  Nothing is started when time is over, nothing runs for more than 40 s then.
try() {
  local name=$1 from=$SECONDS limit code line
  shift
  wanted "$name" || return
  late && { verdict SKIP "$name: no time left (HK_GPU_MINUTES=$minutes)"; return; }
  limit=$(($(left) + 40))
  [ "$limit" -gt "$seconds" ] && limit=$seconds
  bounded "$limit" "$@"
  code=$?
  if [ $code = 0 ]; then
    verdict PASS "$name ($((SECONDS - from)) s)"
    while read -r line; do verdict SKIP "$name: ${line#SKIP: }"; done < <(grep '^SKIP: ' "$out")
  elif [ $code = 77 ]; then
    verdict SKIP "$name: $(tail -n 1 "$out" | sed 's/^SKIP: //')"
  elif [ $code = 124 ] && [ "$limit" -lt "$seconds" ]; then
    verdict SKIP "$name: not over when time was (HK_GPU_MINUTES=$minutes)"
  else
    verdict FAIL "$name: $([ $code = 124 ] && echo "not over after $limit s" || echo "exit code $code")"
    tail -n "$([ $code = 124 ] && echo 200 || echo 8)" "$out" | sed 's/^/      /' | tee -a "$report"
  fi
}
perf() { # NAME PROGRAM ARGUMENTS...
  try "$1" "$build/bin/$2_perf" "${@:3}" -w 1
}
# The first minute.
basics() {
  local seconds=20 before=$failed ran=$passed n=1
  [ "$gpus" -gt 1 ] && n=$gpus
  perf "basics: $n ranks, each on a GPU of its own" all_reduce -t "$n" -b 8 -e 1M -f 32 -n 2
  perf "basics: 2 ranks on one GPU" all_reduce -t 2 -b 8 -e 1M -f 32 -n 2
  [ "$gpus" -gt 1 ] && perf "basics: 2 processes, each on a GPU of its own" all_reduce --procs 2 -b 8 -e 1M -f 32 -n 2
  perf "basics: sends and receives" sendrecv -t 2 -b 8 -e 1M -f 32 -n 2
  perf "basics: a captured graph" all_reduce -t 2 -G 2 -b 8 -e 64K -f 32 -n 2
  [ "$passed" = "$ran" ] && [ "$failed" = "$before" ] && return
  if [ "$failed" = "$before" ]; then set -- "the basics work"; else set -- "the basics do NOT work: $((failed - before)) of them failed"; fi
  echo "After $((SECONDS - began)) s: $1." | tee -a "$report"
}
all="all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv"

# Every type and operator, at sizes round the ends of lines and slots.
types_and_operators() {
  local n
  for n in $ranks; do
    perf "all types and operators, allreduce, $n ranks" all_reduce -t "$n" -d all -o all -b 4 -e 40000 -f 100 -n 1
    perf "all types and operators, reduce-scatter, $n ranks" reduce_scatter -t "$n" -d all -o all -b 4096 -e 40960 -f 10 -n 1
  done
}
# Every collective from nothing to a megabyte, in threads of one process.
small_sizes() {
  local c n
  for c in $all; do
    for n in $ranks; do
      [ "$c-$n" = sendrecv-1 ] && continue
      perf "$c, $n ranks, 0 to 1M" "$c" -t "$n" -b 0 -e 1M -i 149796 -n 2
    done
  done
}
large_sizes() {
  local c
  for c in $all; do
    perf "$c, 4 ranks, unaligned" "$c" -t 4 -b 1000 -e 10M -f 100 -d uint8 -u 1 -n 2
    perf "$c, 2 ranks, to $largest" "$c" -t 2 -b 1M -e "$largest" -f 32 -n 2
  done
}
# Several ranks a thread: groups; registered memory and windows; every root.
kinds_of_calls() {
  perf "allreduce, 4 ranks of one thread" all_reduce -g 4 -b 1K -e 16M -f 128 -n 4
  perf "allreduce, ncclMemAlloc, registered" all_reduce -t 2 -R 1 -b 1K -e 64M -f 64 -n 4
  perf "allgather, symmetric windows" all_gather -t 2 -R 2 -b 1K -e 64M -f 64 -n 4
  perf "broadcast, every root" broadcast -t 4 -r all -b 64K -e 64K -n 2
}
# Processes that share a GPU take turns in slices of milliseconds, and each step between them costs such a slice: so they come
# late, and under MPS, which lets them run side by side, if it can be started for them alone.
mps=
begin_mps() {
  [ "$gpus" = 1 ] && command -v nvidia-cuda-mps-control >/dev/null || return
  mps=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
  timeout 10 nvidia-cuda-mps-control -d >/dev/null 2>&1 && return
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  rm -rf "$mps"
  mps=
}
end_mps() {
  [ -n "$mps" ] || return
  echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  rm -rf "$mps"
  mps=
}
trap 'end_mps; rm -f "$out"' EXIT
processes() {
  local c n
  begin_mps
  echo "Processes that share a GPU: $([ -n "$mps" ] && echo "under MPS" || echo "in turns, without MPS")" >>"$report"
  for c in $all; do perf "$c, 2 processes" "$c" --procs 2 -b 1K -e 16M -f 128 -n 4; done
  for c in all_reduce all_gather alltoall; do
    for n in 4 8; do perf "$c, $n processes" "$c" --procs "$n" -b 1K -e 1M -f 32 -n 2; done
  done
}
graphs() {
  local c
  for c in $all; do perf "captured graphs, $c" "$c" -t 2 -G 3 -b 1K -e 1M -f 32 -n 3; done
}
links() {
  wanted "the links (hocket bandwidth)" || return
  try "the links (hocket bandwidth)" "$build/bin/hocket" bandwidth --floor 0
  cat "$out" >>"$report"
}
# NVIDIA's sanitizers on a small run.
sanitizers() {
  local tool
  for tool in memcheck racecheck; do
    if command -v compute-sanitizer >/dev/null; then
      try "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 \
        "$build/bin/all_reduce_perf" -t 2 -b 4K -e 256K -f 8 -n 1 -w 0
    else
      skip "compute-sanitizer $tool" "not installed"
    fi
  done
}
# Python: the library in the place of PyTorch's and CuPy's own; what inference servers call.
frameworks() {
  local n why
  if ! command -v python3 >/dev/null; then
    skip "PyTorch, CuPy, ctypes" "there is no python3"
    return
  fi
  why=$(python3 -c 'import torch; print("" if torch.cuda.is_available() else "it sees no GPU")' 2>&1 | tail -n 1)
  try "ctypes, memory of the driver" python3 tests/gpu/ctypes_nccl.py "$library" driver
  if [ -n "$why" ]; then
    skip "PyTorch" "$why"
  else
    try "ctypes, tensors of PyTorch" env LD_PRELOAD="$library" python3 tests/gpu/ctypes_nccl.py "$library" torch
    for n in 2 4; do
      try "PyTorch, collectives, $n processes" env LD_PRELOAD="$library" \
        python3 -m torch.distributed.run --standalone --nproc-per-node "$n" tests/gpu/torch_c10d.py
      try "PyTorch, training (DDP, PowerSGD, FSDP2), $n processes" env LD_PRELOAD="$library" \
        python3 -m torch.distributed.run --standalone --nproc-per-node "$n" tests/gpu/torch_train.py
    done
  fi
  try "CuPy" env LD_PRELOAD="$library" python3 tests/gpu/cupy_nccl.py
}
# nccl-tests, built here from its sources.  It wants a GPU for each thread; MPI's processes may share one.
nccl_tests() {
  local programs=$build/nccl-tests home=$build/nccl-home c start=() with=(MPI=0) threads=1
  wanted nccl-tests || [[ ${ONLY:-} == nccl-tests* ]] || return
  if [ -z "${NCCL_TESTS:-}" ]; then
    skip nccl-tests "NCCL_TESTS=DIR names its sources"
    return
  fi
  find_nvcc
  find_capability
  if [ -z "$NVCC" ] || late; then
    skip nccl-tests "$(late && echo "no time left (HK_GPU_MINUTES=$minutes)" || echo "no nvcc: name it with NVCC=/path/to/nvcc")"
    return
  fi
  mkdir -p "$programs" "$home"
  ln -sfn "$PWD/include" "$home/include" && ln -sfn "$(dirname "$library")" "$home/lib"
  [ "$gpus" -gt 1 ] && threads=2
  if [ -n "${MPI_HOME:-}" ]; then
    with=(MPI=1 MPI_HOME="$MPI_HOME") threads=1
    start=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
      "$(command -v mpirun || echo "$MPI_HOME/bin/mpirun")" -np 2)
    [ "$gpus" = 1 ] && start+=(env NCCL_TESTS_DEVICE=0)
  elif [ "$gpus" = 1 ]; then
    skip "nccl-tests, 2 ranks" "it wants a GPU for each thread; MPI_HOME=DIR builds it for processes, which may share one"
  fi
  if ! timeout $seconds make -C "$NCCL_TESTS" -j"$(nproc)" "${with[@]}" BUILDDIR="$(realpath "$programs")" \
    CUDA_HOME="$(dirname "$(dirname "$(realpath "$NVCC")")")" NCCL_HOME="${NCCL_HOME:-$(realpath "$home")}" \
    NVCC_GENCODE="-gencode=arch=compute_$capability,code=sm_$capability" >"$out" 2>&1; then
    verdict FAIL "nccl-tests, building it: $NCCL_TESTS"
    tail -n 8 "$out" | sed 's/^/      /' | tee -a "$report"
    return
  fi
  for c in $all; do
    try "nccl-tests, $c" "${start[@]}" env LD_PRELOAD="$library" "$programs/${c}_perf" -b 8 -e 64M -f 8 -g 1 -t $threads -n 5 -w 1
  done
}

basics
types_and_operators
graphs
kinds_of_calls
small_sizes
links
processes
frameworks
nccl_tests
end_mps
sanitizers
large_sizes
echo "$passed passed, $failed failed, $skipped skipped; $report" | tee -a "$report"
[ "$failed" = 0 ]
