#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh INCLUDE EMULATOR OUTPUT: libcudart.so.13 over the emulated driver (docs/cudaemu.md), for programs that were linked with
# CUDA's. INCLUDE: CUDA's headers; EMULATOR: the folder of the emulated libcuda.so.1. Run it in the repository's root.
here=tests/cudaemu/runtime
exec ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -fPIC -shared -isystem "$1" -Wl,-soname,libcudart.so.13 \
  -Wl,--version-script=$here/libcudart.map -Wl,-z,defs $here/{cudart,libcudart,kernels,refused}.c -L"$2" -l:libcuda.so.1 -o "$3"
