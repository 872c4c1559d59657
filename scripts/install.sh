#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Called by `make install` with the programs, the man pages and the shells' completion to install.
set -eu
root=$DESTDIR$PREFIX lib=$DESTDIR$LIBDIR
install -d "$root/include" "$root/bin" "$lib/pkgconfig"
install -m 644 include/*.h "$root/include/"
install -m 755 "$HK_BUILD/lib/libnccl.so.2" "$lib/libnccl.so.$VERSION"
install -m 755 "$HK_BUILD/lib/libnccl-net-hocket.so" "$lib/"
ln -sf "libnccl.so.$VERSION" "$lib/libnccl.so.2"
ln -sf libnccl.so.2 "$lib/libnccl.so"
install -D -m 644 -t "$root/share/doc/hocket" LICENSE NOTICE
for binary in $1; do install -m 755 "$binary" "$root/bin/"; done
for page in $2; do install -D -m 644 "$page" "$root/share/man/man${page##*.}/$(basename "$page")"; done
for file in $3; do
  case $file in
    */_*) install -D -m 644 "$file" "$root/share/zsh/site-functions/$(basename "$file")" ;;
    *) install -D -m 644 "$file" "$root/share/bash-completion/completions/$(basename "$file")" ;;
  esac
done
for name in nccl hocket; do
  cat >"$lib/pkgconfig/$name.pc" <<END
prefix=$PREFIX
includedir=\${prefix}/include
libdir=$LIBDIR

Name: $name
Description: Hocket: collective communication with NCCL's API, on GPUs and CPUs
Version: $VERSION
Cflags: -I\${includedir}
Libs: -L\${libdir} -lnccl
END
  chmod 644 "$lib/pkgconfig/$name.pc"
done
echo "installed in $root"
# A library in a folder that the loader searches is found after ldconfig; only root can, and only in place.
if [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ]; then ldconfig 2>/dev/null || true; fi
