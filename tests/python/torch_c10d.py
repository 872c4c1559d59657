# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed with the backend hocket, compared with Gloo's result.

python -m hocket.run -n N tests/python/torch_c10d.py [backend of the default group]
"""
import datetime
import importlib.util
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functions

import hocket.torch
from hocket.torch import _quick

hocket.torch.register()
backend = sys.argv[1] if len(sys.argv) > 1 else "hocket"
try:
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
except RuntimeError as trouble:
    if "has no place for a backend of Python's" not in str(trouble):
        raise
    if os.environ["RANK"] == "0":
        print(f"SKIP: {trouble}")
    sys.exit(0)
rank, size = dist.get_rank(), dist.get_world_size()
ours, theirs = dist.group.WORLD, dist.new_group(backend="gloo")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPES = (*FLOATS, torch.int32, torch.int64, torch.int8, torch.uint8)
after, before = (rank + 1) % size, (rank - 1) % size


def fail(text):
    raise SystemExit(f"rank {rank}: {text}")


def same(what, got, want):
    for x, y in zip(got, want, strict=True):
        if x.is_sparse:
            x, y = x.to_dense(), y.to_dense()
        if x.dtype != y.dtype or not torch.equal(x, y):
            fail(f"{what}: {x.flatten()[:4]} instead of {y.flatten()[:4]}")


def compare(what, call, *tensors, result=lambda *t: t):
    """call(group, tensors...) on both backends, synchronously and not; the tensors that result() names are compared."""
    for mode in ("sync", "async", "future"):
        both = []
        for group in (ours, theirs):
            copies = [[x.clone() for x in t] if isinstance(t, list) else t.clone() for t in tensors]
            work = call(group, mode != "sync", *copies)
            if mode == "async":
                work.wait()
                if not work.is_completed() and type(work).__module__.startswith("hocket"):
                    fail(f"{what}: work that was waited for is not completed")
            elif mode == "future" and group is ours:  # Gloo's work has one for some operations only
                work.get_future().wait()
            elif mode == "future":
                work.wait()
            flat = []
            for t in result(*copies):
                flat += t if isinstance(t, list) else [t]
            both.append(flat)
        same(f"{what} ({mode})", *both)


def basis(n, dtype):
    return ((torch.arange(n) + 3 * rank) % 5).to(dtype)


def reductions(dtype, n):
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    if n < 100:
        ops.append(dist.ReduceOp.PRODUCT)
    if dtype in (torch.int32, torch.int64, torch.uint8) and n < 100:
        ops += [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    for op in ops:
        compare(f"all_reduce {op} {dtype}", lambda g, a, x: dist.all_reduce(x, op, g, a), basis(n, dtype))
        compare(f"reduce {op} {dtype}", lambda g, a, x: dist.reduce(x, size - 1, op, g, a), basis(n, dtype),
                result=lambda x: [x] if rank == size - 1 else [])
    compare(f"reduce_scatter_tensor {dtype}", lambda g, a, x, y: dist.reduce_scatter_tensor(y, x, group=g, async_op=a),
            basis(n * size, dtype), basis(n, dtype), result=lambda x, y: [y])


def moves(dtype, n):
    x, many = basis(n, dtype), [torch.zeros(n, dtype=dtype) for _ in range(size)]
    compare(f"broadcast {dtype}", lambda g, a, t: dist.broadcast(t, size - 1, g, a), x)
    compare(f"all_gather {dtype}", lambda g, a, t, o: dist.all_gather(o, t, g, a), x, many, result=lambda t, o: o)
    compare(f"all_gather_into_tensor {dtype}", lambda g, a, t, o: dist.all_gather_into_tensor(o, t, g, a), x,
            torch.zeros(n * size, dtype=dtype), result=lambda t, o: [o])
    compare(f"gather {dtype}", lambda g, a, t, o: dist.gather(t, o if rank == 0 else None, 0, g, a), x, many,
            result=lambda t, o: o)
    compare(f"scatter {dtype}", lambda g, a, t, i: dist.scatter(t, i if rank == 0 else None, 0, g, a), x,
            [(basis(n, torch.int64) + r).to(dtype) for r in range(size)], result=lambda t, i: [t])
    compare(f"all_to_all_single {dtype}", lambda g, a, i, o: dist.all_to_all_single(o, i, group=g, async_op=a),
            basis(n * size, dtype), torch.zeros(n * size, dtype=dtype), result=lambda i, o: [o])


def uneven():
    sent, got = [rank + p + 1 for p in range(size)], [p + rank + 1 for p in range(size)]
    compare("all_to_all_single, uneven",
            lambda g, a, i, o: dist.all_to_all_single(o, i, got, sent, group=g, async_op=a),
            torch.arange(2.0 * sum(sent)).view(-1, 2) + 100 * rank, torch.zeros(sum(got), 2), result=lambda i, o: [o])
    # Gloo has none of these; the results are known.
    parts = [torch.empty(r + 1, dtype=torch.int16) for r in range(size)]
    dist.all_gather(parts, torch.full((rank + 1,), rank, dtype=torch.int16))
    same("all_gather, uneven", parts, [torch.full((r + 1,), r, dtype=torch.int16) for r in range(size)])
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), float(r)) for r in range(size)])
    same("reduce_scatter, uneven", [part], [torch.full((rank + 1,), float(rank * size))])
    part = torch.empty(3)
    dist.reduce_scatter(part, [torch.full((3,), float(r)) for r in range(size)])
    same("reduce_scatter", [part], [torch.full((3,), float(rank * size))])
    outs = [torch.empty(p + 1) for p in range(size)]
    dist.all_to_all(outs, [torch.full((rank + 1,), float(10 * rank + p)) for p in range(size)])
    same("all_to_all", outs, [torch.full((p + 1,), float(10 * p + rank)) for p in range(size)])


def forms():
    """Tensors that are not contiguous, parts of others, complex, truth values, averages, nothing at all."""
    whole = torch.arange(24.0).view(4, 6) + rank
    x = whole.clone().t()
    dist.all_reduce(x)
    same("all_reduce of a transposed tensor", [x], [(torch.arange(24.0).view(4, 6) * size + sum(range(size))).t()])
    x = torch.zeros(4, 6)
    dist.broadcast(x[:, 2], 0) if rank else dist.broadcast(whole[:, 2], 0)
    if rank:
        same("broadcast of a column", [x[:, 2]], [torch.arange(24.0).view(4, 6)[:, 2]])
    compare("complex", lambda g, a, x: dist.all_reduce(x, group=g, async_op=a), torch.full((7,), complex(rank, 1)))
    x = torch.tensor([rank == 0, True, False])
    dist.all_reduce(x)
    same("truth values", [x], [torch.tensor([True, True, False])])
    x = torch.full((5,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same("average", [x], [torch.full((5,), sum(range(size)) / size)])
    x = torch.full((5,), float(rank + 1))
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    same("premul_sum", [x], [torch.full((5,), sum(range(1, size + 1)) / 2)])
    dist.all_reduce(torch.empty(0))
    big = torch.zeros(size * 4).view(size, 4)
    parts = list(big.unbind(0))
    dist.all_gather(parts, torch.full((4,), float(rank)))
    same("all_gather into parts of a tensor", [big], [torch.arange(float(size)).repeat_interleave(4).view(size, 4)])
    for n in (1, 5):
        indices = torch.tensor([[(rank + k) % 7 for k in range(n)]])
        sparse = torch.sparse_coo_tensor(indices, torch.arange(2.0 * n).view(n, 2) + 1, (7, 2))
        if dist.get_backend() == "hocket":
            compare("sparse tensors", lambda g, a, x: dist.all_reduce(x, group=g, async_op=a), sparse)


def negated(v):
    """A view that PyTorch negates lazily: its memory has the other sign."""
    t = torch.complex(torch.zeros_like(v), -v).conj().imag
    assert t.is_neg()
    return t


class Sub(torch.Tensor):
    """A subclass that changes nothing."""


KINDS = {  # tensors with the values of v, whose memory has something else
    "negative bit": negated,
    "negative bit, contiguous": lambda v: torch._neg_view(-v),
    "transposed": lambda v: v.view(2, -1).t().contiguous().t(),
    "a column": lambda v: torch.stack([v, v + 1], 1)[:, 0],
    "reversed dimensions": lambda v: v.view(1, 2, 2, -1).clone(memory_format=torch.channels_last),
    "requires grad": lambda v: torch.nn.Parameter(v.clone()),
    "a part that requires grad": lambda v: torch.nn.Parameter(torch.stack([v, v], 1))[:, 1],
    "a subclass": lambda v: v.clone().as_subclass(Sub),
    "lazily cloned": torch._lazy_clone,
}


def kinds():
    """Everything that a tensor may be, in every operation, as input, as output and in place."""
    n = 4 * size
    base = torch.arange(float(n)) + 1
    mine, total = base + rank, base * size + sum(range(size))
    for name, made in KINDS.items():
        if "negative" in name and backend != "hocket":
            continue  # PyTorch gives a backend next to others a copy, and drops what is written to it

        def check(what, t, want, name=name):
            same(f"{what}: {name}", [t.detach().resolve_neg().reshape(-1).as_subclass(torch.Tensor)], [want])

        def flat(parts):
            return torch.cat([p.detach().as_subclass(torch.Tensor).reshape(-1) for p in parts])

        def out(m=n, made=made):
            return made(torch.zeros(m))

        for asynchronous in (False, True):
            def run(call, *tensors, asynchronous=asynchronous, **named):
                work = call(*tensors, async_op=asynchronous, **named)
                if asynchronous:
                    work.get_future().wait()

            t = made(mine)
            run(dist.all_reduce, t)
            check("all_reduce", t, total)
            # one rank alone has the other kind
            t = made(mine) if rank == 0 else mine.clone()
            run(dist.all_reduce, t, op=dist.ReduceOp.MAX)
            check("all_reduce, one rank", t, base + size - 1)
            t = made(mine)
            run(dist.reduce, t, dst=0)
            check("reduce", t, mine if rank else total)
            t = made(mine)
            run(dist.broadcast, t, src=size - 1)
            check("broadcast", t, base + size - 1)
            t = out(n * size)
            run(dist.all_gather_into_tensor, t, made(mine))
            check("all_gather_into_tensor", t, torch.cat([base + r for r in range(size)]))
            t = out(4)
            run(dist.reduce_scatter_tensor, t, made(mine))
            check("reduce_scatter_tensor", t, total.view(size, -1)[rank])
            if made(mine).dim() == 1:
                t = out()
                run(dist.all_to_all_single, t, made(mine))
                check("all_to_all_single", t, torch.cat([base[4 * rank:4 * rank + 4] + r for r in range(size)]))
            parts, whole = [out() for _ in range(size)], torch.cat([base + r for r in range(size)])
            run(dist.all_gather, parts, made(mine))
            check("all_gather", flat(parts), whole)
            parts = [out() for _ in range(size)]
            run(dist.gather, made(mine), parts if rank == 0 else None, dst=0)
            if rank == 0:
                check("gather", flat(parts), whole)
            t = out()
            run(dist.scatter, t, [made(base + r) for r in range(size)] if rank == 0 else None, src=0)
            check("scatter", t, mine)
            parts = [out() for _ in range(size)]
            run(dist.all_to_all, parts, [made(mine + 10 * p) for p in range(size)])
            check("all_to_all", flat(parts), whole + 10 * rank)
            t = out()
            run(dist.reduce_scatter, t, [made(mine) for _ in range(size)])
            check("reduce_scatter", t, total)
        t = out()
        works = [dist.isend(made(mine), after), dist.irecv(t, before)]
        for work in works:
            work.wait()
        check("send, recv", t, base + before)
    t = torch.ones(1).expand(5)  # an input may have one memory for all elements
    parts = [torch.empty(5) for _ in range(size)]
    dist.all_gather(parts, t)
    same("all_gather of an expanded tensor", parts, [torch.ones(5)] * size)
    dist.broadcast(torch.ones(1).expand(5) if rank == 0 else parts[0], 0)
    dist.all_gather(parts, torch._efficientzerotensor(5))
    same("all_gather of PyTorch's zeros", parts, [torch.zeros(5)] * size)
    c = torch.full((3,), complex(1, rank + 1))
    every = [torch.empty(3, dtype=c.dtype) for _ in range(size)]
    ours.allgather([every], [c.conj()]).wait()  # dist.all_gather refuses it itself
    same("conjugated", every, [torch.full((3,), complex(1, -r - 1)) for r in range(size)])
    with torch.inference_mode():
        t = torch.ones(6).view(2, 3).t()
        work = dist.all_reduce(t, async_op=True)
    work.get_future().wait()
    same("a tensor of the inference mode", [t.clone()], [torch.full((3, 2), float(size))])
    for empty in (torch.empty(0), torch.empty(0, 3).t(), torch.ones(3).expand(0, 3), torch._neg_view(torch.empty(0))):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
    torch.set_default_device("meta")
    dist.barrier()
    dist.all_reduce(x := torch.ones(4, 2, device="cpu").t())
    torch.set_default_device(None)
    same("another default device", [x], [torch.full((2, 4), float(size))])
    bits = torch.tensor([rank == 0, True, rank < 2, False])
    for call, group in ((dist.all_reduce, None), (dist.reduce, None)):
        b = bits.clone()
        call(b, *([0] if call is dist.reduce else []), op=dist.ReduceOp.BXOR, group=group)
        if rank == 0 or call is dist.all_reduce:
            same("xor of truth values", [b], [torch.tensor([True, size % 2 == 1, size < 2, False])])
    part = torch.empty(1, dtype=torch.bool)
    dist.reduce_scatter_tensor(part, torch.arange(size) <= rank, op=dist.ReduceOp.BXOR)
    same("xor of truth values, in parts", [part], [torch.tensor([(size - rank) % 2 == 1])])
    numbers = [torch.full((2,), rank + 1), torch.full((3,), 6)]
    dist.all_reduce_coalesced(numbers, dist.ReduceOp.BAND)
    want = 1
    for r in range(size):
        want &= r + 1
    same("and, coalesced", numbers, [torch.full((2,), want), torch.full((3,), 6)])


def refused_kinds():
    """What has no memory that can be used is refused at once, with its name and the reason; the group stays usable."""
    x, many = torch.ones(4), [torch.ones(4) for _ in range(size)]
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    two = __import__("torch.testing._internal.two_tensor", fromlist=["x"]).TwoTensor(x, x)
    strides = torch.ones(9).as_strided((3, 2), (1, 1))
    bad = {"is of the device meta": x.to("meta"), "is of the layout torch.sparse_csr": torch.ones(2, 2).to_sparse_csr(),
           "is a TwoTensor, which has no memory": two, "has no memory: its storage": freed,
           "is quantised (torch.quint8)": torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
           "is a nested tensor": torch.nested.nested_tensor([x, x])}
    written = {"strides (0,) has elements that are the same memory": torch.ones(1).expand(4),
               "strides (1, 1) has elements that are the same": strides,
               "immutable tensors of zeros": torch._efficientzerotensor(4)}
    for text, t in bad.items():
        expect(f"broadcast: the {'input' if rank == 0 else 'output'} {text}", lambda t=t: ours.broadcast([t], Root(0)))
        expect(f"all_gather: the input {text}", lambda t=t: ours.allgather([many], [t]))
        expect(f"send: the input {text}", lambda t=t: ours.send([t], after, 0))
    for text, t in {**bad, **written}.items():
        expect(text, lambda t=t: ours.allreduce([t]))
        expect(text, lambda t=t: ours.recv([t], before, 0))
        if size > 1 and t.dtype == x.dtype and t.numel() == 4:
            expect(text, lambda t=t: ours.allgather([[many[0], t, *many[2:]]], [x]))
    expect("broadcast", lambda: ours.broadcast([x.to_sparse()], Root(0)))
    if size > 1:
        expect("two of the outputs are the same memory", lambda: ours.allgather([[torch.ones(4)] * size], [x]))
        expect("output 1 is of torch.int64", lambda: ours.alltoall([x, x.long(), *many[2:]], many))
    expect("inside of a function of torch.func", lambda: torch.vmap(
        lambda t: (ours.allreduce([t]), t)[1])(torch.ones(2, 3)))
    dist.barrier()


class Root(int):
    """What broadcast() takes for its options."""


def expect(text, call):
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        if text not in str(error):
            fail(f"{text!r} is wanted: {error!r}")
    else:
        fail(f"not refused: {text}")


def own_messages():
    """Messages to oneself, in any order, alone and among others; ranks that do not exist."""
    x = torch.full((4,), float(rank))

    def batch(*operations):
        for work in dist.batch_isend_irecv(list(operations)):
            work.wait()

    for first in (dist.isend, dist.irecv):
        y, z, w = torch.zeros(4), torch.zeros(2, 4).t()[:, 0], torch.zeros(4)
        pair = [dist.P2POp(dist.isend, x, rank), dist.P2POp(dist.irecv, y, rank)]
        batch(*pair if first is dist.isend else reversed(pair))
        others = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, w, before)] if size > 1 else []
        pair[1] = dist.P2POp(dist.irecv, z, rank)
        batch(*(others + pair if first is dist.isend else [*reversed(pair), *others]))
        same("a message to oneself", [y, z], [x, x])
        if others:
            same("a message during one to oneself", [w], [torch.full((4,), float(before))])
    y = torch.zeros(4)
    works = [dist.irecv(y, rank, tag=3), dist.isend(negated(x), rank, tag=3)]
    works[0].get_future().wait()
    same("a message to oneself, with a future", [y], [x])
    dist.isend(x + 1, rank, tag=4)
    work = ours.recv_anysource([y], 4)  # dist.recv() does not let it be this rank
    work.wait()
    if backend == "hocket" and work.source_rank() != rank:
        fail("a message from any source, which is this rank")
    same("a message to oneself from any source", [y], [x + 1])
    text = f"rank {rank} waits for a message from itself with tag 5 that it has not sent"
    expect(text, lambda: dist.irecv(y, rank, tag=5).wait())
    dist.isend(x, rank, tag=6)
    expect(f"rank {rank} sends 4 x torch.float32 to itself with tag 6, and receives 3 x torch.float32",
           lambda: dist.irecv(torch.ones(3), rank, tag=6).wait())
    left = dist.irecv(y, rank, tag=7)
    if left.is_completed():
        fail("a receive without a message is complete")
    for peer in (size, size + 3, -3):
        text = f"peer {peer} is not a rank of this group (0 to {size - 1})"
        expect(text, lambda: ours.send([x], peer, 0))  # noqa: B023
        expect(text, lambda: ours.recv([y], peer, 0))  # noqa: B023
        for call in (dist.isend, dist.irecv, dist.send, dist.recv):
            expect(text, lambda: call(x, peer))  # noqa: B023
    expect(text, lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, y, -3), dist.P2POp(dist.isend, x, after)]))
    dist.barrier()


def messages():
    mine, got = torch.full((100000,), float(rank)), torch.empty(100000)
    for _ in range(3):
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)])
        for work in works:
            work.wait()
        same("batch_isend_irecv", [got], [torch.full((100000,), float(before))])
    # Sends that are not received yet do not block, whatever their order and size; tags may come in any order.
    first, second = torch.full((1 << 18,), 1.0 + rank), torch.full((3,), 2.0 + rank)
    works = [dist.isend(first, after, tag=1), dist.isend(second, after, tag=2)]
    x, y = torch.empty(3), torch.empty(1 << 18)
    dist.recv(x, before, tag=2)
    dist.recv(y, before, tag=1)
    for work in works:
        work.wait()
    same("tags", [x, y], [torch.full((3,), 2.0 + before), torch.full((1 << 18,), 1.0 + before)])
    # A collective that is under way does not keep a message from going, nor the other way round.
    total, note = torch.ones(1000), torch.full((1,), float(rank))
    if rank == 0:
        dist.recv(note, 1)
        dist.all_reduce(total)
    else:
        work = dist.all_reduce(total, async_op=True)
        if rank == 1:
            dist.send(note, 0)
        work.wait()
    same("a message during a collective", [total], [torch.full((1000,), float(size))])
    if rank == 0:
        same("a message during a collective", [note], [torch.ones(1)])
    # From whichever rank sends first.
    if rank == 0 and backend == "hocket":
        came = {}
        for _ in range(2 * (size - 1)):
            source = dist.recv(pair := torch.empty(2), tag=5)
            came.setdefault(source, []).append(pair.tolist())
        if came != {r: [[r, 0], [r, 1]] for r in range(1, size)}:
            fail(f"recv from any source: {came}")
    elif backend == "hocket":
        for k in range(2):
            dist.send(torch.tensor([float(rank), float(k)]), 0, tag=5)
    things = [{"rank": rank, "text": "x" * 100 * rank}]
    if rank == 0:
        dist.send_object_list(things, 1)
    elif rank == 1:
        dist.recv_object_list(things, 0)
        if things != [{"rank": 0, "text": ""}]:
            fail(f"send_object_list: {things}")


def coalesced():
    many = [torch.full((1 << k,), float(rank)) for k in range(12)]
    with dist._coalescing_manager():
        for x in many:
            dist.all_reduce(x)
    same("coalesced all_reduce", many, [torch.full((1 << k,), float(sum(range(size)))) for k in range(12)])
    outs = [torch.empty(size << k) for k in range(6)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for k, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((1 << k,), float(rank + k)))
    manager.wait()
    same("coalesced all_gather", outs, [(torch.arange(size) + float(k)).repeat_interleave(1 << k) for k in range(6)])
    parts = [torch.empty(1 << k) for k in range(6)]
    with dist._coalescing_manager():
        for part, out in zip(parts, outs):
            dist.reduce_scatter_tensor(part, out)
    same("coalesced reduce_scatter", parts, [torch.full((1 << k,), float(size * (rank + k))) for k in range(6)])


def overlap():
    """Work that is asynchronous goes on by itself, and the caller is free while it waits for a late rank."""
    many = [torch.full((1 << k,), float(rank)) for k in range(16)]
    works = [dist.all_reduce(x, async_op=True) for x in many]
    for work in reversed(works):
        work.wait()
    same("many at once", many, [torch.full((1 << k,), float(sum(range(size)))) for k in range(16)])
    x, called = torch.ones(4), threading.Event()
    if rank == 0:  # makes the call when the others have gone on after theirs
        theirs.barrier().wait()
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda f: (called.set(), f.value()[0] * 2)[1])
    if rank:
        if work.is_completed() and backend == "hocket":
            fail("an operation is complete without rank 0")
        theirs.barrier().wait()
    same("what a future gives", [future.wait()], [torch.full((4,), 2.0 * size)])
    if not called.is_set() or not work.is_success() or work.exception() is not None:
        fail("a future's work is not complete")
    if rank == 0:
        theirs.barrier().wait()
    work = dist.all_reduce(x, async_op=True)
    if rank:
        try:
            work.wait(datetime.timedelta(milliseconds=100))
            fail("wait() with a time-out ends without rank 0")
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
        theirs.barrier().wait()
    work.wait()
    del x, work
    dist.all_reduce(torch.ones(1 << 20), async_op=True)  # the tensors live as long as they are used


def groups():
    for members in (list(range(0, size, 2)), list(range(size))[::-1], [size - 1]):
        group = dist.new_group(members)
        if rank in members:
            x = torch.full((10,), float(rank))
            dist.all_reduce(x, group=group)
            same("a sub-group", [x], [torch.full((10,), float(sum(members)))])
            dist.broadcast(x, src=members[-1], group=group)
            dist.barrier(group=group)
            dist.destroy_process_group(group)
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    if gathered != [{"rank": r} for r in range(size)]:
        fail(f"all_gather_object: {gathered}")


def barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()
    if size < 2:
        return
    monitored = dist.monitored_barrier
    try:
        monitored()
    except ValueError:  # earlier versions let Gloo alone pass
        monitored = ours.monitored_barrier
        monitored()
    try:
        if rank != size - 1:
            monitored(timeout=datetime.timedelta(seconds=0.5))
            fail("monitored_barrier waits for a rank that never comes")
    except RuntimeError as error:
        text = f"Rank {size - 1} failed to pass monitoredBarrier" if rank == 0 else "monitoredBarrier"
        if text not in str(error):
            fail(f"monitored_barrier: {error}")
    theirs.barrier().wait()
    # Who waits longer than the group's time gets an error, and so does every later call.
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
    begin = time.monotonic()
    if rank == 0:
        for what in ("first", "second"):
            try:
                dist.barrier(group=group)
                fail(f"the {what} barrier ends without the others")
            except RuntimeError as error:
                if "Timed out waiting 1000ms" not in str(error):
                    fail(f"{what} barrier: {error}")
        if not 0.9 < time.monotonic() - begin < 20:
            fail(f"the time-out came after {time.monotonic() - begin} s")
    theirs.barrier().wait()


def functional():
    """What compiled programs call, and a compiled one."""
    x, world = torch.arange(2.0 * size) + rank, dist.group.WORLD
    total = torch.arange(2.0 * size) * size + sum(range(size))
    sums = functions.all_reduce(x, "sum", world)
    parts = functions.reduce_scatter_tensor(x, "sum", 0, world)
    every = functions.all_gather_tensor(parts, 0, world)
    moved = functions.all_to_all_single(x, None, None, world)
    first = functions.broadcast(x, 0, world)
    back = functions.all_to_all_single(moved, None, None, world)
    program = torch.compile(lambda t: functions.all_reduce(t * 2, "sum", world) + 1, backend="aot_eager")
    same("functional collectives", [t + 0 for t in (sums, every, back, first, program(x))],
         [total, total, x, torch.arange(2.0 * size), total * 2 + 1])


def many():
    """A thousand operations under way, with a future each; DDP whose ranks have different numbers of inputs."""
    given = [torch.full((5,), float(rank + k)) for k in range(1000)]
    torch.futures.wait_all([dist.all_reduce(t, async_op=True).get_future() for t in given])
    same("a thousand futures", given, [torch.full((5,), float(sum(range(size)) + k * size)) for k in range(1000)])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    with model.join():
        for _ in range(rank + 1):
            model(torch.ones(1, 2)).sum().backward()


def refusals():
    for what, text, call in (
            ("bitwise", "bitwise", lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)),
            ("int16", "Invalid scalar type", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16))),
            ("sizes", "times as long", lambda: dist.all_gather_into_tensor(torch.ones(size + 1), torch.ones(1)))):
        try:
            call()
        except (RuntimeError, ValueError, TypeError) as error:
            if text not in str(error):
                fail(f"{what}: {error!r}")
        else:
            fail(f"{what} is not refused")
    o, i, x = torch.ones(size), torch.ones(size), torch.ones(3)
    for splits, text in (([-1, size + 1, *[0] * size][:size], "[0] is -1"), ([1] * (size + 1), " [1, 1"),
                         *([([1.5] * size, "[0] is 1.5, and must be an int")] if backend == "hocket" else [])):
        for which in (0, 1):
            both = [None, None]
            both[which] = splits
            expect(f"{('output', 'input')[which]}_split_sizes{text}",
                   lambda: dist.all_to_all_single(o, i, *both))  # noqa: B023
    dist.barrier()
    if size > 1:
        group = dist.new_group(list(range(size)))
        for asynchronous in (False, True):
            try:
                work = dist.all_reduce(torch.ones(4 + rank % 2), group=group, async_op=asynchronous)
                work.wait()
                fail("calls that differ are not reported")
            except RuntimeError as error:
                if not isinstance(error, dist.DistBackendError) or "rank" not in str(error):
                    fail(f"calls that differ: {error!r}")
        group = dist.new_group(list(range(size)))
        expect("rank 0 called barrier()", lambda: dist.all_reduce(x, group=group) if rank else dist.barrier(group))
    theirs.barrier().wait()


def asynchronously(there):
    """Every operation of the compiled module as asynchronous work; the tensors live until it is over."""
    def ones():
        return torch.ones(3)

    for name, call, want in (
            ("all_reduce", lambda x: dist.all_reduce(x, async_op=True), lambda: ones() * size),
            ("reduce", lambda x: dist.reduce(x, 0, async_op=True), lambda: ones() * (size if rank == 0 else 1)),
            ("broadcast", lambda x: dist.broadcast(x.mul_(rank + 1), size - 1, async_op=True), lambda: ones() * size)):
        works = [(x, call(x)) for x in [ones() for _ in range(20)]]
        for x, work in works[::-1]:
            work.wait()
            same(f"{name}, asynchronously", [x], [want()])
        for got in (work.result()[0], call(ones()).get_future().wait()[0]):
            same(f"{name}, the work's result", [got], [want()])
    whole, part = torch.zeros(3 * size), ones()
    dist.all_gather_into_tensor(whole, part, async_op=True).wait()
    same("all_gather_into_tensor", [whole], [torch.ones(3 * size)])
    dist.reduce_scatter_tensor(part, whole, async_op=True).wait()
    same("reduce_scatter_tensor", [part], [ones() * size])
    dist.barrier(async_op=True).wait()
    work = dist.all_reduce(torch.ones(100000), async_op=True)  # nobody else has the tensor
    same("a tensor that the work alone has", [work.result()[0]], [torch.full((100000,), float(size))])
    if there:
        before = ours.e.sequence
        work = ours.e.quick(_quick.ALL_REDUCE, [part], [part], dist.AllreduceOptions())
        if ours.e.sequence != before + 1 or not isinstance(work, dist.Work):
            fail(f"an asynchronous call gives {work!r}")
        work.wait()


def compiled_calls():
    """The compiled module takes calls whose tensors are plain memory, and leaves all others to Python."""
    def options(op=dist.ReduceOp.SUM, later=False, timeout=None):
        made = dist.AllreduceOptions()
        made.reduceOp, made.asyncOp, made.timeout = op, later, timeout or made.timeout
        return made

    def taken(t, opts):
        done = ours.e.quick(_quick.ALL_REDUCE, [t], [t], opts)
        if done is not None and done is not False:
            done.wait()
        return done is not False

    there = importlib.util.find_spec("hocket.torch._calls") is not None and _quick.TABLE is not None
    x = torch.ones(2, 4)
    for t in (x, torch.nn.Parameter(x.clone()), x[1], x[:, 1:2][:1], torch.tensor(1.0),
              torch.ones(3, requires_grad=True)):
        with torch.no_grad():
            want = t * size
        if taken(t, options()) != there:
            fail(f"a plain tensor of shape {tuple(t.shape)} is {'not ' if there else ''}taken by the compiled module")
        if there:
            same("the compiled module", [t.detach()], [want.detach()])
        with torch.no_grad():
            want = t * size
        if taken(t, options(later=True)) != there:
            fail(f"an asynchronous call is {'not ' if there else ''}taken by the compiled module")
        if there:
            same("the compiled module, asynchronously", [t.detach()], [want.detach()])
    asynchronously(there)
    freed = torch.ones(2)
    freed.untyped_storage().resize_(0)
    for name, t in {"negative": torch._neg_view(x), "strided": x[:, 1], "complex": torch.ones(2, dtype=torch.complex64),
                    "bool": x > 0, "sparse": x.to_sparse(), "zero": torch._efficientzerotensor(2), "freed": freed,
                    "meta": x.to("meta"), "subclass": x.as_subclass(type("Sub", (torch.Tensor,), {})),
                    "empty": torch.empty(0), "nested": torch.nested.nested_tensor([x, x]), "none": None}.items():
        if taken(t, options()):
            fail(f"the compiled module takes a {name} tensor")
    torch.vmap(lambda t: taken(t, options()) and fail("the compiled module takes a batched tensor") or t)(x)
    for name, opts in {"bitwise": options(dist.ReduceOp.BXOR), "none": None,
                       "scaled": options(dist._make_nccl_premul_sum(2.0)),
                       "timed": options(timeout=datetime.timedelta(seconds=9))}.items():
        if taken(x, opts):
            fail(f"the compiled module takes a call that is {name}")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        if taken(x, options()):
            fail("the compiled module takes a call that the profiler wants to see")
    ours.e.open_batch()
    if taken(x, options()):
        fail("the compiled module takes a call of a batch")
    ours.e.close_batch()
    if rank == 0 and not there:
        print("SKIP: the compiled module: the package is built without Python's headers, or PyTorch is older than 2.10")


for dtype in TYPES:
    reductions(dtype, 10)
    moves(dtype, 10)
reductions(torch.float32, 30000)
moves(torch.bfloat16, 30000)
moves(torch.bool, 33)
uneven()
forms()
kinds()
if backend == "hocket":  # of two backends PyTorch chooses one, by the first tensor
    refused_kinds()
    compiled_calls()
own_messages()
coalesced()
if size > 1:
    messages()
overlap()
groups()
functional()
many()
barriers()
refusals()
dist.destroy_process_group()
if rank == 0:
    print(f"{size} ranks, {backend}: every collective as Gloo does it; messages, groups, time-outs, errors")
