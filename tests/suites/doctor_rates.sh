#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket doctor copies, p2p on emulated GPUs: each GPU and pair is measured, slow paths are reported, wrong data is found.
# check: timeout=90
set -u
unset HOCKET_DEVICE
. tests/golden/lib.sh
emulator=$PWD/$HK_BUILD/cudaemu
[ -e "$emulator/libcuda.so.1" ] || { echo "SKIP: the emulated CUDA driver is not built"; exit 77; }
gives 0 "$hocket" doctor copies p2p
says "0 problems, 0 notes, 0 ok"
export LD_LIBRARY_PATH=$emulator CUDAEMU_MEMORY_MB=128
CUDAEMU_DEVICES=3 gives 0 "$hocket" doctor copies
for gpu in 0 1 2; do
  [[ $(cat "$tmp/out") =~ "GPU $gpu: "[0-9.]+" GB/s from node 0's" ]] || complain "GPU $gpu is not measured: $(cat "$tmp/out")"
done
# Who has no peer access gets no rate; who corrupts is found out.
CUDAEMU_DEVICES=3 gives 0 "$hocket" doctor p2p
says "6 pairs of GPUs write to each other's memory, and 1 MiB arrived unchanged"
CUDAEMU_CORRUPT_PEER=1 gives 1 "$hocket" doctor p2p
says "GPU 1 writes other data into GPU 0's memory than was sent"
CUDAEMU_PEER=0 gives 0 "$hocket" doctor p2p
says "2 of 2 pairs of GPUs have no peer access"
# NVLinks, where NVML shows them: the same GPUs in the fake libnvidia-ml.so.1. No emulated copy is as fast as they are.
LD_LIBRARY_PATH=$emulator:$PWD/$HK_BUILD/fakes HOCKET_TEST_GPUS=2:90:18:hidden CUDAEMU_DEVICES=2 gives 0 "$hocket" doctor p2p
says "the path (NVL) can carry"
says "do: nvidia-smi nvlink -s"
CUDAEMU_MEMORY_MB=32 gives 1 "$hocket" doctor copies
says "copies to GPUs cannot be tried: no 32 MiB on a GPU"
echo "$cases commands"
exit "$bad"
