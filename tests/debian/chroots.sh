# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Fresh Debians in chroots, for what runs in them: tests/debian/check.sh, tests/debian/packages.sh. They lie in $folder; the variable
# `release` names the one in use.
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
