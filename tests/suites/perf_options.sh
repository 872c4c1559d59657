#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The perf binaries' command line: an error is reported on stderr with exit code 255, and nothing runs.
set -u
perf=$HK_BUILD/bin/all_reduce_perf
. tests/support/suite.sh
[ -x "$perf" ] || { echo "the perf binaries are not built"; exit 77; }

refused() { # text arguments...
  local code
  cases=$((cases + 1))
  timeout 20 "$perf" "${@:2}" >"$tmp/out" 2>"$tmp/err"
  code=$?
  [ $code = 255 ] || complain "'${*:2}' ends with code $code instead of 255"
  grep -qF -- "$1" "$tmp/err" || complain "'${*:2}' does not say '$1': $(cat "$tmp/err")"
  ! grep -q 'Avg bus' "$tmp/out" || complain "'${*:2}' ran all the same"
}
refused "invalid option '-Q'" -Q
refused "invalid option '--nosuch'" --nosuch 3
refused "option '-e' needs a value" -e
refused "unexpected argument 'extra'" -b 8 extra
refused "invalid size 'x'" -b x
refused "invalid size '-4'" -b -4
refused "invalid size '4Q'" -e 4Q
refused "invalid sizes for 'minbytes' and 'maxbytes': 16 > 8" -b 16 -e 8
refused "a step of 0 bytes" -b 8 -e 16 -i 0
refused "'0' is not an integer from 1" -t 0
refused "'two' is not an integer" -g two
refused "'1.5' is not an integer" -n 1.5
refused "'99999999999' is not an integer" -n 99999999999
refused "from 0 to 3" -a 4
refused "from 0 to 2" -R 3
refused "unknown name 'summ'" -o summ
refused "unknown name 'fp7'" -d fp7
refused "does not end in .json" -J out.txt
refused "ends in neither .svg nor .png" --plot out.pdf
refused "cannot write $tmp/none/a.json" -J "$tmp/none/a.json"
refused "-K goes with -I 1" -K 2
refused "leaves none of 5 iterations" -I 1 -n 5 -K 5
refused "unknown name 'nosuch'" --launcher nosuch
refused "unknown name 'above'" --places above
refused "cannot be captured" -G 1 --rewrite 1
refused "draws both places" --places in --plot out.svg
refused "OMPI_COMM_WORLD_RANK" --launcher ompi
cases=$((cases + 1))
# The program's own name needs an operation's, and so does a copy with a name that is none.
cp "$HK_BUILD/bin/hocket-perf" "$tmp/other"
for name in "$HK_BUILD/bin/hocket-perf" "$tmp/other"; do
  for given in "" nosuch --help; do
    cases=$((cases + 1)) want=255
    [ "$given" != --help ] || want=0
    LD_LIBRARY_PATH=$HK_BUILD/lib "$name" ${given:+"$given"} >"$tmp/out" 2>&1
    [ $? = $want ] && grep -q " all_reduce_perf .* alltoallv_perf$" "$tmp/out" || { echo "$name $given: $(cat "$tmp/out")"; bad=1; }
  done
done
"$HK_BUILD/bin/hocket-perf" sum_perf 2>&1 | grep -q "there is no operation 'sum_perf'" || { echo "an unknown operation is not named"; bad=1; }
"$HK_BUILD/bin/hocket-perf" reduce_perf -b 8 -e 8 -n 1 | grep -q "Collective test concluded: reduce_perf" || { echo "hocket-perf reduce_perf does not run"; bad=1; }
timeout 20 "$HK_BUILD/bin/reduce_perf" -b 8 -e 8 -r 1 2>"$tmp/err" >/dev/null
[ $? = 255 ] && grep -q -- '--root 1, but there are 1 ranks' "$tmp/err" || complain "a root beyond the ranks: $(cat "$tmp/err")"
cases=$((cases + 1))
PATH=/nonexistent "$perf" -b 8 -e 8 --plot "$tmp/a.svg" >/dev/null 2>"$tmp/err"
[ $? = 255 ] && grep -q 'needs gnuplot' "$tmp/err" || complain "--plot without gnuplot: $(cat "$tmp/err")"
cases=$((cases + 1))
NCCL_TESTS_SPLIT=NOT1 "$perf" -b 8 -e 8 >/dev/null 2>"$tmp/err"
[ $? = 255 ] && grep -q 'NCCL_TESTS_SPLIT=NOT1' "$tmp/err" || complain "a wrong NCCL_TESTS_SPLIT: $(cat "$tmp/err")"

# The help names every option that nccl-tests has a letter for.
"$perf" --help >"$tmp/help" || complain "--help ends with code $?"
for letter in t g b e i f n w m N p c o d r z y T G C S J a R x M u I K h; do
  grep -qE "^  -$letter," "$tmp/help" || complain "--help does not list -$letter"
done
# Long names, abbreviations, sizes with units.
timeout 20 "$perf" --minbytes=1K --maxbytes 1KiB --iters 2 --warmup_iters 0 --check 1 >"$tmp/out" 2>&1 || complain "long options: $(cat "$tmp/out")"
grep -qE '^ +1024 +256 ' "$tmp/out" || complain "1K is not 1024 bytes: $(cat "$tmp/out")"

# Another library in Hocket's place is named, and no line of this is printed with Hocket's.
! grep -q WARN "$tmp/out" || complain "a warning of Hocket's own library: $(cat "$tmp/out")"
{
  sed -n 's/^W \(nccl.*\)/\1/p' tests/exports.txt | grep -vE '^(ncclGetVersion|ncclGetErrorString|ncclGetLastError)$' |
    sed 's/.*/int &(void) { return 2; }/'
  echo 'int ncclGetVersion(int *v) { return *v = 22809, 0; }'
  echo 'const char *ncclGetErrorString(int rc) { return rc ? "stub" : 0; }'
  echo 'const char *ncclGetLastError(void *c) { return c; }'
} >"$tmp/stub.c"
mkdir "$tmp/lib"
if ${CC:-cc} -w -fno-builtin -shared -fPIC -Wl,-soname,libnccl.so.2 -o "$tmp/lib/libnccl.so.2" "$tmp/stub.c" 2>"$tmp/err"; then
  cases=$((cases + 1))
  LD_PRELOAD=$tmp/lib/libnccl.so.2 timeout 20 "$perf" -b 8 -e 8 >"$tmp/out" 2>"$tmp/err"
  [ "$(grep -c "WARN: the library $tmp/lib/libnccl.so.2 is not Hocket (its ncclGetVersion gives 22809): .*LD_LIBRARY_PATH" "$tmp/err")" = 1 ] ||
    complain "another library is not named: $(cat "$tmp/err")"
else
  echo "there is no compiler: another library was not tried"
fi
finish "$cases wrong command lines are refused"
