# SPDX-License-Identifier: Apache-2.0
"""For hatchling: the wheel has binaries, which need no particular Python."""
from __future__ import annotations

import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
