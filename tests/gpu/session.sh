#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# session.sh [STAGE...]: what a GPU shows in at most seven minutes, what matters most first.  It needs a build (make gpu-pack), and no
# compiler, no network, no jq.  `make gpu-check` builds and runs it.  One line a step, everything else in one folder: steps.sh has the variables.
#   facts       driver, tools, topology            matrix   all types, operators, collectives, protocols, algorithms
#   gate        do the basics work?  If not: end   python   ctypes, PyTorch, CuPy in processes
#   graphs      captured graphs                    speed    floors, latency, large messages; OTHER=libnccl.so.2 compares
#   procs       processes on one GPU, MPS          counters ncu             san   compute-sanitizer
#   nccl_tests  NCCL_TESTS=DIR, built here         ab       HK_GPU_OTHER=DIR: latency of two builds in turns
# shellcheck disable=SC2154 # steps.sh sets build, out, step_output and the counts
set -u
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
library=$(realpath -e "$build/lib/libnccl.so.2") || { echo "SKIP: no library in $build: make gpu-pack"; exit 77; }
# Ranks that are threads and share a GPU need a hardware queue for each stream; the default is 8.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
# What waits for five seconds is reported, by each rank for itself.
export HOCKET_WATCHDOG=${HOCKET_WATCHDOG:-5} NCCL_DEBUG=${NCCL_DEBUG:-WARN} LC_ALL=C PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
threads=-t # how ranks are started; -g, one launch for all of them, where launches of two threads do not work
all="all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv"

