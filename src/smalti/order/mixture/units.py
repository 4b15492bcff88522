"""Units: copies and drawn parts of shards that an epoch takes of a stream; the order treats each unit as a shard.

    shard of 4, 10 taken      units of 4, 4 and 2      samples 0 1 2 3 | 0 1 2 3 | 3 0

The drawn part of a stream is an arc of a circle on which all samples of the stream lie, those of each shard spread over
it. With `balanced`, an epoch's arc begins where the last one ended, so after any number of epochs each sample was drawn
equally often, or once more than others. Within a shard the samples lie in the order of a keyed permutation. Memory is
O(units), and only the samples that are looked up are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smalti.errors import ArgumentError
from smalti.order.mixture.weave import Weave, Words, scattered
from smalti.order.window import Ids

_WHOLE = -1  # in `Units.begins`: a whole copy, not a drawn part
MAX_UNITS = 1 << 30
"""Units of one stream, inclusive; a plan takes more than 56 bytes for each."""


@dataclass(frozen=True, eq=False)
class Units:
    """The units of one epoch, laid end to end."""

    sizes: Ids
    """Samples in each unit, from 0; int64, shape (units,)."""
    shards: Ids
    """The shard of each unit."""
    begins: Ids
    """Start of a drawn part in its shard's permutation, which it may wrap around; -1 for a whole copy."""
    shard_sizes: Ids
    """Samples in each shard; int64, shape (shards,)."""
    first_ids: Ids
    """Sample id of each shard's first sample."""
    keys: Words
    """Key of each shard's permutation."""

    @cached_property
    def ends(self) -> Ids:
        """The end of each unit."""
        return np.cumsum(self.sizes)

    def sample_ids(self, places: Ids) -> Ids:
        """Return sample ids at the given places of the units, each below the last end; int64, shape (n,)."""
        unit = np.searchsorted(self.ends, places, side="right")
        offset = places - (self.ends[unit] - self.sizes[unit])
        shard, begin = self.shards[unit], self.begins[unit]
        drawn = np.flatnonzero(begin != _WHOLE)
        if drawn.size:
            shards = shard[drawn]
            sizes = self.shard_sizes[shards]
            offset[drawn] = scattered((begin[drawn] + offset[drawn]) % sizes, sizes, self.keys[shards])
        return self.first_ids[shard] + offset


def units_of(
    shard_sizes: Ids, taken: int, first_id: int, stream: int, keys: Words, first: int, granularity: int
) -> Units:
    """Return the units of a stream of which an epoch takes `taken` samples: whole copies, then a part of every shard.

    Args:
        shard_sizes: Samples in each shard; int64, shape (shards,).
        taken: Samples that the epoch takes.
        first_id: Sample id of the stream's first sample.
        stream: Number of the stream, for messages.
        keys: Key of each shard's permutation, and of its places on the circle.
        first: Samples of the stream that were drawn before: in earlier epochs, and before a change of weights.
        granularity: Samples that are drawn together.

    Raises:
        ValueError: there are more than `MAX_UNITS`.
    """
    total = int(shard_sizes.sum())
    copies, part = divmod(taken, total) if total else (0, 0)
    if copies > 1 and copies * shard_sizes.size > MAX_UNITS:
        raise ArgumentError(
            f"an epoch takes {taken} samples of stream {stream}, which has {total} in {shard_sizes.size} "
            f"shards: {copies} copies of each, expected at most {MAX_UNITS} altogether. Take fewer, and read more "
            "epochs."
        )
    # A stream that is read once has a unit for every shard, empty ones too, as `plan_epoch` has.
    shards = np.tile(np.arange(shard_sizes.size), copies if total else 1)
    sizes, begins = shard_sizes[shards], np.full(shards.size, _WHOLE, dtype=np.int64)
    if part:
        # The epoch's arc: its start in each shard's permutation, and its samples in each shard.
        circle = Weave(shard_sizes, keys, granularity)
        begin = first % len(circle)
        turns, end = divmod(begin + part, len(circle))
        low, high = circle.counts_before(np.array([begin, end], dtype=np.int64))
        part_begins, part_sizes = low, high - low + turns * circle.lengths
        shards = np.concatenate((shards, np.arange(shard_sizes.size)))
        sizes = np.concatenate((sizes, part_sizes))
        begins = np.concatenate((begins, part_begins))
    return Units(sizes, shards, begins, shard_sizes, first_id + np.cumsum(shard_sizes) - shard_sizes, keys)


def joined(parts: Sequence[Units]) -> Units:
    """Return the units of several streams as those of one."""
    if len(parts) == 1:
        return parts[0]
    counts = [part.shard_sizes.size for part in parts]
    shifts = np.cumsum(counts) - counts
    return Units(
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.shards + shift for part, shift in zip(parts, shifts.tolist(), strict=True)]),
        np.concatenate([part.begins for part in parts]),
        np.concatenate([part.shard_sizes for part in parts]),
        np.concatenate([part.first_ids for part in parts]),
        np.concatenate([part.keys for part in parts]),
    )
