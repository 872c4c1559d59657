#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120
# The CUDA examples, compiled as NCCL's users compile theirs, on the emulated driver and the runtime that goes with it.
set -u
unset HOCKET_DEVICE
emulator=$(cd "$HK_BUILD/cudaemu" 2>/dev/null && pwd) lib=$(cd "$HK_BUILD/lib" && pwd) bad=0 runs=0
[ -e "$emulator/kernels.so" ] || { echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"; exit 77; }
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so CUDAEMU_MEMORY_MB=256 NCCL_DEBUG=WARN CUDA_DEVICE_MAX_CONNECTIONS=32
complain() { echo "FAIL: $*"; cat "$tmp"/out*; bad=1; }

runtime=tests/cudaemu/runtime
for source in examples/cuda/*.c; do
  cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -Iinclude -I$runtime "$source" $runtime/cudart.c \
    -o "$tmp/$(basename "$source" .c)" -L"$lib" -lnccl -Wl,-rpath,"$lib" -L"$emulator" -l:libcuda.so.1 || exit 1
done

for n in 1 3; do
  runs=$((runs + 1))
  CUDAEMU_DEVICES=$n timeout 60 "$tmp/one_process" >"$tmp/out" 2>&1 && grep -q "^$n GPUs added up" "$tmp/out" || complain "one_process on $n GPUs"
done
# Three processes on two GPUs: two share one.
export WORLD_SIZE=3 NCCL_COMM_ID=127.0.0.1:$((20000 + $$ % 9000)) CUDAEMU_DEVICES=2
pids=()
for r in 0 1 2; do
  RANK=$r LOCAL_RANK=$r timeout 60 "$tmp/graph_ranks" >"$tmp/out.$r" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || complain "a process of graph_ranks ended with code $?"; done
runs=$((runs + 1))
[ "$(grep -l '^rank . of 3: 10 replays' "$tmp"/out.? | wc -l)" = 3 ] || complain "graph_ranks"
# Every example is run above.
for source in examples/cuda/*.c; do grep -q "/$(basename "$source" .c)\"" "$0" || complain "$source is run by no test"; done
[ $bad = 0 ] && echo "$runs runs"
exit $bad
