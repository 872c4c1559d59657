# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA wheel loads the library and calls it, as far as that goes without a GPU."""
import ctypes
import sys

import torch

library, release = sys.argv[1:]
assert torch.__version__.startswith(release + "."), torch.__version__
maps = open("/proc/self/maps").read()
assert library in maps, "the library is not loaded"
assert torch.distributed.is_nccl_available()
first, second = torch.cuda.nccl.unique_id(), torch.cuda.nccl.unique_id()
assert len(first) == 128 and first != second
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
print(f"PyTorch {torch.__version__}, built for NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, "
      f"runs with Hocket as NCCL {version.value}: import, version, unique id")
