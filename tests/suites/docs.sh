#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/parameters.md says what src/base/params.def says, links between the pages lead somewhere, and make's targets and the version are those
# of the sources.
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
# Make's targets: those that pages name are there, and those that `make help` lists are on a page.
targets=$(sed -n 's/^\([a-z.-]*\)[a-z. ]*:.*## .*/\1/p' Makefile mk/*.mk)
known=$(sed -n 's/^\([a-z.][a-z. -]*\):\( .*\|$\)/\1/p' Makefile mk/*.mk | tr ' ' '\n')
while IFS=: read -r page target; do
  grep -qxF -- "$target" <<<"$known" || { echo "$page names \`make $target\`, which is not there"; bad=1; }
done < <(grep -oE '(`|^    |&& )make [a-z.-]+($|[^a-z./-])' README.md SECURITY.md CONTRIBUTING.md docs/*.md | sed -E 's/:.*make ([a-z.-]*).*/:\1/' | grep -vE ':-' | sort -u)
for target in $targets; do
  [ "$target" = all ] || grep -qE "(make |\`)(-j )?([A-Z_]+=\S* )*$target\b" README.md CONTRIBUTING.md docs/*.md docs/results/*.md || { echo "no page names \`make $target\`"; bad=1; }
done
# Words that make sentences be read twice, in pages, forms and manual pages, which have the help texts. Lines of a page are one text.
pages=0
for page in *.md docs/*.md docs/results/*.md python/README.md .github/ISSUE_TEMPLATE/*.yml examples/*/README.md "$HK_BUILD"/man/man[1-8]/*; do
  [ -e "$page" ] || continue
  pages=$((pages + 1))
  while read -r words; do
    echo "$page has \"$words\": say it with a subject, a verb and an object"
    bad=1
  done < <(tr -s ' \n' ' ' <"$page" | grep -oiE '.{0,30}\b(of which|as far as|so much|beside|what is there|whoever)\b.{0,30}')
done
# What a report of a fault or of slowness needs.
for form in .github/ISSUE_TEMPLATE/[12]-*.yml; do
  for word in 'label: hocket doctor --json' "label: The flight recorder's files"; do
    grep -qF "$word" "$form" || { echo "$form does not ask for ${word#label: }"; bad=1; }
  done
done
# The version, which is in include/hocket.h.
version=$(scripts/dist.sh --version)
grep -q "Version $version" README.md || { echo "README.md does not say Version $version"; bad=1; }
[ -n "$(scripts/dist.sh --changes)" ] || { echo "CHANGELOG.md has no section $version"; bad=1; }
[ $bad = 0 ] && echo "parameters are up to date, $links links lead somewhere, $files source files are named, $pages pages have plain words"
exit $bad
