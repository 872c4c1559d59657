# SPDX-License-Identifier: Apache-2.0
"""The programs of the wheel as commands: `hocket`, which is `ncclras`, too, and the *_perf binaries."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

_BINARIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def start(name: str, arguments: list[str]) -> NoReturn:
    """Becomes a program of the wheel, which goes by its name: *_perf are one program, hocket and ncclras another."""
    path = os.path.join(_BINARIES, "hocket-perf" if name.endswith("_perf") else "hocket")
    os.execv(path, [name, *arguments])


def main() -> NoReturn:
    """The program that has the name of the command."""
    start(os.path.basename(sys.argv[0]), sys.argv[1:])
