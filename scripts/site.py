#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""site.py MANUAL FOLDER: the sources of the site, from README.md, docs/ and the pages below it, the manual pages in MANUAL, and the examples.

Links are those of the repository; here each page has another place. A link to a file that is no page leads to a copy of the file. `make site`
calls it in the root of the repository; Sphinx does the rest (packaging/site/conf.py).
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

# The order of the pages at the side; a page that is not here is an error.
PARTS = {
    "Start": ["first-hour", "packages", "comparison", "status", "glossary"],
    "Use": ["python", "torch", "serving", "frameworks", "deploy", "operations", "tuning", "topology", "programs", "simulator", "numerics", "rma",
            "recovery", "faults"],
    "Networks and plugins": ["network", "rdma", "encryption", "security", "plugins"],
    "GPUs": ["gpu", "device-api", "gpu-memory-model", "cudaemu"],
    "Reference": ["hocket", "manual", "perf", "parameters", "api", "examples"],
    "Results": ["results"],
    "Inside": ["architecture", "bootstrap", "detection", "CONTRIBUTING", "CHANGELOG", "SECURITY"],
}
ROOT_PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?(\))")


def place(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path[len("docs/"):]
    if path in ROOT_PAGES:
        return path
    if path in ("examples", "docs/results"):
        return os.path.basename(path) + ".md"
    return "files/" + path


def page(path: str, out: str) -> None:
    """Copies a page, with its links as they are in the site."""
    here = os.path.dirname(place(path))

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        if not target or re.match(r"[a-z]+:", target):
            return match.group(0)
        path_of = os.path.normpath(os.path.join(os.path.dirname(path), target))
        to = place(path_of)
        if to.startswith("files/"):
            if os.path.isdir(path_of):
                return match.group(0)[1:match.group(0).index("]")]
            os.makedirs(os.path.join(out, "extra", os.path.dirname(to)), exist_ok=True)
            shutil.copy(path_of, os.path.join(out, "extra", to))
            # Sphinx looks for its own pages; this is a file, as seen from this one.
            return f'<a href="{os.path.relpath(to, here or ".")}">{before[1:-2]}</a>'
        return before + os.path.relpath(to, here or ".") + (anchor or "") + after

    lines, fenced = [], False
    for line in open(path, encoding="utf-8").read().split("\n"):
        fenced ^= line.startswith("```")
        lines.append(line if fenced or line.startswith("    ") else LINK.sub(moved, line))
    write(out, place(path), "\n".join(lines))


def write(out: str, name: str, text: str) -> None:
    path = os.path.join(out, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def manual(folder: str, out: str) -> list[str]:
    """One page for each manual page, from the same text as `man` shows."""
    names = []
    for section in sorted(os.listdir(folder)):
        for file in sorted(os.listdir(os.path.join(folder, section))):
            path = os.path.join(folder, section, file)
            if open(path, encoding="utf-8").readline().startswith(".so "):
                continue
            html = subprocess.run(["mandoc", "-T", "html", "-O", "fragment", path], check=True, capture_output=True, text=True).stdout
            html = re.sub(r'<table class="head">.*?</table>|<table class="foot">.*?</table>', "", html, flags=re.S)
            html = html.replace("<h1", "<h2").replace("</h1>", "</h2>").replace('<a class="permalink"', "<a")
            name = file.rsplit(".", 1)[0]
            write(out, f"man/{name}.md", f"# {name}({file[-1]})\n\n```{{raw}} html\n{html}\n```\n")
            names.append(name)
    return names


def toctree(caption: str, names: list[str], hidden: bool = True) -> str:
    lines = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n```{toctree}\n" + "\n".join(lines + [""] + names) + "\n```\n"


def main(folder: str, out: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    pages = [f"docs/{f}" for f in os.listdir("docs") if f.endswith(".md")]
    results = [f"docs/results/{f}" for f in sorted(os.listdir("docs/results")) if f.endswith(".md")]
    for path in ["README.md", *ROOT_PAGES, *pages, *results]:
        page(path, out)
    shutil.copytree("docs/pictures", os.path.join(out, "pictures"))
    shutil.copy("packaging/site/conf.py", out)
    os.makedirs(os.path.join(out, "extra"), exist_ok=True)

    write(out, "manual.md", "# Manual pages\n\nWhat `man` shows; the commands write these pages themselves.\n"
          + toctree("", [f"man/{n}" for n in manual(folder, out)], hidden=False))
    write(out, "api.md", "# C API\n\n`hocket.h` has what Hocket offers beyond NCCL's API, `nccl.h` the API itself. The text is that of the headers.\n"
          + toctree("", ["api/hocket", "api/nccl"], hidden=False))
    for name in ("hocket", "nccl"):
        write(out, f"api/{name}.md", f"# {name}.h\n\n```{{eval-rst}}\n.. doxygenfile:: {name}.h\n   :project: headers\n```\n")
    sources = sorted(f for f in os.listdir("examples") if f.endswith((".c", ".py")))
    write(out, "examples.md", "# Examples\n\n`make examples` builds those that need nothing but the library.\n" + "".join(
        f"\n## {f}\n\n```{'c' if f.endswith('.c') else 'python'}\n{open(f'examples/{f}', encoding='utf-8').read()}```\n" for f in sources))

    given = [name for names in PARTS.values() for name in names]
    missing = {place(p)[:-3] for p in pages} - set(given)
    if missing:
        sys.exit(f"site.py: no place at the side for {', '.join(sorted(missing))}: PARTS")
    write(out, "results.md", "# Results\n\nWhat was measured, on which machine, by which command, and what it shows.\n"
          + toctree("", [place(r)[:-3] for r in results], hidden=False))
    index = "".join(toctree(part, names) for part, names in PARTS.items())
    with open(os.path.join(out, "index.md"), "a", encoding="utf-8") as file:
        file.write(index)


if __name__ == "__main__":
    main(*sys.argv[1:])
