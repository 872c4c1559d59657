#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# transcripts.sh BUILD FILE...: runs the commands that stand in ```console blocks after "$ hocket" and writes what they print
# now below them, so that pages never show what no command prints any more.  With CHECK=1 it changes nothing and says which differ;
# exit code 1 where a command fails.
set -u
build=$1 PATH=$PWD/$1/bin:$PATH
export PYTHONPATH=$PWD/$1/python
shift
unset "${!NCCL_@}" "${!HOCKET_@}"
export LC_ALL=C.UTF-8 NO_COLOR=1 HOME=/nonexistent # no constants that were measured here, no settings of its user
bad=0
for page in "$@"; do
  new=$(mktemp) shown='' wrong=''
  while IFS= read -r line || [ -n "$line" ]; do
    if [[ -n $shown && $line == '```' ]]; then shown=''; fi
    [ -z "$shown" ] && printf '%s\n' "$line" >>"$new"
    if [[ $line == '```console' ]]; then
      IFS= read -r line || break
      printf '%s\n' "$line" >>"$new"
      if [[ $line == '$ '*'hocket '* && $line != *'hocket '@(tune|doctor)* ]]; then # those two look at the machine at hand
        shown=1
        command=${line#??}
        command=${command//build\/gcc\//$build/} # a reader's build
        bash -c "set -o pipefail; $command" </dev/null >>"$new" 2>&1 || [ $? = 141 ] || { echo "$page: '${line#??}' fails"; bad=1; }
      fi
    fi
  done <"$page"
  cmp -s "$page" "$new" || wrong=1
  if [ -n "$wrong" ] && [ -z "${CHECK:-}" ]; then cp "$new" "$page"; fi
  if [ -n "$wrong" ] && [ -n "${CHECK:-}" ]; then echo "note: $page shows older output: run \`make docs\` and commit it"; fi
  rm -f "$new"
done
exit $bad
