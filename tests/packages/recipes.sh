#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# recipes.sh: what recipes for NCCL do, in a clean clone: PyTorch's (src.build into a BUILDDIR, with a static library), conda-forge's (src.lib,
# then `make install` without CUDA_HOME), Spack's (variables alone, then src.install). With kernels for one architecture if there is an
# nvcc. `make check-packages` runs it.
set -u
. tests/support/suite.sh
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
git clone -q . "$tmp/hocket" && cd "$tmp/hocket" || exit 1
mk() { make "-j$(nproc)" --no-print-directory "$@" >"$tmp/out" 2>&1 || fault "make $* fails"; }
cuda=() kernels=none
if [ -n "$nvcc" ]; then
  home=$(dirname "$(dirname "$(realpath "$nvcc")")") kernels='in the library: sm_90 and PTX of 90'
  cuda=("CUDA_HOME=$home" "NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90")
else
  echo "SKIP: kernels: nvcc is not here"
fi
has_kernels() { [ -z "$nvcc" ] || [ "$(stat -Lc %s "$1")" -gt 3500000 ] || complain "$2: $1 has no kernels"; }

mk src.build "${cuda[@]}" BUILDDIR="$tmp/built" VERBOSE=0 DEBUG=0
has "GPU kernels: $kernels" "src.build"
for file in include/nccl.h lib/libnccl.so lib/libnccl.so.2 lib/libnccl_static.a lib/pkgconfig/nccl.pc; do
  [ -e "$tmp/built/$file" ] || complain "src.build makes no $file"
done
has_kernels "$tmp/built/lib/libnccl.so" src.build
others=$(nm -g --defined-only "$tmp/built/lib/libnccl_static.a" | awk 'NF == 3 { print $3 }' | grep -vE '^(p?nccl|hocket)')
[ -z "$others" ] || complain "libnccl_static.a shows names that are not the API's: $(echo "$others" | head -n 5 | tr '\n' ' ')"
gcc -Iexamples -I"$tmp/built/include" examples/first.c "$tmp/built/lib/libnccl_static.a" -lm -ldl -pthread -o "$tmp/first" && gives 0 "$tmp/first"
says 'got the sum 3'

before=$(stat -c %Y build/gcc/lib/libnccl.so.2)
mk src.lib "${cuda[@]}"
[ -e build/lib/libnccl.so ] && [ -e build/include/nccl.h ] || complain "src.lib makes no build/lib, build/include"
mk install PREFIX="$tmp/conda"
has_kernels "$tmp/conda/lib/libnccl.so" "make install after src.lib"
mk src.install PREFIX="$tmp/spack"
[ -e "$tmp/spack/lib/libnccl.so" ] && [ ! -e "$tmp/spack/bin" ] || complain "src.install: $(ls "$tmp/spack")"
has_kernels "$tmp/spack/lib/libnccl.so" src.install
[ "$(stat -c %Y build/gcc/lib/libnccl.so.2)" = "$before" ] || complain "an install has made the library again"
mk src.clean
[ ! -e build/lib ] && [ ! -e build/gcc/lib/libnccl.so.2 ] || complain "src.clean leaves the library"
finish "src.build, src.lib, install, src.install, src.clean; kernels: $kernels"
