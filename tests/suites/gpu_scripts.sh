#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/session.sh and bench.sh are ready for a card: what can run on an emulated GPU does, hangs end in time, and without a GPU they say so.
# check: timeout=180 waits
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
PATH=$dir/few "$BASH" tests/gpu/build.sh >"$dir/out" 2>&1
if [ $? != 77 ] || ! grep -q "SKIP: no GPU here" "$dir/out"; then fails "no SKIP without a GPU"; fi
export HK_GPU_BUILD=$HK_BUILD HK_GPU_LARGEST=2K LD_LIBRARY_PATH=$emulator HOCKET_CUDA_IMAGE=$emulator/kernels.so \
  CUDAEMU_DEVICES=1 CUDAEMU_MEMORY_MB=512 CUDAEMU_SMS=16 CUDAEMU_THREADS=32

# Each of these hangs in another place: a program that is stopped, or one that ignores TERM. The session ends it within a minute, and says
# which step it was, and what the processes did.  They wait side by side.
mkdir -p "$dir/hangs/bin"
ln -s "$(cd "$HK_BUILD/lib" && pwd)" "$dir/hangs/lib"
for program in "$HK_BUILD"/bin/*; do
  # shellcheck disable=SC2016 # expanded by the program
  printf '#!/bin/bash\ncase "${NCCL_PROTO:-} %s $*" in\n$HANG) kill -STOP $$ ;;\n${DEAF:-}) trap "" TERM; while :; do sleep 9; done ;;\nesac\nexec %s "$@"\n' \
    "$(basename "$program")" "$(realpath -s "$program")" >"$dir/hangs/bin/$(basename "$program")"
  chmod +x "$dir/hangs/bin/$(basename "$program")"
done
declare -A hang_step=() hang_pid=()
hangs() { # STEP PATTERN STAGES [VARIABLES...]
  local n=${#hang_step[@]}
  mkdir "$dir/hang$n"
  hang_step[$n]=$1
  # shellcheck disable=SC2086 # a list of stages
  env "${@:4}" HANG="$2" HK_GPU_BUILD="$dir/hangs" OUT="$dir/hang$n" timeout 60 tests/gpu/session.sh $3 >"$dir/hang$n/out" 2>&1 &
  hang_pid[$n]=$!
}
hangs "1 rank" "*-g 1 *" "gate graphs"
hangs "2 ranks, two launches" none "gate" DEAF="* -t 2 *"
hangs "2 processes" "*all_reduce_perf --procs 2*" "gate"
hangs "graph, all_gather" "* -G 3 *" "graphs"
hangs "protocol LL128, 4 ranks" "LL128 *" "matrix" ONLY=protocol

# What a card will be asked first, on the emulated one: all that can run there.
mkdir "$dir/session"
OUT=$dir/session tests/gpu/session.sh facts gate graphs matrix >"$dir/out" 2>&1 || fails "the session on the emulated driver"
grep -q '^PASS  2 ranks, two launches (.* s); 2 sizes, us 8:' "$dir/out" || fails "a step's line has no times"
cmp -s "$dir/out" "$dir/session/summary.txt" || fails "summary.txt is not what was printed"
grep -q '^=== all_gather, 8 ranks, unaligned: ' "$dir/session/log.txt" || fails "log.txt has no step"
# Processes that share the only GPU run under an MPS of their own, which is ended.
# shellcheck disable=SC2016 # the script's variables
printf '#!/bin/sh\n[ "$1" = -d ] || read -r word\necho "$CUDA_MPS_PIPE_DIRECTORY $1$word" >>%s/mps\n' "$dir" >"$dir/smi/nvidia-cuda-mps-control"
chmod +x "$dir/smi/nvidia-cuda-mps-control"
PATH=$dir/smi:$PATH OUT=$dir/session ONLY="all_gather, 4 processes" tests/gpu/session.sh procs >"$dir/out" 2>&1 || fails "the session, processes"
grep -q "^PASS  all_gather, 4 processes" "$dir/out" || fails "the session has no line for processes"
begin=() quit=("")
[ -e "$dir/mps" ] && { read -r -a begin && read -r -a quit; } <"$dir/mps"
[ "${begin[*]} ${quit[*]}" = "${quit[0]} -d ${quit[0]} quit" ] || fails "the session does not start and end MPS"
# A build is stripped, checked and packed; what needs another library is refused.
mkdir -p "$dir/pack/bin" "$dir/pack/lib"
cp -P "$HK_BUILD"/bin/{all_reduce_perf,hocket-perf,hocket} "$dir/pack/bin"
cp "$HK_BUILD/lib/libnccl.so.2" "$dir/pack/lib"
if ! scripts/gpu-pack.sh "$dir/pack" >"$dir/out" 2>&1; then
  if grep -q "build it on an older system" "$dir/out"; then echo "SKIP: this system's glibc is too new for gpu-pack"; else fails "gpu-pack"; fi
else
  tar -tzf "$dir/pack/hocket-gpu.tar.gz" >"$dir/out" && grep -q '^tests/gpu/session.sh$' "$dir/out" || fails "gpu-pack packs no session.sh"
fi
echo 'int main(void) { return 0; }' | gcc -x c -o "$dir/pack/bin/odd_perf" - -Wl,--no-as-needed -lresolv
scripts/gpu-pack.sh "$dir/pack" >"$dir/out" 2>&1
grep -q 'odd_perf needs libresolv.so.2: libc and libm are allowed' "$dir/out" || fails "gpu-pack takes a program that needs another library"
# Time that is over starts nothing more.
OUT=$dir/session HK_GPU_SECONDS=3 tests/gpu/session.sh gate >"$dir/out" 2>&1
grep -q '^SKIP  1 rank: no time is left' "$dir/out" || fails "the session goes on when its time is over"
if command -v python3 >/dev/null; then
  for script in tests/gpu/*.py; do
    python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$script" >"$dir/out" 2>&1 || fails "$script"
  done
  OUT=$dir/session ONLY=ctypes tests/gpu/session.sh python >"$dir/out" 2>&1 || fails "the session, ctypes"
  grep -q "^PASS  ctypes" "$dir/out" || fails "the session has no line for ctypes"
  export OUT=$dir/session HK_GPU_LINKS="--bytes 16K --copies 1" HK_GPU_LARGEST=64K HK_GPU_RANKS=2 CUDAEMU_SMS=2
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
  echo "SKIP: no python3, so that gpu-bench and the session's scripts are not tried"
fi
for n in "${!hang_step[@]}"; do
  wait "${hang_pid[$n]}"
  code=$?
  cp "$dir/hang$n/out" "$dir/out"
  [ $code = 1 ] || fails "a hang in '${hang_step[$n]}': exit code $code"
  grep -q "^FAIL  ${hang_step[$n]} (.*): hangs, ended after" "$dir/out" || fails "a hang in '${hang_step[$n]}' is not named"
  grep -q "^process [0-9]*: .*_perf" "$dir/hang$n/log.txt" || fails "a hang in '${hang_step[$n]}' is not described"
done
grep -q "THE BASICS DO NOT WORK" "$dir/hang0/out" && ! grep -q "^-- graphs" "$dir/hang0/out" || fails "the session goes on without the basics"
grep -q "^SKIP  graph, broadcast: two steps of this stage hang" "$dir/hang3/out" || fails "a third step hangs, too"
exit "$bad"
