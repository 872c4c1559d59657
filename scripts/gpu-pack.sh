#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-pack.sh BUILD: strips the library, the programs and the command of a build with GPU kernels, checks that they run on any Linux
# with glibc 2.34, and packs them with tests/gpu/ into BUILD/hocket-gpu.tar.gz, for a machine with a GPU and nothing to build with.
set -u
build=$1 newest=2.34 most=$((60 << 20)) bad=0
fails() { echo "gpu-pack: $*"; bad=1; }
files=("$build"/lib/libnccl.so.2 "$build"/bin/*_perf "$build"/bin/hocket-perf "$build"/bin/hocket)
for file in "${files[@]}"; do
  [ -e "$file" ] || { fails "$file is not built"; continue; }
  [ ! -L "$file" ] || continue # to hocket-perf
  strip --strip-debug "$file" || bad=1
  want=$(readelf --version-info "$file" | grep -o 'GLIBC_[0-9.]*' | cut -d _ -f 2 | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "$want" "$newest" | sort -V | tail -n 1)" = "$newest" ] ||
    fails "$file needs glibc $want, and $newest is the newest allowed: build it on an older system"
  other=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^lib[cm]\.so\.6$\|^libnccl\.so\.2$\|^ld-linux' | tr '\n' ' ')
  [ -z "$other" ] || fails "$file needs ${other% }: libc and libm are allowed"
done
[ $bad = 0 ] || exit 1
pack=$build/hocket-gpu.tar.gz
tar -czf "$pack" "${files[@]}" tests/gpu || exit 1
bytes=$(stat -c %s "$pack")
[ "$bytes" -le $most ] || { fails "$pack has $bytes bytes, more than $most"; exit 1; }
echo "$pack: $bytes bytes; unpack it on the machine with the GPU, then: bash tests/gpu/session.sh"
