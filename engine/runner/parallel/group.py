"""Sums and gathers over the ranks by torch.distributed: NCCL between GPUs, gloo between processes of a CPU."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo, Store, Work

PATIENCE = timedelta(minutes=30)  # a rank that is lost is noticed otherwise, and a slow disk is no loss


class Collectives(Protocol):
    """What torch's process groups and their backends have in common, and nowhere declare."""

    def allreduce(self, tensors: list[Tensor]) -> Work:
        """Begin to replace each tensor by its sum over the ranks."""

    def _allgather_base(self, output: Tensor, input: Tensor) -> Work:
        """Begin to write the inputs of all ranks to output, one behind the other along the first axis."""


class RankGroup:
    """A `Group` of several processes.

    `keeps_order`: sum in the order of the ranks. A library's own sum cuts a tensor among the ranks, so that the order,
    and with it the bits of a row, depend on how many rows there are; of two addends the order does not matter.
    """

    def __init__(self, collectives: Collectives, rank: int, size: int, *, keeps_order: bool) -> None:
        self.rank, self.size = rank, size
        self._collectives = collectives
        self._keeps_order = keeps_order and size > 2

    def sum_(self, x: Tensor) -> None:
        """Replace x[…] (contiguous) by its sum over all ranks."""
        if not self._keeps_order:
            self._collectives.allreduce([x]).wait()
            return
        first, second, *others = self.gather(x)
        torch.add(first, second, out=x)
        for part in others:
            x.add_(part)

    def gather(self, x: Tensor) -> Tensor:
        """x[…] of every rank as [size, …]."""
        parts = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        self._collectives._allgather_base(parts, x.contiguous()).wait()
        return parts.view(self.size, *x.shape)


def join_group(rank: int, size: int, device: torch.device, store_fd: int, *, keeps_order: bool) -> RankGroup:
    """Meet the other ranks; returns when all are there.

    `store_fd` is the same open file (without a name, so that there is nothing to clean up) in every rank.
    """
    store = FileStore(f"/proc/self/fd/{store_fd}", size)
    store.set_timeout(PATIENCE)
    collectives = _nccl(store, rank, size, device) if device.type == "cuda" else _gloo(store, rank, size)
    return RankGroup(collectives, rank, size, keeps_order=keeps_order)


def _nccl(store: Store, rank: int, size: int, device: torch.device) -> Collectives:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=PATIENCE, device_id=device)
    return cast(Collectives, dist.group.WORLD)


def _gloo(store: Store, rank: int, size: int) -> Collectives:
    # Not by init_process_group: it would listen on the host's network, and gloo asks nobody who he is.
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = PATIENCE
    return cast(Collectives, ProcessGroupGloo(store, rank, size, options))
