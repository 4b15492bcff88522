"""Which order a reader takes by default: from the sizes of row groups alone, so that few of them are open at once."""

import warnings
from dataclasses import replace

import numpy as np

from smalti.compat.petastorm.rows import RowReader
from smalti.dataset.passes import OrderOptions
from smalti.order import EpochPlan, default_block_size, default_canonical_nodes, plan_epoch
from smalti.world import World

_OPEN_BYTES = 1 << 29
"""Row groups that one reader of everything has open in the default order, bytes as footers say. A constant, as the
order must not depend on the machine."""


def default_order(rows: RowReader, asked: OrderOptions) -> OrderOptions:
    """What was asked for, and for the rest: as many runs and as large windows as keep few row groups open.

    A run has the row groups of its window open, and those that it is cut from: so each of C runs takes about two row
    groups, and its window as much again as is left.
    """
    num_rows, num_groups = len(rows), int(np.count_nonzero(rows.sizes))
    nodes = asked.canonical_nodes
    if nodes is None:
        most = min(default_canonical_nodes(num_rows), num_groups, _OPEN_BYTES // (2 * rows.group_bytes))
        nodes = 1 << (max(1, most).bit_length() - 1)
    block = asked.block_size
    if block is None:
        row_bytes = max(1, rows.group_bytes * num_groups // max(1, num_rows))
        left = max(rows.group_bytes * nodes, _OPEN_BYTES - 2 * nodes * rows.group_bytes)
        block = min(max(1, left // nodes // row_bytes), default_block_size(nodes))
    return replace(asked, canonical_nodes=nodes, block_size=block)


def warn_of_reading_again(rows: RowReader, world: World, *, seed: int, nodes: int, block: int) -> None:
    """Says so where the order keeps more row groups open than may be held: they would be read again and again."""
    plan: EpochPlan = plan_epoch(rows.sizes, seed=seed, epoch=0, canonical_nodes=nodes, shuffle_block_size=block)
    runs = len(plan.runs_of_host(world.host, world.num_hosts))
    mean_rows = max(1, len(rows) // max(1, int(np.count_nonzero(rows.sizes))))
    needed = min(len(rows.found.row_groups), runs * (block // mean_rows + 2)) * rows.group_bytes
    if needed > rows.options.held_bytes:
        warnings.warn(
            f"reading {rows.found.source.url} in this order keeps row groups of about {needed >> 20} MiB open, and "
            f"`held_bytes` allows {rows.options.held_bytes >> 20} MiB: row groups will be read several times. Allow "
            f"more, give `num_canonical_nodes` below {nodes} or `shuffle_block_size` below {block}, or write smaller "
            "row groups (`parquet_row_group_size_bytes`).",
            stacklevel=4,
        )
