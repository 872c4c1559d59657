#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An allreduce in levels: each level adds up among neighbours and leaves less data for the next, slower one.

    export PYTHONPATH=$PWD/build/gcc/python PATH=$PWD/build/gcc/bin:$PATH    # in a source tree; not with the wheel
    mkdir -p programs
    python3 examples/program_hierarchical.py 4 2 2 programs/levels-4-2-2.json
    HOCKET_PROGRAMS=programs hocket sim -a hier,ring,levels-4-2-2 -b 1M -e 1M 'nodes=2 of dgx-a100'

The numbers are the sizes of the levels, the innermost first: here 4 GPUs with a bridge, 2 bridges in a host, 2 hosts.
Ranks are numbered in this order, too: ranks 0 to 3 have the first bridge, ranks 0 to 7 are on the first host.
docs/programs.md explains the program.
"""
import math
import sys

from hocket.program import Program, chunk


def others(rank, step, size):
    """The ranks of the group of `rank` in a level, beginning after it: neighbours there are `step` ranks apart."""
    place = rank // step % size
    return [rank + ((place + d) % size - place) * step for d in range(1, size)]


def allreduce(name, sizes):
    """The message has a chunk for each rank, which is added up on its way to this rank and then goes back."""
    ranks = math.prod(sizes)
    levels = [(math.prod(sizes[:k]), size) for k, size in enumerate(sizes)]
    with Program("AllReduce", name, ranks=ranks, chunks=ranks) as program:
        for step, size in levels:
            for c in range(ranks):
                for rank in range(c % (step * size), ranks, step * size):  # one rank of each group collects chunk c
                    for other in others(rank, step, size):
                        chunk(rank, "input", c).reduce(chunk(other, "input", c))
        for step, size in reversed(levels):
            for c in range(ranks):
                for rank in range(c % (step * size), ranks, step * size):
                    for other in others(rank, step, size):
                        chunk(rank, "input", c).copy(other)
    return program


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sizes = [int(size) for size in sys.argv[1:-1]]
    allreduce("levels-" + "-".join(map(str, sizes)), sizes).write(sys.argv[-1])
