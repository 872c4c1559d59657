#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make install` below a DESTDIR gives what a program needs to build, link and run, and pkg-config finds it.
set -u
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$*"; bad=1; }
umask 077 # a careful user's must not make the installed files unreadable
$HK_MAKE --no-print-directory BUILD="$HK_BUILD" install DESTDIR="$tmp" PREFIX=/opt/hk || exit 1
root=$tmp/opt/hk
for file in include/nccl.h lib/libnccl.so lib/libnccl.so.2 lib/libnccl-net-hocket.so lib/pkgconfig/nccl.pc lib/pkgconfig/hocket.pc \
  share/man/man7/hocket-parameters.7 share/man/man1/hocket.1 share/bash-completion/completions/hocket \
  share/zsh/site-functions/_hocket; do
  [ -e "$root/$file" ] || complain "$file was not installed"
done
for binary in "$HK_BUILD"/bin/*_perf; do
  name=$(basename "$binary")
  [ -e "$binary" ] || { echo "SKIP: the perf binaries are not built"; continue; }
  [ -x "$root/bin/$name" ] || complain "$name was not installed"
  [ -e "$root/share/man/man1/$name.1" ] || complain "$name has no manual page"
  (cd "$tmp" && "$root/bin/$name" --help >/dev/null) || complain "$name does not find its library where it is installed"
done
for name in $("$root/bin/hocket" help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
  [ -e "$root/share/man/man1/hocket-$name.1" ] || complain "hocket $name has no manual page"
done
unreadable=$(find "$root" -type f ! -perm -044)
[ -z "$unreadable" ] || complain "not readable by all: $unreadable"
if command -v mandoc >/dev/null; then
  for page in "$root"/share/man/man*/hocket*; do
    mandoc -T lint -W error "$page" || complain "mandoc finds errors in $(basename "$page")"
  done
fi

# A client, built with nothing but what pkg-config says.  It runs once the API is there.
command -v pkg-config >/dev/null || { echo "SKIP: pkg-config is not installed"; exit $bad; }
export PKG_CONFIG_LIBDIR=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp
cat >"$tmp/client.c" <<'END'
#include <nccl.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  ncclResult_t result = ncclGetVersion(&version);
  printf("%d %d\n", result, version);
  return 0;
}
END
for name in nccl hocket; do
  [ "$(pkg-config --modversion $name)" = 2.32.3 ] || complain "pkg-config does not know $name's version"
  # shellcheck disable=SC2046 # words are wanted
  gcc -o "$tmp/client" "$tmp/client.c" $(pkg-config --cflags --libs $name) || complain "a client does not link"
  said=$(LD_LIBRARY_PATH=$root/lib "$tmp/client")
  [ "$said" = "0 23203" ] || complain "ncclGetVersion: wanted \"0 23203\", got \"$said\""
done
[ $bad = 0 ] && echo "installed, found, linked, ran"
exit $bad