facts() {
  local tool
  {
    echo "$gpus GPUs"
    nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total,persistence_mode,compute_mode,clocks.sm,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
    uname -r
    nproc
    echo /dev/nvidia* /sys/devices/system/node/node[0-9]* "ulimit -l: $(ulimit -l)"
    ldd --version | head -n 1
    for tool in nvcc gcc gdb cuda-gdb compute-sanitizer ncu nvidia-cuda-mps-control mpirun ip jq; do
      command -v $tool || echo "no $tool"
    done | tr '\n' ' '
    python3 -c 'import torch; print("PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())' | tail -n 1
  } >"$step_output" 2>&1
  say "$(cut -c 1-300 "$step_output" | head -n 20)"
  # torchrun looks the host's name up, and without a name server that takes tens of seconds. Ranks need a network interface.
  grep -qsF "$HOSTNAME" /etc/hosts || { echo "127.0.0.1 $HOSTNAME" >>/etc/hosts; } 2>/dev/null
  ip link set lo up 2>/dev/null
  # The driver stays up between processes while one holds it. Without a holder each process's cuInit may start the GPU again.
  if [ "$gpus" != 0 ]; then
    setsid nvidia-smi dmon -d 5 -s u >/dev/null 2>&1 &
    holder=$!
  fi
  step "topology" 10 "$build/bin/hocket" topo
  step "doctor" 15 "$build/bin/hocket" doctor gpu kernels nvls p2p variables || sed 's/^/      /' "$step_output" | cut -c 1-200 | tail -n 12
}
gate() {
  # shellcheck disable=SC2034 # step reads it: what hangs here is looked into, and its limits are short
  local may_hang=9 two=(-b 8 -e 1M -f 32 -n 2 -w 1)
  perf "1 rank" 15 all_reduce -g 1 "${two[@]}" || {
    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL perf "1 rank, its log" 10 all_reduce -g 1 -b 8 -e 8 -n 1 -w 0
    tail -n 30 "$step_output" | cut -c 1-200
    return 1
  }
  perf "2 ranks, one launch" 12 all_reduce -g 2 "${two[@]}" || return 1
  if ! perf "2 ranks, two launches" 12 all_reduce -t 2 "${two[@]}"; then
    # Which part of it?  Each of these takes one suspect away. One launch for all ranks may do for the rest.
    CUDA_MODULE_LOADING=EAGER perf "  with eager loading" 6 all_reduce -t 2 "${two[@]}"
    HOCKET_GPU_SMALL=0 perf "  with the interpreter alone" 6 all_reduce -t 2 "${two[@]}"
    NCCL_CUMEM_ENABLE=0 perf "  without virtual memory" 6 all_reduce -t 2 "${two[@]}"
    perf "  one size" 6 all_reduce -t 2 -b 64K -e 64K -n 2 -w 1
    threads=-g
  fi
  perf "sends and receives" 12 sendrecv $threads 2 -b 8 -e 4M -f 64 -n 2 -w 1
  [ $threads = -g ] || perf "a graph" 12 all_reduce -t 2 -G 2 -b 8 -e 1M -f 64 -n 2 -w 1 ||
    NCCL_GRAPH_MIXING_SUPPORT=0 perf "  without an order of replays and calls" 10 all_reduce -t 2 -G 2 -b 8 -e 1M -f 64 -n 2 -w 1
  perf "2 processes" 15 all_reduce --procs 2 -b 8 -e 1M -f 64 -n 2 -w 1 ||
    NCCL_CUMEM_ENABLE=0 perf "  by IPC handles" 10 all_reduce --procs 2 -b 8 -e 1M -f 64 -n 2 -w 1
  [ "$gpus" -le 1 ] || perf "$gpus processes, a GPU each" 30 all_reduce --procs "$gpus" "${two[@]}" || return 1
  return 0
}
graphs() {
  local c
  step "what ends a capture" 15 python3 tests/gpu/capture.py && say "$(sed 's/^/      /' "$step_output")"
  for c in $all; do perf "graph, $c" 15 "$c" $threads 2 -G 3 -b 1K -e 1M -f 32 -n 3 -w 1; done
}
matrix() {
  local c p
  perf "all types and operators, 2 ranks" 30 all_reduce $threads 2 -d all -o all -b 4 -e 40000 -f 100 -n 1 -w 1
  perf "all types and operators, reduce-scatter, 4 ranks" 30 reduce_scatter $threads 4 -d all -o all -b 40960 -e 40960 -n 1 -w 0
  perf "all types and operators, 8 ranks" 30 all_reduce $threads 8 -d all -o all -b 40000 -e 40000 -n 1 -w 0
  for p in LL LL128 Simple; do NCCL_PROTO=$p perf "protocol $p, 4 ranks" 20 all_reduce $threads 4 -b 1K -e 16M -f 128 -n 1 -w 1; done
  for p in ring tree direct flat halving; do NCCL_ALGO=$p perf "algorithm $p, 8 ranks" 20 all_reduce $threads 8 -b 1K -e 1M -f 32 -n 1 -w 1; done
  for c in $all; do
    perf "$c, 4 ranks, 0 to 1M" 20 "$c" $threads 4 -b 0 -e 1M -i 149796 -n 1 -w 1
    perf "$c, 8 ranks, unaligned" 20 "$c" $threads 8 -b 1000 -e 10M -f 100 -d uint8 -u 1 -n 1 -w 0
  done
  NCCL_P2P_DISABLE=1 perf "through pinned memory" 20 all_reduce $threads 2 -b 1K -e 16M -f 128 -n 2 -w 1
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 perf "through the proxy and sockets" 20 all_reduce $threads 2 -b 1K -e 4M -f 64 -n 2 -w 1
  perf "4 ranks of one thread" 20 all_reduce -g 4 -b 1K -e 16M -f 128 -n 4 -w 1
  perf "registered memory" 20 all_reduce $threads 2 -R 1 -b 1K -e 64M -f 64 -n 2 -w 1
  perf "symmetric windows" 20 all_gather $threads 2 -R 2 -b 1K -e 64M -f 64 -n 2 -w 1
  perf "broadcast, every root" 20 broadcast $threads 4 -r all -b 64K -e 64K -n 2 -w 1
  perf "large" 30 all_reduce $threads 2 -b 256M -e 256M -n 2 -w 1
}
python() {
  local run=(env "LD_PRELOAD=$library" python3 -m torch.distributed.run --nnodes 1 --master-addr 127.0.0.1 --master-port 29511 --nproc-per-node 2)
  command -v python3 >/dev/null || { verdict SKIP "ctypes, PyTorch, CuPy: no python3"; return; }
  step "ctypes" 25 python3 tests/gpu/ctypes_nccl.py "$library" driver
  if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    step "PyTorch, 2 processes" 70 "${run[@]}" tests/gpu/torch_c10d.py
    step "PyTorch, training" 70 "${run[@]}" tests/gpu/torch_train.py
  else
    verdict SKIP "PyTorch: it is not here, or sees no GPU"
  fi
  step "CuPy" 25 env "LD_PRELOAD=$library" python3 tests/gpu/cupy_nccl.py
}
speed() {
  local n c a
  step "copies alone" 30 "$build/bin/hocket" doctor copies p2p && say "$(sed 's/^/      /' "$step_output" | cut -c 1-200)"
  step "floors (PyTorch)" 40 python3 tests/gpu/floors.py && say "      $(tail -n 1 "$step_output")"
  for n in 2 8; do
    perf "latency, $n ranks, one launch" 15 all_reduce -g $n -b 8 -e 64K -f 8 -n 200 -w 20 -c 0
    [ $threads = -g ] || perf "latency, $n ranks, threads" 15 all_reduce -t $n -b 8 -e 64K -f 8 -n 200 -w 20 -c 0
    [ $threads = -g ] || perf "latency, $n ranks, replays of 20" 15 all_reduce -t $n -G 20 -b 8 -e 64K -f 8 -n 20 -w 5 -c 0
    for a in flat ring tree; do NCCL_ALGO=$a perf "latency, $n ranks, $a" 15 all_reduce -g $n -b 8 -e 64K -f 8 -n 100 -w 20 -c 0; done
  done
  perf "calls alone" 10 all_reduce -t 2 -C 1 -b 8 -e 8K -f 32 -n 200 -w 20 -c 0
  for c in all_reduce all_gather reduce_scatter alltoall; do
    for n in 2 8; do perf "$c, $n ranks, large" 20 "$c" $threads $n -b 1M -e 512M -f 8 -n 10 -w 3 -c 0; done
  done
  # What limits large messages on one GPU: the step between slots, the blocks, or the loads in flight.
  for n in 32K 512K 2M; do
    HOCKET_SLOT_BYTES=$(numfmt --from=iec $n) perf "large, slots of $n" 15 all_reduce $threads 2 -b 512M -e 512M -n 5 -w 2 -c 0
  done
  for n in 4 32 64; do
    NCCL_MIN_NCHANNELS=$n NCCL_MAX_NCHANNELS=$n perf "large, $n channels" 15 all_reduce $threads 2 -b 512M -e 512M -n 5 -w 2 -c 0
  done
  HOCKET_SLOT_BYTES=$((2 << 20)) NCCL_MIN_NCHANNELS=64 perf "large, slots of 2M, 64 channels" 15 all_reduce $threads 2 -b 512M -e 512M -n 5 -w 2 -c 0
  [ -e "${OTHER:-}" ] || return 0
  export NCCL_MULTI_RANK_GPU_ENABLE=1 # NCCL has it since 2.30
  LD_PRELOAD=$OTHER perf "the other library, latency" 20 all_reduce $threads 2 -b 8 -e 64K -f 8 -n 200 -w 20 -c 0
  LD_PRELOAD=$OTHER perf "the other library, large" 20 all_reduce $threads 2 -b 1M -e 512M -f 8 -n 10 -w 3 -c 0
}
# An MPS of our own, only for these processes. A client that is killed may leave it unusable: it is started again then.
mps_start() {
  export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
  timeout 10 nvidia-cuda-mps-control -d >/dev/null 2>&1 || return
  # The first client starts the server, and others that come meanwhile are refused.
  timeout 20 "$build/bin/all_reduce_perf" -g 1 -b 8 -e 8 -n 1 -w 0 >"$step_output" 2>&1
}
mps_end() {
  [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
  echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
procs() {
  local c mps
  for c in all_reduce sendrecv; do perf "$c, 2 processes in turns" 30 "$c" --procs 2 -b 1K -e 16M -f 128 -n 4 -w 1; done
  command -v nvidia-cuda-mps-control >/dev/null || { verdict SKIP "MPS: it is not here"; return; }
  mps=$(mktemp -d)
  mps_start || { verdict SKIP "MPS: it does not start"; mps_end; return; }
  for c in $all; do
    perf "$c, 4 processes, MPS" 20 "$c" --procs 4 -b 1K -e 1M -f 32 -n 2 -w 1
    case $? in 0) ;; 2) break ;; *) mps_end; mps_start ;; esac
  done
  perf "latency, 2 processes, MPS" 15 all_reduce --procs 2 -b 8 -e 64K -f 8 -n 200 -w 20 -c 0
  mps_end
  rm -rf "$mps"
}
# One launch has the blocks of both ranks: these tools may let launches run one after another, and two that wait for each other never end.
counters() {
  local n
  command -v ncu >/dev/null || { verdict SKIP "counters: no ncu"; return; }
  for n in 8 64M; do
    step "ncu, $n" 50 ncu --clock-control none --section LaunchStats --section Occupancy --section SpeedOfLight --section WarpStateStats \
      --section MemoryWorkloadAnalysis -k regex:hk_run -s 2 -c 1 "$build/bin/all_reduce_perf" -g 2 -b $n -e $n -n 2 -w 1 -c 0 &&
      say "$(grep -a 'Registers Per\|Achieved Occ\|Duration\|DRAM Through\|Memory Through\|Local\|Warp Cycles Per Issued' "$step_output" | sed 's/  */ /g; s/^/      /')"
  done
}
san() {
  local tool run=("$build/bin/all_reduce_perf" -g 2 -b 64 -e 64K -f 1024 -n 1 -w 0)
  command -v compute-sanitizer >/dev/null || { verdict SKIP "sanitizers: no compute-sanitizer"; return; }
  for tool in memcheck racecheck; do
    step "$tool" 60 compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 20 "${run[@]}"
  done
  step "memcheck, sends" 40 compute-sanitizer --tool memcheck --error-exitcode 9 "$build/bin/sendrecv_perf" -g 2 -b 100K -e 100K -n 1 -w 0
}
# nccl-tests, built here from its sources.  It wants a GPU for each thread; MPI's processes may share one.
#   NCCL_TESTS=DIR, NVCC=PATH; MPI_HOME=DIR for processes; NCCL_HOME=DIR where its version needs NCCL's own headers
nccl_tests() {
  local c start=() with=(MPI=0) each=1 home=$build/nccl-home nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  [ -n "${NCCL_TESTS:-}" ] || { verdict SKIP "nccl-tests: NCCL_TESTS=DIR names its sources"; return; }
  mkdir -p "$home"
  ln -sfn "$PWD/include" "$home/include" && ln -sfn "$(dirname "$library")" "$home/lib"
  [ "$gpus" -le 1 ] || each=2
  if [ -n "${MPI_HOME:-}" ]; then
    each=1 with=(MPI=1 MPI_HOME="$MPI_HOME")
    start=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
      "$(command -v mpirun || echo "$MPI_HOME/bin/mpirun")" -np 2)
    [ "$gpus" -gt 1 ] || start+=(env NCCL_TESTS_DEVICE=0)
  fi
  step "nccl-tests, building it" 150 make -C "$NCCL_TESTS" -j"$(nproc)" "${with[@]}" BUILDDIR="$PWD/$build/nccl-tests" \
    CUDA_HOME="$(dirname "$(dirname "$(realpath "$nvcc")")")" NCCL_HOME="${NCCL_HOME:-$PWD/$home}" \
    NVCC_GENCODE="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -dc 0-9 | sed 's/.*/-gencode=arch=compute_&,code=sm_&/')" || return
  for c in $all; do
    step "nccl-tests, $c" 60 "${start[@]}" env LD_PRELOAD="$library" "$build/nccl-tests/${c}_perf" -b 8 -e 64M -f 8 -g 1 -t $each -n 5 -w 1
  done
}
ab() {
  local turn which
  [ -n "${HK_GPU_OTHER:-}" ] || { verdict SKIP "two builds: HK_GPU_OTHER=DIR names the other"; return; }
  for turn in 1 2 3; do
    for which in "$build" "$HK_GPU_OTHER"; do
      build=$which perf "turn $turn, $which, one launch" 15 all_reduce -g 2 -b 8 -e 64K -f 8 -n 500 -w 50 -c 0
      build=$which perf "turn $turn, $which, large" 20 all_reduce -g 2 -b 64M -e 64M -n 20 -w 5 -c 0
    done
  done
}

mkdir -p "$out"
: >"$out/summary.txt"
: >"$out/log.txt"
trap 'step_end; mps_end; [ -z "${holder:-}" ] || kill "$holder" 2>/dev/null; rm -f "$step_output"' EXIT
hangs=0 # of all stages but the gate
[ $# != 0 ] || set -- facts gate matrix graphs python speed procs counters san
for stage; do
  stage_hangs=0
  say "-- $stage, after $SECONDS s"
  if $stage; then code=0; else code=$?; fi
  if [ "$stage" = gate ]; then
    [ $code = 0 ] || { say "THE BASICS DO NOT WORK: $out/log.txt has the whole output"; break; }
  else
    hangs=$((hangs + stage_hangs))
    [ $hangs -lt 3 ] || { say "TOO MUCH HANGS: stopped"; break; }
  fi
done
say "$passed passed, $failed failed, $skipped skipped, $SECONDS s; $out/summary.txt"
[ "$failed" = 0 ]
