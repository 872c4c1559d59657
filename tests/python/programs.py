# SPDX-License-Identifier: Apache-2.0
"""Programs that hocket.program writes: usual algorithms and random ones are proved, wrong scripts are refused with a
reason, and four ranks run some of them."""
import array
import os
import random
import sys
import tempfile

import hocket
from hocket import run
from hocket.program import Buffer, Program, ProgramError, chunk

sys.path.insert(0, "examples")
from program_hierarchical import allreduce as levels  # noqa: E402


def ring(n, channels=1):
    with Program("AllReduce", "t-ring", n, n) as p:
        for step in range(n - 1):
            for i in range(n):
                source = chunk((i + step) % n, Buffer.input, i)
                chunk((i + step + 1) % n, Buffer.input, i).reduce(source, ch=i % channels)
        for step in range(n - 1, 2 * n - 2):
            for i in range(n):
                chunk((i + step) % n, Buffer.input, i).copy((i + step + 1) % n, ch=i % channels)
    return p


def all_pairs(n, chunks):
    with Program("AllReduce", "t-pairs", n, n * chunks, min_bytes=n, max_bytes=1 << 30) as p:
        for a in range(n):
            for b in range(n):
                if a != b:
                    chunk(a, Buffer.input, b * chunks, chunks).copy(b, "received")
        for r in range(n):
            for k in range(chunks * (n - 1)):
                chunk(r, Buffer.input, r * chunks + k % chunks).reduce(chunk(r, "received", k))
        for a in range(n):
            for b in range(n):
                if a != b:
                    chunk(a, Buffer.input, a * chunks, chunks).copy(b)
    return p


