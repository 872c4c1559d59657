#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# get_oneccl.sh: installs oneCCL and the Intel MPI it runs on from PyPI into build/oneccl, a virtual environment of its own, and
# compiles oneccl_perf against them: 600 MB to download, 2 GB on disk.  `rm -r build/oneccl` undoes it.
set -eu
cd "$(dirname "$0")/.."
home=$PWD/build/oneccl
python3 -m venv "$home"
"$home/bin/pip" install oneccl oneccl-devel impi-rt
# The library without the suffix has SYCL in it, which its package brings; on host memory nothing of it runs.
"${CXX:-g++}" -std=c++17 -O2 -Wall -I"$home/include" -o "$home/bin/oneccl_perf" bench/oneccl_perf.cpp -L"$home/lib" -l:libccl.so.1 \
  -Wl,-rpath,"$home/lib" -Wl,--allow-shlib-undefined
echo "oneCCL is ready"
