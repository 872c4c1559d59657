#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD [NVCC]: an allreduce on this machine, every element checked: between its GPUs if the library has kernels for
# them (NVCC is not empty, or HOCKET_CUDA_IMAGE), else between two processes on the CPU.  HK_DEMO_LARGEST=128M bounds the sizes.
perf=$1/bin/all_reduce_perf largest=${HK_DEMO_LARGEST:-128M}
[ -x "$perf" ] || { echo "$perf is not built"; exit 1; }
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
[ "$gpus" -le 8 ] || gpus=8
[ "${HOCKET_DEVICE:-}" != host ] || gpus=0
if [ "$gpus" != 0 ] && [ -n "$2${HOCKET_CUDA_IMAGE:-}" ]; then
  # Two ranks share a single GPU as threads: processes on it would take turns.  Each stream needs a hardware queue.
  export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
  if [ "$gpus" = 1 ]; then ranks=(-t 2) what="two ranks on one GPU"; else ranks=(--procs "$gpus") what="$gpus GPUs, a rank on each"; fi
else
  export HOCKET_DEVICE=host
  ranks=(--procs 2) what="two processes on the CPU"
  if [ "$gpus" != 0 ]; then what+=": there are GPUs, but the library has no kernels for them (make NVCC=yes)"; else what+=": there is no GPU"; fi
fi
# The slots between the processes are memory that no process has touched yet: ten warm-up rounds go through all of them.
set -- "${ranks[@]}" -b 8 -e "$largest" -f 4 -w 10
echo "The demo runs on $what."
echo "$perf $*"
exec "$perf" "$@"
