#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mutations.sh: breaks the code in random places, one at a time, and reports whether the unit tests notice. A mutant that no test
# notices shows a missing test, or code that makes no difference. `make mutations` runs it.
#
#   SEED=number      which mutants (default: a new number each time; it is printed)
#   MINUTES=number   for how long mutants are tried (default 30); MOST=number: how many
#   FILES=pattern    only places whose "path:line:" matches this (an extended regular expression); src/kernels/cuda: the mutations
#                    of tests/suites/gpu_mutations.sh
#   TESTS=pattern    only unit tests whose names match this (an extended regular expression)
#   LONGEST=number   tests that take more seconds (default 60) are left out, under sanitizers those that take a quarter of it
#   SANITIZE=0       without the build under ASan and UBSan, which sees what a plain build hides
#   SANITIZE=thread  weakens memory orders only, and runs the tests under TSan: without it no x86 machine shows a difference
#   JOBS=number      mutants at a time (default: as many as the machine has cores)
#   RECORD=0         each test that fits TESTS runs for each place: no build that records lines
#
# First all tests run once with a library that records which lines each of them executes. A mutant is one changed object in front of
# the library's archive; one whose code is as before is no mutant. It runs against the tests that execute the line, quick ones first,
# and those that noticed others in the file. The first failure ends it. A test that has to be killed is a hang; then others are tried,
# because a failure says more. Results are lines of build/mutations/results: noticed, hang or SURVIVED, the place, the change, the
# test and the seconds until then.
set -u
cd "$(dirname "$0")/.." || exit 1
SEED=${SEED:-$RANDOM} MINUTES=${MINUTES:-30} MOST=${MOST:-100000} FILES=${FILES:-} TESTS=${TESTS:-.} LONGEST=${LONGEST:-60} SANITIZE=${SANITIZE:-1}
JOBS=${JOBS:-$(nproc)} RECORD=${RECORD:-1} base=${HK_MUTATIONS:-$PWD/build/mutations}
make=${HK_MAKE:-make} HK_BUILD=${HK_BUILD:-build/gcc}
results=$base/results
hang_s=15 # a test that takes so much longer than without a mutation hangs
mkdir -p "$base/lines" && : >"$results" && : >>"$base/kills"
# With the watchdog, what is stuck in an operation is an error and no hang.
export HOCKET_WATCHDOG=8 HOCKET_WATCHDOG_ABORT=1 HOCKET_DEVICE=host NCCL_DEBUG=NONE CK_VERBOSITY=silent CK_DEFAULT_TIMEOUT=300
build() { # folder target make-options...
  "$make" --no-print-directory -j"$(nproc)" BUILD="$1" "${@:2}" >"$base/build.log" 2>&1 && return
  echo "$1 does not build:"
  tail -n 5 "$base/build.log"
  exit 1
}
build "$HK_BUILD" tests
case $FILES in src/kernels/cuda*)
  MUTATIONS=all HK_BUILD=$HK_BUILD exec tests/suites/gpu_mutations.sh ;;
esac

