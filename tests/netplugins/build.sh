#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh LIBFABRIC PLUGIN FOLDER: builds aws-ofi-nccl for `make check-plugins` from the source trees of libfabric and of the
# plugin (git checkouts or unpacked releases; neither is part of this repository) and installs both in FOLDER. Trees are built
# in copies. It needs autoconf, automake, libtool, libhwloc-dev, g++ and CUDA's headers (CUDA_HOME).
# CUDA's runtime is loaded when the plugin begins (--enable-cudart-dynamic): the static one accepts NVIDIA's own driver only,
# and check-plugins has none to offer on a machine without a GPU.
set -eu
[ $# = 3 ] || { sed -n '3,7s/^# //p' "$0"; exit 2; }
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$3"
folder=$(cd "$3" && pwd)
[ -e "$cuda/include/cuda_runtime_api.h" ] || { echo "there are no CUDA headers in $cuda: set CUDA_HOME"; exit 1; }

build() { # name source configure's options...
  local name=$1 tree=$folder/build/$1
  rm -rf "$tree"
  mkdir -p "$tree"
  (cd "$2" && tar -cf - .) | tar -xf - -C "$tree"
  shift 2
  echo "$name: $tree.log"
  (cd "$tree" && { [ -x configure ] || ./autogen.sh; } && ./configure --prefix="$folder" "$@" && make -j"$(nproc)" && make install) \
    >"$tree.log" 2>&1 || { tail -n 5 "$tree.log"; exit 1; }
}
off=()
for provider in verbs efa psm2 psm3 opx usnic cxi lpp ucx shm sm2 udp sockets mrail hook_debug; do off+=("--disable-$provider"); done
build libfabric "$1" --enable-tcp --enable-rxm "${off[@]}"
build aws-ofi-nccl "$2" --with-libfabric="$folder" --with-cuda="$cuda" --enable-cudart-dynamic --disable-tests
echo "make check-plugins OFI=$folder/lib/libnccl-net.so"
