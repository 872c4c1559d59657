# SPDX-License-Identifier: Apache-2.0
"""All operations of the Python package, several ranks: python3 -m hocket.run -n N tests/python/collectives.py"""
import array
import ctypes
import threading
import time

import hocket

try:
    import numpy as np
except ImportError:
    np = None

comm = hocket.init(commName="python test")
rank, size = comm.rank, comm.size
LETTERS = {"b": 1, "B": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8}


def same(what, got, want):
    if list(got) != list(want):
        raise SystemExit(f"rank {rank}: {what}: {list(got)[:6]} instead of {list(want)[:6]}")


def raises(kind, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        if text not in str(error):
            raise SystemExit(f"rank {rank}: {error!r} does not say {text!r}") from None
        return
    raise SystemExit(f"rank {rank}: no {kind.__name__} that says {text!r}")


def filled(letter, n, value=0):
    return array.array(letter, [value]) * n


def reductions(letter, n):
    mine = array.array(letter, [(i + rank) % 7 for i in range(n)])
    total = [sum((i + r) % 7 for r in range(size)) for i in range(n)]
    out = filled(letter, n)
    if comm.all_reduce(mine, out) is not out:
        raise SystemExit("all_reduce returns its result")
    same("all_reduce", out, total)
    x = array.array(letter, mine)
    comm.all_reduce(x, op="max")
    same("all_reduce in place", x, [max((i + r) % 7 for r in range(size)) for i in range(n)])
    x = array.array(letter, mine)
    comm.reduce(x, root=size - 1, op=hocket.MIN)
    if rank == size - 1:
        same("reduce", x, [min((i + r) % 7 for r in range(size)) for i in range(n)])
    blocks = array.array(letter, [(i + rank + b) % 5 for b in range(size) for i in range(n)])
    comm.reduce_scatter(blocks, out)
    same("reduce_scatter", out, [sum((i + r + rank) % 5 for r in range(size)) for i in range(n)])


def moves(letter, n):
    mine = array.array(letter, [(3 * rank + i) % 100 for i in range(n)])
    of = [[(3 * r + i) % 100 for i in range(n)] for r in range(size)]
    every = filled(letter, size * n)
    comm.all_gather(mine, every)
    same("all_gather", every, sum(of, []))
    x = array.array(letter, mine)
    comm.broadcast(x, root=size - 1)
    same("broadcast", x, of[-1])
    every = filled(letter, size * n)
    comm.gather(mine, every if rank == 0 else None, root=0)
    same("gather", every, sum(of, []) if rank == 0 else [0] * (size * n))
    x = filled(letter, n)
    comm.scatter(every if rank == 0 else None, x, root=0)
    same("scatter", x, of[rank])
    swapped = filled(letter, size * n)
    comm.all_to_all(array.array(letter, [(10 * rank + p) % 100 for p in range(size) for _ in range(n)]), swapped)
    same("all_to_all", swapped, [(10 * p + rank) % 100 for p in range(size) for _ in range(n)])
    x = filled(letter, n)
    with hocket.group():
        comm.send(mine, (rank + 1) % size)
        comm.recv(x, (rank - 1) % size)
    same("send and receive", x, of[rank - 1])


def uneven():
    counts = [3 * r + 1 for r in range(size)]
    mine = array.array("i", [rank] * counts[rank])
    every = filled("i", sum(counts), -1)
    comm.all_gatherv(mine, every, counts)
    same("all_gatherv", every, [r for r in range(size) for _ in range(counts[r])])
    apart = filled("i", 30 * size, -1)
    comm.all_gatherv(mine, apart, counts, [30 * r for r in range(size)])
    same("all_gatherv with displacements", apart[30 * (size - 1):][:counts[-1]], [size - 1] * counts[-1])
    given = array.array("i", [rank] * sum(counts))
    part = filled("i", counts[rank])
    comm.reduce_scatterv(given, part, counts)
    same("reduce_scatterv", part, [sum(range(size))] * counts[rank])
    # Rank r sends r + p elements to rank p.
    sent, received = [rank + p for p in range(size)], [p + rank for p in range(size)]
    out = filled("i", sum(received), -1)
    given = array.array("i", [100 * rank + p for p in range(size) for _ in range(sent[p])])
    comm.all_to_allv(given, sent, out, received)
    same("all_to_allv", out, [100 * p + rank for p in range(size) for _ in range(received[p])])
    raises(ValueError, "the blocks end at element", comm.all_gatherv, mine, filled("i", 0), counts)
    raises(ValueError, "counts are needed", comm.all_gatherv, mine, every, counts[1:])


def streams():
    many = [filled("f", 1 << k, rank) for k in range(12)]
    order = []
    with hocket.Stream() as stream:
        for x in many:
            comm.all_reduce(x, stream=stream)
        stream.call(lambda: order.append("after"))
        order.append("enqueued")
    same("what a stream calls", order, ["enqueued", "after"] if "after" not in order[:1] else order)
    for x in many:
        same("all_reduce on a stream", x, [sum(range(size))] * len(x))
    # Real overlap: rank 0 makes the call when the others have gone on after theirs.
    stream, x, other, note = hocket.Stream(), filled("d", 4, 1), comm.split(0), bytearray(1)
    if rank:
        comm.all_reduce(x, stream=stream)
        other.send(note, 0)
    else:
        for r in range(1, size):
            other.recv(note, r)
        comm.all_reduce(x, stream=stream)
    stream.synchronize()
    other.close()
    if not stream.done():
        raise SystemExit("a stream that was synchronized has work")
    same("all_reduce on a stream", x, [size] * 4)
    stream.close()
    raises(hocket.InvalidArgument, "the stream is closed", comm.all_reduce, x, stream=stream)


def family():
    part = comm.split(rank % 2, key=-rank)
    members = [r for r in range(size) if r % 2 == rank % 2][::-1]
    assert part is not None and part.size == len(members) and members[part.rank] == rank, part
    x = filled("i", 5, rank)
    part.all_reduce(x)
    same("all_reduce of a half", x, [sum(members)] * 5)
    part.close()
    raises(hocket.InvalidUsage, "is closed", part.all_reduce, x)
    none = comm.split(None if rank else 0)
    assert (none is None) == (rank > 0), none
    if none:
        none.close()
    if size > 2 and rank < size - 1:
        with comm.shrink([size - 1]) as fewer:
            x = filled("i", 1, 1)
            fewer.all_reduce(x)
            same("all_reduce after shrink", x, [size - 1])
    comm.barrier()


def threads():
    """Calls that wait let other threads of Python run, and communicators work side by side."""
    second = comm.split(0)
    x, y, ticks = filled("f", 1000, 1), filled("f", 1000, 2), []
    other = threading.Thread(target=lambda: [second.all_reduce(y) for _ in range(1)])
    if rank:
        time.sleep(0.1)
    else:
        ticker = threading.Thread(target=lambda: [(ticks.append(1), time.sleep(0.005)) for _ in range(5)])
        ticker.start()
    other.start()
    comm.all_reduce(x)
    other.join()
    same("one thread", x, [size] * 1000)
    same("another thread", y, [2 * size] * 1000)
    if rank == 0 and size > 1:
        ticker.join()
        assert len(ticks) == 5
    second.close()


def operators():
    op = comm.premul_sum(0.5, hocket.DataType.FLOAT32)
    x = filled("f", 9, 2 * (rank + 1))
    comm.all_reduce(x, op=op)
    same("premul_sum", x, [sum(range(1, size + 1))] * 9)
    comm.free_op(op)
    x = filled("f", 9, rank)
    comm.all_reduce(x, op=hocket.AVG)
    same("avg", x, [sum(range(size)) / size] * 9)
    # bfloat16 in 16-bit integers: 1.0 is 0x3f80, 2.0 0x4000, 4.0 0x4080.
    x = array.array("H", [0x3F80] * 9)
    comm.all_reduce(hocket.buffer(x, hocket.DataType.BFLOAT16), op="max")
    same("bfloat16", x, [0x3F80] * 9)
    comm.set_batch_invariant(True)
    x = filled("f", 9, rank)
    comm.all_reduce(x)
    same("batch-invariant", x, [sum(range(size))] * 9)
    comm.set_batch_invariant(False)


def memory():
    x = hocket.empty(1000, hocket.DataType.FLOAT64)
    seen = hocket.view(x).cast("d")
    seen[0], seen[999] = rank, 1
    comm.all_reduce(x)
    same("memory of the library", [seen[0], seen[999]], [sum(range(size)), size])
    data = bytearray(1 << 16)
    registered = comm.register(data)
    data[0] = 1
    comm.all_reduce(data)
    same("registered memory", data[:2], [size, 0])
    registered.close()
    whole = (ctypes.c_int * 3)(rank, 1, 2)
    comm.all_reduce(whole)
    same("an array of ctypes", whole, [sum(range(size)), size, 2 * size])


def arrays():
    """NumPy: shapes, types, parts; what has no protocol or the wrong form is refused before anything is sent."""
    x = np.full((3, 5), rank, np.float16)
    comm.all_reduce(x)
    assert (x == sum(range(size))).all()
    x = np.arange(20, dtype=np.int64)[5:15]
    comm.broadcast(x)
    assert (x == np.arange(5, 15)).all()
    every = np.empty((size, 4), np.complex64)
    comm.all_gather(np.full(4, rank + 1j, np.complex64), every)
    assert (every == np.arange(size)[:, None] + 1j).all()
    every = np.empty((size, 4), np.int16)
    comm.all_to_all(np.full((size, 4), rank, np.int16), every)
    assert (every == np.arange(size)[:, None]).all()
    for _ in range(5):
        every = np.repeat(np.arange(size, dtype=np.int32) + 100 * rank, 50000)
        comm.all_to_all(every, every)
        assert (every == np.repeat(100 * np.arange(size) + rank, 50000)).all()
    x = np.ones(9)
    raises(hocket.InvalidArgument, "overlap", comm.all_reduce, x[:6], x[2:8])
    raises(BufferError, "not contiguous", comm.all_reduce, np.zeros((4, 4))[:, 1])
    raises(TypeError, "cannot be reduced", comm.all_reduce, np.zeros(4, np.int16))
    raises(TypeError, "differ", comm.all_reduce, np.zeros(4), np.zeros(4, np.float32))
    raises(TypeError, "type >f4 cannot be reduced", comm.all_reduce, np.zeros(4, ">f4"))
    raises(TypeError, "type datetime64[D] cannot be reduced", comm.all_reduce, np.zeros(4, "datetime64[D]"))
    days = np.full(4, rank, "datetime64[D]")
    comm.broadcast(days)
    assert (days == np.datetime64(0, "D")).all()
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    raises(BufferError, "read-only", comm.all_reduce, frozen)


def refusals():
    x = filled("f", 4)
    raises(TypeError, "has no memory that can be sent", comm.all_reduce, 5)
    raises(TypeError, "has no memory that can be sent", comm.all_reduce, "text")
    raises(ValueError, "there is no operator 'summe'", comm.all_reduce, x, op="summe")
    raises(ValueError, "the receive buffer", comm.all_reduce, x, filled("f", 5))
    raises(BufferError, "read-only", comm.broadcast if rank else comm.all_reduce, b"abcd")
    raises(ValueError, "blocks of the same length", comm.all_gather, x, filled("f", 4 * size + 1))
    raises(hocket.InvalidArgument, "root", comm.broadcast, x, root=size)
    raises(ValueError, "root", comm.broadcast, x, root=size)
    raises(TypeError, "there is no option 'colour'", comm.split, 0, colour=1)
    for call, what in ((lambda v: comm.split(v), "color"), (lambda v: comm.split(0, v), "key"),
                       (lambda v: comm.broadcast(x, v), "root"), (lambda v: comm.reduce(x, None, v), "root"),
                       (lambda v: comm.gather(x, None, v), "root"), (lambda v: comm.scatter(None, x, v), "root"),
                       (lambda v: comm.send(x, v), "peer"), (lambda v: comm.recv(x, v), "peer"),
                       (lambda v: comm.shrink([v]), "a rank to exclude"),
                       (lambda v: comm.split(0, maxCTAs=v), "maxCTAs")):
        raises(ValueError, f"{what} is {2**40}", call, 2**40)
        raises(ValueError, f"{what} is {-2**31 - 1}", call, -2**31 - 1)
        raises(TypeError, f"{what} must be an int, not 1.0", call, 1.0)
    raises(ValueError, "128 bytes", hocket.Communicator.from_id, b"", 0, 1)
    comm.check()
    comm.barrier()


def difference():
    """Ranks that disagree get the library's text as an exception, with the right kind."""
    other = comm.split(0)
    raises(hocket.InvalidUsage, "rank", other.all_reduce, filled("f", 4 if rank else 5))
    raises(hocket.InvalidUsage, "rank", other.check)
    other.abort()
    other.abort()


for letter in LETTERS:
    for n in (1, 1000):
        reductions(letter, n)
        moves(letter, n)
reductions("f", 1 << 18)
moves("d", 1 << 16)
uneven()
streams()
family()
threads()
operators()
memory()
refusals()
if size > 1:
    difference()
if np:
    arrays()
comm.close()
if rank == 0:
    print(f"{size} ranks: collectives, groups, streams, splits, errors")
    if not np:
        print("SKIP: arrays: there is no NumPy")
