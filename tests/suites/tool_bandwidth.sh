#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket bandwidth on emulated GPUs: every row is there, causes are reported, wrong data is found, without GPUs it says so.
# check: timeout=90
set -u
unset HOCKET_DEVICE
. tests/golden/lib.sh
emulator=$PWD/$HK_BUILD/cudaemu
[ -e "$emulator/libcuda.so.1" ] || { echo "SKIP: the emulated CUDA driver is not built"; exit 77; }
export CUDAEMU_MEMORY_MB=64
refuses "there is no GPU here" bandwidth
export LD_LIBRARY_PATH=$emulator
# json FILTER: what jq makes of the last command's output; without jq nothing is looked at.
json() { command -v jq >/dev/null || return 0; jq -e "$1" "$tmp/out" >/dev/null || complain "not so: $1 in $(cat "$tmp/out")"; }

# How fast this is says nothing here: nothing is too slow, or everything is.
CUDAEMU_DEVICES=3 gives 0 "$hocket" bandwidth --bytes 256K --copies 2 --floor 0 --json
json '.pairs | length == 9'
json '[.host[].gpu] | unique == [0, 1, 2]'
json '[.pairs[] | select(.from != .to) | .direct, .both_ways, .without_peer] | all(. > 0)'
json '[.host[] | .pinned_to_gpu, .pinned_from_gpu, .pageable_to_gpu, .pageable_from_gpu] | all(. > 0)'
json '[.pairs[], .host[] | .slow] | any | not'
gives 1 "$hocket" bandwidth --bytes 64K --copies 1 --floor 100000
says "GPU 0 and node 0:"
says "GPU 1 to 0:"
# Kernels, where they are: a copy and three sums.
if [ -e "$emulator/kernels.so" ]; then
  HOCKET_CUDA_IMAGE=$emulator/kernels.so CUDAEMU_DEVICES=1 CUDAEMU_SMS=1 CUDAEMU_THREADS=32 \
    gives 0 "$hocket" bandwidth --bytes 16K --copies 1 --floor 0 --json
  json '.kernels[0] | .copy, .sum_float, .sum_half, .sum_bfloat16 | . > 0'
fi
# Who has no peer access gets no such rate; who corrupts is found out.
CUDAEMU_PEER=0 gives 0 "$hocket" bandwidth --bytes 64K --copies 1 --floor 0 --json
json '[.pairs[] | select(.from != .to) | .peer or .direct != null] | any | not'
CUDAEMU_CORRUPT_PEER=1 gives 1 "$hocket" bandwidth --bytes 64K --copies 1 --floor 0
says "P2P DELIVERS WRONG DATA"
# The doctor asks the same, without the rates.
CUDAEMU_DEVICES=3 gives 0 "$hocket" doctor p2p
says "6 pairs of GPUs write to each other's memory, and 1 MiB arrived unchanged"
CUDAEMU_CORRUPT_PEER=1 gives 1 "$hocket" doctor p2p
says "GPU 1 writes other data into GPU 0's memory than was sent"
CUDAEMU_PEER=0 gives 0 "$hocket" doctor p2p
says "2 of 2 pairs of GPUs have no peer access"
# NVLinks, where NVML shows them: the same GPUs in the fake libnvidia-ml.so.1.
LD_LIBRARY_PATH=$emulator:$PWD/$HK_BUILD/fakes HOCKET_TEST_GPUS=2:90:18:hidden CUDAEMU_DEVICES=2 \
  gives 1 "$hocket" bandwidth --bytes 64K --copies 1 --floor 100000
says "0   1  NVL"
says "NVLinks may be down"
gives 2 "$hocket" bandwidth --bytes 128M
says "ask for fewer with --bytes"
if command -v gnuplot >/dev/null; then
  gives 0 "$hocket" bandwidth --bytes 64K --copies 1 --floor 0 --plot "$tmp/links.svg"
  grep -q '</svg>' "$tmp/links.svg" || complain "no picture"
else
  echo "SKIP: gnuplot is not installed: no picture is drawn"
fi
echo "$cases commands"
exit "$bad"
