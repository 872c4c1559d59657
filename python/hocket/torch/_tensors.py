# SPDX-License-Identifier: Apache-2.0
"""The memory of tensors. A tensor need not be memory that holds its values: it may be negated lazily, strided, sparse,
on another device. Every operation gets the memory of its tensors here (docs/torch.md has the table)."""
from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

Tensor = torch.Tensor
Finish = Callable[[], object]


class Use(Enum):
    """What an operation does with a tensor."""

    READ = "input"
    WRITE = "output"
    BOTH = "tensor"


_keys = torch._C._dispatch_keys
_no_subclass = torch._C.DisableTorchFunctionSubclass  # only memory counts here, whatever a subclass does with functions


def _plain_kinds() -> frozenset[int]:
    """PyTorch's dispatch keys of tensors whose memory holds their values. All others are looked at one by one."""
    kinds = {_keys(torch.empty(0)).raw_repr()}
    with torch.inference_mode():
        kinds.add(_keys(torch.empty(0)).raw_repr())
    return frozenset(kinds)


_PLAIN = _plain_kinds()


def memory(t: Tensor, op: str, use: Use, number: int = -1) -> tuple[Tensor, Finish | None]:
    """A tensor with the values of `t` one after the other, for the library: `t` itself, or a copy. With a copy for
    results comes a function that writes them to `t`. `op` and `number`, that of a list's tensor, are for messages."""
    if _keys(t).raw_repr() in _PLAIN and t.is_contiguous() and (t.data_ptr() or not t.numel()):
        return t, None
    return _copied(t, op, use, number)


@torch.no_grad()
def _copied(t: Tensor, op: str, use: Use, number: int) -> tuple[Tensor, Finish | None]:
    def refuse(why: str) -> NoReturn:
        name = use.value if number < 0 else f"{use.value} {number}"
        raise ValueError(f"{op}: the {name} {why}")

    if isinstance(t, AsyncCollectiveTensor):
        return memory(t.trigger_wait(), op, use, number)
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        refuse("is inside of a function of torch.func (vmap, grad), where it has no memory: make the call outside")
    if t.is_nested:
        refuse("is a nested tensor: pass its values() or its parts, each as a tensor")
    if t.layout is not torch.strided:
        instead = "to_dense()" if use is Use.READ else "a dense tensor"
        refuse(f"is of the layout {t.layout}: pass {instead} (all_reduce sums tensors of torch.sparse_coo)")
    if t.is_meta:
        refuse("is of the device meta: it has a shape and no values")
    if not t.is_cpu:
        refuse(f"is of {t.device}, and this group has no backend for tensors of it: the backend hocket is for those of "
               "the CPU; init_process_group('cpu:hocket,cuda:nccl') has both, with PyTorch 2.15")
    if t.is_quantized:
        refuse(f"is quantised ({t.dtype}), and its scale would not come with it: pass int_repr() or dequantize()")
    if t._is_zerotensor():
        if use is not Use.READ:
            refuse("is one of PyTorch's immutable tensors of zeros: pass clone()")
        return torch.zeros(t.shape, dtype=t.dtype, device="cpu"), None
    if t.numel() and not _address(t):
        if type(t) not in (Tensor, torch.nn.Parameter):
            refuse(f"is a {type(t).__name__}, which has no memory of its own: pass the tensor inside, such as "
                   "to_local() of a DTensor")
        refuse("has no memory: its storage was freed or is not allocated yet")
    bits = t.is_neg() or t.is_conj()
    if t.is_contiguous() and not bits:
        return t, None
    if use is not Use.READ and _overlaps(t):
        refuse(f"of shape {tuple(t.shape)} and strides {t.stride()} has elements that are the same memory, such as "
               "expand() makes: pass clone()")
    if use is Use.WRITE:
        x = torch.empty(t.shape, dtype=t.dtype, device="cpu")
    else:
        with _no_subclass():
            x = t.detach().resolve_conj().resolve_neg().contiguous()
    return x, None if use is Use.READ else lambda: write(t, x)


def _address(t: Tensor) -> int:
    try:
        return t.data_ptr()
    except RuntimeError:  # it has no storage
        return 0


def write(t: Tensor, x: Tensor) -> None:
    """Puts results into a tensor of the user's."""
    # A thread of futures may do this: the mode is that thread's, and is not the caller's.
    with torch.inference_mode(t.is_inference()), torch.no_grad(), _no_subclass():
        t.copy_(x)


def _overlaps(t: Tensor) -> bool:
    """Are two elements the same memory?"""
    end, dims = 0, sorted((stride, size) for size, stride in zip(t.shape, t.stride()) if size > 1)
    for stride, size in dims:
        if stride <= end:
            break
        end += stride * (size - 1)
    else:
        return False  # each dimension steps over all smaller ones
    if t.numel() == 0:
        return False
    places = torch.zeros(1, dtype=torch.int64, device="cpu")
    for stride, size in dims:
        places = (places[:, None] + torch.arange(size, device="cpu") * stride).view(-1)
    return places.unique().numel() < t.numel()


def _adjacent(tensors: list[Tensor]) -> bool:
    """Do they lie one after the other, in one storage?"""
    at, storage = tensors[0].data_ptr(), tensors[0].untyped_storage().data_ptr()
    for t in tensors:
        if t.data_ptr() != at or t.untyped_storage().data_ptr() != storage:
            return False
        at += t.numel() * t.element_size()
    return True


def _whole(tensors: list[Tensor]) -> Tensor:
    return tensors[0].as_strided((sum(t.numel() for t in tensors),), (1,))


def _alike(tensors: list[Tensor], op: str, use: Use) -> None:
    for k, t in enumerate(tensors):
        if t.dtype != tensors[0].dtype:
            raise ValueError(f"{op}: {use.value} {k} is of {t.dtype}, {use.value} 0 of {tensors[0].dtype}")


@torch.no_grad()
def gathered(tensors: list[Tensor], op: str) -> Tensor:
    """The values of several inputs one after the other: without a copy if they are so already."""
    _alike(tensors, op, Use.READ)
    parts = [memory(t, op, Use.READ, k)[0] for k, t in enumerate(tensors)]
    with _no_subclass():
        return _whole(parts) if _adjacent(parts) else torch.cat([x.reshape(-1) for x in parts])


@torch.no_grad()
def scattered(tensors: list[Tensor], op: str) -> tuple[Tensor, Finish | None]:
    """Memory for the values of several outputs one after the other, and what writes them to the outputs: none if that
    memory is the outputs'."""
    _alike(tensors, op, Use.WRITE)
    parts = [memory(t, op, Use.WRITE, k)[0] for k, t in enumerate(tensors)]
    if all(x is t for x, t in zip(parts, tensors)) and _adjacent(parts):
        return _whole(parts), None
    places = [_address(t) for t in tensors if t.numel()]
    for k, place in enumerate(places):
        if place and place in places[:k]:
            raise ValueError(f"{op}: two of the outputs are the same memory, at {place:#x}: each needs its own")
    whole = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device="cpu")

    def finish() -> None:
        for part, t in zip(whole.split([t.numel() for t in tensors]), tensors):
            write(t, part.view(t.shape))
    return whole, finish


def any_of(things: Any) -> list[Tensor]:
    """What torch.distributed passes: a tensor, or several."""
    return [things] if isinstance(things, Tensor) else list(things)
