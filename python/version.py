# SPDX-License-Identifier: Apache-2.0
"""The version, from include/hocket.h, where it is kept."""
import os
import re

_HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "include", "hocket.h")
with open(_HEADER, encoding="utf-8") as file:
    VERSION = ".".join(re.findall(r"^#define HOCKET_(?:MAJOR|MINOR|PATCH) (\d+)$", file.read(), re.M))
