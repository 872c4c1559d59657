#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packages.sh: `make deb` on a fresh Debian 12, lintian of each release, and tests/debian/installed.sh with the packages on fresh Debians.
# One line a step; what a step prints is in build/debian/logs. It needs root, debootstrap, Debian's packages, and 4 GB.
#   RELEASES="bookworm trixie"   KEEP=1 keeps the chroots, build/debian/RELEASE-packages
#   DEBS=folder                  packages that are there already: nothing is built
set -u
cd "$(dirname "$0")/../.." || exit 1
RELEASES=${RELEASES:-bookworm trixie}
. tests/debian/chroots.sh
debs=${DEBS:-$folder/debs}
install='DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends'

step() { # name log command...
  local name=$1 log=$2 began=$SECONDS rc last
  shift 2
  "$@" >"$log" 2>&1
  rc=$?
  last=$(grep -v '^$' "$log" | tail -n 1 | cut -c 1-100)
  report "$name" $rc $((SECONDS - began)) "$last"
  [ $rc = 0 ] || tail -n 15 "$log" | sed 's/^/      | /'
  return $rc
}

# The oldest release builds: what is linked there runs on the newer one, too.
build() {
  fresh "$folder/$release-build" root &&
    enter "$folder/$release-build" root "apt-get -q update && cd ~/hocket && DEBFULLNAME='Hocket maintainers' DEBEMAIL=hocket@example.org make deb" &&
    rm -rf "$debs" && cp -r "$folder/$release-build/root/hocket/build/packages" "$debs"
  local rc=$?
  rm -rf --one-file-system "$folder/$release-build"
  return $rc
}

# The same packages with a version before theirs, for the upgrade; nothing else differs. A "~" sorts before the end of a version.
older() { # folder
  local deb made version
  version=$(scripts/dist.sh --version)
  mkdir -p "$1"
  for deb in "$debs"/*.deb; do
    [[ $deb != *dbgsym* ]] || continue
    made=$(dpkg-deb -f "$deb" Version)
    [[ $made == "$version"?(~*) ]] || { echo "$deb has the version $made, and the sources have $version"; return 1; }
    rm -rf "$1/tree"
    dpkg-deb -R "$deb" "$1/tree" && sed -i "s/${made//./\\.}/&~0/g" "$1/tree/DEBIAN/control" && dpkg-deb -Zgzip -z1 -b "$1/tree" "$1/" >/dev/null || return 1
    [ "$(sed -n 's/^Version: //p' "$1/tree/DEBIAN/control")" = "$made~0" ] || { echo "$deb: no version before $made is made"; return 1; }
  done
  rm -r "$1/tree"
}

lintian_says() {
  mkdir -p "$root/debs" && cp "$debs"/* "$root/debs/"
  enter "$root" root "apt-get -q update && $install lintian && lintian --version && cd /debs &&
    lintian --fail-on error,warning --info *.changes && echo 'no error, no warning'"
}
use() {
  older "$root/older" && enter "$root" root "cd ~/hocket && $install gcc libc6-dev make cmake pkgconf python3-numpy python3-mpi4py- && tests/debian/installed.sh /older /debs"
}

release=${RELEASES%% *}
[ -n "${DEBS:-}" ] || step "$release make deb" "$folder/logs/packages-build.log" eval 'pristine "$release" && build' || exit 1
for release in $RELEASES; do
  root=$folder/$release-packages
  step "$release lintian" "$folder/logs/$release-lintian.log" eval 'pristine "$release" && fresh "$root" root && lintian_says'
  step "$release packages" "$folder/logs/$release-packages.log" eval 'fresh "$root" root && mkdir "$root/debs" && cp "$debs"/*.deb "$root/debs/" && enter "$root" root "apt-get -q update" && use'
  [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
done
echo "$checked steps, $failed failed"
exit $((failed > 0))
