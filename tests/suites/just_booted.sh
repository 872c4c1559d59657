#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests that take a time from the clock, on a machine that booted ten seconds ago: a time before the boot is none.
# check: timeout=300 waits
set -u
enter=(unshare --time)
[ "$(id -u)" = 0 ] || enter=(unshare --user --map-current-user --time)
"${enter[@]}" --monotonic=1 true 2>/dev/null || { echo "SKIP: this system lets nobody make a time namespace"; exit 77; }
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0
takes='_ns -= |[=,] hk_now_ns\(\) - [^b]'
mapfile -t tests < <(grep -lE "$takes" tests/unit/test_*.c tests/integration/test_*.c | sed 's,.*/\(.*\)\.c,\1,')
[ -x "$HK_BUILD/tests/${tests[0]}" ] || { echo "SKIP: the tests are not built"; exit 77; }
read -r up _ </proc/uptime
[ "${up%.*}" -ge 10 ] || up=10
run() { "${enter[@]}" --monotonic=$((10 - ${up%.*})) "$HK_BUILD/tests/$1" >"$tmp/$1" 2>&1; }
for test in "${tests[@]}"; do run "$test" & jobs[$!]=$test; done
for pid in "${!jobs[@]}"; do
  wait "$pid"
  rc=$?
  [ $rc != 0 ] && [ $rc != 77 ] || continue
  bad=1
  echo "FAIL: ${jobs[$pid]} ends with code $rc ten seconds after the boot:"
  tail -n 5 "$tmp/${jobs[$pid]}"
done
[ $bad = 0 ] && echo "${#tests[@]} tests pass ten seconds after the boot"
exit $bad
