#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nvdisasm.sh [get]: prints the path of nvdisasm: NVDISASM, the one in PATH, next to nvcc, or of the package index in
# build/nvdisasm, where `get` installs it (6 MB). Without any: exit code 1.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$PWD/build/nvdisasm
found() { compgen -G "$folder/nvidia/cu*/bin/nvdisasm"; }
if [ -n "${NVDISASM:-}" ]; then echo "$NVDISASM"; exit; fi
command -v nvdisasm && exit
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
near=$(dirname "${nvcc:-/nowhere/nvcc}")/nvdisasm
if [ -x "$near" ]; then echo "$near"; exit; fi
found && exit
[ "${1:-}" = get ] || exit 1
python3 -m venv "$folder/tools" >&2 &&
  "$folder/tools/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder" nvidia-cuda-nvdisasm >&2 && found
