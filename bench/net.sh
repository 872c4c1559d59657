#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# net.sh [ROUNDS]: large messages between two hosts (network namespaces joined by a veth pair) compared with iperf3 over the same
# cable, interleaved, ROUNDS times (5).  One way: broadcast of 2 ranks and a plain iperf3; both ways: sendrecv and
# iperf3 --bidir, the slower direction of each.  Gbit/s of payload; the bar is 0.9 of iperf3.  Needs root and iperf3.
set -u
cd "$(dirname "$0")/.." || exit 1
export HK_BUILD=${HK_BUILD:-build/gcc}
# shellcheck source=tests/netns/lib.sh
. tests/netns/lib.sh
netns_codes=()
rounds=${1:-5}
bytes=64M
dir=$(mktemp -d)
netns_need
command -v iperf3 >/dev/null || netns_skip "no iperf3"
netns_pair

hocket() { # program
  netns_ranks "$dir/hocket" "$HK_BUILD/bin/$1_perf" -b $bytes -e $bytes -n 10 -w 2 -c 0
  netns_wait 60
  [ "${netns_codes[*]}" = "0 0" ] || { cat "$dir/hocket.1" >&2; exit 1; }
  # From the in-place time: out of place the root of a broadcast also copies its own buffer.
  awk '$1 ~ /^[0-9]+$/ && NF > 8 { print $1 * 8 / $10 / 1e3; exit }' "$dir/hocket.1"
}
iperf() { # options
  netns_start 2 "$dir/server" iperf3 -s -1
  sleep 0.3
  netns_run 1 iperf3 -c "$(netns_ip 2)" -t 2 -f g -l 1M "$@" | awk '/receiver/ { print $(NF - 2) }' | sort -n | head -1
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for way in one both; do
  [ $way = one ] && program=broadcast options=() || program=sendrecv options=(--bidir)
  for ((r = 0; r < rounds; r++)); do
    ours=$(hocket $program)
    theirs=$(iperf "${options[@]}")
    echo "$ours" >>"$dir/$way.ours"
    echo "$theirs" >>"$dir/$way.iperf3"
    awk -v w=$way -v a="$ours" -v b="$theirs" 'BEGIN { printf "%-4s way%s  hocket %6.2f  iperf3 %6.2f Gbit/s\n", w, w == "one" ? " " : "s", a, b }'
  done
  awk -v w=$way -v a="$(median <"$dir/$way.ours")" -v b="$(median <"$dir/$way.iperf3")" 'BEGIN {
    verdict = (a / b >= 0.9) ? "met" : "missed"
    printf("%-4s way%s  median: hocket %.2f, iperf3 %.2f, ratio %.2f: the bar of 0.90 is %s\n",
           w, w == "one" ? " " : "s", a, b, a / b, verdict)
  }'
done
rm -rf "$dir"
