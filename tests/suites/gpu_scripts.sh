#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-check and make gpu-bench are ready for a card: a part of each runs on emulated GPUs, and without any they say so.
# check: timeout=120
set -u
unset HOCKET_DEVICE
emulator=$(cd "$HK_BUILD/cudaemu" 2>/dev/null && pwd)
[ -e "$emulator/kernels.so" ] || { echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"; exit 77; }
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
bad=0
fails() { echo "FAIL: $1"; tail -n 10 "$dir/out"; bad=1; }
# Which kernels `make` builds in, and what the demo runs on.
note() { # TEXT VARIABLES...
  local text=$1
  shift
  env -u NVCC -u GPU_ARCHS make --no-print-directory "$@" kernels-note >"$dir/out" 2>&1
  grep -q -- "$text" "$dir/out" || fails "make $* does not say: $text"
}
note "none: no GPU is here" GPUS_HERE=
note "none$" NVCC=no
note "sm_90 and PTX of 90 " NVCC=/x/nvcc GPU_ARCHS=90
note "sm_75, 80, .* and PTX of 120 75 " NVCC=/x/nvcc
note "none: no nvcc is found" GPUS_HERE=x NVCC_HERE=
note "in the library: sm_.* (by /y/nvcc)" GPUS_HERE=x NVCC_HERE=/y/nvcc
mkdir "$dir/smi"
printf '#!/bin/sh\necho "a card"\n' >"$dir/smi/nvidia-smi" && chmod +x "$dir/smi/nvidia-smi"
HK_DEMO_LARGEST=64K scripts/demo.sh "$HK_BUILD" >"$dir/out" 2>&1 || fails "the demo without a GPU"
grep -q "The demo runs on two processes on the CPU" "$dir/out" || fails "the demo does not say that it uses the CPU"
PATH=$dir/smi:$PATH LD_LIBRARY_PATH=$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so CUDAEMU_DEVICES=1 HK_DEMO_LARGEST=2K \
  scripts/demo.sh "$HK_BUILD" >"$dir/out" 2>&1 || fails "the demo on a GPU"
grep -q "The demo runs on two ranks on one GPU" "$dir/out" || fails "the demo does not say that it uses the GPU"
mkdir "$dir/few" # no nvidia-smi among them
for tool in dirname mkdir; do ln -s "$(command -v $tool)" "$dir/few"; done
PATH=$dir/few "$BASH" tests/gpu/check.sh >"$dir/out" 2>&1
if [ $? != 77 ] || ! grep -q "SKIP: no GPU here" "$dir/out"; then fails "no SKIP without a GPU"; fi
ln -s "$(cd "$HK_BUILD" && pwd)"/* "$dir" 2>/dev/null # reports go here
export HK_GPU_BUILD=$dir HK_GPU_RANKS=2 HK_GPU_LARGEST=1M LD_LIBRARY_PATH=$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so \
  CUDAEMU_DEVICES=1 CUDAEMU_MEMORY_MB=512 HK_GPU_MINUTES=1
ONLY="all_gather, 2 ranks" tests/gpu/check.sh >"$dir/out" 2>&1 || fails "gpu-check"
grep -q "^PASS  all_gather, 2 ranks, to 1M" "$dir/out" || fails "gpu-check has no line for a run"
# Processes that share the only GPU run under an MPS of their own, which is ended; they come when the threads have been tried.
# shellcheck disable=SC2016 # the script's variables
printf '#!/bin/sh\n[ "$1" = -d ] || read -r word\necho "$CUDA_MPS_PIPE_DIRECTORY $1$word" >>%s/mps\n' "$dir" >"$dir/smi/nvidia-cuda-mps-control"
chmod +x "$dir/smi/nvidia-cuda-mps-control"
PATH=$dir/smi:$PATH ONLY="all_gather, 4 processes" tests/gpu/check.sh >"$dir/out" 2>&1 || fails "gpu-check, processes"
grep -q "^PASS  all_gather, 4 processes" "$dir/out" || fails "gpu-check has no line for processes"
begin=() quit=("")
[ -e "$dir/mps" ] && { read -r -a begin && read -r -a quit; } <"$dir/mps"
[ "${begin[*]} ${quit[*]}" = "${quit[0]} -d ${quit[0]} quit" ] || fails "gpu-check does not start and end MPS"
order=$(sed -n '/^basics$/,$p' tests/gpu/check.sh | grep -x 'small_sizes\|processes' | tr '\n' ' ')
[ "$order" = "small_sizes processes " ] || fails "gpu-check runs processes that share a GPU before the threads"
# What hangs is described and ended: a rank that never comes, because its process is stopped.
printf '#!/bin/bash\nkill -STOP $$\n' >"$dir/stopped" && chmod +x "$dir/stopped"
(
  export out=$dir/bounded
  eval "$(sed -n '/^describe() {/,/^}/p; /^bounded() {/,/^}/p' tests/gpu/check.sh)"
  bounded 1 "$dir/stopped"
  echo "code $?"
) >"$dir/out" 2>&1
grep -q "^code 124" "$dir/out" || fails "gpu-check does not end what hangs"
grep -q "^process [0-9]*: /bin/bash $dir/stopped" "$dir/bounded" || fails "gpu-check does not describe what hangs"
if command -v python3 >/dev/null; then
  for script in tests/gpu/*.py; do
    python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$script" >"$dir/out" 2>&1 || fails "$script"
  done
  ONLY="ctypes, memory of the driver" tests/gpu/check.sh >"$dir/out" 2>&1 || fails "gpu-check, ctypes"
  grep -q "^PASS  ctypes, memory of the driver" "$dir/out" || fails "gpu-check has no line for ctypes"
else
  echo "SKIP: no python3, so that gpu-check's scripts are not tried"
fi
if command -v jq >/dev/null; then
  export HK_GPU_LINKS="--bytes 16K --copies 1" HK_GPU_LARGEST=64K CUDAEMU_SMS=2 CUDAEMU_THREADS=32
  # bench TITLES WHAT LINE
  bench() {
    ONLY=$1 tests/gpu/bench.sh >"$dir/out" 2>&1 || fails "gpu-bench, $2"
    grep -q "$3" "$dir/out" || fails "gpu-bench has no line for $2"
  }
  bench "all_gather, 2" "a size" '^| 1024 | [0-9.]* | [0-9.]* |'
  grep -q '^[a-z]*: [0-9.]* bytes for one of the message' "$dir/out" || fails "gpu-bench does not report what an algorithm moves"
  bench "in" "what is staged" '^[0-9.]* GB/s, [0-9]*% of [0-9.]* GB/s, the rate of pinned copies'
  grep -q '^Hocket: [0-9.]* ms' "$dir/out" || fails "gpu-bench has no line for init"
else
  echo "SKIP: no jq, so that gpu-bench is not tried"
fi
exit "$bad"
