#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mutations.sh: breaks the code in random places, one at a time, and reports whether the unit tests notice. A mutant that no test
# notices shows a missing test, or code that makes no difference. `make mutations` runs it.
#
#   SEED=number      which mutants (default: a new number each time; it is printed)
#   MINUTES=number   for how long mutants are tried (default 30); MOST=number: how many; SKIP=number: after so many places of the seed's,
#                    so that a long run can be cut into short ones
#   FILES=pattern    only places whose "path:line:" matches this (an extended regular expression); src/kernels/cuda: the mutations
#                    of tests/suites/gpu_mutations.sh
#   TESTS=pattern    only unit tests whose names match this (an extended regular expression)
#   LONGEST=number   tests that take more seconds (default 60) are left out, under sanitizers those that take a quarter of it
#   EACH=number      tests that take so many seconds together (default 60) are tried for a mutant, under a sanitizer a quarter of it
#   SANITIZE=0       without the build under ASan and UBSan, which sees what a plain build hides
#   SANITIZE=thread  weakens memory orders only, and runs the tests under TSan: without it no x86 machine shows a difference
#   JOBS=number      mutants at a time (default: as many as the machine has cores)
#   RECORD=0         each test that fits TESTS runs for each place: no build that records lines
#
# First all tests run once with a library that records which lines each of them executes; later runs repeat this only for tests that
# execute a source that has changed. A mutant is one changed object in front of the library's archive; one whose code is as before is
# no mutant. It runs against the tests that execute the line, quick ones first, and those that noticed others in the file; then
# against the suites whose line "check:" has covers=PATH,PATH, if the file's path begins with one. The first failure ends it. A test of
# which no case ends for a time is killed: that is a hang. Then one more test is tried, because a failure says more. Results are
# lines of build/mutations/results: noticed, hang, SLOW (a hang of more than 20 s), SURVIVED or equal (scripts/mutations.txt says
# why the change makes no difference), the place, the change, the test and the seconds until then.
# Each test runs in scripts/contain.c, so that no process of a broken one is left over.
set -u
cd "$(dirname "$0")/.." || exit 1
SEED=${SEED:-$RANDOM} MINUTES=${MINUTES:-30} MOST=${MOST:-100000} SKIP=${SKIP:-0} FILES=${FILES:-} TESTS=${TESTS:-.} LONGEST=${LONGEST:-60} EACH=${EACH:-60} SANITIZE=${SANITIZE:-1}
JOBS=${JOBS:-$(nproc)} RECORD=${RECORD:-1} base=${HK_MUTATIONS:-$PWD/build/mutations}
make=${HK_MAKE:-make}
export HK_BUILD=${HK_BUILD:-build/gcc} # suites read it
results=$base/results
hang_s=15 # a test case, or a whole test that takes so much longer than without a mutation, hangs
equals=scripts/mutations.txt
mkdir -p "$base/lines" && : >"$results" && : >>"$base/kills"
# With the watchdog, what is stuck in an operation is an error and no hang.
# Memory that is not initialised is not zero by chance: in the mutant's own frames neither (compile).
export MALLOC_PERTURB_=165
export HOCKET_WATCHDOG=8 HOCKET_WATCHDOG_ABORT=1 HOCKET_DEVICE=host NCCL_DEBUG=NONE CK_VERBOSITY=silent CK_DEFAULT_TIMEOUT=120
build() { # folder target make-options...
  "$make" --no-print-directory -j"$(nproc)" BUILD="$1" "${@:2}" >"$base/build.log" 2>&1 && return
  echo "$1 does not build:"
  tail -n 5 "$base/build.log"
  exit 1
}
build "$HK_BUILD" test-parts perf tool python "$HK_BUILD"/faults/{rank,libfail.so}
case $FILES in src/kernels/cuda*)
  MUTATIONS=all HK_BUILD=$HK_BUILD exec tests/suites/gpu_mutations.sh ;;
