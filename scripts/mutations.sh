#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mutations.sh: breaks the CPU code in random places, one at a time, and reports whether the unit tests notice.  A mutant that no
# test notices shows a missing test, or code that makes no difference.  `make mutations` runs it.
#
#   SEED=number      which mutants (default: a new number each time; it is printed)
#   MINUTES=number   for how long (default 30)
#   FILES=pattern    only sources whose path contains this
#   TESTS=pattern    only unit tests whose names match this (an extended regular expression)
#   SANITIZE=0       without the build under ASan and UBSan, which sees what a plain build hides
#
# Each mutant is made in a copy of the tree below build/mutations.  The tests whose names fit the file run first; the first failure
# ends the mutant.  A mutant that only a killed test notices counts as a hang.  Results are lines of build/mutations/results:
# noticed, hang or SURVIVED, the place, the change, and the test.
set -u
cd "$(dirname "$0")/.." || exit 1
SEED=${SEED:-$RANDOM} MINUTES=${MINUTES:-30} FILES=${FILES:-} TESTS=${TESTS:-.} SANITIZE=${SANITIZE:-1}
make=${HK_MAKE:-make}
tree=build/mutations/tree results=$PWD/build/mutations/results
hang_s=20 # a test that takes so much longer than without a mutation hangs
end=$((SECONDS + MINUTES * 60))
rm -rf "$tree" && mkdir -p "$tree" build/mutations && : >"$results"
cp -r Makefile src include tests scripts examples "$tree"
export HOCKET_DEVICE=host NCCL_DEBUG=NONE CK_VERBOSITY=silent CK_DEFAULT_TIMEOUT=300

# "file<TAB>line<TAB>number of the operator" for every place that can be changed.  The operators are in mutate().
candidates() {
  (cd "$tree" && find src/base src/program src/collectives src/kernels src/transport src/topo src/sim src/runtime src/boot \
    -name '*.c' -path "*$FILES*" 2>/dev/null | grep -v 'gpu_\|/cuda\|_abi' | sort | while IFS= read -r file; do
    awk -v file="$file" '
      /^ *(\/\*|\*|\/\/|#)/ || /^[^ ]/ || /HK_(INFO|WARN|LOG|FAIL)|_Static_assert|snprintf|case HK_/ { next }
      { line = $0; sub(/ *\/\*.*/, "", line); gsub(/"[^"]*"/, "\"\"", line) }
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
      line ~ /^ +[a-z_>.\[\]-]+ [+|&-]?= .*;$/ { print file "\t" FNR "\tdrop" }
      line ~ /memory_order_(release|acquire)/ { print file "\t" FNR "\trelax" }' "$file"
  done)
}

mutate() { # file line operator: changes the copy; false if nothing changed
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
  sed -E -i "$2$script" "$tree/$1"
  ! cmp -s "$1" "$tree/$1"
}

# The unit tests, those that fit the file first.  After them the quick ones, by the size of their source.
order() { # file
  local part stem
  part=$(cut -d / -f 2 <<<"$1")
  stem=$(basename "$1" .c)
  local like="test_.*(${stem%%_*}|$stem"
  case $part in
    program) like+="|verify|program|json|layout" ;;
    collectives) like+="|algorithms|select|model|choice|overrides" ;;
    kernels) like+="|reduce|exec|collectives" ;;
    transport) like+="|link|shm|net|ib" ;;
    topo) like+="|topo|paths|search|synth|detect|join" ;;
    sim) like+="|sim" ;;
    runtime | boot) like+="|api|faults|story|boot|comm|collectives" ;;
  esac
  like+=")"
  (cd "$tree/tests" && ls -Sr unit/test_*.c integration/test_*.c) | sed "s,.*/,," | sed 's/\.c$//' | grep -v 'gpu\|cuda\|fuzz_detect' | grep -E "$TESTS" >build/mutations/all
  grep -E "$like" build/mutations/all
  grep -vE "$like" build/mutations/all
}

# How long each test takes without a mutation.
declare -A usual=()
base_times() { # folder
  local test begin
  for test in $(order src/base/x.c); do
    [ -x "$tree/$1/tests/$test" ] || continue
    begin=$SECONDS
    (cd "$tree" && timeout 300 "$1/tests/$test" >/dev/null 2>&1 </dev/null) || { echo "$test fails without a mutation ($1): left out"; continue; }
    usual[$1/$test]=$((SECONDS - begin + 1))
  done
}

# Runs the tests of a build until one fails.  Sets `how` and `by`.
run_tests() { # folder file
  local test limit rc
  how=SURVIVED by="no test"
  for test in $(order "$2"); do
    [ -n "${usual[$1/$test]:-}" ] || continue
    limit=$((2 * ${usual[$1/$test]} + hang_s))
    (cd "$tree" && timeout -k 5 "$limit" "$1/tests/$test" >/dev/null 2>&1 </dev/null)
    rc=$?
    [ $rc = 0 ] && continue
    how=noticed by=$test
    { [ $rc = 124 ] || [ $rc = 137 ]; } && how=hang
    return 0
  done
  return 1
}

builds=(build/gcc)
[ "$SANITIZE" = 0 ] || builds+=(build/gcc-address-undefined)
build() { # folder
  local san=
  case $1 in *-address-undefined) san=address,undefined ;; *-thread) san=thread ;; esac
  (cd "$tree" && timeout 600 "$make" --no-print-directory -j"$(nproc)" SAN=$san CFLAGS="-O1 -g1 -w" tests) >build/mutations/build.log 2>&1
}

echo "SEED=$SEED, $MINUTES minutes; results in build/mutations/results"
for each in "${builds[@]}"; do
  build "$each" || { echo "the copy does not build:"; tail -n 5 build/mutations/build.log; exit 1; }
  base_times "$each"
done
candidates | awk -v seed="$SEED" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -k 1,1 | cut -f 2- >build/mutations/places
[ -s build/mutations/places ] || { echo "no source fits FILES=$FILES"; exit 1; }

while IFS=$'\t' read -r file at operator; do
  [ $SECONDS -lt $end ] || break
  mutate "$file" "$at" "$operator" || continue
  how=SURVIVED by="no test"
  for each in "${builds[@]}"; do
    build "$each" || { how=""; break; } # no C any more
    run_tests "$each" "$file" && { [ "$each" = build/gcc ] || by+=" (${each#build/gcc-})"; break; }
  done
  if [ -n "$how" ]; then
    printf '%-8s  %s:%s  %s  [%s]\n' "$how" "$file" "$at" "$(sed -n "${at}s/^ *//p" "$tree/$file")" "$by" | tee -a "$results"
  fi
  cp "$file" "$tree/$file"
done <build/mutations/places

count() { grep -c "^$1" "$results"; }
all=$(grep -c . "$results") noticed=$(count noticed) hangs=$(count hang) survived=$(count SURVIVED)
echo
echo "SEED=$SEED: $all mutants, $noticed noticed, $hangs noticed as a hang only, $survived survived"
