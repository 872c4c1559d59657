#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh PLUGIN: a real net plugin, as built from its own sources, in Hocket: every operation, every version that it has,
# communicators in every order, by threads and with large groups, aborts and killed ranks.
# Environment: HK_BUILD; FI_PROVIDER (libfabric's providers, tried one after the other: "tcp;ofi_rxm tcp"); ONLY=pattern of names.
# Without an NVIDIA driver, CUDA's driver and runtime are those that run on the CPU (docs/cudaemu.md): the plugin asks them at
# its beginning, and data is in host memory.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
if [ ! -e "${1:-}" ]; then
  cat <<'TEXT'
make check-plugins OFI=/path/to/libnccl-net.so
Which plugin? Nothing of it is in this repository. Get the sources of libfabric (https://github.com/ofiwg/libfabric, 2.6.0 was used)
and aws-ofi-nccl (https://github.com/aws/aws-ofi-nccl, 1.21.1), then:
    tests/netplugins/build.sh LIBFABRIC AWS-OFI-NCCL /tmp/ofi
    make check-plugins OFI=/tmp/ofi/lib/libnccl-net.so
TEXT
  echo "SKIP: no plugin was named"
  exit 77
fi
plugin=$(realpath "$1")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bin=$PWD/$HK_BUILD/bin helpers=$PWD/$HK_BUILD/helpers
passed=0 failed=0 skipped=0
line() { printf '%s  %-34s %s\n' "$1" "$2" "$3"; }
skip() { [[ $1 == *${ONLY:-}* ]] && skipped=$((skipped + 1)) && line SKIP "$1" "$2"; }
export NCCL_SHM_DISABLE=1 HOCKET_TUNE_FILE=none NCCL_NET_PLUGIN=$plugin HOCKET_DEVICE=host NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET,INIT
export OFI_NCCL_PROTOCOL=${OFI_NCCL_PROTOCOL:-SENDRECV}
# An endpoint of ofi_rxm writes to 100 MB of buffers when it is made, by default, and each communicator has two.
export FI_OFI_RXM_MSG_RX_SIZE=${FI_OFI_RXM_MSG_RX_SIZE:-64}

# CUDA's driver and runtime on the CPU, for plugins that ask for them.
cuda=${CUDA_HOME:-/usr/local/cuda}/include
if ! ldconfig -p | grep -q 'libcuda.so.1 '; then
  [ -e "$cuda/cuda_runtime_api.h" ] || { echo "SKIP: no NVIDIA driver, and no CUDA headers in $cuda (CUDA_HOME) for the emulated one"; exit 77; }
  emulator=$PWD/$HK_BUILD/cudaemu
  ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared -isystem "$cuda" -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script=tests/cudaemu/runtime/libcudart.map -Wl,-z,defs tests/cudaemu/runtime/{cudart,libcudart,kernels,refused}.c \
    -L"$emulator" -l:libcuda.so.1 -o "$work/libcudart.so" >"$work/log" 2>&1 || { tail -n 3 "$work/log"; exit 1; }
  export LD_LIBRARY_PATH=$work:$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# A command that must end well, and whose data the plugin must have carried.
try() { # name, command...
  local name="$1 ($FI_PROVIDER)" rc why=
  shift
  [[ $name == *${ONLY:-}* ]] || return
  timeout -k 5 300 "$@" >"$work/log" 2>&1
  rc=$?
  [ $rc = 0 ] || why="exit code $rc"
  grep -q "by net plugin $network (v" "$work/log" || why="$why the plugin was not used"
  if [ -z "$why" ]; then
    passed=$((passed + 1))
    line PASS "$name" ""
  else
    failed=$((failed + 1))
    line FAIL "$name" "$why"
    grep -v 'NCCL INFO' "$work/log" | tail -n 12 | sed 's/^/      | /'
  fi
}

versions=
for v in 6 7 8 9 10 11 12; do
  nm -D "$plugin" | grep -q " ncclNetPlugin_v$v$" && versions="$versions $v"
done
echo "$plugin: versions$versions"
read -ra providers <<<"${FI_PROVIDER:-tcp;ofi_rxm tcp}"
for FI_PROVIDER in "${providers[@]}"; do
  export FI_PROVIDER
  "$bin/all_reduce_perf" --procs 2 -b 8 -e 8 -n 1 -w 0 >"$work/first" 2>&1
  network=$(sed -nE 's/.* by net plugin (.*) \(v[0-9]+\), device.*/\1/p' "$work/first" | head -n 1)
  if [ -z "$network" ]; then
    failed=$((failed + 1))
    line FAIL "$FI_PROVIDER" "the plugin is not used:"
    grep -E 'WARN|NET/' "$work/first" | head -n 12 | sed 's/^/      | /'
    continue
  fi
  for v in $versions; do
    try "v$v" env HOCKET_NET_PLUGIN_VERSION="$v" "$bin/all_reduce_perf" --procs 2 -b 8 -e 4M -f 64 -n 2 -w 0 -c 1
  done
  for n in 2 4; do
    for program in all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv hypercube all_gatherv reduce_scatterv alltoallv; do
      try "$program of $n" "$bin/${program}_perf" --procs $n -b $((n * 8)) -e 4M -f 23 -n 1 -w 0 -c 1
    done
    for scenario in orders groups abort kill threads; do
      # libfabric's own tcp endpoints give messages of one connection in another order, if several threads have endpoints
      # (2.6.0): a message number is not the one that is due.
      if [ $scenario = threads ] && [ "$FI_PROVIDER" = tcp ]; then
        skip "threads of $n (tcp)" "libfabric's tcp reorders messages there: docs/plugins.md"
        continue
      fi
      try "$scenario of $n" "$helpers/net_life" $scenario $n
    done
  done
  try "alltoall of 8" "$bin/alltoall_perf" --procs 8 -b 64 -e 256K -f 16 -n 1 -w 0 -c 1
  try "small slots" env HOCKET_SLOTS=2 HOCKET_SLOT_BYTES=8192 "$bin/sendrecv_perf" --procs 3 -b 8 -e 1M -f 64 -n 1 -w 0 -c 1
  try "large slots" env HOCKET_SLOTS=16 HOCKET_SLOT_BYTES=1048576 "$bin/all_reduce_perf" --procs 2 -b 8 -e 32M -f 64 -n 1 -w 0 -c 1
done
echo "$passed passed, $failed failed, $skipped skipped: net plugin ${network:-} of $plugin"
[ $failed = 0 ]