esac

# "file<TAB>line<TAB>name of the operator" for every place that can be changed. The operators are in mutant().
mapfile -t sources < <(find src \( -path src/perf -o -path src/tools \) -prune -o -name '*.c' -print | sort)
candidates() {
  printf '%s\n' "${sources[@]}" |
    xargs awk -v orders="$([ "$SANITIZE" = thread ] && echo 1)" '
      function add(operator) { held = held FILENAME "\t" FNR "\t" operator "\n" }
      # A line whose next one reports that memory is short makes no difference while there is memory.
      { if (!/no memory|fault_memory/) printf "%s", held; held = "" }
      # What follows this label matters only while memory is short.
      /^}/ { short = 0 }
      short || /^no_memory:/ { short = 1; next }
      text { text = !/;$/; next } # the rest of a message
      /HK_(TRACE|INFO|WARN|FAIL)|snprintf/ { text = !/;( *\/\*.*)?$/; next }
      /^ *(\/\*|\*|\/\/|#)/ || /^[^ ]/ || /no memory|fault_memory|_Static_assert|case HK_/ { next }
      { line = $0; sub(/ *\/\*.*/, "", line); gsub(/"[^"]*"/, "\"\"", line) }
      # What is left out costs only time: a nap, a yield, what is prefetched, that something moved and so no nap is due.
      / nanosleep\(|sched_yield\(|prefetch|hk_fetch_for_writing|hk_link_(warm|expect)|^ *\*moved = true;/ { next }
      # glibc keeps nothing for a mutex or a condition, and without attributes one is all zeros: those in objects are in memory of calloc.
      / pthread_(mutex|cond)_(destroy\(|init\(.*, NULL\))/ { next }
      # What this processor has: no test makes another one of it.
      /__builtin_cpu_supports/ { next }
      # What is returned if memory is short.
      allocates && /^ *if \(![a-z_>.-]+\) return (true|false);/ { sub(/ (true|false);/, " it;", line) }
      { allocates = /alloc\(|strdup\(/ }
      # To restore errno matters only if the close or free before it failed.
      /^ *errno = [a-z]+;/ { next }
      # No descriptor is 0, and errno says nothing after a call that gave 0.
      { gsub(/(fds?|socket|spare)(\[[a-z]+\])? (<|>=) 0/, "", line); if (line ~ /errno/) gsub(/ < 0/, "", line) }
      # An order of two that differ.
      line ~ /if \(.* != .*\) return .* [<>] |return \(x > y\) - \(x < y\);/ { gsub(/ [<>] /, " ", line) }
      # No rank is its own peer.
      { sub(/rank [<>] (c->)?peer/, "peer", line) }
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
      line ~ /^ +if \(.*\)( |$)/ && line !~ /[<>=&|+-]$/ { add("negate") } # not a half of a condition
      line ~ /^ +[a-z_]+\(.*\);$/ { add("drop") }
      line ~ /^ +[a-z_>.\[\]-]+ [+|&-]?= .*;$/ { add("drop") }
      END { printf "%s", held }'
}

# Writes the mutant's source next to the copied tree; false if nothing changed.
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
  [[ $3 =~ ^(less|most|more|least)$ ]] &&
    script="/[ (]([^&|( ][^&|]*) [<>]=? ([^&|( ][^&|]*)(\\) (\\2 = \\1|\\1 = \\2);| \\? (\\1 : \\2|\\2 : \\1)[^a-z0-9_.>[-])/! $script"
  sed -E "$2{$script}" "$1" >"$work/mutant.c"
  ! cmp -s "$1" "$work/mutant.c"
}

# Compiles a source, or the mutant, as if it were in its file's folder; false: it is no C.
compile() { # folder file source object options...
  local options=()
  case $2 in
    *_avx2.c) options=(-mavx2 -mfma -mf16c) ;;
    *_avx512.c) options=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mavx2) ;;
  esac
  # shellcheck disable=SC2046 # several words
  (cd "$(dirname "$2")" && cc -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -I"$root/include" -iquote . -fPIC \
    -fvisibility=hidden -fno-math-errno -ftrivial-auto-var-init=pattern -pthread -w "${@:5}" $(sanitizer "$1") "${options[@]}" -c -x c -o "$4" - 2>/dev/null) <"$3"
}
# Equal code: the compiler has proved that the change makes no difference.
is_equal() { # file
  compile "$HK_BUILD" "$1" "$1" "$work/same.o" -O2 && compile "$HK_BUILD" "$1" "$work/mutant.c" "$work/equal.o" -O2 &&
    cmp -s "$work/same.o" "$work/equal.o"
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
linker=() # gold takes half of the time
command -v ld.gold >/dev/null && linker=(-fuse-ld=gold)
link_test() { # folder test program library options...
  local object=$1/tests/unit/$2.o extra=()
  [ -e "$object" ] || object=$1/tests/integration/$2.o
  [ "$2" = test_tune ] && extra=("$1/src/tools/tune/fit.o")
  # shellcheck disable=SC2046
  cc "${linker[@]}" -o "$3" "$object" "${extra[@]}" "${@:5}" "$1/libsupport.a" "$4" -Wl,--strip-debug,--wrap=pthread_mutex_unlock,--wrap=_mark_point \
    "$base/locked.o" -pthread $(sanitizer "$1") "${check_libs[@]}" -lm 2>/dev/null
}

cc -O1 -o "$base/contain" scripts/contain.c || exit 1
# Prints the longest time in which no test case ended; its exit code is that of scripts/contain.c.
contain() { # tap silence limit program
  rm -f "$1"
  CK_TAP_LOG_FILE_NAME=$1 "$base/contain" "$@" 3>&1 >/dev/null 2>&1 </dev/null
}

# Runs every test once: the lines that it executes, its milliseconds, its exit code. Only the library records. What was recorded is
# taken again if all the files that the test executed are as they were.
#
# At the start of each basic block the library calls a function, which sets the block's byte of a file. So what children do counts,
# too, however they end. The library is one object here: a block is at the same distance from its begin in every test.
declare -A usual=() pause=()
recorder() { # folder
  printf '.text\n.globl hk_begin\n.hidden hk_begin\nhk_begin:\n.section .note.GNU-stack\n' | cc -x assembler -c -o "$base/begin.o" -
  cc -r -nostdlib -o "$base/whole.o" "$base/begin.o" -Wl,--whole-archive "$1/libhocket-internal.a" -Wl,--no-whole-archive || exit 1
  cc -x c -O2 -c -o "$base/recorder.o" - <<'C'
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
extern __attribute__((visibility("hidden"))) char hk_begin[];
static char *seen;
static size_t bytes;
__attribute__((constructor(101))) static void open_record(void) {
  const char *path = getenv("HK_RECORD");
  struct stat st;
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0 || fstat(fd, &st)) return;
  bytes = (size_t)st.st_size;
  char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) seen = at;
  close(fd);
}
void __sanitizer_cov_trace_pc(void) {
  size_t at = (size_t)((char *)__builtin_return_address(0) - hk_begin);
  if (seen && at < bytes && !seen[at]) seen[at] = 1;
}
C
  text_bytes=$(readelf -SW "$base/whole.o" | sed -n 's/^ *\[ *[0-9]*\] \.text  *PROGBITS  *[0-9a-f]* [0-9a-f]* \([0-9a-f]*\) .*/0x\1/p')
  # "number of the block's byte  file:line": a row of the line table belongs to the last block that begins before it. The byte is that
  # of the address to which the call returns, 4 after its operand. The call begins a byte before its operand.
  { objdump -r -j .text "$base/whole.o" | awk '$3 ~ /__sanitizer_cov_trace_pc/ { print $1 }'
    readelf -W --debug-dump=decodedline "$base/whole.o" 2>/dev/null |
      awk 'sub(/:(\[\+\+\])?$/, "") { file = $NF; sub(/^\.\//, "", file); next }
        file ~ /^src\/.*\.c$/ && NF > 2 && $2 ~ /^[0-9]+$/ { print substr($3, $3 ~ /^0x/ ? 3 : 1), file ":" $2 }'
  } | awk 'function value(hex, n, i) { for (i = 1; i <= length(hex); i++) n = 16 * n + index("123456789abcdef", substr(hex, i, 1)); return n }
      { print value($1) - (NF == 1), NF, $2 }' | sort -k 1,1n -k 2,2n |
    awk '$2 == 1 { block = $1 + 5; next } { print block, $3 }' | uniq >"$base/blocks"
}
record_test() { # test
  local lines=$base/lines/$1 program=$HK_BUILD/tests/mutant-$$-$1 begin rc silence
  rm -f "$lines" "$lines.ms" "$lines.key"
  link_test "$HK_BUILD" "$1" "$program" "$base/whole.o" "$base/recorder.o" || return
  rm -f "$lines.seen" && truncate -s "$((text_bytes))" "$lines.seen"
  begin=${EPOCHREALTIME/./}
  silence=$(HK_RECORD=$lines.seen CK_TIMEOUT_MULTIPLIER=4 contain "$lines.tap" "$LONGEST" "$LONGEST" "$program")
  rc=$?
  if [ $rc = 124 ]; then # recording takes long: what it takes without
    link_test "$HK_BUILD" "$1" "$program" "$HK_BUILD/libhocket-internal.a" || return
    begin=${EPOCHREALTIME/./}
    silence=$(contain "$lines.tap" "$LONGEST" "$LONGEST" "$program")
    rc=$?
  fi
  echo "$(((${EPOCHREALTIME/./} - begin) / 1000)) $rc $silence" >"$lines.ms"
  cmp -l "$lines.seen" /dev/zero 2>/dev/null |
    awk 'NR == FNR { seen[$1 - 1]; next } $1 in seen { print $2 }' - "$base/blocks" | sort -u >"$lines"
  rm -f "$lines.seen" "$lines.tap" "$program"
  case $rc in 0 | 124) key_of "$1" >"$lines.key" ;; esac # a failure may be the machine's
}
# What a record depends on: the test, and the sources that it executed.
key_of() { # test
  { ls -d "tests"/*/"$1.c" && cut -d : -f 1 "$base/lines/$1" | uniq; } 2>/dev/null | xargs cat 2>/dev/null | sha1sum
}
record() {
  local folder=$HK_BUILD-coverage test took rc silence tests text_bytes
  mapfile -t tests < <(cd tests && find unit integration -name 'test_*.c' | sed 's,.*/,,;s/\.c$//' | sort | grep -E "$TESTS")
  if [ "$RECORD" = 0 ]; then
    for test in "${tests[@]}"; do usual[$test]=$((LONGEST * 100)) pause[$test]=0; done
    return
  fi
  build "$folder" "$folder/libhocket-internal.a" CFLAGS="-O1 -g1 -w -fsanitize-coverage=trace-pc"
  recorder "$folder"
  for test in "${tests[@]}"; do
    [ "$(key_of "$test")" = "$(cat "$base/lines/$test.key" 2>/dev/null)" ] && continue
    record_test "$test" &
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
  done
  wait
  for test in "${tests[@]}"; do
    [ -e "$base/lines/$test.ms" ] || { echo "$test cannot be linked to the library as one object: left out"; continue; }
    read -r took rc silence <"$base/lines/$test.ms"
    case $rc in
      0) usual[$test]=$took pause[$test]=$silence ;;
      124) echo "$test takes more than $LONGEST s: left out" ;;
      *) echo "$test fails without a mutation: left out" ;;
    esac
  done
}

