# SPDX-License-Identifier: Apache-2.0
"""JAX's plugin for CUDA loads the library from the place of NVIDIA's wheel, and its own library finds all that it looks for.

XLA is in that library, with a table of the names that it asks NCCL for when it first calls them.  It cannot call them without
a GPU: its own kernels would have to run.
"""
import ctypes
import importlib.metadata
import mmap
import os
import re
import sys

import jax_plugins.xla_cuda13 as plugin

library = os.path.realpath(sys.argv[1])
xla = os.path.join(os.path.dirname(plugin.__file__), "xla_cuda_plugin.so")
plugin._load_nvidia_libraries()
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line}
assert mapped == {library}, f"not only {library} is loaded, but {mapped}"
nccl = ctypes.CDLL("libnccl.so.2")  # by its name, as XLA does: what is loaded already counts
with open(xla, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as text:
    names = {m.decode() for m in re.findall(rb"(?<=\0)p?nccl[A-Z][A-Za-z0-9]{3,}(?=\0)", text)}
assert {"ncclAllReduce", "ncclCommInitRankConfig", "ncclGroupEnd", "ncclCommWindowRegister"} <= names, sorted(names)
missing = sorted(n for n in names if not hasattr(nccl, n))
assert not missing, f"XLA asks for {missing}"
version = ctypes.c_int()
assert nccl.ncclGetVersion(ctypes.byref(version)) == 0 and version.value >= 22800, version
ctypes.CDLL(xla).GetPjrtApi  # its other libraries are there
print(f"JAX {importlib.metadata.version('jax')}, plugin {importlib.metadata.version('jax-cuda13-pjrt')}: its loader takes "
      f"Hocket, which has all {len(names)} names that XLA may ask for")
