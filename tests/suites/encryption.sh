#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=240 covers=src/base/tls
# HOCKET_ENCRYPTION_KEY_FILE with real processes over TCP: every operation, keys that differ, files that others can read, no OpenSSL.
set -u
bin=$HK_BUILD/bin runs=0
. tests/support/suite.sh
[ -x "$bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }
ldconfig -p 2>/dev/null | grep -q libssl.so.3 || { echo "SKIP: no libssl.so.3"; exit 77; }
export NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1 HOCKET_BOOTSTRAP_TIMEOUT=30
umask 077
for name in ours theirs; do printf 'the key %s of more than 32 bytes in all\n' $name >"$tmp/$name"; done
printf 'short\n' >"$tmp/short"
cp "$tmp/ours" "$tmp/open" && chmod 644 "$tmp/open"
mkdir "$tmp/none" && : >"$tmp/none/libssl.so.3" # an empty file, which cannot be loaded

for perf in "$bin"/*_perf; do
  runs=$((runs + 1))
  HOCKET_ENCRYPTION_KEY_FILE=$tmp/ours timeout 60 "$perf" --procs 3 -b 8 -e 256K -f 181 -n 2 >"$tmp/out" 2>&1 ||
    complain "$(basename "$perf") ends with code $?: $(cat "$tmp/out")"
  grep -q 'values : 0 OK' "$tmp/out" || complain "$(basename "$perf"): wrong elements"
done

# Parts of messages over sockets that take turns, each encrypted by itself.
runs=$((runs + 1))
HOCKET_ENCRYPTION_KEY_FILE=$tmp/ours NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=3 timeout 60 "$bin/all_reduce_perf" --procs 2 \
  -b 100001 -e 2M -f 3 -d int8 -n 2 >"$tmp/out" 2>&1 || complain "six sockets: code $?: $(cat "$tmp/out")"
grep -q 'values : 0 OK' "$tmp/out" || complain "six sockets: wrong elements"

# Two ranks, each with its own variables; both must fail within the time, and say why.
differ() { # what says variables-of-rank-0 variables-of-rank-1
  local r pids=() code of=("$3" "$4")
  runs=$((runs + 1))
  for r in 0 1; do
    # shellcheck disable=SC2046 # words
    env RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" \
      ${of[$r]} timeout 20 "$bin/all_reduce_perf" --launcher torchrun -b 8 -e 8 -n 1 >"$tmp/out.$r" 2>&1 &
    pids+=($!)
  done
  for r in 0 1; do
    wait "${pids[$r]}"
    code=$?
    [[ $code =~ ^(1|3|255)$ ]] || complain "$1: rank $r ends with code $code: $(cat "$tmp/out.$r")"
    grep -q -- "$2" "$tmp/out.$r" || complain "$1: rank $r does not say '$2': $(cat "$tmp/out.$r")"
  done
  port=$((port + 1))
}
port=$((20000 + $$ % 9000))
file=HOCKET_ENCRYPTION_KEY_FILE=$tmp
differ "another key" "another encryption key" "$file/ours" "$file/theirs"
differ "no key on rank 1" "no encryption key" "$file/ours" "A=b"
differ "no key on rank 0" "no encryption key" "A=b" "$file/ours"
differ "a file that others can read" "chmod 600" "$file/ours" "$file/open"
differ "a short key" "32 to 512 bytes" "$file/ours" "$file/short"
differ "no file" "cannot be read: No such file" "$file/ours" "$file/absent"
differ "no OpenSSL on rank 1" "cannot encrypt: .*libssl" "$file/ours" "$file/ours LD_LIBRARY_PATH=$tmp/none"
echo "$runs runs"
exit $bad
