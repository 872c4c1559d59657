#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# inspector.sh [SOURCES]: NVIDIA's Inspector, a profiler plugin, unmodified and built from its own sources (a tree of
# https://github.com/NVIDIA/nccl, which git fetches into build/inspector without an argument), in Hocket: its JSON and its
# metrics of collectives, sends and receives. Nothing of it is in this repository.
# Environment: HK_BUILD, CUDA_HOME. Without an NVIDIA driver, CUDA's driver and runtime are those that run on the CPU
# (docs/cudaemu.md): the plugin asks them for a device's number.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
bin=$PWD/$HK_BUILD/bin cuda=${CUDA_HOME:-/usr/local/cuda}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
sources=${1:-} bad=0
skip() { echo "SKIP: $1"; exit 77; }
complain() { echo "FAIL: $1"; bad=1; }
[ -e "$cuda/include/cuda_runtime_api.h" ] || skip "no CUDA headers in $cuda (CUDA_HOME), with which Inspector is built"
if [ -z "$sources" ]; then
  sources=$PWD/build/inspector
  [ -e "$sources/plugins" ] || {
    rm -rf "$sources"
    timeout 120 git clone -q --depth 1 --filter=blob:none --sparse https://github.com/NVIDIA/nccl "$sources" >"$work/log" 2>&1 &&
      git -C "$sources" sparse-checkout set plugins/profiler/inspector >>"$work/log" 2>&1
  } || { rm -rf "$sources"; skip "no sources of Inspector: $(tail -n 1 "$work/log"). Name a tree of NVIDIA/nccl: make check-plugins INSPECTOR=DIR"; }
fi
[ -e "$sources/plugins/profiler/inspector/Makefile" ] || skip "there is no plugins/profiler/inspector in $sources"

if ! ldconfig -p | grep -q 'libcuda.so.1 '; then
  emulator=$PWD/$HK_BUILD/cudaemu
  ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared -isystem "$cuda/include" -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script=tests/cudaemu/runtime/libcudart.map -Wl,-z,defs tests/cudaemu/runtime/{cudart,libcudart,kernels,refused}.c \
    -L"$emulator" -l:libcuda.so.1 -o "$work/libcudart.so.13" >"$work/log" 2>&1 || { tail -n 3 "$work/log"; exit 1; }
  ln -s libcudart.so.13 "$work/libcudart.so"
  export LD_LIBRARY_PATH=$work:$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
cp -r "$sources/plugins/profiler/inspector" "$work/tree"
libraries=$cuda/lib64
[ -e "$work/libcudart.so" ] && libraries=$work
make -C "$work/tree" CUDA_HOME="$cuda" CUDA_LIB="$libraries" >"$work/log" 2>&1 ||
  { tail -n 5 "$work/log"; echo "FAIL: Inspector cannot be built"; exit 1; }

export NCCL_PROFILER_PLUGIN=$work/tree/libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=1
export NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0 HOCKET_DEVICE=host HOCKET_TUNE_FILE=none
over=0 patience=120
run() { # what, program, options...: the plugin writes into $work/dump
  local what=$1 program=$2 rc
  shift 2
  rm -rf "$work/dump"
  mkdir "$work/dump"
  NCCL_INSPECTOR_DUMP_DIR=$work/dump NCCL_DEBUG=INFO timeout -k 5 $patience "$bin/${program}_perf" --procs 2 "$@" >"$work/log" 2>&1
  rc=$?
  grep -q 'profiler plugin Inspector' "$work/log" || complain "$what: Inspector was not loaded"
  [ $rc = $over ] && return
  complain "$what: exit code $rc"
  tail -n 5 "$work/log" | sed 's/^/      | /'
}

# Each operation is one line, with its number, bytes and time.
check_json() { # what, key, kind, the fewest lines of each rank
  python3 - "$work/dump" "$2" "$3" "$4" <<'PYTHON' || complain "$1: see above"
import glob, json, sys
folder, key, kind, lines = sys.argv[1:]
files = glob.glob(folder + "/*.log")
assert len(files) == 2, f"{len(files)} files"
for name in files:
    seen = [json.loads(line) for line in open(name)]
    seen = [s[key + "_perf"] for s in seen if key + "_perf" in s]
    seen = [s for s in seen if s.get(key, kind) in kind.split()]
    assert len(seen) >= int(lines), f"{len(seen)} lines of {kind}"
    for s in seen:
        assert s[f"{key}_exec_time_us"] >= 0 and s[f"{key}_msg_size_bytes"] in (65536, 262144), s
        assert s[f"{key}_timing_source"] == "kernel_gpu", s
    if key == "coll":
        numbers = [s["coll_sn"] for s in seen]
        assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers), numbers
PYTHON
}
export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500
run "a collective" all_reduce -b 64K -e 256K -f 4 -n 10 -w 0 -c 0 --blocking 1
check_json "a collective" coll AllReduce 40
run "sends and receives" sendrecv -b 64K -e 256K -f 4 -n 10 -w 0 -c 0
check_json "sends and receives" p2p "Send Recv" 80

# Metrics come every 30 s at least, so this run takes 35 s.
export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=30000000 NCCL_INSPECTOR_PROM_DUMP=1 SLURM_JOB_ID=77
over=124 patience=35
run "metrics" all_reduce -b 64K -e 256K -f 4 -n 200 -w 0 -c 0 -N 0
for pattern in 'nccl_bus_bandwidth_gbs\{.*slurm_job_id="77",.*nranks="2",collective="AllReduce",message_size="64-65KB",algo_proto="[a-z]+_SIMPLE"\} [0-9.e+-]+$' \
  'nccl_collective_exec_time_microseconds\{.*message_size="256-257KB"'; do
  cat "$work"/dump/* 2>/dev/null | grep -Eq "$pattern" || complain "metrics: no line like $pattern in: $(cat "$work"/dump/* 2>/dev/null | head -n 4)"
done
revision=$(git -C "$sources" rev-parse --short HEAD 2>/dev/null)
[ $bad = 0 ] && echo "PASS  Inspector${revision:+ $revision}: its JSON and metrics of collectives, its JSON of sends and receives"
exit $bad