# The lines whose tests execute this line, or the statement that it is part of. Code of a macro is executed where the macro is used.
lines_of() { # file line
  local name
  name=$(awk -v at="$2" '/^#define [A-Za-z_]+\(.*\\$/ { name = $2; sub(/\(.*/, "", name) } NR == at { print name; exit } !/\\$/ { name = "" }' "$1")
  if [ -n "$name" ]; then
    grep -n "\b$name(" "$1" | sed "/:#define/d; s,^\([0-9]*\):.*,$1:\1,"
  else
    printf '%s\n' "$1:$2" "$1:$(($2 - 1))" "$1:$(($2 - 2))"
  fi
}

# The tests that execute a place: quick ones first, and those that are named after the file or noticed a mutant of it. Tests of
# GPUs, which are slow without one, come last for other parts than GPUs', but for three: some lines matter on GPUs only.
order() { # file line
  local test
  { if [ "$RECORD" = 0 ]; then printf '%s\n' "${!usual[@]}"
    else # or a longer statement; what has no code of its own, as a declaration, counts as the code that follows, or as what is near
      { grep -lxFf <(lines_of "$1" "$2") "$base"/lines/test_* ||
        grep -lxF -e "$1:$(($2 + 1))" -e "$1:$(($2 + 2))" "$base"/lines/test_* ||
        grep -lxFf <(seq -f "$1:%.0f" $(($2 > 9 ? $2 - 9 : 1)) $(($2 + 9))) "$base"/lines/test_*; } | sed 's,.*/,,'
    fi
  } | while read -r test; do [ -n "${usual[$test]:-}" ] && echo "${usual[$test]} $test"; done |
    awk -v file="$1" -v name="$(basename "$1" .c)" 'old { n[$2] += $1 == file; next }
      { print $1 / (1 + 4 * (n[$2] + !!index($2, name))), $2 }' old=1 "$base/kills" old=0 - | sort -n |
    awk -v late="$([[ $1 =~ ^src/(gpu|device|transport/cuda)/ ]] || echo 1)" '
      late && $2 ~ /^test_(gpu|cuda)/ { if (++gpus <= 3) first = first $2 "\n"; else gpu = gpu $2 "\n"; next }
      { print $2 } ++others == 10 { printf "%s", first; first = "" } END { printf "%s%s", first, gpu }'
}

