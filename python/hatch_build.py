# SPDX-License-Identifier: Apache-2.0
"""For hatchling: the wheel has binaries, which need no particular Python. `make wheel` says by HOCKET_PYTHON where
`make python` has put the package, and by HOCKET_PLATFORM for which machines it is; without these, as from pip, the
package is built here."""
from __future__ import annotations

import os
import subprocess
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Binaries(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = os.environ.get("HOCKET_PYTHON")
        if not built and os.path.exists(os.path.join(self.root, "Makefile")):
            nvcc = os.environ.get("NVCC", "no")
            subprocess.run(["make", f"-j{os.cpu_count() or 2}", "BUILD=build/pip", f"NVCC={nvcc}", "python"],
                           cwd=self.root, check=True)
            built = os.path.join(self.root, "build", "pip", "python")
        if built:
            build_data["force_include"] = {os.path.join(built, "hocket"): "hocket"}
        platform = os.environ.get("HOCKET_PLATFORM") or sysconfig.get_platform()
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform.replace("-", "_").replace(".", "_")
