#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh: README's commands on fresh Debians, each in a chroot of its own with a clean clone of this tree: as root, and
# as a plain user who has sudo; on a machine that has just booted, if the kernel has time namespaces. Then the compilers
# that each release has, with warnings as errors. One line a run; what a run prints is in build/debian/logs.
# It needs root, debootstrap, Debian's packages, and 10 GB.
#   RELEASES="trixie bookworm"   USERS="root user"   GOALS="demo check compilers"
#   COMPILERS="gcc-13 clang-19"  instead of all that a release has
#   QUICK, ONLY, LONG, JOBS      as for `make check`
#   KEEP=1                       keeps the chroots: build/debian/RELEASE-USER-GOAL
set -u
cd "$(dirname "$0")/../.." || exit 1
RELEASES=${RELEASES:-trixie bookworm} USERS=${USERS:-root user} GOALS=${GOALS:-demo check compilers}
. tests/debian/chroots.sh

goal() { # user goal
  local name=$release-$1-$2 began=$SECONDS rc words=() variable log last
  log=$folder/logs/$name.log
  for variable in QUICK ONLY LONG JOBS; do
    [ -z "${!variable:-}" ] || words+=("$variable=${!variable}")
  done
  fresh "$folder/$name" "$1" && enter "$folder/$name" "$1" "cd ~/hocket && make $2 ${words[*]@Q}" >"$log" 2>&1
  rc=$?
  # The demo's last words are its result, those of `make check` the totals, followed by make's own if a test has failed.
  last=$(grep 'Out of bounds values\|^[0-9]* passed, ' "$log" | tail -n 1)
  [ -n "$last" ] || rc=1 last=$(tail -n 1 "$log" | cut -c 1-100)
  report "$release $1 $2" $rc $((SECONDS - began)) "$last"
  [ $rc = 0 ] || grep -h 'FAIL\|error:\|^make:.*Error' "$log" | head -n 20 | sed 's/^/      | /'
  [ -n "${KEEP:-}" ] || rm -rf --one-file-system "${folder:?}/$name"
}

# Everything is compiled without optimization, the tests, too; what users build also in the ways that distributions do.
install='DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends'
headers='libhwloc-dev check libsubunit-dev libexpat1-dev libjansson-dev libibverbs-dev librdmacm-dev libssl-dev' # that sources look for
compilers() {
  local root=$folder/$release-compilers names name flags log words began rc targets make
  read -ra names <<<"${COMPILERS:-}"
  log=$folder/logs/$release-compilers.log
  fresh "$root" root && enter "$root" root "apt-get -q update && $install gcc $headers &&
    apt-cache search --names-only '^(gcc|clang)-[0-9]+$'" >"$log" 2>&1 ||
    { report "$release compilers" 1 0 "no machine for them: $log"; return; }
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(sed -n 's/^\(\(gcc\|clang\)-[0-9]*\) - .*/\1/p' "$log" | sort -V)
  for name in "${names[@]}"; do
    log=$folder/logs/$release-$name.log words='' began=$SECONDS rc=0
    enter "$root" root "$install $name" >"$log" 2>&1 || rc=1 words=' is not to be had'
    for flags in -O0 -O2 -O3 '-O2 -D_FORTIFY_SOURCE=3'; do
      [ $rc = 0 ] || break
      targets='lib perf tool examples'
      [ "$flags" != -O0 ] || targets=objects
      words+=" ${flags//-D_FORTIFY_SOURCE=/FORTIFY }"
      make="make -j$(nproc) CC=$name CFLAGS='$flags' BUILD=build/matrix WERROR=-Werror"
      enter "$root" root "cd ~/hocket && $make $targets" >>"$log" 2>&1 || rc=1 words+=' fails'
      rm -rf "$root/root/hocket/build/matrix"
    done
    report "$release $name" $rc $((SECONDS - began)) "$words"
    [ $rc = 0 ] || grep -h 'error:' "$log" | sort -u | head -n 20 | sed 's/^/      | /'
  done
  [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
}

echo "commit $(git log -1 --format='%h %s')$(git diff --quiet HEAD || echo "; what is not committed is left out")"
for release in $RELEASES; do
  pristine "$release" || { report "$release" 1 0 "debootstrap fails: $folder/logs/$release.log"; continue; }
  for goal in $GOALS; do
    if [ "$goal" = compilers ]; then compilers; continue; fi
    for user in $USERS; do goal "$user" "$goal"; done
  done
done
echo "$checked runs, $failed failed"
exit $((failed > 0))
