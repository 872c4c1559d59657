#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make gpu-modes: the tests of GPUs on the emulated driver, once in each of its modes (docs/cudaemu.md), each of which shows
# what another kind of fault would do on a card.  SHORT=1: the tests of calls and replays alone; MODES=names, ONLY=pattern.
set -u
cd "$(dirname "$0")/../.." || exit 1
HK_BUILD=${HK_BUILD:-build/gcc}
tests=(gpu_comm gpu_life gpu_procs gpu_share gpu_vcoll gpu_multicast gpu_suspend gpu_rma gpu_window gpu_calls gpu_oneshot gpu_replay)
[ -z "${SHORT:-}" ] || tests=(gpu_calls gpu_replay)
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
failed=0 passed=0
# Two queues for a rank are not enough for ranks that share a GPU, so the user's setting is part of the mode.
declare -A modes=(
  [connections]="CUDAEMU_CONNECTIONS=8 CUDA_DEVICE_MAX_CONNECTIONS=32"
  [resident]="CUDAEMU_RESIDENT=1 CUDAEMU_SMS=132"
  [sync_alloc]="CUDAEMU_SYNC_ALLOC=1"
  [slices]="CUDAEMU_SLICE_US=2000 CUDAEMU_SLICE_FILE=$out/slices"
  [one_context]="CUDAEMU_ONE_CONTEXT=1"
  [local]="CUDAEMU_LOCAL_BYTES=1100"
)
for mode in ${MODES:-connections resident sync_alloc slices one_context local}; do
  [ -n "${modes[$mode]:-}" ] || { echo "there is no mode $mode"; exit 1; }
  for test in "${tests[@]}"; do
    [[ test_$test == *"${ONLY:-}"* ]] || continue
    begin=$SECONDS
    # shellcheck disable=SC2086 # a list of variables
    env ${modes[$mode]} timeout -k 5 "${LIMIT:-600}" "$HK_BUILD/tests/test_$test" >"$out/log" 2>&1
    rc=$?
    if [ $rc = 0 ]; then
      passed=$((passed + 1))
      echo "PASS  $mode, test_$test ($((SECONDS - begin)) s)"
    elif [ $rc = 77 ]; then
      echo "SKIP  $mode, test_$test: $(tail -n 1 "$out/log")"
    else
      failed=$((failed + 1))
      echo "FAIL  $mode, test_$test: exit code $rc"
      tail -n 8 "$out/log" | sed 's/^/      | /'
    fi
  done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