# "file<TAB>line<TAB>name of the operator" for every place that can be changed. The operators are in mutant().
candidates() {
  find src/{base,boot,collectives,device,gpu,kernels,program,runtime,sim,topo,transport} -name '*.c' | sort |
    xargs awk -v orders="$([ "$SANITIZE" = thread ] && echo 1)" '
      function add(operator) { held = held FILENAME "\t" FNR "\t" operator "\n" }
      # A line whose next one reports that memory is short makes no difference while there is memory.
      { if (!/no memory/) printf "%s", held; held = "" }
      text { text = !/;$/; next } # the rest of a message
      /HK_(TRACE|INFO|WARN|FAIL)|snprintf/ { text = !/;( *\/\*.*)?$/; next }
      /^ *(\/\*|\*|\/\/|#)/ || /^[^ ]/ || /no memory|_Static_assert|case HK_/ { next }
      { line = $0; sub(/ *\/\*.*/, "", line); gsub(/"[^"]*"/, "\"\"", line) }
      # What is left out costs only time: a nap, a yield, that something moved and so no nap is due.
      / nanosleep\(|sched_yield\(|^ *\*moved = true;/ { next }
      # Limits of clocks, and tolerances: a nanosecond or a rounding error more makes no difference.
      / \(1 [+-] SAME/ { next }
      line ~ /_ns[^a-z_]/ { gsub(/ [<>]=? /, " ", line) }
      orders { if (line ~ /memory_order_(release|acquire)/) add("relax"); next }
      line ~ / \+ / { add("plus") }
      line ~ / - / { add("minus") }
      line ~ / < / { add("less") }
      line ~ / <= / { add("most") }
      line ~ / > / { add("more") }
      line ~ / >= / { add("least") }
      line ~ / == / { add("equal") }
      line ~ / != / { add("differs") }
      line ~ / && / { add("and") }
      line ~ / \|\| / { add("or") }
      line ~ /[^a-z_]true[^a-z_]/ { add("true") }
      line ~ /[^a-z_]false[^a-z_]/ { add("false") }
      line ~ /^ +if \(.*\)( |$)/ { add("negate") }
      line ~ /^ +[a-z_]+\(.*\);$/ { add("drop") }
      line ~ /^ +[a-z_>.\[\]-]+ [+|&-]?= .*;$/ { add("drop") }
      END { printf "%s", held }'
}

# Writes the mutant's source beside the copied tree; false if nothing changed.
mutant() { # file line operator
  local script
  case $3 in
    plus) script='s/ \+ / - /' ;;
    minus) script='s/ - / + /' ;;
    less) script='s/ < / <= /' ;;
    most) script='s/ <= / < /' ;;
    more) script='s/ > / >= /' ;;
    least) script='s/ >= / > /' ;;
    equal) script='s/ == / != /' ;;
    differs) script='s/ != / == /' ;;
    and) script='s/ && / || /' ;;
    or) script='s/ \|\| / \&\& /' ;;
    true) script='s/\btrue\b/false/' ;;
    false) script='s/\bfalse\b/true/' ;;
    negate) script='s/^( +)if \((.*)\)( [^()]*| .*;)?$/\1if (!(\2))\3/' ;;
    drop) script='s/^( +).*;( *\/\*.*)?$/\1;/' ;;
    relax) script='s/memory_order_(release|acquire)/memory_order_relaxed/' ;;
  esac
  # The larger or the smaller of two: it does not matter which if they are equal.
  [[ $3 =~ ^(less|most|more|least)$ ]] && script="/ ([^&|()]+) [<>]=? ([^&|()]+)\\) (\\2 = \\1|\\1 = \\2);/! $script"
  sed -E "$2{$script}" "$1" >"$work/mutant.c"
  ! cmp -s "$1" "$work/mutant.c"
}

# Compiles a source, or the mutant, as if it were in its file's folder; false: it is no C.
compile() { # folder file source object
  local options=()
  case $2 in
    *_avx2.c) options=(-mavx2 -mfma -mf16c) ;;
    *_avx512.c) options=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mavx2) ;;
  esac
  [ -e "$1/expat.o" ] || options+=(-DHK_NO_EXPAT)
  # shellcheck disable=SC2046 # several words
  (cd "$(dirname "$2")" && cc -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -I"$root/include" -iquote . -fPIC \
    -fvisibility=hidden -fno-math-errno -pthread -w -O1 -g1 $(sanitizer "$1") "${options[@]}" -c -x c -o "$4" - 2>/dev/null) <"$3"
}
sanitizer() { # folder
  case $1 in
    *-address-undefined) echo "-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all" ;;
    *-thread) echo "-fsanitize=thread -fno-omit-frame-pointer" ;;
  esac
}
# Unlocking a mutex that is not locked ends the test: without this, a lock that is left out shows only under TSan.
cc -x c -c -o "$base/locked.o" - <<'C'
#include <pthread.h>
#include <stdlib.h>
int __real_pthread_mutex_unlock(pthread_mutex_t *m), __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m) {
  if (!m->__data.__lock) abort();
  return __real_pthread_mutex_unlock(m);
}
C
link_test() { # folder test program library options...
  local object=$1/tests/unit/$2.o extra=()
  [ -e "$object" ] || object=$1/tests/integration/$2.o
  [ "$2" = test_tune ] && extra=("$1"/src/tools/tune/{choices,fit,look,polish,times}.o)
  # shellcheck disable=SC2046
  cc -o "$3" "$object" "${extra[@]}" "${@:5}" "$1/libsupport.a" "$4" -Wl,--strip-debug,--wrap=pthread_mutex_unlock \
    "$base/locked.o" -pthread $(sanitizer "$1") "${check_libs[@]}" -lm 2>/dev/null
}

