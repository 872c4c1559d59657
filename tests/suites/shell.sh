#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180
# Shell scripts: shellcheck where it is installed, and the runner's own verdicts.
set -u
. tests/support/suite.sh

# A tree with one test of each kind; the runner must count them rightly and fail.
mkdir -p "$tmp/tests/suites" "$tmp/tests/unit" "$tmp/b/tests" "$tmp/scripts"
cp scripts/check.sh "$tmp/scripts/"
suite() { printf '#!/bin/bash\n%s\n' "$2" >"$tmp/tests/suites/$1.sh" && chmod +x "$tmp/tests/suites/$1.sh"; }
suite good 'echo fine'
suite partly 'echo "SKIP: half of it"; echo fine'
suite bad 'echo because; exit 3'
suite absent 'echo "no such thing here"; exit 77'
suite slow $'# check: timeout=1\nsleep 20'
suite crash 'kill -SEGV $$'
suite once '[ -e once ] || { touch once; echo unlucky; exit 1; }'
suite report '[ -e report ] || { touch report; echo "WARNING: ThreadSanitizer: data race"; exit 1; }'
suite leaks '[ -e leaks ] || { touch leaks; echo "WARNING: ThreadSanitizer: thread leak (pid=1)"; exit 1; }'
suite long $'# check: long=suites\nexit 1'
suite clean '[ -z "${NCCL_DEBUG:-}" ]'
said=$(cd "$tmp" && NCCL_DEBUG=INFO HK_BUILD=b ONLY='' QUICK=1 scripts/check.sh 2>&1)
rc=$?
[ $rc = 1 ] || complain "the runner's exit code with failures is $rc"
[ "$(tail -n 1 <<<"$said")" = "4 passed, 5 failed, 2 skipped" ] || complain "the runner counted: $(tail -n 1 <<<"$said")"
grep -q '^SKIP  absent .*no such thing here' <<<"$said" || complain "the runner does not give a skip's reason"
grep -q '^FAIL  slow .*killed after its limit of 1 s' <<<"$said" || complain "the runner does not report a timeout"
grep -q '^FAIL  crash .*signal SEGV' <<<"$said" || complain "the runner does not report a crash"
grep -q '^FLAKY  *once .*passed' <<<"$said" && grep -q '| unlucky' <<<"$said" || complain "the runner does not report a first failure"
grep -q '^FLAKY  *bad' <<<"$said" && complain "the runner calls flaky what fails twice"
grep -q '^FAIL  leaks' <<<"$said" || complain "the runner lets a thread leak pass at the second try"
grep -q '^FAIL  report' <<<"$said" || complain "the runner lets a sanitizer's report pass at the second try"
grep -q '| because' <<<"$said" || complain "the runner does not show a failure's output"
grep -q '^left out .* 1 tests' <<<"$said" || complain "the runner does not leave out what takes long"
grep -q 'suites.good$' "$tmp/build/check-logs/times" || complain "the runner lists no times"
rm "$tmp"/tests/suites/{bad,slow,crash,report,leaks}.sh
suite leak '[ -e leak ] || { touch leak; echo "t.c:7:F:case:name:4: Assertion"; echo "WARNING: ThreadSanitizer: thread leak (pid=1)"; exit 1; }'
said=$(cd "$tmp" && HK_BUILD=b ONLY='' QUICK=1 scripts/check.sh 2>&1) || complain "the runner fails without a failure"
grep -q '^FLAKY  *leak .*passed' <<<"$said" || complain "the runner takes the threads of a failed test for a fault of their own"
(cd "$tmp" && HK_BUILD=b ONLY=nosuch QUICK=1 scripts/check.sh >/dev/null 2>&1) && complain "the runner passes without a test"

if command -v shellcheck >/dev/null; then
  shellcheck -x -S warning scripts/*.sh tests/suites/*.sh tests/gpu/*.sh .ci/run || bad=1
else
  echo "SKIP: shellcheck is not installed"
fi
finish "the runner's verdicts are right"
