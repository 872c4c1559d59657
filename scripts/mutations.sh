#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mutations.sh: breaks the code in random places, one at a time, and reports whether the unit tests notice. A mutant that no test
# notices shows a missing test, or code that makes no difference. `make mutations` runs it.
#
#   SEED=number      which mutants (default: a new number each time; it is printed)
#   MINUTES=number   for how long mutants are tried (default 30)
#   FILES=pattern    only sources whose path contains this; src/kernels/cuda: the mutations of tests/suites/gpu_mutations.sh
#   TESTS=pattern    only unit tests whose names match this (an extended regular expression)
#   LONGEST=number   tests that take more seconds (default 60) are run only if their name fits the file
#   SANITIZE=0       without the build under ASan and UBSan, which sees what a plain build hides
#   SANITIZE=thread  weakens memory orders only, and runs the tests under TSan: without it no x86 machine shows a difference
#
# First all tests run once in a build that records which lines each of them executes. A mutant is one changed object in front of
# the library's archive. It runs against the tests that execute the line and those whose names fit the file, quick ones first. The
# first failure ends it. A test that has to be killed is a hang; then others are tried, because a failure says more. Results are
# lines of build/mutations/results: noticed, hang or SURVIVED, the place, the change, the test and the seconds until then.
set -u
cd "$(dirname "$0")/.." || exit 1
SEED=${SEED:-$RANDOM} MINUTES=${MINUTES:-30} FILES=${FILES:-} TESTS=${TESTS:-.} LONGEST=${LONGEST:-60} SANITIZE=${SANITIZE:-1}
make=${HK_MAKE:-make} HK_BUILD=${HK_BUILD:-build/gcc}
work=$PWD/build/mutations results=$PWD/build/mutations/results
hang_s=20 # a test that takes so much longer than without a mutation hangs
mkdir -p "$work/lines" && : >"$results"
export HOCKET_DEVICE=host NCCL_DEBUG=NONE CK_VERBOSITY=silent CK_DEFAULT_TIMEOUT=300
build() { # folder make-options...
  "$make" --no-print-directory -j"$(nproc)" BUILD="$1" "${@:2}" tests >"$work/build.log" 2>&1 && return
  echo "$1 does not build:"
  tail -n 5 "$work/build.log"
  exit 1
}
build "$HK_BUILD"
case $FILES in src/kernels/cuda*)
  MUTATIONS=all HK_BUILD=$HK_BUILD exec tests/suites/gpu_mutations.sh ;;
esac

# "file<TAB>line<TAB>name of the operator" for every place that can be changed. The operators are in mutant().
candidates() {
  find src/base src/program src/collectives src/kernels src/transport src/topo src/sim src/runtime src/boot src/gpu \
    -name '*.c' -path "*$FILES*" 2>/dev/null | grep -v '_abi' | sort | while IFS= read -r file; do
    case $file in src/gpu/*) [[ $FILES == *gpu* ]] || continue ;; esac
    # A line whose next one reports that memory is short makes no difference while there is memory.
    sed -E '$!N; /\n.*no memory/s/^[^\n]*/#/; P; D' "$file" | awk -v file="$file" -v orders="$([ "$SANITIZE" = thread ] && echo 1)" '
      /^ *(\/\*|\*|\/\/|#)/ || /^[^ ]/ || /no memory|HK_(INFO|WARN|LOG|FAIL)|_Static_assert|snprintf|case HK_/ { next }
      { line = $0; sub(/ *\/\*.*/, "", line); gsub(/"[^"]*"/, "\"\"", line) }
      # Limits of clocks: a nanosecond more makes no difference.
      line ~ /_ns[^a-z_]/ { gsub(/ [<>]=? /, " ", line) }
      orders { if (line ~ /memory_order_(release|acquire)/) print file "\t" FNR "\trelax"; next }
      line ~ / \+ / { print file "\t" FNR "\tplus" }
      line ~ / - / { print file "\t" FNR "\tminus" }
      line ~ / < / { print file "\t" FNR "\tless" }
      line ~ / <= / { print file "\t" FNR "\tmost" }
      line ~ / > / { print file "\t" FNR "\tmore" }
      line ~ / >= / { print file "\t" FNR "\tleast" }
      line ~ / == / { print file "\t" FNR "\tequal" }
      line ~ / != / { print file "\t" FNR "\tdiffers" }
      line ~ / && / { print file "\t" FNR "\tand" }
      line ~ / \|\| / { print file "\t" FNR "\tor" }
      line ~ /[^a-z_]true[^a-z_]/ { print file "\t" FNR "\ttrue" }
      line ~ /[^a-z_]false[^a-z_]/ { print file "\t" FNR "\tfalse" }
      line ~ /^ +if \(.*\)( |$)/ { print file "\t" FNR "\tnegate" }
      line ~ /^ +[a-z_]+\(.*\);$/ { print file "\t" FNR "\tdrop" }
      line ~ /^ +[a-z_>.\[\]-]+ [+|&-]?= .*;$/ { print file "\t" FNR "\tdrop" }'
  done
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
  sed -E "$2$script" "$1" >"$work/mutant.c"
  ! cmp -s "$1" "$work/mutant.c"
}

