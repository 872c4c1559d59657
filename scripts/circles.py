#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds files of the library that call each other in a circle.

Usage: circles.py OBJECTS [MOST]

OBJECTS is the folder of compiled sources, for example build/gcc/src. A file calls another one if its object needs a
function that the other one defines; a table of functions counts as a call of each of them. Prints each circle of more
than two files, and fails if one has more than MOST files (4). src/perf and src/tools are programs of their own.
"""
import pathlib
import subprocess
import sys


def symbols(paths):
    """For each object the functions that it defines, and the names that it needs."""
    found = {str(path): (set(), set()) for path in paths}
    out = subprocess.run(["nm", "-A", *found], capture_output=True, text=True, check=True).stdout if found else ""
    for line in out.splitlines():
        place, *_, kind, name = line.split()
        defined, needed = found[place.partition(":")[0]]
        if kind in "TW":
            defined.add(name)
        elif kind == "U":
            needed.add(name)
    return found


def circles(calls):
    """Tarjan's algorithm: the sets of files that reach each other, `calls` being a dictionary of sets."""
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in calls[file]:
            if other not in index:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == index[file]:
            at = stack.index(file)
            found.append(stack[at:])
            del stack[at:]

    for file in calls:
        if file not in index:
            visit(file)
    return found


def main():
    root, most = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    sys.setrecursionlimit(10000)
    paths = {}
    for path in sorted(root.rglob("*.o")):
        file = path.relative_to(root).with_suffix(".c")
        # An older tree may have left objects without a source.
        if file.parts[0] not in ("perf", "tools") and ("src" / file).exists():
            paths[str(path)] = str(file)
    objects = {paths[path]: found for path, found in symbols(paths).items()}
    owner = {name: file for file, (defined, _) in objects.items() for name in defined}
    calls = {file: sorted({owner[n] for n in needed if n in owner} - {file}) for file, (_, needed) in objects.items()}
    largest = 0
    for circle in sorted(circles(calls), key=len, reverse=True):
        if len(circle) > 2:
            print(f"{len(circle)} files call each other in a circle: {' '.join(sorted(circle))}")
        largest = max(largest, len(circle))
    if not objects:
        sys.exit(f"{root} has no objects: make lib")
    if largest > most:
        sys.exit(f"a circle of {largest} files; {most} is the most that one can read at once")
    print(f"{len(calls)} files, no circle of calls with more than {most} of them")


main()
