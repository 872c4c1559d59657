#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh may | install PROGRAMS PAGES | uninstall: what `make install` and `make uninstall` do, in PREFIX, LIBDIR and INCLUDEDIR
# below DESTDIR.  share/doc/hocket/manifest lists every file, link and folder that was written, with check sums: uninstall removes
# these and nothing else.
set -eu
umask 022
PATH=$PATH:/usr/sbin:/sbin # ldconfig is there
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
root=$DESTDIR$PREFIX lib=$DESTDIR$LIBDIR
manifest=$root/share/doc/hocket/manifest

die() { echo "$*" >&2; exit 1; }

may() {
  local folder
  for folder in "$root" "$lib"; do
    while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
    [ -d "$folder" ] && [ -w "$folder" ] || die "no right to write $folder: sudo make $1, or make $1 PREFIX=\$HOME/.local"
  done
}

# ---- writing; paths have no DESTDIR ----
note() { echo "$1 $2" >>"$manifest.new"; }
sum() { sha256sum <"$1" | cut -d ' ' -f 1; }
folder() {
  [ -d "$DESTDIR$1" ] && return
  folder "$(dirname "$1")"
  mkdir "$DESTDIR$1"
  made+=("$1")
}
put() { # mode source path
  folder "$(dirname "$3")"
  install -m "$1" "$2" "$DESTDIR$3"
  note "$(sum "$DESTDIR$3")" "$3"
}
link() { # target path
  ln -sfn "$1" "$DESTDIR$2"
  note "link:$1" "$2"
}
version() { sed -n "s/^#define $1_\(MAJOR\|MINOR\|PATCH\) //p" "$2" | paste -sd .; }
filled() { # template path: @NAME@ becomes what this installation has
  sed "s|@PREFIX@|$PREFIX|g; s|@LIBDIR@|$LIBDIR|g; s|@INCLUDEDIR@|$INCLUDEDIR|g; s|@NCCL@|$nccl|g; s|@HOCKET@|$hocket|g
       s|@TO_INCLUDE@|$(realpath -ms --relative-to="$LIBDIR/cmake/hocket" "$INCLUDEDIR")|g" "$1" >"$manifest.filled"
  put 644 "$manifest.filled" "$2"
  rm "$manifest.filled"
}

