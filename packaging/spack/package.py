# SPDX-License-Identifier: Apache-2.0
# A package of Spack. `make dist` fills in the version, address and check sum of the sources, into build/dist/spack/hocket; below a
# repository's folder `packages` Spack finds it.
from spack.package import *
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage


class Hocket(MakefilePackage, CudaPackage):
    """Collective communication with NCCL's API and ABI, on GPUs and CPUs."""

    url = "@URL@"
    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    # Both have lib/libnccl.so.2.
    conflicts("^nccl")

    def options(self):
        if self.spec.satisfies("~cuda"):
            return ["NVCC=no"]
        options = [f"NVCC={self.spec['cuda'].prefix.bin.nvcc}"]
        archs = self.spec.variants["cuda_arch"].value
        if "none" not in archs:
            options.append("GPU_ARCHS=" + " ".join(archs))
        return options

    def build(self, spec, prefix):
        make(*self.options(), "lib", "perf", "tool", "man")

    def install(self, spec, prefix):
        make(*self.options(), f"PREFIX={prefix}", "install")
