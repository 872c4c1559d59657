#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make install` below a DESTDIR gives what a program needs to build, link and run, and pkg-config finds it; in place it says what it
# takes the place of, and what it prints to use it works. `make uninstall` removes what install has written, and nothing else.
set -u
. tests/support/suite.sh
umask 077 # a careful user's must not make the installed files unreadable
mk() { $HK_MAKE --no-print-directory BUILD="$HK_BUILD" "$@"; }
mkdir -p "$tmp/opt/hk/lib" # where others have files, too
echo theirs >"$tmp/opt/hk/lib/other"
chmod 644 "$tmp/opt/hk/lib/other"
mk install DESTDIR="$tmp" PREFIX=/opt/hk || exit 1
root=$tmp/opt/hk
for file in include/nccl.h lib/libnccl.so lib/libnccl.so.2 lib/pkgconfig/nccl.pc lib/pkgconfig/hocket.pc \
  share/man/man7/hocket-parameters.7 share/man/man1/hocket.1; do
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
cp tests/packages/client.c "$tmp/"
ours=$("$root/bin/hocket" --version) # hocket 0.1.0 (NCCL 2.32.3)
[[ $ours =~ ^hocket\ ([0-9.]+)\ \(NCCL\ ([0-9.]+)\)$ ]] || complain "hocket --version says '$ours'"
[ "$(pkg-config --modversion hocket)" = "${BASH_REMATCH[1]}" ] || complain "pkg-config's version of hocket is not that of '$ours'"
[ "$(pkg-config --modversion nccl)" = "${BASH_REMATCH[2]}" ] || complain "pkg-config's version of nccl is not that of '$ours'"
[ -e "$root/lib/libnccl.so.${BASH_REMATCH[2]}" ] || complain "libnccl.so has another version than '$ours'"
for name in nccl hocket; do
  # shellcheck disable=SC2046 # words are wanted
  gcc -o "$tmp/client" "$tmp/client.c" $(pkg-config --cflags --libs $name) || complain "a client does not link"
  said=$(LD_LIBRARY_PATH=$root/lib "$tmp/client")
  [ "$said" = "0 23203" ] || complain "ncclGetVersion: wanted \"0 23203\", got \"$said\""
done
unset PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR

# A second install takes the first one's place. What was changed since then stays, and so do other files.
mk install DESTDIR="$tmp" PREFIX=/opt/hk >/dev/null || complain "a second install fails"
echo changed >>"$root/share/doc/hocket/NOTICE"
mk uninstall DESTDIR="$tmp" PREFIX=/opt/hk >"$tmp/said" || complain "uninstall fails: $(cat "$tmp/said")"
left=$(cd "$tmp/opt" && find . ! -type d | sort | tr '\n' ' ')
[ "$left" = "./hk/lib/other ./hk/share/doc/hocket/NOTICE " ] || complain "after uninstall there are: $left"
grep -q 'NOTICE is not what was installed' "$tmp/said" || complain "uninstall does not say what it leaves: $(cat "$tmp/said")"
mk uninstall DESTDIR="$tmp" PREFIX=/opt/hk >"$tmp/said" 2>&1 && complain "uninstall finds something to remove twice"
grep -q 'there is no .*/manifest' "$tmp/said" || complain "a second uninstall says: $(cat "$tmp/said")"

# In place, in a folder that ld.so does not search: the commands that it prints work.
mk install PREFIX="$tmp/place" >"$tmp/said" || complain "install in place: $(cat "$tmp/said")"
sed -n 's/^  //p' "$tmp/said" | sed "s/program/client/g" >"$tmp/lines"
[ "$(wc -l <"$tmp/lines")" = 3 ] || complain "install does not say how its library is used: $(cat "$tmp/said")"
said=$(cd "$tmp" && rm client && { sed -n 1,2p lines; echo "[ -n \"\$(command -v hocket)\" ] && ./client"; sed -n 3p lines; } | bash -e 2>&1)
[ "$said" = $'0 23203\n0 23203' ] || complain "what install prints does not work: $said; $(cat "$tmp/said")"
PKG_CONFIG_PATH=$tmp/place/lib/pkgconfig cmake_finds=$tmp/place tests/packages/cmake.sh || complain "CMake does not find it"
$HK_MAKE --no-print-directory BUILD="$tmp/nothing" SUDO_USER=somebody install PREFIX="$tmp/place" >"$tmp/said" 2>&1 && complain "it installs what is not built"
grep -q 'is not built: run' "$tmp/said" && [ -e "$tmp/place/bin/hocket" ] || complain "what is not built: $(cat "$tmp/said")"
mkdir -p "$tmp/nvidia/lib" && echo "NVIDIA's" >"$tmp/nvidia/lib/libnccl.so.2"
mk install PREFIX="$tmp/nvidia" >"$tmp/said" 2>&1 && complain "install writes over another NCCL"
grep -q 'is another NCCL' "$tmp/said" && [ ! -e "$tmp/nvidia/include" ] || complain "another NCCL: $(cat "$tmp/said")"
mk uninstall PREFIX="$tmp/place" >/dev/null && [ ! -e "$tmp/place" ] || complain "uninstall leaves $(find "$tmp/place")"
if [ "$(id -u)" != 0 ]; then
  mk install PREFIX=/opt/hocket-test >"$tmp/said" 2>&1 && complain "install writes to /opt as a user"
  grep -q 'no right to write /opt: sudo make install, or make install PREFIX=' "$tmp/said" || complain "no right: $(cat "$tmp/said")"
fi

# In a folder that ld.so searches before another NCCL. A namespace of our own has a /usr/local and an /etc that are not the machine's.
cat >"$tmp/inside" <<'END'
set -e
mkdir "$tmp/etc" && cp -a /etc/. "$tmp/etc" 2>/dev/null || true
mount --bind "$tmp/etc" /etc
mount -t tmpfs none /usr/local
mkdir -p /usr/local/lib/pkgconfig /usr/local/theirs
cp "$HK_BUILD/lib/libnccl.so.2" /usr/local/theirs/
rm -rf /etc/ld.so.conf.d/* && printf '/usr/local/lib\n/usr/local/theirs\n' >/etc/ld.so.conf.d/test.conf
ldconfig 2>/dev/null
$HK_MAKE --no-print-directory BUILD="$HK_BUILD" install PREFIX=/usr/local
$HK_MAKE --no-print-directory BUILD="$HK_BUILD" uninstall PREFIX=/usr/local
find /usr/local ! -type d; ldconfig -p | grep 'libnccl.so.2 '
END
if unshare -rm --propagation private true 2>/dev/null; then
  export tmp
  # The build is not the namespace's: root there is the user that runs the test.
  PATH=$PATH:/usr/sbin:/sbin SUDO_USER=yes unshare -rm --propagation private bash "$tmp/inside" >"$tmp/said" 2>&1 ||
    complain "install in /usr/local: $(cat "$tmp/said")"
  grep -q 'now loads Hocket, in place of /usr/local/theirs/libnccl.so.2' "$tmp/said" || complain "install in /usr/local says: $(cat "$tmp/said")"
  [ "$(tail -n 2 "$tmp/said" | sed 's/.* => //' | tr '\n' ' ')" = "/usr/local/theirs/libnccl.so.2 /usr/local/theirs/libnccl.so.2 " ] ||
    complain "uninstall in /usr/local leaves: $(cat "$tmp/said")"
else
  echo "SKIP: install in /usr/local is tried in a mount namespace, which cannot be had here"
fi
finish "installed, found, linked, ran, removed"
