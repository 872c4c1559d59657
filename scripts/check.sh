#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh: runs every test, one line each, PASS, FAIL or SKIP with the reason; the last line is the total.
#
# Tests are
#   $HK_BUILD/tests/test_*       from tests/unit/test_*.c and tests/integration/test_*.c; run plainly, under ASan and UBSan, and under TSan
#   tests/suites/*.sh         anything else; they get HK_BUILD (where the binaries are) and run in the repository's root
# and are found by their names: nothing is registered anywhere.  Exit code 0 is a pass, 77 a skip whose reason is the last
# line, anything else a failure.  A line "SKIP: reason" in the output of a passing test counts as a skip of its own.
# A test that fails is run once more if the failure may be the machine's (see may_repeat); the line FLAKY shows both runs.
# A comment line that begins with "check:" in the first 40 lines of a test's source gives options:
#   timeout=N   seconds before it is killed (120; a unit test under sanitizers gets five times as many)
#   root        needs root: runs through sudo -n where possible; else a suite is skipped, and a unit test skips some of its cases
#   notsan, noasan  a unit test that is not run under that sanitizer: it takes too long there, or proves nothing (no threads)
#   long=GROUPS (of unit, asan, tsan, suites: "asan,tsan") takes long, and others of the group cover most of it: left out
#               there unless LONG=1 or ONLY asks for it
#   fast        is compiled with optimisation (mk/tests.mk)
#   alone       runs with no other test at the same time: it measures time
#   waits       waits for most of its time: it starts before the others of its group, and does not count as one of those that run
# Two tests run at a time for each core (JOBS=1: one after the other).  Results are printed as they come;
# build/check-logs/times has the seconds and the CPU seconds of each test.
# Environment: HK_BUILD, HK_MAKE, ONLY=pattern (substring or glob of a name), QUICK=1 (no sanitizers, no second compiler),
# LONG=1 (also what takes long), JOBS=number of tests at a time.
# shellcheck disable=SC2030,SC2031 # tests count in processes of their own, and leave the counts in files
set -u
HK_BUILD=${HK_BUILD:-build/gcc} HK_MAKE=${HK_MAKE:-make} ONLY=${ONLY:-} QUICK=${QUICK:-} LONG=${LONG:-}
export HK_BUILD HK_MAKE CHECK_LONG=$LONG$ONLY # for what takes long in a test that does not
PATH=$PATH:/usr/sbin:/sbin # a plain user's has ldconfig and others not
logs=build/check-logs
mkdir -p "$logs"
width=${JOBS:-$(($(nproc) * 2))} # tests wait for half of their time on average
passed=0 failed=0 skipped=0 left_out=0
started=$SECONDS
rm -f "$logs"/*.flaky "$logs/times"
# What the user has set for their own jobs must not change what is tested.
for variable in $(compgen -e | grep -E '^(NCCL|HOCKET)_' | grep -v '^HOCKET_TEST_'); do unset "$variable"; done
# On a machine with GPUs most tests are of host memory still; tests of GPUs bring a driver of their own and unset this.
export HOCKET_DEVICE=host
# Check's own limit is 4 s a test case, too little on a loaded machine; ours is the one that counts.
export CK_DEFAULT_TIMEOUT=120

line() { printf '%s  %-32s %s\n' "$1" "$2" "$3"; } # verdict name text
wanted() { [[ $1 == *$ONLY* ]]; }
skip() { wanted "$1" && { skipped=$((skipped + 1)); line SKIP "$1" "$2"; }; }
fail() { failed=$((failed + 1)); line FAIL "$1" "$2"; }

# The value of an option in a test's source, or the default; a bare option's value is "yes".
option() { # file option default
  local words word
  words=$(sed -n 's,^\(#\|/\*\| \*\) check: *\(.*\),\2,p;40q' "$1" | head -n 1)
  for word in $words; do
    case $word in
      "$2="*) echo "${word#*=}"; return ;;
      "$2") echo yes; return ;;
    esac
  done
  echo "$3"
}

# Is this test of the group left out because it takes long?
too_long() { # source group
  [ -z "$LONG$ONLY" ] && [[ ,$(option "$1" long no), == *,$2,* ]] && left_out=$((left_out + 1))
}

# Runs a command with its output in a log; prints nothing.  Sets `took`, `cpu_ms` (of all its processes), `last` (line of
# output) and `rc`.
attempt() { # log limit command...
  local log=$1 limit=$2 TIMEFORMAT='%R %U %S' real user system
  shift 2
  { time timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null; } 2>"$log.time"
  rc=$?
  read -r real user system < <(tail -n 1 "$log.time") # the shell's own words on a crash come before it
  rm -f "$log.time"
  cpu_ms=$((cpu_ms + 10#${user/./} + 10#${system/./}))
  took=$(printf '%.1f s' "$real")
  last=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1 | cut -c 1-160)
}

# What a failure is, in words.
cause() { # rc limit
  case $1 in
    124 | 137) echo "killed after its limit of $2 s" ;;
    *) if [ "$1" -gt 128 ]; then echo "ended by signal $(kill -l $(($1 - 128)))"; else echo "exit code $1"; fi ;;
  esac
}

# May a failure be put to the proof by a second run?  Not a crash, a hang, a sanitizer's report, or what random input has
# found: these are faults however rarely they show.  And not more than two of a group: that is no accident.
may_repeat() { # name rc log
  local before aside='^$'
  # A test case that fails leaves its threads behind, which is no fault of its own.
  ! grep -q ':F:' "$3" || aside='ThreadSanitizer: thread leak\|ThreadSanitizer: reported [0-9]* warnings'
  [ "$2" -lt 124 ] && [[ $1 != *fuzz* ]] && ! grep -v "$aside" "$3" | grep -q 'Sanitizer\|runtime error:\|Received signal' || return 1
  before=("$logs/$group".*.flaky)
  [ -e "${before[0]}" ] || before=()
  : >"$logs/$group.$(basename "$3").flaky"
  [ ${#before[@]} -lt 2 ]
}

run_test() { # name timeout command...
  local name=$1 limit=$2 log rc took last reason first twice=''
  shift 2
  log=$logs/${name//[:\/]/_}.log
  attempt "$log" "$limit" "$@"
  if [ "$rc" != 0 ] && [ "$rc" != 77 ] && may_repeat "$name" "$rc" "$log"; then
    mv "$log" "$log.first"
    first="$took  $(cause "$rc" "$limit")"
    attempt "$log" "$limit" "$@"
    if [ "$rc" = 0 ]; then
      line FLAKY "$name" "$first; the second run: passed"
      tail -n 30 "$log.first" | sed 's/^/      | /'
    else
      mv "$log.first" "$log"
      twice="$first; the second run: "
    fi
  fi
  case $rc in
    0)
      passed=$((passed + 1))
      line PASS "$name" "$took  ${last}"
      while IFS= read -r reason; do
        skipped=$((skipped + 1))
        line SKIP "$name" "${reason#SKIP: }"
      done < <(grep '^SKIP: ' "$log" | sort -u)
      return
      ;;
    77) skip "$name" "${last#SKIP: }"; return ;;
    *) fail "$name" "$twice$took  $(cause "$rc" "$limit")" ;;
  esac
  tail -n 30 "$log" | sed 's/^/      | /'
  echo "      | (all of it: $log)"
}

# ---- tests side by side ----
# A test runs in a process of its own, which leaves what it prints and counts in files.
declare -A jobs=() light=() group_ms=() group_cpu=()
group=""

reap() { # waits for one test and shows its result
  local pid base p=0 f=1 s=0 ms=0 cpu=0
  wait -n -p pid "${!jobs[@]}"
  base=${jobs[$pid]}
  unset "jobs[$pid]" "light[$pid]"
  cat "$base.out"
  [ -e "$base.counts" ] && read -r p f s ms cpu <"$base.counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  local of=${base##*/}
  of=${of%%.*}
  group_ms[$of]=$((${group_ms[$of]:-0} + ms))
  group_cpu[$of]=$((${group_cpu[$of]:-0} + cpu))
  printf '%8.1f %8.1f  %s\n' "$((ms / 100))e-1" "$((cpu / 100))e-1" "${base##*/}" >>"$logs/times"
}
drain() { while [ ${#jobs[@]} -gt 0 ]; do reap; done; }

start() { # alone|waits|usual name timeout command...
  local how=$1 name=$2 base
  [ "$width" != 1 ] || how=usual
  shift
  wanted "$name" || return 0
  base=$logs/$group.${name//[:\/]/_}
  rm -f "$base.counts"
  [ "$how" = alone ] && drain
  while [ "$how" != waits ] && [ $((${#jobs[@]} - ${#light[@]})) -ge "$width" ]; do reap; done
  (
    trap - EXIT
    passed=0 failed=0 skipped=0 cpu_ms=0
    begin=${EPOCHREALTIME/./}
    run_test "$@"
    echo "$passed $failed $skipped $(((${EPOCHREALTIME/./} - begin) / 1000)) $cpu_ms" >"$base.counts"
  ) >"$base.out" 2>&1 &
  jobs[$!]=$base
  [ "$how" != waits ] || light[$!]=yes
  [ "$how" = alone ] && drain
  return 0
}

# Prints the sources of a group's unit tests.
unit_sources() { # prefix skip-option
  local source
  for source in tests/unit/test_*.c tests/integration/test_*.c; do
    [ -e "$source" ] || continue
    wanted "$1$(basename "$source" .c)" && { [ -z "$2" ] || [ "$(option "$source" "$2" no)" = no ]; } && echo "$source"
  done
}

# How a test is started.
how() { # source
  local way
  for way in alone waits; do
    [ "$(option "$1" $way no)" = no ] || { echo $way; return; }
  done
  echo usual
}
# Lines "how source", those that wait first.
waiting_first() {
  local source
  while read -r source; do echo "$(how "$source") $source"; done | sort -s -r -k 1,1
}

# Sets `root` to the words that go before a command of root's.
by_root() {
  root=()
  [ "$(id -u)" != 0 ] || return 0
  sudo -n true 2>/dev/null || return 1
  root=(sudo -n env)
  local variable
  for variable in PATH $(compgen -e | grep -E '^(HK|CK|HOCKET|CHECK)_|SAN_OPTIONS$'); do root+=("$variable=${!variable}"); done
}

unit_tests() { # folder prefix skip-option timeout-factor
  local how source name root
  while read -r how source; do
    too_long "$source" "$group" && continue
    name=$(basename "$source" .c)
    root=()
    [ "$(option "$source" root no)" = no ] || by_root
    start "$how" "$2$name" $(($(option "$source" timeout 120) * $4)) "${root[@]}" "${wrap[@]}" "$1/tests/$name"
  done < <(unit_sources "$2" "$3" | waiting_first)
}

# The slowest first, by their own limits: the last to end then ends early.
suites_by_limit() {
  local suite
  for suite in tests/suites/*.sh; do
    [ -e "$suite" ] && echo "$(option "$suite" timeout 120) $suite"
  done | sort -rns -k 1,1 | cut -d ' ' -f 2
}

suites() {
  local suite name limit how root
  for suite in $(suites_by_limit); do
    name=$(basename "$suite" .sh)
    too_long "$suite" suites && continue
    limit=$(option "$suite" timeout 120)
    how=$(how "$suite")
    root=()
    if [ "$(option "$suite" root no)" = yes ] && ! by_root; then
      skip "$name" "needs root, and sudo without a password is not here"
    else
      start "$how" "$name" "$limit" "${root[@]}" "$suite"
    fi
  done
}

# Can programs that $1 builds with -fsanitize=$2 run here?  Sets `wrap` to the words that go before the command.
sanitizer_runs() { # compiler sanitizers
  local probe=$logs/probe
  wrap=()
  echo 'int main(void) { return 0; }' >"$probe.c"
  reason="$1 is not installed"
  command -v "$1" >/dev/null || return 1
  reason="$1 has no run time for -fsanitize=$2"
  "$1" "-fsanitize=$2" -o "$probe" "$probe.c" 2>/dev/null || return 1
  "$probe" 2>/dev/null && return 0
  wrap=(setarch -R) # TSan's map of the address space does not fit some kernels' randomization
  setarch -R "$probe" 2>/dev/null && return 0
  wrap=()
  reason="programs built with -fsanitize=$2 do not start here: $("$probe" 2>&1 | head -n 1)"
  return 1
}

# A second compiler warns of other things: everything is built with it, and under ASan at once if it can.
second=clang
[[ $HK_BUILD == *clang* ]] && second=gcc
address=$second why_not=
sanitizer_runs $second address,undefined || address=gcc why_not=$reason
# Sets `build` to the command that builds a group's tests, or everything with the second compiler.
# Reports need lines, and no more: variables take a seventh of the time. What COLD_CFLAGS are for gains little under TSan.
sanitizer_build() { # prefix compiler sanitizers skip-option jobs
  # shellcheck disable=SC2206 # the command may have arguments
  build=($HK_MAKE --no-print-directory "CC=$2" "CFLAGS=-O1 -g1" "SAN=$3" "-j$5")
  [ "$3" = thread ] || build+=(COLD_CFLAGS=-O0)
  local source
  if [ "$2" = $second ]; then build+=(all tests); else build+=(test-libraries); fi
  for source in $(unit_sources "$1" "$4"); do build+=("build/$2-${3//,/-}/tests/$(basename "$source" .c)"); done
}

# The sanitizers' builds run at the same time as the plain tests, at the lowest priority.
declare -A ahead=()
trap 'kill "${ahead[@]}" "${!jobs[@]}" 2>/dev/null' EXIT
build_ahead() { # prefix compiler sanitizers skip-option
  sanitizer_runs "$2" "$3" || return
  sanitizer_build "$@" $((($(nproc) + 1) / 2))
  nice -n 19 "${build[@]}" >"$logs/$3.build.log" 2>&1 &
  ahead[$3]=$!
}

# Builds what runs under a sanitizer, then starts its tests.
sanitized() { # prefix compiler sanitizers skip-option
  case $ONLY in *asan:* | *tsan:*) [[ $ONLY == *$1* ]] || return 0 ;; esac
  if ! sanitizer_runs "$2" "$3"; then skip "$1" "$reason"; return; fi
  [ -n "$(unit_sources "$1" "$4")" ] || { [ "$2" = $second ] && wanted second-compiler; } || return 0
  local rc=127
  sanitizer_build "$@" "$(nproc)"
  [ -n "${ahead[$3]:-}" ] && { wait "${ahead[$3]}" 2>/dev/null; rc=$?; }
  # The shell forgets a child that has ended once another one gets its number: then make has little or nothing to do.
  [ $rc != 127 ] || { "${build[@]}" >"$logs/$3.build.log" 2>&1; rc=$?; }
  unset "ahead[$3]"
  if [ $rc != 0 ]; then
    fail "$1build" "the sanitizer build fails: see $logs/$3.build.log"
    tail -n 10 "$logs/$3.build.log" | sed 's/^/      | /'
    return
  fi
  if [ "$2" = $second ] && wanted second-compiler; then
    passed=$((passed + 1))
    line PASS second-compiler "$("$2" --version | head -n 1): everything builds"
  fi
  group=${1%:}
  CK_TIMEOUT_MULTIPLIER=5 unit_tests "build/$2-${3//,/-}" "$1" "$4" 5
}

if [ -z "$QUICK$ONLY" ]; then
  build_ahead asan: "$address" address,undefined noasan
  build_ahead tsan: gcc thread notsan
fi
wrap=()
group=suites
suites
group=unit
unit_tests "$HK_BUILD" "" "" 1
if [ -z "$QUICK" ]; then
  export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=second_deadlock_stack=1
  # clang's leak check guesses where threads keep the variables of libraries that are loaded late, and crashes at times
  export ASAN_OPTIONS=intercept_tls_get_addr=0
  [ $address = $second ] || ! wanted second-compiler || skip second-compiler "$why_not"
  sanitized asan: "$address" address,undefined noasan
  sanitized tsan: gcc thread notsan
fi
drain
[ $((passed + failed + skipped)) -gt 0 ] || fail "check" "no test matches ONLY=$ONLY"
echo
for group in suites unit asan tsan; do
  [ -n "${group_ms[$group]:-}" ] && printf '%-7s %5d s of tests, %5d s of CPU\n' "$group" \
    $(((group_ms[$group] + 500) / 1000)) $(((group_cpu[$group] + 500) / 1000))
done
echo "took $((SECONDS - started)) s, $width tests at a time"
[ $left_out = 0 ] || echo "left out because they take long: $left_out tests; make check LONG=1 runs them too"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
