#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket tune: it measures, fits and writes a file that an init reads; --check judges; what is wrong is said.
# check: timeout=300
set -u
tool=$HK_BUILD/bin/hocket perf=$HK_BUILD/bin/all_reduce_perf
. tests/support/suite.sh
few=(--rounds 1 --to 4K --step 64 -c "allreduce,allgather")

HOME=$tmp "$tool" tune "${few[@]}" -n 3 --rounds 2 >"$tmp/out" 2>&1 || fault "hocket tune ends with code $?"
file=$tmp/.config/hocket/tune.conf
[ -s "$file" ] || fault "no file where every init looks for it"
for name in memory_alpha_us memory_message_us tcp_alpha_us tcp_message_us tcp_link_us tcp_mb_s copy_mb_s reduce_mb_s \
  switch_us; do
  grep -q "^$name = [0-9.e+-]* # " "$file" || fault "$name is missing"
done
! grep -q "^net_" "$file" || fault "what is between hosts was not measured, and is written"
grep -q "With the measured ones: of [0-9]* choices" "$tmp/out" || fault "no summary"
HOME=$tmp timeout 60 "$perf" --procs 2 -b 8 -e 64K -f 64 -n 2 -w 0 >"$tmp/out" 2>&1 || fault "an init with the file ends with code $?"

# A broken file ends the init with its line.
for line in "switch_us = fast" "choice = memory 2 AllReduce 0 1 tree"; do
  echo "$line" >"$tmp/wrong.conf"
  HOCKET_TUNE_FILE=$tmp/wrong.conf timeout 60 "$perf" -b 8 -e 8 -n 1 -w 0 >"$tmp/out" 2>&1 && fault "'$line' is taken"
  grep -q "wrong.conf:1: .*run \`hocket tune\` again" "$tmp/out" || fault "'$line': no line number"
done

HOCKET_TUNE_FILE=none "$tool" tune --check "${few[@]}" -n 2 -t shm >"$tmp/out" 2>&1
code=$?
[ $code -le 1 ] || fault "--check ends with code $code"
grep -q "With the constants in force: of 4 choices" "$tmp/out" || fault "--check has no summary"
"$tool" tune --check "${few[@]}" -n 2 -t shm --out "$tmp/rules" >"$tmp/out" 2>&1
grep -q "^# With the constants in force" "$tmp/rules" || fault "--check --out writes no rules"
HOCKET_TUNING_FILE=$tmp/rules timeout 60 "$perf" --procs 2 -b 8 -e 8 -n 1 -w 0 >"$tmp/out" 2>&1 || fault "the rules are not read"
"$tool" tune "${few[@]}" -n 2 -t shm --out - >"$tmp/out" 2>/dev/null || fault "--out - ends with code $?"
grep -q "^copy_mb_s = " "$tmp/out" || fault "--out - writes nothing"
# What cannot be written is said before anything is measured, and what fails at the end leaves the old file.
mkdir "$tmp/real" && : >"$tmp/real/linked.conf" && ln -s real/linked.conf "$tmp/link.conf"
"$tool" tune "${few[@]}" -n 2 -t shm --out "$tmp/link.conf" >"$tmp/out" 2>/dev/null || fault "--out: code $?"
[ -L "$tmp/link.conf" ] && grep -q "^copy_mb_s = " "$tmp/real/linked.conf" || fault "--out does not follow a link"
[ "$(ls "$tmp/real")" = linked.conf ] || fault "something is left with the constants: $(ls "$tmp/real")"
"$tool" tune "${few[@]}" -n 2 -t shm -c broadcast --out /dev/full >"$tmp/out" 2>&1
[ $? = 2 ] && grep -q "/dev/full cannot be written: No space left" "$tmp/out" || fault "a full disk is not reported"
for wrong in "--check --out $tmp/x" "--out /no/such/place" "--out $tmp" "--ranks 1" "--ranks 2,x" "--transport air" \
  "--collectives sum" "--to 4" "--between 127.0.0.1:9"; do
  # shellcheck disable=SC2086 # words
  "$tool" tune $wrong >"$tmp/out" 2>&1
  [ $? = 2 ] || fault "'$wrong' does not end with code 2"
  grep -q "^[0-9]* ranks over" "$tmp/out" && fault "'$wrong' measures before it complains"
done
# A rank that ends early ends the measurement.
"$tool" tune -n 2 -t shm --rounds 100 --out - >"$tmp/out" 2>&1 &
pid=$!
child=
while [ -z "$child" ] && kill -0 $pid; do read -r child _ 2>/dev/null <"/proc/$pid/task/$pid/children"; done
kill -KILL "$child"
wait $pid
[ $? = 2 ] && grep -q "measuring failed" "$tmp/out" || fault "a rank that was killed is not reported"
finish "measured, written, read and judged"