# Runs a test program until its first failure. Sets `silent`: the milliseconds in which no test case ended.
until_failure() { # folder test program
  local factor=3 longest limit
  [ "$1" = "$HK_BUILD" ] || factor=8
  longest=$((2 * pause[$2] / 1000)) limit=$((factor * usual[$2] / 1000 + hang_s))
  silent=$(contain "$work/tap" $((longest > hang_s ? longest : hang_s)) $limit "$3")
}

# Does the test pass without a mutation? Asked when it notices its first one.
declare -A sound=()
is_sound() { # folder test
  local silent
  if [ -z "${sound[$1/$2]:-}" ]; then
    sound[$1/$2]=no
    link_test "$1" "$2" "$program.sound" "$1/libhocket-internal.a"
    until_failure "$1" "$2" "$program.sound" || until_failure "$1" "$2" "$program.sound" && sound[$1/$2]=yes
    rm -f "$program.sound"
    [ "${sound[$1/$2]}" = no ] && echo "$2 fails without a mutation ($1): left out"
  fi
  [ "${sound[$1/$2]}" = yes ]
}

# Runs the tests of a build until one fails, or two hang. Sets `how` and `by`.
run_tests() { # folder tests...
  local folder=$1 program=$1/tests/mutant-$$-$job test rc hung='' silent left=$((EACH * 1000)) suffix=''
  [ "$folder" = "$HK_BUILD" ] || left=$((left / 4)) suffix=" (${folder#"$HK_BUILD"-})"
  for test in "${@:2}"; do
    [ -n "$suffix" ] && [ "${usual[$test]}" -gt $((LONGEST * 250)) ] && continue
    [ "${sound[$folder/$test]:-}" = no ] && continue
    [ $left -gt 0 ] || break
    left=$((left - usual[$test]))
    link_test "$folder" "$test" "$program" "$folder/libhocket-internal.a" "$work/mutant.o" || continue
    until_failure "$folder" "$test" "$program"
    rc=$?
    [ $rc != 0 ] && is_sound "$folder" "$test" || continue
    # What the machine's load may do is not noticed: it must come twice.
    [ $rc != 124 ] && { until_failure "$folder" "$test" "$program"; rc=$?; }
    case $rc in
      0) continue ;;
      124) [ -n "$hung" ] && break || { hung=$test && cp "$program" "$program.hung" && how=$(hang_of) by=$test$suffix; } ;;
      *) how=noticed by=$test$suffix; return 0 ;;
    esac
  done
  [ -n "$hung" ] || return 1
  [ $rc = 124 ] && [ "$hung" != "$test" ] && return 0
  until_failure "$folder" "$hung" "$program.hung" && how=SURVIVED by="no test"
  [ "$how" != SURVIVED ]
}
hang_of() { [ "$silent" -gt 20999 ] && echo SLOW || echo hang; }

