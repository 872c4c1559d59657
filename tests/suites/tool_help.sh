#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command hocket itself: help, usage errors, exit codes, manual pages, all made from one table.
set -u
. tests/golden/lib.sh

gives 2 "$hocket"
says "Usage: hocket COMMAND"
says "Try first:"
# What it says to try works.
while IFS= read -r command; do
  # shellcheck disable=SC2086 # the words of a command; what the doctor finds depends on the machine
  [[ $command == *_perf* || $command == *doctor* ]] || gives 0 "$hocket" ${command#hocket }
done < <(sed -n '/^Try first/,$s/^  \([a-z_]*\( [a-z0-9M-]*\)*\)  .*/\1/p' "$tmp/err")
gives 0 "$hocket" --help
cp "$tmp/out" "$tmp/help"
gives 0 "$hocket" help
cmp -s "$tmp/out" "$tmp/help" || complain "hocket help and hocket --help differ"
gives 0 "$hocket" --version
says "hocket $(sed -n 's/^#define HOCKET_[MP][A-Z]* //p' include/hocket.h | paste -sd .) (NCCL 2.32.3)"
refuses "'toop' is no command; did you mean 'topo'?" toop
refuses "'nosuchthing' is no command" nosuchthing
refuses "'nosuchthing' is no command" help nosuchthing

# Every file of a command is listed, and every listed command has its files.
mapfile -t names < <(sed -n 's/^  \([a-z]*\)  .*/\1/p' "$tmp/help")
for name in $(sed -n 's/^HK_TOOL(\(.*\))/\1/p' src/tools/commands.def); do
  [[ " ${names[*]} " == *" $name "* ]] || complain "hocket $name stands in commands.def and is not there"
done
for name in "${names[@]}"; do
  gives 0 "$hocket" help "$name"
  cp "$tmp/out" "$tmp/one"
  narrow "help $name"
  says "Exit code:"
  gives 0 "$hocket" "$name" --help
  cmp -s "$tmp/out" "$tmp/one" || complain "hocket help $name and hocket $name --help differ"
  refuses "there is no option '--nosuchoption'" "$name" --nosuchoption
  gives 0 "$hocket" help --man "$name"
  mv "$tmp/out" "$tmp/hocket-$name.1"
done
gives 0 "$hocket" help --man
mv "$tmp/out" "$tmp/hocket.1"

# Values of options, by one command that has all kinds.
refuses "option '--ranks' needs a value" plan --ranks
refuses "'x' is no integer from 1 to" plan -n x
refuses "'0' is no integer from 1 to" plan -n 0
refuses "unexpected argument 'extra'" plan allreduce 1K extra
refuses "'4Q' is no size" plan allreduce 4Q
refuses "'-1' is no size" plan allreduce -- -1
refuses "did you mean 'allreduce'?" plan allreduc 1K
gives 2 sh -c "'$hocket' help >/dev/full"
says "cannot write the output"

# Manual pages.
if command -v mandoc >/dev/null; then
  for page in "$tmp"/hocket*.1; do mandoc -T lint -W error "$page" || complain "mandoc finds errors in ${page##*/}"; done
elif command -v groff >/dev/null; then
  for page in "$tmp"/hocket*.1; do
    warnings=$(groff -man -ww -z "$page" 2>&1)
    [ -z "$warnings" ] || complain "groff warns about ${page##*/}: $warnings"
  done
else
  echo "SKIP: neither mandoc nor groff is installed: manual pages are not checked"
fi

gives 0 "$hocket" help machine
says "8xgpu:nvswitch sm=90"
says "nvlink="
finish "$cases commands behave as they should"
