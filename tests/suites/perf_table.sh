#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120
# What the perf binaries print, as scripts that were written for nccl-tests read it: the table to the character, JSON.
set -u
bin=$HK_BUILD/bin lines=0
. tests/support/suite.sh
[ -x "$bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }

# Compares a run's lines with regular expressions, one each; "repeat N: RE" stands for N lines.
expect_lines() { # name file expressions-on-stdin
  local number=0 expression count i text
  exec 3<"$2"
  while IFS= read -r expression; do
    count=1
    [[ $expression =~ ^repeat\ ([0-9]+):\ (.*)$ ]] && count=${BASH_REMATCH[1]} expression=${BASH_REMATCH[2]}
    for ((i = 0; i < count; i++)); do
      number=$((number + 1)) lines=$((lines + 1))
      IFS= read -r text <&3 || { complain "$1: line $number is missing"; break 2; }
      grep -qE -- "$expression" <<<"$text" || complain "$1: line $number is '$text', not /$expression/"
    done
  done
  IFS= read -r text <&3 && complain "$1: more lines than expected: '$text'"
  exec 3<&-
}

start='^# nccl-tests version 2\.[0-9.]+[^ ]* nccl-headers=[0-9]{5} nccl-library=[0-9]{5}$'
device='^#  Rank [ 0-9]{2} Group [ 0-9]{2} Pid [ 0-9]{6,} on [ ]*[^ ]+ device [ 0-9]{2} \[[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\] .+$'
head1='^#                                                              out-of-place                       in-place          $'
head2='^#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong $'
head3='^#        \(B\)    \(elements\)                               \(us\)  \(GB/s\)  \(GB/s\)             \(us\)  \(GB/s\)  \(GB/s\)         $'
half='  [ ]*[0-9.e+]{4,7}  [ ]*[0-9.]{3,6}  [ ]*[0-9.]{3,6}  '
row() { # type operator root in-place-wrong
  printf '^[ 0-9]{12}  [ 0-9]{12}  %8s  %6s  %6s%s     0%s%s$' "$1" "$2" "$3" "$half" "$half" "$4"
}

"$bin/all_reduce_perf" -g 3 -b 4 -e 64K -f 4 -n 3 >"$tmp/out" 2>&1 || complain "all_reduce_perf: $(cat "$tmp/out")"
expect_lines "all_reduce_perf" "$tmp/out" <<END
$start
^# Collective test starting: all_reduce_perf\$
^# nThread 1 nGpus 3 minBytes 4 maxBytes 65536 step: 4\\(factor\\) warmup iters: 1 iters: 3 agg iters: 1 validation: 1 graph: 0 unalign: 0\$
^#\$
^# Using devices\$
repeat 3: $device
^#\$
$head1
$head2
$head3
repeat 8: $(row float sum -1 '     0')
^# Out of bounds values : 0 OK\$
^# Avg bus bandwidth    : [0-9.e+-]+ \$
^#\$
^# Collective test concluded: all_reduce_perf\$
^#\$
^\$
END

table() { "$bin/$1" -g 2 -b 1K -e 1K -n 2 "${@:2}" 2>&1 | grep -vE '^#|^$' >"$tmp/out"; }
rows() { # name expression
  expect_lines "$1" "$tmp/out" <<<"$2"
}
table all_gather_perf && rows all_gather "$(row float none -1 '     0')"
table reduce_scatter_perf -o prod -d double && rows reduce_scatter "$(row double prod -1 '     0')"
table broadcast_perf -r 1 -d half && rows broadcast "$(row half none 1 '     0')"
table reduce_perf -r 1 -o avg -d bfloat16 && rows reduce "$(row bfloat16 avg 1 '     0')"
table alltoall_perf -d int8 && rows alltoall "$(row int8 none -1 '  N/A')"
table sendrecv_perf -d uint64 && rows sendrecv "$(row uint64 sum -1 '  N/A')"
table put_perf -R 2 -d half && rows put "$(row half sum -1 '  N/A')"
table gather_perf -d f8e4m3 && rows gather "$(row f8e4m3 none 0 '     0')"
table scatter_perf -d f8e5m2 && rows scatter "$(row f8e5m2 none 0 '     0')"
table all_gatherv_perf -d int8 && rows all_gatherv "$(row int8 none -1 '     0')"
table reduce_scatterv_perf -o max && rows reduce_scatterv "$(row float max -1 '     0')"
table alltoallv_perf -d int64 && rows alltoallv "$(row int64 none -1 '  N/A')"
table hypercube_perf -d int32 && rows hypercube "$(row int32 "" -1 '     0')"
table all_reduce_perf -S 1 && rows timestamps "$(row float sum -1 '     0' | sed 's/\$$//')  [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\$"
stats='(  [ ]*[0-9.e+]{3,7}){4}'
table all_reduce_perf -I 1 -n 5 -K 2 && rows "per iteration" "^[ 0-9]{12}  [ 0-9]{12}     float     sum      -1$half     0$stats$half     0$stats\$"

none='      N/A     N/A     N/A     N/A'
table all_reduce_perf --places out && rows "out of place" "^[ 0-9]{12}  [ 0-9]{12}     float     sum      -1$half     0$none\$"
table all_reduce_perf --places in && rows "in place" "^[ 0-9]{12}  [ 0-9]{12}     float     sum      -1$none$half     0\$"

# The size column, bus bandwidth and the exit code by nccl-tests' rules.
table all_gather_perf -b 100 -e 100 && grep -qE '^ +96 +12 ' "$tmp/out" || complain "all_gather: 100 bytes for 2 ranks are not 2 blocks of 12 floats: $(cat "$tmp/out")"
"$bin/all_reduce_perf" -g 4 -b 1M -e 1M -n 2 | awk '/^ / { if ($8 / $7 < 1.4 || $8 / $7 > 1.6) exit 1 }' || complain "allreduce: busbw is not 2 (n - 1) / n times algbw"
NCCL_TESTS_MIN_BW=1e9 "$bin/all_reduce_perf" -g 2 -b 1K -e 1K >"$tmp/out"
[ $? != 0 ] && grep -q 'Avg bus bandwidth .* FAILED$' "$tmp/out" || complain "NCCL_TESTS_MIN_BW is not heeded"

# JSON.  A second run keeps the first one's file.
if python3 -c '' 2>/dev/null; then
  for _ in 1 2; do "$bin/alltoall_perf" -g 2 -b 1K -e 4K -f 2 -I 1 -J "$tmp/a.json" >/dev/null || complain "-J fails"; done
  "$bin/alltoall_perf" -g 2 -b 1K -e 1K --places in -J "$tmp/in.json" >/dev/null || complain "-J fails with --places"
  python3 -c 'import json, sys; r, = json.load(open(sys.argv[1]))["results"]; sys.exit("out_of_place" in r or "in_place" not in r)' \
    "$tmp/in.json" || complain "the JSON output of --places in is wrong"
  python3 - "$tmp/a.json" "$tmp/a.json.0" <<'END' || complain "the JSON output is wrong"
import json, sys
for path in sys.argv[1:]:
    d = json.load(open(path))
    assert list(d) == ['version', 'start_time', 'args', 'env', 'nccl_version', 'config', 'results', 'out_of_bounds',
                       'average_bus_bandwidth', 'errors', 'end_time'], list(d)
    assert d['version'] == 3 and d['nccl_version'] >= 20000 and d['args'][1:3] == ['-g', '2']
    c = d['config']
    assert (c['nthreads'], c['ngpus'], c['minimum_bytes'], c['maximum_bytes'], c['step_factor']) == (1, 2, 1024, 4096, 2)
    assert [x['rank'] for x in c['devices']] == [0, 1] and set(c['devices'][0]) == {
        'rank', 'group', 'pid', 'hostname', 'device', 'device_hex', 'device_info'}
    assert [r['size'] for r in d['results']] == [1024, 2048, 4096]
    for r in d['results']:
        assert (r['count'], r['type'], r['redop'], r['root']) == (r['size'] // 8, 'float', 'none', '    -1')
        assert set(r['out_of_place']) == {'time', 'alg_bw', 'bus_bw', 'nwrong'} and r['out_of_place']['nwrong'] == 0
        assert r['in_place']['nwrong'] is None and r['actual_iterations'] == 20
        assert len(r['in_place_per_iter']['times_us']) == 20
    assert d['out_of_bounds'] == {'count': 0, 'okay': 'true'} and d['average_bus_bandwidth']['okay'] == 'unchecked'
END
else
  echo "SKIP: JSON is checked with python3, which is not here"
fi
if command -v gnuplot >/dev/null; then
  for kind in svg png; do
    "$bin/all_reduce_perf" -g 2 -b 8 -e 64K -f 8 -o all --plot "$tmp/a.$kind" >/dev/null 2>"$tmp/err" || complain "--plot: $(cat "$tmp/err")"
    [ -s "$tmp/a.$kind" ] || complain "--plot drew no $kind"
  done
else
  echo "SKIP: plots are drawn with gnuplot, which is not here"
fi
finish "$lines lines are as scripts expect them"
