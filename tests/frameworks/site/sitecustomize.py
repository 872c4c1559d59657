# SPDX-License-Identifier: Apache-2.0
"""With this folder in PYTHONPATH every Python process that imports torch runs PyTorch's operators as cuda_on_cpu.py says."""
import importlib.abc
import importlib.util
import sys


class AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import cuda_on_cpu
            cuda_on_cpu.install()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AfterTorch())
