#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# get_nvcc.sh: installs the package index's nvcc into build/nvcc (350 MB), if it is not there, and prints its path. For `make wheel`
# on a machine without CUDA. `rm -r build/nvcc` undoes it.
set -u
folder=$PWD/build/nvcc
found() { compgen -G "$folder/nvidia/cu*/bin/nvcc"; }
if ! found; then
  python3 -m venv "$folder/tools" >&2 &&
    "$folder/tools/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder" 'nvidia-cuda-nvcc>=13' \
      nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl >&2 && found
fi
