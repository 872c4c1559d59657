#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deb.sh: Debian's packages of these sources into build/packages.  `make deb` calls it.
#   DEBFULLNAME, DEBEMAIL  the packages' maintainer, as for other tools of Debian
#   NVCC=yes               with kernels for GPUs
set -eu
cd "$(dirname "$0")/.."
out=$PWD/build/packages version=$(scripts/dist.sh --version)
SOURCE_DATE_EPOCH=$(scripts/dist.sh --date)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8
who="${DEBFULLNAME:-Hocket maintainers} <${DEBEMAIL:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"
# A version that is not released yet is older than the release.
full=$version
scripts/dist.sh --released || full=$version~$(TZ=UTC printf '%(%Y%m%d%H%M)T' "$SOURCE_DATE_EPOCH")
rm -rf "$out" && mkdir -p "$out"
scripts/dist.sh "$out/source" >/dev/null
tar -xzf "$out/source/hocket-$version.tar.gz" -C "$out/source"
tree=$out/source/hocket-$version
cp -r "$tree/packaging/debian" "$tree/debian"
sed -i "s|^Maintainer: .*|Maintainer: $who|" "$tree/debian/control"
{
  printf 'hocket (%s) unstable; urgency=medium\n\n' "$full"
  # Lines of 80 columns at most.
  scripts/dist.sh --changes | awk '/^- /{ if (t) print t; t = substr($0, 3) } /^  [^ ]/{ t = t " " substr($0, 3) } END { print t }' |
    while read -r item; do fold -s -w 74 <<<"$item" | sed 's/ *$//; 1s/^/  * /; 1!s/^/    /'; done
  printf '\n -- %s  %s\n' "$who" "$(TZ=UTC printf '%(%a, %d %b %Y %H:%M:%S +0000)T' "$SOURCE_DATE_EPOCH")"
} >"$tree/debian/changelog"
(cd "$tree" && env -u MAKEFLAGS -u MAKELEVEL -u BUILD dpkg-buildpackage -us -uc "-j$(nproc)") >"$out/log" 2>&1 ||
  { tail -n 15 "$out/log"; echo "dpkg-buildpackage fails: all of it is in $out/log"; exit 1; }
mv "$out"/source/hocket_* "$out"/source/*.*deb "$out/" 2>/dev/null || true
rm -rf "$out/source"
cd "$out" && ls -l -- *.deb | awk '{ printf "%s: %.1f MB\n", $NF, $5 / 1e6 }'
