#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wheels.sh: the wheels of two clones in folders with other names are the same, byte for byte, for x86_64 and aarch64; those for aarch64 run
# under qemu-user; `make dist` is a source distribution, which pip builds and installs without a network; two of them are the same, too.
# The suite `wheel` uses the wheel of this machine. ARCHS="aarch64" for some.
set -u
. tests/support/suite.sh
here=$PWD triplet=aarch64-linux-gnu
tools=$here/build/wheel/tools
[ -x "$tools/bin/hatchling" ] || make wheel WHEEL_NVCC= >"$tmp/out" 2>&1 || { tail -n 3 "$tmp/out"; echo "SKIP: no wheels can be made"; exit 77; }
clone() { git clone -q . "$1" && mkdir -p "$1/build/wheel" && ln -s "$tools" "$1/build/wheel/tools"; }
clone "$tmp/one" && clone "$tmp/another/folder" || exit 1
names() { python3 -m zipfile -l "$(compgen -G "$tmp/one/build/wheel/hocket-*$1.whl")" | awk '{ print $1 }'; }

for arch in ${ARCHS:-x86_64 aarch64}; do
  cross=
  [ "$arch" = "$(uname -m)" ] || cross=WHEEL_ARCH=$arch
  [ -z "$cross" ] || command -v "$arch-linux-gnu-gcc" >/dev/null || { echo "SKIP: $arch: no $arch-linux-gnu-gcc"; continue; }
  for folder in one another/folder; do
    make --no-print-directory -C "$tmp/$folder" wheel WHEEL_NVCC= $cross >"$tmp/out" 2>&1 || fault "make wheel $cross fails"
  done
  count=0
  for wheel in "$tmp"/one/build/wheel/*"$arch.whl"; do
    count=$((count + 1))
    cmp "$wheel" "$tmp/another/folder/build/wheel/$(basename "$wheel")" || complain "$(basename "$wheel") is another one in another folder"
  done
  [ $count = 2 ] || complain "$arch: $count wheels"
  [ -z "$cross" ] || diff <(names "$(uname -m)") <(names "$arch") || complain "the wheels of $(uname -m) and $arch have other files"
done

# A qemu of this machine's Debian, with the C library of the cross compiler.
wheel=$(compgen -G "$tmp/one/build/wheel/hocket-*$triplet*" || compgen -G "$tmp/one/build/wheel/hocket-*aarch64.whl")
if [ -z "$wheel" ] || ! command -v qemu-aarch64-static >/dev/null; then
  echo "SKIP: aarch64: no wheel, or no qemu-aarch64-static (Debian: qemu-user-static)"
else
  python3 -m zipfile -e "$wheel" "$tmp/arm"
  chmod +x "$tmp"/arm/hocket/bin/*
  export QEMU_LD_PREFIX=/usr/$triplet
  gives 0 qemu-aarch64-static "$tmp/arm/hocket/bin/hocket" --version
  gives 0 qemu-aarch64-static "$tmp/arm/hocket/bin/hocket" plan allreduce 1M --machine 8xh100:nvswitch4
  "$triplet-gcc" -pthread -DHOCKET_NO_CUDA_HEADERS -I"$tmp/arm/hocket/include" examples/first.c "$tmp/arm/hocket/lib/libhocket.so" -Wl,-rpath,"$tmp/arm/hocket/lib" -o "$tmp/first" &&
    gives 0 qemu-aarch64-static "$tmp/first"
  says 'got the sum 3'
fi

# The sources: the same twice; pip builds them with hatchling at hand and no index.
for folder in one another/folder; do "$tmp/$folder/scripts/dist.sh" "$tmp/$folder/build/dist" >/dev/null || complain "make dist fails"; done
cmp "$tmp"/one/build/dist/hocket-*.tar.gz "$tmp"/another/folder/build/dist/hocket-*.tar.gz || complain "two source distributions differ"
python3 -m venv "$tmp/env" && cp -r "$(echo "$tools"/lib/python3*/site-packages)/." "$(echo "$tmp"/env/lib/python3*/site-packages)/" # hatchling
mkdir "$tmp/home"
env -i HOME="$tmp/home" PATH="$tmp/env/bin:/usr/bin:/bin" PIP_NO_INDEX=1 "$tmp/env/bin/pip" install -q --no-build-isolation --disable-pip-version-check \
  "$tmp"/one/build/dist/hocket-*.tar.gz >"$tmp/out" 2>&1 || fault "pip does not install the source distribution"
gives 0 env -C "$tmp/home" "$tmp/env/bin/python" -c 'import array, hocket; c = hocket.init(); x = array.array("f", [2]); c.all_reduce(x); print(x[0], hocket.__version__)'
says "2.0 $(scripts/dist.sh --version)"
gives 0 "$tmp/env/bin/all_reduce_perf" --procs 2 -b 8 -e 8 -n 2
finish "wheels and sources: the same bytes in two folders; $cases uses"