# Runs every test once: the lines that it executes, its milliseconds, its exit code. Only the library is one that records. What was
# recorded is taken again if all the files that the test executed are as they were.
declare -A usual=()
record_test() { # folder test
  local dir=$base/record/$2 program=$HK_BUILD/tests/mutant-$$-$2 begin rc
  mkdir -p "$dir/$PWD"
  link_test "$HK_BUILD" "$2" "$program" "$1/libhocket-internal.a" "$base/dump.o" --coverage -Wl,--wrap=_exit
  begin=${EPOCHREALTIME/./}
  GCOV_PREFIX=$dir timeout -k 5 "$LONGEST" "$program" >/dev/null 2>&1 </dev/null
  rc=$?
  rm -f "$program"
  echo "$(((${EPOCHREALTIME/./} - begin) / 1000)) $rc" >"$base/lines/$2.ms"
  find "$1/src" -name '*.gcno' -print0 | xargs -0 cp -l --parents -t "$dir/$PWD"
  find "$dir" -name '*.gcda' -print0 | xargs -0 -r gcov -t 2>/dev/null |
    awk -F: '$2 == "    0" && $3 == "Source" { file = $4 } $1 ~ /[0-9]/ && file ~ /\.c$/ { print file ":" $2 + 0 }' |
    sort -u >"$base/lines/$2"
  rm -rf "$dir"
  case $rc in 0 | 124 | 137) key_of "$2" >"$base/lines/$2.key" ;; esac # a failure may be the machine's
}
# What a record depends on: headers, the test, the sources that it executed.
key_of() { # test
  echo "$headers" "$({ ls -d "tests"/*/"$1.c" && cut -d : -f 1 "$base/lines/$1" | uniq; } 2>/dev/null | xargs cat 2>/dev/null | sha1sum)"
}
record() {
  local folder=$HK_BUILD-coverage test took rc tests headers
  mapfile -t tests < <(cd tests && find unit integration -name 'test_*.c' | sed 's,.*/,,;s/\.c$//' | sort | grep -E "$TESTS")
  if [ "$RECORD" = 0 ]; then
    for test in "${tests[@]}"; do usual[$test]=$((LONGEST * 100)); done
    return
  fi
  # A child of a test that ends with _exit is recorded, too.
  echo 'void __gcov_dump(void), __real__exit(int); void __wrap__exit(int code) { __gcov_dump(), __real__exit(code); }' |
    cc -x c -c -o "$base/dump.o" -
  build "$folder" "$folder/libhocket-internal.a" CFLAGS="-O1 -g1 -w --coverage -fprofile-update=atomic"
  headers=$(find Makefile src include tests/support -type f ! -path 'src/*.c' -print0 | sort -z | xargs -0 cat | sha1sum)
  for test in "${tests[@]}"; do
    [ "$(key_of "$test")" = "$(cat "$base/lines/$test.key" 2>/dev/null)" ] && continue
    record_test "$folder" "$test" &
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
  done
  wait
  for test in "${tests[@]}"; do
    [ -e "$base/lines/$test.ms" ] || continue
    read -r took rc <"$base/lines/$test.ms"
    case $rc in
      0) usual[$test]=$took ;;
      124 | 137) echo "$test takes more than $LONGEST s: left out" ;;
      *) echo "$test fails without a mutation: left out" ;;
    esac
  done
}

# The tests that execute a place: quick ones first, and those that have noticed a mutant of the file. Tests of GPUs, which are slow
# without one, only if no other does.
order() { # file line
  local test
  { if [ "$RECORD" = 0 ]; then printf '%s\n' "${!usual[@]}"
    else grep -lxF -e "$1:$2" -e "$1:$(($2 - 1))" -e "$1:$(($2 - 2))" "$base"/lines/test_* | sed 's,.*/,,' # or a longer statement
    fi
  } | while read -r test; do [ -n "${usual[$test]:-}" ] && echo "${usual[$test]} $test"; done |
    awk -v file="$1" 'old { n[$2] += $1 == file; next } { print $1 / (1 + 4 * n[$2]), $2 }' old=1 "$base/kills" old=0 - | sort -n |
    awk '$2 !~ /^test_(gpu|cuda)/ { print $2; n++; next } { gpu = gpu $2 "\n" } END { if (!n) printf "%s", gpu }'
}

# Does the test pass without a mutation? Asked when it notices its first one.
declare -A sound=()
is_sound() { # folder test limit
  if [ -z "${sound[$1/$2]:-}" ]; then
    sound[$1/$2]=no
    timeout -k 5 "$3" "$1/tests/$2" >/dev/null 2>&1 </dev/null && sound[$1/$2]=yes
    [ "${sound[$1/$2]}" = no ] && echo "$2 fails without a mutation ($1): left out"
  fi
  [ "${sound[$1/$2]}" = yes ]
}