# Links the library and the command hocket with the mutant, for suites.
link_tree() { # folder file
  local source objects=()
  mkdir -p "$1/lib" && cp -al "$HK_BUILD"/{bin,plugins,fakes,cudaemu,faults,helpers,python} "$1" &&
    rm "$1/bin/hocket" "$1/python/hocket/lib/libhocket.so" || return 1
  for source in "${sources[@]}"; do [ "$source" = "$2" ] || objects+=("$HK_BUILD/${source%.c}.o"); done
  cc "${linker[@]}" -shared -Wl,-soname,libnccl.so.2 -Wl,-z,nodelete -Wl,--version-script=src/libnccl.map -o "$1/lib/libnccl.so.2" \
    "${objects[@]}" "$work/mutant.o" -pthread -lm && ln "$1/lib/libnccl.so.2" "$1/python/hocket/lib/libhocket.so" &&
    cc "${linker[@]}" -o "$1/bin/hocket" "$HK_BUILD"/src/tools/*.o "$HK_BUILD"/src/tools/*/*.o "$work/mutant.o" \
      "$HK_BUILD/libhocket-internal.a" -pthread -lm
}

# Suites set the watchdog and the log by themselves.
suite_passes() ( # folder suite
  unset NCCL_DEBUG HOCKET_WATCHDOG HOCKET_WATCHDOG_ABORT HOCKET_DEVICE
  HK_BUILD=$1 contain "$work/tap" 300 300 "$2" >/dev/null
)

