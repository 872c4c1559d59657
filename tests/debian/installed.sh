#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# installed.sh OLDER NEWER: on a machine that may be broken, installs the packages in OLDER, upgrades to those in NEWER, uses all of them,
# puts another package libnccl2 next to them, removes them, and compares the machine with what it was. Root; tests/debian/packages.sh runs it.
set -u
. tests/support/suite.sh
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
older=$1 newer=$2 triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -dumpmachine)
ours=/usr/lib/$triplet/hocket/libnccl.so.2 theirs=/usr/lib/$triplet/libnccl.so.2
packages='libhocket-nccl2 libhocket-dev hocket python3-hocket'

# Every file, folder and link of the machine, but for what package managers write of their own work, and what the test writes.
machine() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path "$tmp" -o -path /root -o -path /var/log -o -path /var/cache -o -path /var/lib/apt \
    -o -path /older -o -path /debs \) -prune -o -print | grep -vE '^/var/lib/dpkg/(status|available|diversions|triggers/|lock|updates)|^/etc/ld.so.cache' | sort
}
apt() { apt-get -q -y --allow-downgrades --no-install-recommends "$@" >"$tmp/apt" 2>&1 || complain "apt-get $*: $(tail -n 5 "$tmp/apt")"; }
debs() { find "$1" -name '*.deb' ! -name '*dbgsym*'; }
loaded() { # what a program that was linked with libnccl.so.2 loads
  realpath "$(ldd "$tmp/client" | sed -n 's/.*libnccl\.so\.2 => \(.*\) (.*/\1/p')" 2>/dev/null
}
is_loaded() { # file when
  [ "$(loaded)" = "$(realpath "$1")" ] || complain "$2 a program loads '$(loaded)' and not $1; $(ldconfig -p | grep libnccl)"
}

machine >"$tmp/before"
# shellcheck disable=SC2046 # lists of files
apt install $(debs "$older")
old=$(dpkg-query -Wf '${Version}' hocket)
# shellcheck disable=SC2046
apt install $(debs "$newer")
new=$(dpkg-query -Wf '${Version}' hocket)
[ "$old" != "$new" ] && dpkg --compare-versions "$old" lt "$new" || complain "no upgrade: from '$old' to '$new'"
dpkg --verify $packages | grep -v '/usr/share/\(doc\|man\)/' && complain "files are not as the packages have them"

# The tools.
gives 0 hocket --version
gives 0 hocket plan allreduce 1M --machine 8xh100:nvswitch4
gives 0 all_reduce_perf --procs 2 -b 8 -e 1M -f 8 -n 2
says 'Out of bounds values : 0 OK'
gives 0 ncclras --version

# A consumer of each kind: pkg-config, CMake, a module that looks for NCCL, the static library.
cat >"$tmp/client.c" <<'END'
#include <hocket.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  printf("%d", ncclGetVersion(&version));
  printf(" %d\n", version);
  return 0;
}
END
# shellcheck disable=SC2046 # words are wanted
gives 0 gcc -o "$tmp/hocket" "$tmp/client.c" $(pkg-config --cflags --libs hocket)
gives 0 "$tmp/hocket"
says '0 232'
# shellcheck disable=SC2046
gives 0 gcc -o "$tmp/static" "$tmp/client.c" $(pkg-config --cflags hocket) "/usr/lib/$triplet/hocket/libnccl_static.a" -ldl -lm -pthread
gives 0 "$tmp/static"
says '0 232'
export PKG_CONFIG_PATH=/usr/lib/$triplet/hocket/pkgconfig
# shellcheck disable=SC2046
gives 0 gcc -o "$tmp/client" "$tmp/client.c" $(pkg-config --cflags --libs nccl)
gives 0 "$tmp/client"
says '0 232'
cmake_finds=/usr tests/packages/cmake.sh || bad=1

# Python, with the entry point by which PyTorch finds its backend.
gives 0 python3 -c 'import array, hocket; c = hocket.init(); x = array.array("f", [2]); c.all_reduce(x); print(x[0], hocket.__version__)'
says '2.0 0.'
gives 0 python3 -m hocket.run -n 2 tests/python/collectives.py
gives 0 python3 -c 'from importlib.metadata import entry_points; print([e.value for e in entry_points(group="torch.backends")])'
says 'hocket.torch:_autoload'
gives 0 python3 -c 'from hocket.program import Program, chunk
with Program("AllReduce", "pair", ranks=2, chunks=1) as pair: chunk(0, "input").reduce(chunk(1, "input")).copy(1)
print(pair.check())'
says proved

# Another package with NCCL's library, at the place where NVIDIA's has it.
mkdir -p "$tmp/other/DEBIAN" "$tmp/other/usr/lib/$triplet"
echo 'int ncclGetVersion(int *v) { *v = 29999; return 0; }' | gcc -shared -fPIC -Wl,-soname,libnccl.so.2 -x c - -o "$tmp/other/usr/lib/$triplet/libnccl.so.2.99.9"
ln -s libnccl.so.2.99.9 "$tmp/other$theirs"
printf '%s\n' 'Package: libnccl2' 'Version: 2.99.9-1+cuda13.4' "Architecture: $(dpkg --print-architecture)" 'Maintainer: A <a@example.org>' \
  'Description: another NCCL' >"$tmp/other/DEBIAN/control"
dpkg-deb -b "$tmp/other" "$tmp/libnccl2.deb" >/dev/null
name=libnccl.so.2-$triplet
is_loaded "$ours" "alone"
apt install "$tmp/libnccl2.deb"
is_loaded "$theirs" "with another libnccl2"
gives 0 "$tmp/hocket" # asked for Hocket by name
says '0 232'
gives 0 all_reduce_perf --procs 2 -b 8 -e 8 -n 2
gives 0 update-alternatives --set "$name" "$ours"
is_loaded "$ours" "after the choice of Hocket"
apt install --reinstall "$tmp/libnccl2.deb"
is_loaded "$ours" "after an upgrade of the other package"
# shellcheck disable=SC2046
apt install --reinstall $(debs "$newer")
is_loaded "$ours" "after an upgrade of Hocket"
gives 0 update-alternatives --auto "$name"
is_loaded "$theirs" "without a choice"
apt remove libnccl2
is_loaded "$ours" "when the other package is gone"
apt install "$tmp/libnccl2.deb"
apt remove $packages
is_loaded "$theirs" "when Hocket is gone"
apt remove libnccl2
# The other order: Hocket comes second.
apt install "$tmp/libnccl2.deb"
# shellcheck disable=SC2046
apt install $(debs "$newer")
is_loaded "$theirs" "when Hocket comes second"
apt remove libnccl2 $packages

# Removed, not purged: the machine is as it was.
machine >"$tmp/after"
diff "$tmp/before" "$tmp/after" >"$tmp/left" || complain "removing leaves: $(head -n 20 "$tmp/left")"
ldconfig -p | grep libnccl && complain "ld.so still knows the library"
finish "$old, $new, used next to another libnccl2, removed"
