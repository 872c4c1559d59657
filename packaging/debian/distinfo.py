# SPDX-License-Identifier: Apache-2.0
"""distinfo.py PYPROJECT VERSION FOLDER: what Python must know of the installed package, PyTorch's entry point above all."""
from __future__ import annotations

import os
import sys
import tomllib


def main(pyproject: str, version: str, folder: str) -> None:
    with open(pyproject, "rb") as file:
        project = tomllib.load(file)["project"]
    info = os.path.join(folder, f"hocket-{version}.dist-info")
    os.makedirs(info, exist_ok=True)
    with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as file:
        file.write(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
                   f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n")
    with open(os.path.join(info, "entry_points.txt"), "w", encoding="utf-8") as file:
        for group, points in project["entry-points"].items():
            file.write(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
