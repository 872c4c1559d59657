#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket tune: it measures, fits and writes a file that an init reads; --check judges; what is wrong is said.
# check: timeout=300
set -u
tool=$HK_BUILD/bin/hocket perf=$HK_BUILD/bin/all_reduce_perf
. tests/support/suite.sh
few=(--rounds 1 --repeats 1 --milliseconds 0.2 --to 4K --step 64 -c "allreduce,allgather")

HOME=$tmp "$tool" tune "${few[@]}" -n 3 --rounds 2 --rest 0.01 >"$tmp/out" 2>&1 || fault "hocket tune ends with code $?"
file=$tmp/.config/hocket/tune.conf
[ -s "$file" ] || fault "no file where every init looks for it"
for name in memory_alpha_us memory_message_us tcp_alpha_us tcp_message_us tcp_link_us tcp_mb_s net_alpha_us copy_mb_s \
  reduce_mb_s switch_us; do
  grep -q "^$name = [0-9.e+-]* # " "$file" || fault "$name is missing"
done
grep -q "With the measured ones: of [0-9]* choices" "$tmp/out" || fault "no summary"
HOME=$tmp timeout 60 "$perf" --procs 2 -b 8 -e 64K -f 64 -n 2 -w 0 >"$tmp/out" 2>&1 || fault "an init with the file ends with code $?"

# By the environment; a broken file ends the init with its line.
cp "$file" "$tmp/mine.conf"
echo "choice = memory 2 AllReduce 0 1000000 tree" >>"$tmp/mine.conf"
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING HOCKET_TUNE_FILE=$tmp/mine.conf timeout 60 "$perf" --procs 2 -b 512K -e 512K -n 2 -w 0 \
  >"$tmp/out" 2>&1 || fault "HOCKET_TUNE_FILE: code $?"
grep -q "as hocket tune measured\|AllReduce by" "$tmp/out" || fault "the choice is not followed"
for line in "switch_us = fast" "choice = memory 2 AllReduce 0 tree" "choice = air 2 AllReduce 0 1 tree"; do
  echo "$line" >"$tmp/wrong.conf"
  HOCKET_TUNE_FILE=$tmp/wrong.conf timeout 60 "$perf" -b 8 -e 8 -n 1 -w 0 >"$tmp/out" 2>&1 && fault "'$line' is taken"
  grep -q "wrong.conf:1: " "$tmp/out" || fault "'$line': no line number"
done

"$tool" tune --check --all "${few[@]}" -n 2 -t shm --constants none >"$tmp/out" 2>&1
code=$?
[ $code -le 1 ] || fault "--check ends with code $code"
grep -q "^shm  *2  *AllReduce .*8 B" "$tmp/out" || fault "--check --all shows no table"
grep -q "Within 25% at first: .* Of [0-9]* others, drawn by lot and measured again too" "$tmp/out" || fault "no second look"
"$tool" tune --check --json "${few[@]}" -n 2 -t tcp >"$tmp/out" 2>/dev/null || fault "--json ends with code $?"
if command -v python3 >/dev/null; then
  python3 -c 'import json, sys; rows = json.load(open(sys.argv[1])); assert rows and all(r["ratio"] >= 1 for r in rows)' \
    "$tmp/out" || fault "--json is no JSON"
fi
"$tool" tune "${few[@]}" -n 2 -t shm --out - >"$tmp/out" 2>/dev/null || fault "--out - ends with code $?"
grep -q "^copy_mb_s = " "$tmp/out" || fault "--out - writes nothing"
# What cannot be written is said before anything is measured, and what fails at the end leaves the old file.
mkdir "$tmp/real" && : >"$tmp/real/linked.conf" && ln -s real/linked.conf "$tmp/link.conf"
"$tool" tune "${few[@]}" -n 2 -t shm --json --out "$tmp/link.conf" >"$tmp/out" 2>/dev/null || fault "--json --out: code $?"
[ -L "$tmp/link.conf" ] && grep -q "^copy_mb_s = " "$tmp/real/linked.conf" || fault "--out does not follow a link"
grep -q '^\[{"transport":"shm"' "$tmp/out" || fault "--json beside --out writes no JSON"
[ "$(ls "$tmp/real")" = linked.conf ] || fault "something is left beside the constants: $(ls "$tmp/real")"
"$tool" tune "${few[@]}" -n 2 -t shm -c broadcast --out /dev/full >"$tmp/out" 2>&1
[ $? = 2 ] && grep -q "/dev/full cannot be written: No space left" "$tmp/out" || fault "a full disk is not reported"
# Runs add up, of tuning and of checking alike; a broken file is reported before anything is measured.
for run in 1 2; do
  how=(--out "$tmp/sum.conf")
  [ $run = 2 ] && how=(--check --json --constants "$tmp/sum.conf")
  "$tool" tune "${few[@]}" -n 2 -t shm --times "$tmp/sum.times" "${how[@]}" >"$tmp/out" 2>&1 || fault "--times: code $?"
  grep -q "the times of $run runs* are in $tmp/sum.times" "$tmp/out" || fault "--times does not say how many runs there are"
  grep -q "^shm 2 AllReduce 512 ring\( [0-9.e+-]*\)\{$run\}$" "$tmp/sum.times" || fault "--times: run $run is not in the file"
done
grep -q '"runs":2,' "$tmp/out" || fault "--json does not report two runs"
tail -n 1 "$tmp/sum.times" >>"$tmp/sum.times"
"$tool" tune "${few[@]}" -n 2 -t shm --times "$tmp/sum.times" >"$tmp/out" 2>&1
[ $? = 2 ] && grep -q "two times of" "$tmp/out" || fault "a time that is there twice is taken"
grep -q "^[0-9]* ranks over" "$tmp/out" && fault "a broken file of times is reported after measuring"
for wrong in "--times -" "--times /no/such/times" "--times $tmp" "--times /dev/null --between 127.0.0.1:9" "--check --out $tmp/x" "--json --out -" "--out /no/such/place" "--out $tmp" "--ranks 1" "--ranks 2,x" "--transports air" "--collectives sum" "--from 4 --to 2" "--milliseconds 0" "--looks -1" "--rest -1" "--between 127.0.0.1:9" \
  "--constants /no/such --check"; do
  # shellcheck disable=SC2086 # words
  "$tool" tune $wrong >"$tmp/out" 2>&1
  [ $? = 2 ] || fault "'$wrong' does not end with code 2"
  grep -q "^[0-9]* ranks over" "$tmp/out" && fault "'$wrong' measures before it complains"
done
finish "measured, written, read and judged"
