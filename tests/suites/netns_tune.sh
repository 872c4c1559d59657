#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: root timeout=120
# hocket tune --between: two hosts' ranks measure between them; rank 0's file gets the constants and keeps the rest.
set -u
. tests/netns/lib.sh
netns_codes=()
work=$(mktemp -d)
netns_need
netns_hosts 2
fault() { echo "$1"; tail -n 8 "$work"/log.*; exit 1; }
tune() { # options...
  # shellcheck disable=SC2016 # the ranks' own variables
  netns_ranks "$work/log" bash -c 'exec "$0" tune --between "$MASTER_ADDR:$MASTER_PORT" "$@"' \
    "$HK_BUILD/bin/hocket" -c allreduce --to 32K "$@"
  netns_wait 60
}

export HOCKET_TUNE_FILE=$work/tune.conf
printf 'switch_us = 7.5\nnet_alpha_us = 4321\n' >"$HOCKET_TUNE_FILE"
tune --out "$work/new.conf"
[ "${netns_codes[*]}" = "0 0" ] || fault "exit codes ${netns_codes[*]}"
grep -q "2 ranks over the network" "$work/log.1" || fault "rank 0 does not say what it measures"
[ ! -s "$work/log.2" ] || fault "rank 1 has something to say"
grep -q "^switch_us = 7.5 " "$work/new.conf" || fault "constants of one host are lost"
grep -q "^net_alpha_us = " "$work/new.conf" || fault "nothing is written"
! grep -q "^net_alpha_us = 4321 " "$work/new.conf" || fault "what is measured is not written"
tune --check
[[ ${netns_codes[*]} = [01]" 0" ]] && grep -q "With the constants in force: of" "$work/log.1" || fault "--check: exit codes ${netns_codes[*]}"
HOCKET_TUNE_FILE=none "$HK_BUILD/bin/hocket" tune --between 127.0.0.1:9 >"$work/log.1" 2>&1
[ $? = 2 ] && grep -q "WORLD_SIZE" "$work/log.1" || fault "without a launcher: no word of it"
rm -rf "$work"
echo "measured between hosts, and the rest of the file kept"