write() { # programs pages
  local file nccl hocket
  nccl=$(version NCCL include/nccl.h) hocket=$(version HOCKET include/hocket.h)
  made=()
  mkdir -p "$DESTDIR/"
  folder "$PREFIX/share/doc/hocket"
  : >"$manifest.new"
  for file in include/*.h; do put 644 "$file" "$INCLUDEDIR/${file#include/}"; done
  put 755 "$HK_BUILD/lib/libnccl.so.2" "$LIBDIR/libnccl.so.$nccl"
  link "libnccl.so.$nccl" "$LIBDIR/libnccl.so.2"
  link libnccl.so.2 "$LIBDIR/libnccl.so"
  put 644 "$HK_BUILD/lib/libnccl_static.a" "$LIBDIR/libnccl_static.a"
  for file in LICENSE NOTICE; do put 644 $file "$PREFIX/share/doc/hocket/$file"; done
  for file in $1; do
    if [ -L "$file" ]; then link "$(readlink "$file")" "$PREFIX/bin/$(basename "$file")"; else put 755 "$file" "$PREFIX/bin/$(basename "$file")"; fi
  done
  for file in $2; do put 644 "$file" "$PREFIX/share/man/man${file##*.}/$(basename "$file")"; done
  for file in nccl hocket; do filled "packaging/pkgconfig/$file.pc" "$LIBDIR/pkgconfig/$file.pc"; done
  for file in packaging/cmake/*; do filled "$file" "$LIBDIR/cmake/hocket/$(basename "$file")"; done
  for file in "${made[@]}"; do note folder "$file"; done
  mv "$manifest.new" "$manifest"
}

# ---- removing ----
remove() {
  local what path
  local -a folders=()
  while read -r what path; do
    case $what in
      folder) folders=("$path" "${folders[@]}") ;;
      link:*) [ "$(readlink "$DESTDIR$path")" != "${what#link:}" ] || rm "$DESTDIR$path" ;;
      *)
        [ -e "$DESTDIR$path" ] || continue
        if [ "$(sum "$DESTDIR$path")" = "$what" ]; then rm "$DESTDIR$path"; else echo "$path is not what was installed: it stays"; fi
        ;;
    esac
  done <"$manifest"
  rm "$manifest"
  for path in "${folders[@]}"; do rmdir "$DESTDIR$path" 2>/dev/null || true; done # others may use it by now
}

# ---- what the machine makes of it ----
ld_so_searches() { # folder
  local searched
  while IFS=: read -r searched _; do
    [ "$searched" -ef "$1" ] && return 0
  done < <(ldconfig -NXv 2>/dev/null | grep '^/')
  return 1
}
nccl_of_ld_so() { ldconfig -p 2>/dev/null | sed -n 's/^[[:space:]]*libnccl\.so\.2 .* => //p' | { grep -vxF "$LIBDIR/libnccl.so.2" || true; }; }
nccl_of_pkg_config() { { pkg-config --variable=pcfiledir nccl 2>/dev/null || true; } | { grep -vxF "$LIBDIR/pkgconfig" || true; }; }

explain() { # the other NCCL of ld.so, and of pkg-config, before this one came
  if ! ld_so_searches "$LIBDIR"; then
    cat <<END
ld.so does not search $LIBDIR, so programs load Hocket only if you say so${1:+; the others keep $1}:
  export PATH=$PREFIX/bin:\$PATH PKG_CONFIG_PATH=$LIBDIR/pkgconfig
  cc program.c -o program \$(pkg-config --cflags --libs nccl) -Wl,-rpath,$LIBDIR    # a program of yours
  LD_LIBRARY_PATH=$LIBDIR ./program    # a program that was linked with NCCL
END
    return
  fi
  if [ "$(ldconfig -p | sed -n 's/^[[:space:]]*libnccl\.so\.2 .* => //p' | head -n 1)" = "$LIBDIR/libnccl.so.2" ]; then
    echo "Every program of this machine that looks for libnccl.so.2 without a path of its own now loads Hocket${1:+, in place of $1}."
    [ -z "$1" ] || echo "To undo that: make uninstall PREFIX=$PREFIX; with another PREFIX, such as /opt/hocket, it takes no other library's place."
  elif [ -n "$1" ]; then
    echo "ld.so finds $1 first: programs load Hocket only with LD_LIBRARY_PATH=$LIBDIR."
  else
    echo "ld.so finds it after ldconfig, which root must run."
  fi
  if [ -n "$2" ] && [ -z "$(nccl_of_pkg_config)" ]; then echo "pkg-config's nccl is Hocket now, in place of $2/nccl.pc."; fi
}

# Only root can renew the loader's list, and only in place does it matter.
renew() { [ -n "$DESTDIR" ] || [ "$(id -u)" != 0 ] || ldconfig 2>/dev/null || true; }

case $1 in
  may) may "$2" ;;
  install)
    # shellcheck disable=SC2086 # lists of files
    for file in "$HK_BUILD/lib/libnccl.so.2" "$HK_BUILD/lib/libnccl_static.a" $2 $3; do
      [ -e "$file" ] || die "$file is not built: run \`make lib perf tool man\` first, without sudo"
    done
    before=$(nccl_of_ld_so | head -n 1) pc_before=$(nccl_of_pkg_config)
    [ ! -e "$manifest" ] || remove
    if [ -e "$lib/libnccl.so.2" ] && ! grep -qa hocketVersion "$lib/libnccl.so.2"; then
      die "$lib/libnccl.so.2 is another NCCL: remove it with what installed it, or give another PREFIX"
    fi
    write "${@:2}"
    renew
    [ -z "${QUIET:-}" ] || exit 0
    if [ -n "$DESTDIR" ]; then echo "installed in $root"; else
      echo "installed in $PREFIX; \`make uninstall PREFIX=$PREFIX\` removes it"
      explain "$before" "$pc_before"
    fi
    ;;
  uninstall)
    [ -e "$manifest" ] || die "nothing to remove: there is no $manifest, which \`make install\` writes"
    may uninstall
    remove
    renew
    echo "removed from $root"
    ;;
esac
