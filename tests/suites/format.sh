#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180
# All C and CUDA sources have the form that clang-format gives them.  Only the version of Debian 12 counts: others differ.
# `tests/suites/format.sh --write` puts the files into that form.
set -u
cd "$(dirname "$0")/../.." || exit 1
format=$(command -v clang-format-14 || command -v clang-format) || { echo "SKIP: clang-format is not installed"; exit 77; }
[[ $($format --version) == *"version 14."* ]] || { echo "SKIP: $format is not version 14, which the form of the sources comes from: $($format --version)"; exit 77; }
write=${1:-}

copy=$(mktemp -d) && trap 'rm -rf "$copy"' EXIT
# All files at once, as copies: a process for each of them takes three times as long.  A header gets another name, or clang-format
# takes some of them for Objective-C.
find src include python tests examples bench \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) | LC_ALL=C sort >"$copy/files"
cp .clang-format "$copy/" && tar -cf - -T "$copy/files" | tar -xf - -C "$copy" --transform 's/\.h$/.h_header.c/'
sed "s,\.h\$,.h_header.c,; s,^,$copy/," "$copy/files" | xargs -n 40 -P "$(nproc)" "$format" -i
bad=$(while IFS= read -r file; do
  formed=$copy/${file/%.h/.h_header.c}
  cmp -s "$file" "$formed" && continue
  if [ "$write" = --write ]; then cat "$formed" >"$file"; else echo "$file:"; diff "$file" "$formed" | head -n 6; fi
done <"$copy/files")
# shellcheck disable=SC2016 # awk's own variables
long=$(find src include python tests examples bench \( -name '*.[ch]' -o -name '*.cu' -o -path 'src/*.def' \) -print0 |
  xargs -0 awk 'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns" }')
[ -z "$long" ] || { echo "$long" | head -n 40; echo "lines have at most 120 columns"; exit 1; }
# A test whose code is broken on purpose can write files with any name into the tree.
names=$(find . -mindepth 1 \( -path ./build -o -path ./.git \) -prune -o -print | LC_ALL=C grep -avE '^[A-Za-z0-9._/+-]+$')
[ -z "$names" ] || { echo "$names" | cat -v | head -n 20; echo "these are no files of the tree: their names have other characters than letters, digits and . _ + -"; exit 1; }
[ -z "$bad" ] && { echo "every file has the form of .clang-format"; exit 0; }
echo "$bad" | head -n 60
echo "tests/suites/format.sh --write puts them right"
exit 1
