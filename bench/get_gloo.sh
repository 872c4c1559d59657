#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# get_gloo.sh: installs PyTorch, which brings Gloo, from PyPI into build/gloo, a virtual environment of its own.  PyPI's
# packages for Linux come with CUDA's libraries: about 2 GB to download and 4 GB on disk.  `rm -r build/gloo` undoes it.
set -eu
cd "$(dirname "$0")/.."
python3 -m venv build/gloo
# The older one is the smaller one, and Gloo's collectives are the same; newer Pythons have only newer ones.
build/gloo/bin/pip install 'torch==1.13.1' 'numpy<2' || build/gloo/bin/pip install torch numpy
build/gloo/bin/python -c 'import torch.distributed as d; assert d.is_gloo_available(); print("Gloo is ready")'
