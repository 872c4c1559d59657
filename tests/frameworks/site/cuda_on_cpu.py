# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own kernels cannot run on the emulated GPUs.  After install() each operator that would start one runs on the CPU:
its tensors are copied from the emulated GPU, and what it wrote or made is copied to it, on the current stream.  What starts a
kernel without an operator (NaN checks, kernels for symmetric memory) still fails, and so does an operator in a graph capture,
if it is more than a copy."""
import ctypes

import torch
from torch.utils._pytree import tree_map

# They start no kernel: memory, views by another name, one copy.
AS_THEY_ARE = {"empty", "empty_strided", "_local_scalar_dense", "record_stream", "set_", "resize_", "_resize_output_",
               "is_set_to", "is_pinned", "_pin_memory", "_reshape_alias", "view", "unfold", "as_strided", "_record_stream"}
library = None
cudart = None


def move(to, at, count, device):
    """Copies bytes in the device's current stream."""
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        code = cudart.cudaMemcpyAsync(ctypes.c_void_p(to), ctypes.c_void_p(at), ctypes.c_size_t(count), 4,
                                      ctypes.c_void_p(stream.cuda_stream))
    if code:
        raise RuntimeError(f"CUDA error {code}: a copy of {count} bytes")


def extent(t):
    """How many bytes from its first one on a tensor spans."""
    return 0 if t.numel() == 0 else (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) * t.element_size()


def image(t, device):
    """An empty tensor with the same sizes and strides elsewhere."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)


def to_cpu(t):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("an operator runs on the CPU here, so that it cannot be captured in a graph")
    there = image(t, "cpu")
    if t.numel():
        move(there.data_ptr(), t.data_ptr(), extent(t), t.device)
        torch.cuda.current_stream(t.device).synchronize()
    return there


def back(t, there):
    """Gives a tensor of the GPU the CPU's content."""
    if t.shape != there.shape:
        t.resize_(there.shape)
    if t.stride() != there.stride():
        there = image(t, "cpu").copy_(there)
    if t.numel():
        move(t.data_ptr(), there.data_ptr(), extent(t), t.device)
        torch.cuda.current_stream(t.device).synchronize()


def to_cuda(t, device):
    there = image(t, device)
    back(there, t)
    return there


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and a._is_view() is not None and \
        torch.ops.aten.is_non_overlapping_and_dense(a)


def copy(target, source, non_blocking=False):
    """copy_: one copy of bytes where that is enough; it may then be captured."""
    if source.dtype == target.dtype and source.shape != target.shape:
        source = source.expand(target.shape)
    if target.numel() == 0:
        return target
    device = (target if target.is_cuda else source).device
    if same_bytes(target, source):
        if target.is_cuda and source.is_cuda and source.device != device:
            torch.cuda.current_stream(source.device).synchronize()
        move(target.data_ptr(), source.data_ptr(), extent(target), device)
        if not (target.is_cuda and source.is_cuda) and not non_blocking:
            torch.cuda.current_stream(device).synchronize()
        return target
    there = to_cpu(source) if source.is_cuda else source
    if not target.is_cuda:
        return target.copy_(there)
    mine = image(target, "cpu")
    if not torch.ops.aten.is_non_overlapping_and_dense(target):
        mine = to_cpu(target)
    back(target, mine.copy_(there))
    return target


def on_cpu(op):
    """The operator with CPU tensors in the place of the GPU's."""
    arguments = op._schema.arguments
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    returns = op._schema.returns

    def run(*args, **kwargs):
        seen, devices = {}, []

        def there(x):
            if isinstance(x, torch.Tensor) and x.is_cuda:
                devices.append(x.device)
                if id(x) not in seen:
                    seen[id(x)] = (x, to_cpu(x))
                return seen[id(x)][1]
            if isinstance(x, torch.device) and x.type == "cuda":
                devices.append(x if x.index is not None else torch.device("cuda", torch.cuda.current_device()))
                return torch.device("cpu")
            if isinstance(x, torch.Generator):
                return None
            return x

        cpu_args, cpu_kwargs = tree_map(there, args), tree_map(there, kwargs)
        result = op(*cpu_args, **cpu_kwargs)
        originals = {}
        for i, a in enumerate(arguments):
            given = args[i] if i < len(args) else kwargs.get(a.name)
            if written[i] and given is not None:
                for t in given if isinstance(given, (list, tuple)) else [given]:
                    if id(t) in seen:
                        back(*seen[id(t)])
                        originals[id(seen[id(t)][1])] = t
        device = devices[0] if devices else torch.device("cuda", torch.cuda.current_device())

        def here(x):
            if not isinstance(x, torch.Tensor) or x.is_cuda:
                return x
            return originals[id(x)] if id(x) in originals else to_cuda(x, device)

        return tree_map(here, result) if returns else None

    return run


def is_view(schema):
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def install():
    """In this process; a second call does nothing."""
    global library, cudart
    if library:
        return
    cudart = ctypes.CDLL("libcudart.so.13")
    library = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or base in AS_THEY_ARE:
            continue
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        if not is_view(op._schema):
            library.impl(op, on_cpu(op), "CUDA", allow_override=True)
    library.impl("copy_", copy, "CUDA", allow_override=True)