def halving(n):
    """The script reads and writes what is one chunk in a call in place by either name."""
    with Program("AllReduce", "t-halving", n, n) as p:
        far = [1 << k for k in range(n.bit_length() - 1)]
        for count in reversed(far):
            for rank in range(n):
                peer = rank ^ count
                mine = chunk(rank, Buffer.input, peer // count * count, count)
                chunk(peer, Buffer.output, mine.index, count).reduce(mine)
        for count in far:
            for rank in range(n):
                chunk(rank, Buffer.output, rank // count * count, count).copy(rank ^ count)
    return p


def trees(n):
    """Two binomial trees with opposite roots, a channel each."""
    with Program("AllReduce", "t-trees", n, 2) as p:
        for t in range(2):
            far = [1 << k for k in range(n.bit_length() - 1)]
            pairs = [[(r, r + d) for r in range(0, n, 2 * d)] for d in far]
            pairs = [[(n - 1 - a, n - 1 - b) if t else (a, b) for a, b in level] for level in pairs]
            for level in pairs:
                for low, high in level:
                    chunk(low, Buffer.input, t).reduce(chunk(high, Buffer.input, t), ch=t)
            for level in reversed(pairs):
                for low, high in level:
                    chunk(low, Buffer.input, t).copy(high, ch=t)
    return p


def gather_ring(n):
    with Program("AllGather", "t-gather", n) as p:
        for r in range(n):
            c = chunk(r, Buffer.input).copy(r, Buffer.output, r)
            for step in range(1, n):
                c = c.copy((r + step) % n)
    return p


def gather_doubling(n):
    with Program("AllGather", "t-doubling", n) as p:
        for count in [1 << k for k in range(n.bit_length() - 1)]:
            for rank in range(n):
                chunk(rank, Buffer.output, rank // count * count, count).copy(rank ^ count)
    return p


def scatter_ring(n, parts):
    with Program("ReduceScatter", "t-scatter", n, parts) as p:
        for b in range(n):
            for step in range(1, n):
                source = chunk((b + step) % n, Buffer.input, b * parts, parts)
                chunk((b + step + 1) % n, Buffer.input, b * parts, parts).reduce(source)
    return p


def two_steps(hosts, size):
    """An alltoall that exchanges inside hosts first, so that a rank sends one message to each other host."""
    with Program("AlltoAll", "t-two-steps", hosts * size) as p:
        for rank in range(hosts * size):
            for to in range(hosts * size):
                c = chunk(rank, Buffer.input, to)
                if to // size == rank // size:
                    c.copy(to, Buffer.output, rank)
                else:
                    c.copy(rank // size * size + to % size, f"to host {to // size}", rank % size)
        for rank in range(hosts * size):
            for host in range(hosts):
                if host != rank // size:
                    c = chunk(rank, f"to host {host}", 0, size)
                    assert c.get_dst_rank() == host * size + rank % size
                    c.copy(c.get_dst_rank(), Buffer.output, c.get_dst_index(), ch=1)
    return p


def rooted(n, root):
    with Program("Broadcast", "t-chain", n, 2, root=root) as p:
        for i in range(2):
            c = chunk(root, Buffer.input, i)
            for step in range(1, n):
                c = c.copy((root + step) % n, Buffer.output)
    yield p
    with Program("Reduce", "t-chain", n, 2, root=root) as p:
        for i in range(2):
            for step in range(1, n):
                source = chunk((root + step) % n, Buffer.input, i)
                chunk((root + step + 1) % n, Buffer.input, i).reduce(source)
    yield p
    with Program("Gather", "t-direct", n, 2, root=root) as p:
        for r in range(n):
            chunk(r, Buffer.input, 0, 2).copy(root, Buffer.output, 2 * r)
    yield p
    with Program("Scatter", "t-direct", n, 2, root=root) as p:
        for r in range(n):
            chunk(root, Buffer.input, 2 * r, 2).copy(r, Buffer.output, 0)
    yield p


def at_random(seed):
    """An allreduce whose chunks are added up and handed on over random ranks and channels, now this one, now that."""
    r = random.Random(seed)
    n, chunks = r.randint(2, 7), r.randint(1, 5)

    def all_of(c):
        left = r.sample(range(n), n)
        while len(left) > 1:
            one, to = left.pop(), r.choice(left)
            if r.random() < 0.3:
                chunk(one, Buffer.input, c).copy(to, f"{c} of {one}", 0, ch=r.randrange(8))
                yield
                chunk(to, Buffer.input, c).reduce(chunk(to, f"{c} of {one}"))
            else:
                chunk(to, Buffer.input, c).reduce(chunk(one, Buffer.input, c), ch=r.choice((0, 0, 1, 7)))
            yield
        have = [chunk(left[0], Buffer.input, c)]
        for to in r.sample(range(n), n):
            if to != left[0]:
                have.append(r.choice(have).copy(to, ch=r.choice((0, 0, 1, 7))))
                yield

    with Program("AllReduce", f"t-random-{seed}", n, chunks) as p:
        under_way = [all_of(c) for c in range(chunks)]
        while under_way:
            one = r.choice(under_way)
            if next(one, "end") == "end":
                under_way.remove(one)
    return p


def refused(reason, collective, script, chunks=2):
    try:
        with Program(collective, "wrong", 2, chunks):
            script()
    except ProgramError as error:
        if reason not in str(error):
            raise
        return
    raise SystemExit(f"a script is not refused: {reason}")


def wrong_scripts():
    refused("chunk 0 of 'x' of rank 1 holds nothing yet", "AllReduce", lambda: chunk(1, "x"))
    refused("chunk 2 of 'input' of rank 0: the buffer has 2 chunks", "AllReduce", lambda: chunk(0, "input", 2))
    refused("there is no rank 2", "AllReduce", lambda: chunk(2, "input"))
    refused("lacks the part of rank 1", "AllReduce", lambda: chunk(0, "input").copy(0, "output"))
    refused("it is the place of chunk 1", "AllReduce", lambda: chunk(0, "input", 0).copy(1, "input", 1))
    refused("has the part of rank 1, which chunk 0 of 'input' of rank 0 has already", "AllReduce", lambda: [
        chunk(0, "input").reduce(chunk(1, "input")) for _ in range(2)])
    refused("which is chunk 1", "AllReduce", lambda: chunk(0, "input", 1).reduce(chunk(1, "input", 0)))
    refused("AllGather only copies", "AllGather", lambda: chunk(0, "input").reduce(chunk(1, "input")))
    refused("in the end chunk 2 of the output of rank 0 holds nothing", "AllGather", lambda: None)
    refused("holds chunk 1 of rank 0", "AlltoAll", lambda: [
        chunk(a, "input", b).copy(b, "output", a) for a in range(2) for b in (0, 1)] + [
            chunk(0, "input", 1).copy(0, "output", 0)], 1)
    refused("cannot go over channel 8", "AllReduce", lambda: chunk(0, "input").copy(1, "x", ch=8))
    for arguments in ("AllDeuce", "x", 2), ("AllReduce", "a b", 2), ("AllReduce", "x", 1), ("AllReduce", "x", 2, 0):
        try:
            Program(*arguments)
        except ProgramError:
            continue
        raise SystemExit(f"Program{arguments} is not refused")


def rank():
    """What each of four ranks does: every collective in place and out of place."""
    comm = hocket.init()
    n, me = comm.size, comm.rank
    for count in 1, 1000, 300000:
        ours = array.array("i", [k + me for k in range(count)])
        out = array.array("i", bytes(4 * count))
        summed = array.array("i", [n * k + sum(range(n)) for k in range(count)])
        comm.all_reduce(ours, out)
        assert out == summed
        comm.all_reduce(ours)
        assert ours == summed
        gathered = array.array("i", bytes(4 * count * n))
        comm.all_gather(array.array("i", [me]) * count, gathered)
        assert gathered == array.array("i", [r for r in range(n) for _ in range(count)])
        comm.reduce_scatter(gathered, out)
        assert out == array.array("i", [n * me]) * count
        sent = array.array("i", [10 * me + r for r in range(n) for _ in range(count)])
        comm.all_to_all(sent, gathered)
        assert gathered == array.array("i", [10 * r + me for r in range(n) for _ in range(count)])


def four_ranks(folder):
    made = [levels("t-levels", [2, 2]), gather_ring(4), scatter_ring(4, 2), two_steps(2, 2)]
    for p in made:
        p.write(os.path.join(folder, p.name + ".json"))
    os.environ.update(HOCKET_PROGRAMS=folder, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING",
                      NCCL_DEBUG_FILE=os.path.join(folder, "log.%p"),
                      NCCL_ALGO=";".join(f"{p.collective.lower()}:{p.name}" for p in made))
    if run.start([sys.executable, __file__, "rank"], 4):
        raise SystemExit("the ranks fail")
    said = ""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as file:
            said += file.read() if name.startswith("log") else ""
    for p in made:
        if f"{p.collective} by {p.name}" not in said:
            raise SystemExit(f"{p.collective} does not run {p.name}: {said}")


def main():
    made = [f(n) for n in (2, 4, 8, 16) for f in (trees, halving, gather_doubling)]
    for n in 2, 3, 4, 7, 8:
        made += [ring(n), ring(n, 2), all_pairs(n, 1), all_pairs(n, 3), gather_ring(n), scatter_ring(n, 1),
                 scatter_ring(n, 3), *rooted(n, 0), *rooted(n, n - 1)]
    for hosts, size in (2, 2), (3, 2), (2, 4):
        made.append(two_steps(hosts, size))
    for sizes in [2], [2, 2], [3, 2], [4, 2, 2], [2, 2, 2, 3]:
        made.append(levels("t-levels", sizes))
    made += [at_random(seed) for seed in range(100)]
    for p in made:
        assert p.check().count("proved") == 1
    # As few instructions as the ring needs: nothing is stored only to be sent on.
    assert [len(lane) for p in ring(8).programs() for lane in p["lanes"]] == [15] * 8
    wrong_scripts()
    with tempfile.TemporaryDirectory() as folder:
        four_ranks(folder)
    print(f"{len(made)} programs are proved")


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