# Runs the suites that cover the file, with a library that has the mutant.
run_suites() { # file
  local suite paths path covers tree=build/mutant-$$-$job
  for suite in tests/suites/*.sh; do
    paths=$(sed -n '10q;s/^# check:.* covers=\([^ ]*\).*/\1/p' "$suite") covers=''
    for path in ${paths//,/ }; do [[ $1 == "$path"* ]] && covers=yes; done
    [ -n "$covers" ] && [ "${sound[$suite]:-}" != no ] || continue
    [ -e "$tree" ] || link_tree "$tree" "$1" || break
    suite_passes "$tree" "$suite" && continue
    [ "${sound[$suite]:-}" = yes ] || { suite_passes "$HK_BUILD" "$suite" && sound[$suite]=yes || sound[$suite]=no; }
    [ "${sound[$suite]}" = yes ] || { echo "$suite fails without a mutation: left out"; continue; }
    how=noticed by=$(basename "$suite")
    break
  done
  rm -rf "$tree"
}

# Is there an argument that this change makes no difference?
is_listed() { # file line operator
  grep -qF -- "$1: $3: $(sed -n "$2s/^ *//p" "$1")    " "$equals"
}
# A line of the list whose code is no longer there.
grep -v '^#' "$equals" | while IFS= read -r line; do
  code=${line#*: *: }
  grep -qF -- "${code%%    *}" "${line%%:*}" || echo "$equals: this code is no longer there: $line"
done

# Who ends this ends the tests under way, too: scripts/contain.c sees that its shell has ended.
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$HK_BUILD"*/tests/mutant-$$-* build/mutant-$$-*' EXIT
trap 'exit 143' INT TERM HUP

root=$PWD
read -ra check_libs <<<"$(pkg-config --libs check)"
builds=("$HK_BUILD")
# With the flags of `make check`: it builds the same.
[ "$SANITIZE" = 1 ] && { builds+=("$HK_BUILD-address-undefined"); build "${builds[1]}" test-parts SAN=address,undefined CFLAGS="-O1 -g1"; }
[ "$SANITIZE" = thread ] && { builds=("$HK_BUILD-thread"); build "${builds[0]}" test-parts SAN=thread CFLAGS="-O1 -g1"; }
echo "SEED=$SEED, $MINUTES minutes; results in $results"
record
candidates | awk -v seed="$SEED" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -k 1,1 | cut -f 2- |
  awk -F '\t' -v only="$FILES" '$1 ":" $2 ":" ~ only' | tail -n +$((SKIP + 1)) | head -n "$MOST" >"$base/places"
[ -s "$base/places" ] || { echo "no source fits FILES=$FILES"; exit 1; }

# Tries every JOBSth place.
try_places() { # number
  local job=$1 n=0 file at operator begin tests each how by
  work=$base/job$1 && mkdir -p "$work"
  while IFS=$'\t' read -r file at operator <&3 && [ $SECONDS -lt $end ] && [ -e /proc/$$ ]; do
    [ $((n++ % JOBS)) = "$1" ] && mutant "$file" "$at" "$operator" || continue
    how=SURVIVED by="no test" begin=$SECONDS
    mapfile -t tests < <(order "$file" "$at")
    [ ${#tests[@]} -gt 0 ] || by="no test executes it"
    is_equal "$file" && continue
    is_listed "$file" "$at" "$operator" && how=equal by="$equals"
    for each in "${builds[@]}"; do
      [ "$how" = equal ] && break
      compile "$each" "$file" "$work/mutant.c" "$work/mutant.o" -O1 -g1 || { how=""; break; }
      run_tests "$each" "${tests[@]}" && break
      [ "$each" = "$HK_BUILD" ] && [ "$how" = SURVIVED ] && run_suites "$file" && [ "$how" = noticed ] && break
    done
    [ -n "$how" ] && printf '%-8s  %s:%s  %s  [%s, %d s]\n' "$how" "$file" "$at" "$(sed -n "${at}s/^ *//p" "$work/mutant.c")" \
      "$by" $((SECONDS - begin)) | tee -a "$results"
    [ "$how" = noticed ] && echo "$file ${by%% *}" >>"$base/kills"
  done 3<"$base/places"
  echo $n >"$work/tried"
}

rm -f "$base"/job*/tried
end=$((SECONDS + MINUTES * 60))
for ((job = 0; job < JOBS; job++)); do try_places $job & done
wait

count() { grep -c "^$1 " "$results"; }
share() { echo "$1 ($(((100 * $1 + all / 2) / (all > 0 ? all : 1)))%)"; }
all=$(grep -vc '^equal ' "$results") survived=$(count SURVIVED)
echo
echo "SEED=$SEED: $all mutants, noticed $(share $((all - survived))): by a failure $(share "$(count noticed)"), by a hang of at most 20 s" \
  "$(share "$(count hang)"), by a longer hang $(share "$(count SLOW)"); survived $(share "$survived"); equal by argument, not counted: $(count equal); the next places: SKIP=$((SKIP + $(sort -n "$base"/job*/tried | tail -n 1)))"
