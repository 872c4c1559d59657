#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# roce.sh: Hocket over verbs and over TCP compared with perftest's ib_write_bw and ib_write_lat, between the same two soft-RoCE devices, in
# one run of the guest of tests/roce/.  Prints a table with the ratios; only those mean something on an emulated CPU.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
if [ "${1:-}" != inside ]; then
  make -s lib perf "$HK_BUILD/bench/verbs" "$HK_BUILD/bench/latency" || exit
  exec tests/roce/guest.sh --timeout "${ROCE_BENCH_LIMIT:-600}" env HK_BUILD="$HK_BUILD" \
    ROCE_BENCH_ROUNDS="${ROCE_BENCH_ROUNDS:-3}" bench/roce.sh inside
fi
. tests/roce/ranks.sh
export ROCE_TCP=cable # TCP is to be compared on the wire that RDMA has, not on the loopback
logs=$(mktemp -d)
rounds=${ROCE_BENCH_ROUNDS:-3}

best() { sort -g | { [ "$1" = most ] && tail -n 1 || head -n 1; }; }
# perftest between the devices: prints the value of a column of its only line.
perftest() { # column command...
  local column=$1 server
  shift
  timeout 60 "$@" -d rxe1 -x 1 -F -p 18600 >"$logs/server" 2>&1 &
  server=$!
  until grep -qh ':48A8 .* 0A ' /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
  timeout 60 "$@" -d rxe0 -x 1 -F -p 18600 10.0.0.2 2>&1 | awk -v c="$column" '/^ *[0-9]+ +[0-9]+/ { print $c }' | tail -n 1
  wait $server
}
# One of our programs: GB/s out of place, from its time, which has more digits than its bandwidth.  For sendrecv, and for an
# allreduce of two ranks, that is the bus bandwidth.
ours() { # network program size iterations
  roce_ranks 2 "$logs/run" env NCCL_NET="$1" NCCL_DEBUG=WARN "$HK_BUILD/bin/$2_perf" -b "$3" -e "$3" -n "$4" -w 20 -c 0
  roce_wait 120
  awk -v b="$3" '$1 ~ /^[0-9]+$/ && NF > 8 { printf "%.4f\n", b / $6 / 1000 }' "$logs/run.0" | tail -n 1
}
# Small messages: the best batch of bench/verbs and of bench/latency.
raw() { # the test's name
  timeout 60 "$HK_BUILD/bench/verbs" rxe0 rxe1 1 "$1" | awk '/ way$| exchange$/ { print $(NF - 4) }' | head -n 1
}
latency() { # network, prints: in turn, at once, all_reduce
  roce_ranks 2 "$logs/run" env NCCL_NET="$1" NCCL_DEBUG=WARN "$HK_BUILD/bench/latency"
  for pid in "${roce_pids[@]}"; do wait "$pid"; done
  awk '/ us$/ { printf "%s ", $(NF - 2) } END { print "" }' "$logs/run.0"
}
several() { # most|least command...
  local which=$1 i
  shift
  for ((i = 0; i < rounds; i++)); do "$@"; done | best "$which"
}
row() { printf '| %-40s | %10s | %-8s | %8s |\n' "$@"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else print "-" }'; }

echo "$(uname -r), $(nproc) emulated CPUs; best of $rounds"
row "what" "value" "unit" "ratio"
row "---" "---" "---" "---"
row "ib_write_lat 8 B, least" "$(several least perftest 3 ib_write_lat -s 8 -n 2000)" us ""
write_lat=$(several least raw "write, memory polled, every")
row "8 B writes, as ib_write_lat does them" "$write_lat" us 1
for name in "write with immediate, every" "both ways: write, every" "both ways: write with immediate, every"; do
  lat=$(several least raw "$name")
  row "$name 32nd signaled" "$lat" us "$(ratio "$lat" "$write_lat")"
done
for size in 1048576 4194304; do
  bw=$(several most perftest 4 ib_write_bw -s $size -n $((200000000 / size < 100 ? 100 : 1000)) --report_gbits)
  bw=$(awk -v g="$bw" 'BEGIN { printf "%.4f", g / 8 }')
  row "ib_write_bw $size B, one way" "$bw" GB/s ""
  # Our programs below send both ways at once; perftest then prints the sum.
  bw=$(several most perftest 4 ib_write_bw -b -s $size -n $((200000000 / size < 100 ? 100 : 500)) --report_gbits)
  bw=$(awk -v g="$bw" 'BEGIN { printf "%.4f", g / 16 }')
  row "ib_write_bw $size B, each of both ways" "$bw" GB/s 1
  eval "bw_$size=$bw"
done
for net in IB Socket; do
  for ((i = 0; i < rounds; i++)); do latency $net; done >"$logs/lat.$net"
  column=0
  for name in "send and receive in turn" "send and receive at once" "all_reduce"; do
    column=$((column + 1))
    lat=$(cut -d ' ' -f $column "$logs/lat.$net" | best least)
    row "$name 8 B, $net" "$lat" us "$(ratio "$lat" "$write_lat")"
  done
done
for size in 1048576 4194304; do
  reference=bw_$size
  bw=$(several most ours IB sendrecv $size 20)
  row "sendrecv $size B, verbs" "$bw" GB/s "$(ratio "$bw" "${!reference}")"
  bw=$(several most ours Socket sendrecv $size 20)
  row "sendrecv $size B, TCP" "$bw" GB/s "$(ratio "$bw" "${!reference}")"
  bw=$(several most ours IB all_reduce $size 20)
  row "all_reduce $size B, verbs, busbw" "$bw" GB/s "$(ratio "$bw" "${!reference}")"
done
rm -rf "$logs"
