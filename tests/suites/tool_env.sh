#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket env: parameters, where their values come from, and what is wrong with them.
# check: covers=src/base/param
set -u
. tests/golden/lib.sh

gives 0 "$hocket" env
narrow env
for name in $(sed -n 's/^HK_PARAM_[A-Z]*([A-Z0-9_]*, "\([A-Z0-9_]*\)".*/\1/p' src/base/params.def); do
  grep -q "^$name " "$tmp/out" || complain "$name is not listed"
done
gives 0 "$hocket" env --set
says "nothing is set"
gives 0 env NCCL_SHM_DISABLE=1 "$hocket" env --set
says "NCCL_SHM_DISABLE  1      environment"
printf 'NCCL_ALGO = ring # a comment\nnonsense\n' >"$tmp/.nccl.conf"
gives 1 "$hocket" env --set
says ".nccl.conf"
says "not of the form NAME=value"
gives 0 env "NCCL_CONF_FILE=/dev/null" "$hocket" env NCCL_ALGO
says "value    not set"
rm "$tmp/.nccl.conf"
gives 1 env NCCL_ALGOO=ring "$hocket" env
says "did you mean NCCL_ALGO?"
gives 1 env HOCKET_SLOTS=1000 "$hocket" env
says "the range is 2 to 64 slots"
gives 0 env NCCL_LL_BUFFSIZE=1 "$hocket" env
says "What has no effect:"
gives 0 "$hocket" env NCCL_SHM_DISABLE
says "range    0 to 1"
refuses "did you mean NCCL_ALGO?" env NCCL_ALG
refuses "has no effect in Hocket" env NCCL_LL_BUFFSIZE
gives 0 env NCCL_BUFFSIZE=4194304 "$hocket" env --set
says "HOCKET_SLOT_BYTES  524288   NCCL_BUFFSIZE"
gives 0 "$hocket" env --markdown
says '| `NCCL_ALGO` | unset | default |'
# A program with more rights than its caller takes no file and no library from the caller's environment.
if [ "$(id -u)" = 0 ] && cp "$hocket" "$tmp/suid" && chown 65534 "$tmp/suid" && chmod 4755 "$tmp/suid" &&
  chmod 755 "$tmp" && [ "$("$tmp/suid" env HOCKET_SLOTS | grep -c value)" = 1 ]; then
  printf 'NCCL_ALGO = ring\n' >"$tmp/.nccl.conf"
  gives 1 env NCCL_NET_PLUGIN=evil NCCL_TOPO_FILE=/x NCCL_CONF_FILE="$tmp/.nccl.conf" HOCKET_SLOTS=4 "$tmp/suid" env --set
  says "NCCL_NET_PLUGIN is ignored: this program has more rights than the user who started it"
  says "NCCL_TOPO_FILE is ignored"
  says "HOCKET_SLOTS  4      environment"
  grep -q "NCCL_ALGO" "$tmp/out" && complain "a set-user-id program reads its caller's configuration file"
  rm "$tmp/.nccl.conf"
else
  echo "SKIP: a set-user-id program needs root to make one"
fi
if command -v jq >/dev/null; then
  gives 1 env NCCL_ALGOO=1 HOCKET_SLOTS=4 "$hocket" env --json
  got=$(jq -r '.parameters[] | select(.name == "HOCKET_SLOTS") | "\(.value) \(.default) \(.min) \(.max) \(.origin)"' "$tmp/out")
  [ "$got" = "4 8 2 64 environment" ] || complain "--json reports of HOCKET_SLOTS: $got"
  jq -e '.complaints | length == 1 and .[0].wrong' "$tmp/out" >/dev/null || complain "--json does not report the misspelling"
else
  echo "SKIP: jq is not installed: JSON is not read"
fi
finish "$cases commands behave as they should"
