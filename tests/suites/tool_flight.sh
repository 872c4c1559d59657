#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket flight: verdicts on records written here, JSON, a timeline, and files with wrong bytes.
# check: covers=src/tools/flight/
set -u
. tests/golden/lib.sh
S=1000000000

# operation NUMBER CALL STATE BEGIN [END]: one line of a record, times in seconds.
operation() {
  local kind=${2%%(*}
  printf '{"number":%d,"collective":%d,"call":"%s","kind":"%s","count":1,"type":"float","algorithm":"flat","in_place":false,' \
    "$1" "$1" "$2" "$kind"
  printf '"state":"%s","begin_ns":%d%s}' "$3" "$(($4 * S))" "${5:+,\"end_ns\":$(($5 * S))}"
}
# record FILE RANK HOST WRITTEN FAILURE OPERATION...: of a communicator of 3 ranks.
record() {
  local file=$tmp/$1 rank=$2 host=$3 written=$4 failure=$5 rest
  shift 5
  rest=$(printf '%s,' "$@")
  printf '{"hocket_flight":1,"communicator":"0xabc","name":"dp","rank":%d,"ranks":3,"host":"%s","pid":7%d,"device":-1,' \
    "$rank" "$host" "$rank" >"$file"
  printf '"written_ns":%d,"times":"","does":"runs outside of calls"%s,"operations":[%s]}\n' "$((written * S))" \
    "${failure:+,\"failure\":$failure}" "${rest%,}" >>"$file"
}
A='AllReduce(1 x float, sum)' B='AllReduce(2 x float, sum)'

# All is well: the files differ by what happens between their times.
record r0 0 a 20 '' "$(operation 1 "$A" over 10 11)" "$(operation 2 "$A" over 12)"
record r1 1 a 20 '' "$(operation 1 "$A" over 10 11)" "$(operation 2 "$A" begun 20)"
record r2 2 b 23 '' "$(operation 1 "$A" over 13 14)" "$(operation 2 "$A" begun 23)"
gives 0 "$hocket" flight "$tmp"/r?
says 'Communicator 0xabc "dp", 3 ranks, 3 files'
says 'ended every operation up to 1; the newest that a rank has begun is 2'
gives 0 "$hocket" flight "$tmp/r0"
says 'no file of ranks 1 and 2'

# The clock of host b is 3 s ahead.
gives 0 "$hocket" flight --timeline "$tmp/timeline" "$tmp"/r?
says 'the clock of b is set back by 3.00 s'
if command -v jq >/dev/null; then
  jq -c '.traceEvents[] | select(.ph == "X") | [.tid, .name, (.ts | floor), (.dur | floor), .args.operation]' "$tmp/timeline" >"$tmp/out" || exit 1
  says '[0,"AllReduce(1 x float, sum)",0,1000000,1]'
  says '[4,"AllReduce(1 x float, sum)",0,1000000,1]'
  says '[0,"AllReduce(1 x float, sum)",2000000,1,2]'
else
  echo "SKIP: no jq to read the timeline with"
fi
gives 0 "$hocket" flight -t - "$tmp"/r?
says '"traceEvents"'
gives 2 "$hocket" flight -t /no/such/file "$tmp/r0"
says '/no/such/file cannot be written'

# Rank 1 does not come.
record r1 1 a 20 '' "$(operation 1 "$A" over 10 11)"
gives 1 "$hocket" flight "$tmp"/r?
says 'rank 1 had not begun operation 2, 8.00 s after the first rank; rank 1 runs outside of calls'
gives 1 "$hocket" flight --json "$tmp"/r?
says '"pid":71,"file"'

# Calls that differ come first, though a failure says something else.
record r1 1 a 20 '{"code":6,"rank":2,"text":"rank 2 is gone"}' "$(operation 1 "$A" over 10 11)" "$(operation 2 "$B" failed 12)"
gives 1 "$hocket" flight "$tmp"/r?
says "the calls differ at operation 2: rank 1: $B; ranks 0 and 2: AllReduce(1 x"
says 'the failure of 1 rank names rank 2: rank 2 is gone'

# A rank without a file, which the others name.
for rank in 0 1; do
  record r$rank $rank a 20 '{"code":6,"rank":2,"text":"rank 2 is gone"}' "$(operation 1 "$A" over 10 11)" "$(operation 2 "$A" failed 12)"
done
gives 1 "$hocket" flight "$tmp/r1" "$tmp/r0"
says 'the failures of 2 ranks name rank 2: rank 2 is gone'
says 'there is no file of rank 2'
gives 1 "$hocket" flight --json "$tmp/r1" "$tmp/r0"
says '"named_by_failures":2,"missing":[2]'

# All wait, and nobody is late.
record r0 0 a 20 '' "$(operation 1 "$A" begun 10)"
gives 1 "$hocket" flight "$tmp/r0"
says "rank 0 was in $A for 10.0 s, and no rank with a file keeps it waiting"
# Of two files of a rank the newer one counts.
record old 0 a 19 '' "$(operation 1 "$B" begun 10)"
gives 1 "$hocket" flight "$tmp/old" "$tmp/r0"
says '1 file is left out'

# Wrong files.
refuses 'something is missing' flight
refuses 'cannot be read' flight "$tmp/nosuch"
echo '[1]' >"$tmp/bad"
refuses 'is no flight record' flight "$tmp/bad"
echo '{}' >"$tmp/bad"
refuses '"hocket_flight" is missing' flight "$tmp/bad"
sed 's/"begun"/"lost"/' "$tmp/r0" >"$tmp/bad"
refuses 'operations[0]: the state "lost" is none of' flight "$tmp/bad"
sed 's/"rank":0/"rank":3/' "$tmp/r0" >"$tmp/bad"
refuses 'rank: 3 is not from 0 to 2' flight "$tmp/bad"
head -c 300 "$tmp/r1" >"$tmp/bad"
refuses 'not well-formed JSON' flight "$tmp/bad"

# Any byte may be wrong: an error or a verdict, no crash.
bytes=$(wc -c <"$tmp/r1")
for ((i = 0; i < 60; i++)); do
  cp "$tmp/r1" "$tmp/bad"
  # shellcheck disable=SC2059 # the format is the byte
  printf "\\x$(printf %x $((RANDOM % 255 + 1)))" |
    dd of="$tmp/bad" bs=1 seek=$((RANDOM % bytes)) conv=notrunc status=none
  "$hocket" flight -t "$tmp/timeline" "$tmp/bad" "$tmp/r0" >"$tmp/out" 2>"$tmp/err"
  code=$?
  [ $code -le 2 ] || { complain "code $code for this file:"; cat "$tmp/bad"; }
done
finish "$cases commands, 60 spoiled files"
