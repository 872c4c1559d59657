#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# dist.sh FOLDER: the sources of this version as FOLDER/hocket-VERSION.tar.gz, its changes, SHA256SUMS of both, and recipes for conda and
# Spack, which take the sources from URL (this file by default); the same bytes for the same commit.  dist.sh --version, --changes, --date, --released: what the sources say of themselves.  `make dist` and `make deb` call it.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define HOCKET_\(MAJOR\|MINOR\|PATCH\) //p' include/hocket.h | paste -sd .)
in_git() { [ -e .git ] && git rev-parse -q --verify HEAD >/dev/null; }
# When the sources were made: the commit, or for a release's tarball its newest file.
date() { if in_git; then git log -1 --format=%ct; else stat -c %Y CHANGELOG.md; fi; }
# The section of a version: "## 0.1.0, 2027-01-31", or "## 0.1.0, not released".
changes() { sed -n "/^## ${version//./\\.}[, ]/,/^## /p" CHANGELOG.md | sed '1d; /^## /d' | sed '/./,$!d'; }

case $1 in
  --version) echo "$version"; exit ;;
  --changes) changes; exit ;;
  --date) date; exit ;;
  --released) grep -qE "^## ${version//./\\.}, [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; exit ;;
esac
[ -n "$(changes)" ] || { echo "CHANGELOG.md has no section for $version, the version of include/hocket.h" >&2; exit 1; }
name=hocket-$version
mkdir -p "$1"
if in_git; then
  git diff --quiet HEAD || echo "what is not committed is left out" >&2
  # With PKG-INFO pip takes it as a source distribution.
  git archive --format=tar --add-virtual-file="$name/PKG-INFO:Metadata-Version: 2.4
Name: hocket
Version: $version
" --prefix="$name/" HEAD
else
  tar -c --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(date)" --exclude=./build --transform "s,^\.,$name," .
fi | gzip -n9 >"$1/$name.tar.gz"
changes >"$1/$name.changes.md"
sum=$(sha256sum <"$1/$name.tar.gz" | cut -d ' ' -f 1)
url=${URL:-file://$(realpath "$1")/$name.tar.gz}
for file in conda/recipe.yaml spack/hocket/package.py; do
  mkdir -p "$1/$(dirname $file)"
  sed "s|@VERSION@|$version|g; s|@URL@|$url|g; s|@SHA256@|$sum|g" "packaging/${file/hocket\//}" >"$1/$file"
done
(cd "$1" && sha256sum "$name.tar.gz" "$name.changes.md" >SHA256SUMS && cat SHA256SUMS)
