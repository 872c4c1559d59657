#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The *_perf programs on emulated GPUs: results are checked, several ranks share a GPU, several GPUs, odd alignments, the network.
# check: timeout=120
set -u
unset HOCKET_DEVICE
bin=$HK_BUILD/bin emulator=$(cd "$HK_BUILD/cudaemu" 2>/dev/null && pwd)
[ -e "$emulator/kernels.so" ] || { echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"; exit 77; }
export LD_LIBRARY_PATH=$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so CUDAEMU_MEMORY_MB=256 NCCL_DEBUG=WARN
out=$(mktemp) programs=$(mktemp -d) && trap 'rm -rf "$out" "$programs"' EXIT
bad=0 runs=0
# runs GPUS PROGRAM ARGUMENTS...: it ends well, finds nothing wrong, and says that it is on a GPU.
runs() {
  local gpus=$1
  shift
  runs=$((runs + 1))
  CUDAEMU_DEVICES=$gpus timeout 60 "$bin/$1" "${@:2}" -n 2 -w 1 >"$out" 2>&1 && grep -q "Out of bounds values : 0 OK" "$out" &&
    grep -q "Emulated GPU" "$out" && return
  echo "FAIL: $* on $gpus GPUs:"
  tail -n 5 "$out"
  bad=1
}
runs 1 all_reduce_perf -t 3 -b 4 -e 256K -f 64
runs 2 all_reduce_perf -g 2 -b 1K -e 1K -d bfloat16 -o avg
runs 2 all_gather_perf -t 2 -b 300K -e 300K
runs 2 reduce_scatter_perf -t 4 -b 1000 -e 1000 -d half
runs 2 broadcast_perf -t 2 -b 100 -e 100K -f 10 -u 1 -d uint8
runs 1 alltoall_perf -t 2 -b 200K -e 200K
runs 2 sendrecv_perf -t 2 -b 200K -e 200K
runs 2 put_perf -t 2 -b 8 -e 200K -f 50 -R 2
runs 1 all_reduce_perf -t 2 -b 1K -e 64K -f 64 -G 3
runs 2 all_gather_perf -g 2 -b 1K -e 1K -G 2
runs 1 put_perf -t 2 -b 8 -e 200K -f 50 -G 3
runs 1 put_perf -g 2 -b 1K -e 1K -G 3
NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 runs 2 all_reduce_perf -t 2 -b 1K -e 64K -f 64 # over the network, with the proxy
NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 runs 2 put_perf -t 2 -b 8 -e 200K -f 50
NCCL_P2P_DISABLE=1 runs 2 put_perf -t 2 -b 8 -e 200K -f 50 -G 3
# teams RANKS VARIABLE: four ranks on two GPUs have teams of so many ranks for the device API.
teams() {
  export "${2?}"
  NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT runs 2 all_reduce_perf -t 4 -b 4 -e 4
  unset "${2%%=*}"
  grep -q "LSA teams of $1 ranks" "$out" || { echo "FAIL: $2: no LSA teams of $1 ranks"; bad=1; }
}
teams 4 NCCL_LSA_TEAM_SIZE=8
teams 2 NCCL_LSA_TEAM_SIZE=6
teams 1 NCCL_WIN_ENABLE=0
awk -v n=4 -f tests/support/msccl-ring.awk >"$programs/ring.xml"
HOCKET_PROGRAMS=$programs NCCL_ALGO=written runs 2 all_reduce_perf -t 4 -b 4 -e 1M -f 16 -o avg # a user's program
HOCKET_PROGRAMS=$programs NCCL_ALGO=written runs 2 all_reduce_perf -t 4 -b 4 -e 64K -f 16 -G 2
# Ranks that share a GPU and its hardware queues: with the driver's 8 they would wait for each other for ever, so the programs ask
# for 32.  A user who asks for fewer gets a warning with the consequence.
export CUDAEMU_CONNECTIONS=8
runs 1 all_reduce_perf -t 4 -b 4 -e 64K -f 64
runs 1 all_reduce_perf -t 8 -b 4 -e 4K -f 64
CUDA_DEVICE_MAX_CONNECTIONS=2 CUDAEMU_DEVICES=1 timeout 60 "$bin/all_reduce_perf" -t 1 -b 4 -e 4 -n 1 -w 0 >"$out" 2>&1 || { echo "FAIL: one rank"; bad=1; }
grep -q "hardware queues" "$out" && { echo "FAIL: one rank alone is warned of hardware queues"; bad=1; }
unset CUDAEMU_CONNECTIONS # each stream has its own: nothing hangs
CUDA_DEVICE_MAX_CONNECTIONS=8 CUDAEMU_DEVICES=1 timeout 60 "$bin/all_reduce_perf" -t 3 -b 4 -e 4 -n 1 -w 0 >"$out" 2>&1 || { echo "FAIL: three ranks"; bad=1; }
[ "$(grep -c "3 ranks of this process share GPU 0, which has 8 hardware queues" "$out")" = 1 ] ||
  { echo "FAIL: no warning, or several, where ranks have too few hardware queues"; bad=1; }
echo "$runs runs"
exit "$bad"