# Compiles the mutant as if it were in its file's folder; false: it is no C.
compile() { # folder file
  local options=()
  case $2 in
    *_avx2.c) options=(-mavx2 -mfma -mf16c) ;;
    *_avx512.c) options=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mavx2) ;;
  esac
  [ -e "$1/expat.o" ] || options+=(-DHK_NO_EXPAT)
  # shellcheck disable=SC2046 # several words
  (cd "$(dirname "$2")" && cc -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -I"$root/include" -iquote . -fPIC \
    -fvisibility=hidden -fno-math-errno -pthread -w -O1 -g1 $(sanitizer "$1") "${options[@]}" -c -x c -o "$work/mutant.o" - \
    <"$work/mutant.c" 2>/dev/null)
}
sanitizer() { # folder
  case $1 in
    *-address-undefined) echo "-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all" ;;
    *-thread) echo "-fsanitize=thread -fno-omit-frame-pointer" ;;
  esac
}
link_test() { # folder test
  local object=$1/tests/unit/$2.o extra=()
  [ -e "$object" ] || object=$1/tests/integration/$2.o
  [ "$2" = test_tune ] && extra=("$1"/src/tools/tune/{choices,fit,look,polish,times}.o)
  # shellcheck disable=SC2046
  cc -o "$1/tests/mutant" "$object" "${extra[@]}" "$work/mutant.o" "$1/libsupport.a" "$1/libhocket-internal.a" -pthread \
    $(sanitizer "$1") "${check_libs[@]}" -lm 2>/dev/null
}

# Runs every test once: the lines that it executes, and how long it takes. What was recorded for equal sources is taken again.
declare -A usual=()
record() {
  local folder=$HK_BUILD-coverage key test begin took rc
  key=$(find Makefile src include tests -type f -print0 | sort -z | xargs -0 cat | sha1sum)
  if [ "$key" != "$(cat "$work/lines/key" 2>/dev/null)" ]; then
    build "$folder" CFLAGS="-O1 -g1 -w --coverage -fprofile-update=atomic" LDFLAGS=--coverage
    rm -f "$work"/lines/* && mkdir -p "$work/lines"
    echo "$key" >"$work/lines/key"
  fi
  for test in $(cd tests && find unit integration -name 'test_*.c' | sed 's,.*/,,;s/\.c$//' | sort | grep -E "$TESTS"); do
    [[ $test == test_gpu* || $test == test_cuda* ]] && [[ $FILES != *gpu* ]] && continue
    if [ ! -e "$work/lines/$test.s" ]; then
      find "$folder" -name '*.gcda' -delete
      begin=$SECONDS
      timeout -k 5 "$LONGEST" "$folder/tests/$test" >/dev/null 2>&1 </dev/null
      echo "$((SECONDS - begin + 1)) $?" >"$work/lines/$test.s"
      find "$folder/src" -name '*.gcda' -print0 | xargs -0 -r gcov -t 2>/dev/null |
        awk -F: '$2 == "    0" && $3 == "Source" { file = $4 } $1 ~ /[0-9]/ && file ~ /\.c$/ { print file ":" $2 + 0 }' |
        sort -u >"$work/lines/$test"
    fi
    read -r took rc <"$work/lines/$test.s"
    case $rc in
      0) usual[$test]=$took ;;
      124 | 137) usual[$test]=$((2 * LONGEST)) ;; # it executed what was not recorded
      *) echo "$test fails without a mutation: left out" ;;
    esac
  done
}

