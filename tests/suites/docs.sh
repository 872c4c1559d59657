#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/parameters.md says what src/base/params.def says, and links between the pages lead somewhere.
set -u
bad=0
if ! "$HK_BUILD/params-doc" markdown | diff -u docs/parameters.md - >&2; then
  echo "docs/parameters.md is not up to date: run \`make docs\` and commit it"
  bad=1
fi
# What `hocket` prints in the pages: the commands must work; what they print may have become other figures.
if [ -x "$HK_BUILD/bin/hocket" ]; then CHECK=1 scripts/transcripts.sh "$HK_BUILD" README.md docs/*.md || bad=1; fi
links=0
for page in *.md docs/*.md docs/results/*.md; do
  while read -r target; do
    links=$((links + 1))
    [ -e "$(dirname "$page")/$target" ] || { echo "$page links to $target, which is not there"; bad=1; }
  done < <(grep -oE '\]\([^)#]+' "$page" | cut -c 3- | grep -vE '^(https?|mailto):')
done
# Source files that the pages name, by the path or its end.  NCCL has src/graph, and a reader makes NAME.c.
files=0
while IFS=: read -r page file; do
  files=$((files + 1))
  git ls-files | grep -qE "(^|/)${file//./\\.}$" || { echo "$page names $file, which is not there"; bad=1; }
done < <(grep -oE '`[a-zA-Z0-9_/]+\.(c|h|cu|def)`' CONTRIBUTING.md docs/*.md | tr -d '`' | grep -vE 'NAME|src/graph/' | sort -u)
[ $bad = 0 ] && echo "parameters are up to date, $links links lead somewhere, $files source files are named"
exit $bad
