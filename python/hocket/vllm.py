# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs over Hocket: ``HOCKET_VLLM=1 vllm serve ...``, on one host or several.

vLLM finds this module by its entry point (vllm.general_plugins) in each of its processes. With the variable set, groups
of CPU workers have the backend ``hocket`` in place of Gloo and of vLLM's shared memory.
"""
from __future__ import annotations

import importlib
import os
from typing import Any


def register() -> None:
    """Takes over the groups of CPU workers, if HOCKET_VLLM is set and not 0. vLLM calls it before it makes groups."""
    if os.environ.get("HOCKET_VLLM", "0") in ("", "0"):
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    importlib.import_module("hocket.torch")  # PyTorch learns the backend's name
    platform: Any = type(current_platform)
    platform.dist_backend = "hocket"
    platform.get_device_communicator_cls = classmethod(lambda _: "hocket.vllm.HocketCommunicator")


def __getattr__(name: str) -> Any:
    # The class derives from vLLM's, which cannot be imported yet when vLLM loads its plugins.
    if name != "HocketCommunicator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _make_class()
    return globals()[name]


def _make_class() -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    sums, gathers = AllreduceOptions(), AllgatherOptions()
    sums.asyncOp = gathers.asyncOp = False

    class HocketCommunicator(CpuCommunicator):  # type: ignore[misc]
        """A CpuCommunicator whose calls go to the group of the workers. The two frequent ones, allreduce and allgather,
        call the group without torch.distributed's functions, which take longer than a small message."""

        def __init__(self, cpu_group: Any, device: Any = None, device_group: Any = None, unique_name: str = "",
                     use_all2all: bool = False) -> None:
            DeviceCommunicatorBase.__init__(self, cpu_group, device, device_group, unique_name, use_all2all=use_all2all)
            self.dist_module = dist
            self.supports_tensor_dict = False  # for pipelines vLLM then sends each tensor by torch.distributed
            if self.use_all2all:
                from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager

                self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

        def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
            self.device_group.allreduce([input_], sums)
            return input_

        def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
            if dim < 0:
                dim += input_.dim()
            size = input_.size()
            out = torch.empty((self.world_size, *size), dtype=input_.dtype)
            self.device_group.all_gather_single(out.view(-1), input_.contiguous().view(-1), gathers)
            return out.movedim(0, dim).reshape(*size[:dim], self.world_size * size[dim], *size[dim + 1:])

        # ---- blocks that differ in length: data and expert parallel ----

        def all_gatherv(self, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
            if dim != 0:
                raise NotImplementedError(f"all_gatherv over dimension {dim}: only dimension 0 is supported")
            if isinstance(input_, list):
                return [self.all_gatherv(x, 0, sizes) for x in input_]
            sizes = sizes or [input_.shape[0]] * self.world_size
            out = torch.empty((sum(sizes), *input_.shape[1:]), dtype=input_.dtype)
            dist.all_gather(list(out.split(sizes)), input_, group=self.device_group)
            return out

        def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None) -> torch.Tensor:
            given = input_.movedim(dim, 0).contiguous()
            sizes = sizes or [given.shape[0] // self.world_size] * self.world_size
            out = torch.empty((sizes[self.rank_in_group], *given.shape[1:]), dtype=given.dtype)
            dist.reduce_scatter(out, list(given.split(sizes)), group=self.device_group)
            return out.movedim(0, dim)

    return HocketCommunicator