# The tests for a place: quick ones first.
order() { # file line
  local stem like part test
  part=$(cut -d / -f 2 <<<"$1")
  stem=$(basename "$1" .c)
  like="test_.*(${stem%%_*}|$stem"
  case $part in
    program) like+="|verify|program|json|layout" ;;
    collectives) like+="|algorithms|select|model|choice|overrides" ;;
    kernels) like+="|reduce|exec|collectives" ;;
    transport) like+="|link|shm|net|ib" ;;
    topo) like+="|topo|paths|search|synth|detect|join" ;;
    sim) like+="|sim" ;;
    boot) like+="|boot|ask|faults" ;;
    runtime) like+="|api|faults|story|comm|collectives|life" ;;
  esac
  like+=")"
  for test in "${!usual[@]}"; do
    if [[ $test =~ $like ]]; then
      echo "$((usual[$test])) $test"
    elif grep -qxF -e "$1:$2" -e "$1:$(($2 - 1))" -e "$1:$(($2 - 2))" "$work/lines/$test"; then # a part of a longer statement, too
      echo "$((usual[$test] + 1)) $test"
    fi
  done | sort -n | cut -d ' ' -f 2
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
  local folder=$1 test limit rc factor=2 hangs=0
  [ "$folder" = "$HK_BUILD" ] || factor=6
  for test in "${@:2}"; do
    [ "${sound[$folder/$test]:-}" = no ] && continue
    link_test "$folder" "$test" || continue
    limit=$((factor * usual[$test] + hang_s))
    until_failure "$limit" "$folder/tests/mutant"
    rc=$?
    [ $rc = 0 ] && continue
    is_sound "$folder" "$test" $((3 * limit)) || continue
    by=$test
    [ "$folder" = "$HK_BUILD" ] || by+=" (${folder#"$HK_BUILD"-})"
    if [ $rc != 124 ] && [ $rc != 137 ]; then
      how=noticed
      return 0
    fi
    how=hang
    [ $((++hangs)) = 2 ] && return 0
  done
  [ $how = hang ]
}

root=$PWD
read -ra check_libs <<<"$(pkg-config --libs check)"
builds=("$HK_BUILD")
[ "$SANITIZE" = 1 ] && { builds+=("$HK_BUILD-address-undefined"); build "${builds[1]}" SAN=address,undefined; }
[ "$SANITIZE" = thread ] && { builds=("$HK_BUILD-thread"); build "${builds[0]}" SAN=thread; }
echo "SEED=$SEED, $MINUTES minutes; results in build/mutations/results"
record
candidates | awk -v seed="$SEED" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -k 1,1 | cut -f 2- >"$work/places"
[ -s "$work/places" ] || { echo "no source fits FILES=$FILES"; exit 1; }

end=$((SECONDS + MINUTES * 60))
while IFS=$'\t' read -r file at operator <&3; do
  [ $SECONDS -lt $end ] || break
  mutant "$file" "$at" "$operator" || continue
  how=SURVIVED by="no test" begin=$SECONDS
  mapfile -t tests < <(order "$file" "$at")
  for each in "${builds[@]}"; do
    compile "$each" "$file" || { how=""; break; }
    run_tests "$each" "${tests[@]}" && break
  done
  [ -n "$how" ] && printf '%-8s  %s:%s  %s  [%s, %d s]\n' "$how" "$file" "$at" "$(sed -n "${at}s/^ *//p" "$work/mutant.c")" "$by" \
    $((SECONDS - begin)) | tee -a "$results"
done 3<"$work/places"

count() { grep -c "^$1" "$results"; }
all=$(grep -c . "$results") noticed=$(count noticed) hangs=$(count hang) survived=$(count SURVIVED)
echo
echo "SEED=$SEED: $all mutants, $noticed noticed, $hangs noticed as a hang only, $survived survived"