# Runs a test program until its first failure, of which Check writes a line.
until_failure() { # limit program
  local pid
  : >"$work/tap"
  CK_TAP_LOG_FILE_NAME=$work/tap timeout -k 5 "$1" "$2" >/dev/null 2>&1 </dev/null &
  pid=$!
  tail -n +1 -s 0.1 -f --pid=$pid "$work/tap" 2>/dev/null | grep -q -m 1 '^not ok' && kill $pid 2>/dev/null
  wait $pid
}

# Runs the tests of a build until one fails. Sets `how` and `by`.
run_tests() { # folder tests...
  local folder=$1 program=$1/tests/mutant-$$-$job test limit rc factor=3 hangs=0
  [ "$folder" = "$HK_BUILD" ] || factor=8
  for test in "${@:2}"; do
    [ $factor = 8 ] && [ "${usual[$test]}" -gt $((LONGEST * 250)) ] && continue
    [ "${sound[$folder/$test]:-}" = no ] && continue
    link_test "$folder" "$test" "$program" "$folder/libhocket-internal.a" "$work/mutant.o" || continue
    limit=$((factor * usual[$test] / 1000 + hang_s))
    until_failure "$limit" "$program"
    rc=$?
    [ $rc = 0 ] && continue
    is_sound "$folder" "$test" $((3 * limit)) || continue
    # What the machine's load may do is not noticed: a failure must come twice, and without the mutation no hang.
    if [ $rc = 124 ] || [ $rc = 137 ]; then timeout -k 5 "$limit" "$folder/tests/$test" >/dev/null 2>&1 </dev/null
    else ! until_failure "$limit" "$program"
    fi || continue
    by=$test
    [ "$folder" = "$HK_BUILD" ] || by+=" (${folder#"$HK_BUILD"-})"
    if [ $rc != 124 ] && [ $rc != 137 ]; then
      how=noticed
      return 0
    fi
    how=hang
    [ $((++hangs)) = 2 ] && break
  done
  return 1
}

root=$PWD
read -ra check_libs <<<"$(pkg-config --libs check)"
builds=("$HK_BUILD")
# With the flags of `make check`: it builds the same.
[ "$SANITIZE" = 1 ] && { builds+=("$HK_BUILD-address-undefined"); build "${builds[1]}" tests SAN=address,undefined CFLAGS="-O1 -g1"; }
[ "$SANITIZE" = thread ] && { builds=("$HK_BUILD-thread"); build "${builds[0]}" tests SAN=thread CFLAGS="-O1 -g1"; }
echo "SEED=$SEED, $MINUTES minutes; results in $results"
record
candidates | awk -v seed="$SEED" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -k 1,1 | cut -f 2- |
  awk -F '\t' -v only="$FILES" '$1 ":" $2 ":" ~ only' | head -n "$MOST" >"$base/places"
[ -s "$base/places" ] || { echo "no source fits FILES=$FILES"; exit 1; }

# Tries every JOBSth place.
try_places() { # number
  local job=$1 n=0 file at operator begin tests each how by
  work=$base/job$1 && mkdir -p "$work"
  while IFS=$'\t' read -r file at operator <&3 && [ $SECONDS -lt $end ]; do
    [ $((n++ % JOBS)) = "$1" ] && mutant "$file" "$at" "$operator" || continue
    how=SURVIVED by="no test" begin=$SECONDS
    mapfile -t tests < <(order "$file" "$at")
    [ ${#tests[@]} -gt 0 ] || by="no test executes it"
    for each in "${builds[@]}"; do
      compile "$each" "$file" "$work/mutant.c" "$work/mutant.o" || { how=""; break; }
      # Equal code: the compiler has proved that the change makes no difference.
      [ "$each" = "${builds[0]}" ] && compile "$each" "$file" "$file" "$work/same.o" && cmp -s "$work/same.o" "$work/mutant.o" && { how=""; break; }
      run_tests "$each" "${tests[@]}" && break
    done
    [ -n "$how" ] && printf '%-8s  %s:%s  %s  [%s, %d s]\n' "$how" "$file" "$at" "$(sed -n "${at}s/^ *//p" "$work/mutant.c")" \
      "$by" $((SECONDS - begin)) | tee -a "$results"
    [ "$how" = noticed ] && echo "$file ${by%% *}" >>"$base/kills"
  done 3<"$base/places"
}

end=$((SECONDS + MINUTES * 60))
trap 'rm -f "$HK_BUILD"*/tests/mutant-$$-*' EXIT
for ((job = 0; job < JOBS; job++)); do try_places $job & done
wait

count() { grep -c "^$1" "$results"; }
all=$(grep -c . "$results") noticed=$(count noticed) hangs=$(count hang) survived=$(count SURVIVED)
echo
echo "SEED=$SEED: $all mutants, $noticed noticed, $hangs noticed as a hang only, $survived survived"
