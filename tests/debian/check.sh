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
folder=${FOLDER:-$PWD/build/debian} failed=0 checked=0
mirror=http://deb.debian.org/debian
export PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || { echo "SKIP: chroots need root"; exit 77; }
command -v debootstrap >/dev/null || { echo "SKIP: debootstrap is not here (Debian: debootstrap)"; exit 77; }
unshare --mount --pid --fork true 2>/dev/null || { echo "SKIP: no mount namespaces can be made"; exit 77; }
mkdir -p "$folder/logs" "$folder/cache"

# What a fresh machine has that is to build Hocket: a git and a make, and sudo for the user.
pristine() { # release
  [ -e "$folder/$1.pristine/ready" ] && return
  rm -rf --one-file-system "$folder/$1.pristine"
  debootstrap --variant=minbase --include=git,make,sudo,ca-certificates --cache-dir="$folder/cache" \
    "$1" "$folder/$1.pristine" $mirror >"$folder/logs/$1.log" 2>&1 || { tail -n 3 "$folder/logs/$1.log"; return 1; }
  touch "$folder/$1.pristine/ready"
}

# Runs a command in the chroot; all of its processes and mounts end with it. The clock has just begun.
enter() { # root user command
  local clock=() up
  read -r up _ </proc/uptime
  up=$((5 - ${up%.*}))
  unshare --time --monotonic=1 true 2>/dev/null && clock=(--time "--monotonic=$up" "--boottime=$up")
  # shellcheck disable=SC2016 # for the shell inside
  unshare --mount --pid --fork --kill-child "${clock[@]}" bash -c '
    set -e
    root=$1 user=$2 cache=$3
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount --bind "$cache" "$root/var/cache/apt/archives"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"
    shell=(/bin/bash -c "$4")
    [ "$user" = root ] || shell=(/usr/bin/su - "$user" -c "$4")
    path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    # No exec: this shell is the first process, which takes in those whose parents have ended.
    rc=0
    env -i HOME=/root PATH=$path LANG=C.UTF-8 chroot "$root" "${shell[@]}" || rc=$?
    exit $rc
  ' enter "$1" "$2" "$folder/cache/$release.debs" "$3" </dev/null
}

fresh() { # root user
  local home=$1/root
  rm -rf --one-file-system "$1"
  cp -a --reflink=auto "$folder/$release.pristine" "$1" || return 1
  mkdir -p "$folder/cache/$release.debs/partial"
  # Certificates of this site, which the way to the package index may need.
  cp -a /usr/local/share/ca-certificates "$1/usr/local/share/" 2>/dev/null && chroot "$1" update-ca-certificates >/dev/null 2>&1
  if [ "$2" != root ]; then
    chroot "$1" useradd -m -s /bin/bash "$2" || return 1
    echo "$2 ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/$2"
    home=$1/home/$2
  fi
  git clone -q . "$home/hocket" && chroot "$1" chown -R "$2:" "${home#"$1"}/hocket"
}

report() { # name exit-code seconds words
  checked=$((checked + 1))
  if [ "$2" = 0 ]; then
    printf 'PASS  %-34s %5d s  %s\n' "$1" "$3" "$4"
  else
    failed=$((failed + 1))
    printf 'FAIL  %-34s %5d s  %s\n' "$1" "$3" "$4"
  fi
}

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
