"""Puts rows that use the same matrix side by side, in whole tiles: where grouped products (experts, adapters) start.

Everything stays on the device and every size follows from shapes, so that a CUDA graph may hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Places for rows, `tile` to a group's tile: places[p] is a row, or num_rows where the place stays empty."""

    places: Tensor  # int32 [tiles * tile]
    tile_groups: Tensor  # int32 [tiles]; num_groups where the tile is empty
    groups: Tensor  # int64 [num_rows], what the rows were grouped by; num_groups: in no group
    num_rows: int
    num_groups: int
    tile: int


def group_rows(groups: Tensor, num_groups: int, tile: int) -> RowGroups:
    """Group rows by groups[num_rows] (integers, num_groups for rows that belong to none), in order within a group."""
    groups, num_rows = groups.long(), groups.shape[0]
    counts = torch.zeros(num_groups + 1, dtype=torch.int64, device=groups.device)
    counts.scatter_add_(0, groups, torch.ones_like(groups))
    padded = (counts[:num_groups] + tile - 1) // tile * tile
    ends = padded.cumsum(0)
    num_tiles = num_rows // tile + min(num_rows, num_groups)  # each group's last tile may be part empty
    order = torch.argsort(groups, stable=True)
    ordered = groups[order]
    ranks = torch.arange(num_rows, device=groups.device) - (counts.cumsum(0) - counts)[ordered]
    # Rows of no group go to one place behind the last, which is cut off.
    starts = torch.cat([ends - padded, ends.new_full((1,), num_tiles * tile)])
    targets = torch.where(ordered < num_groups, starts[ordered] + ranks, num_tiles * tile)
    places = torch.full((num_tiles * tile + 1,), num_rows, dtype=torch.int32, device=groups.device)
    places.scatter_(0, targets, torch.where(ordered < num_groups, order, num_rows).int())
    first_places = torch.arange(num_tiles, device=groups.device) * tile
    tile_groups = torch.searchsorted(ends, first_places, right=True).int()
    return RowGroups(places[:-1], tile_groups, groups, num_rows, num_groups, tile)
