"""MosaicML's sampling: the number of samples that an epoch takes of each shard, and which ones; bit for bit.

A stream that gives `choose` samples to an epoch is repeated whole as often as fits, and the rest is taken from a random
part of its shards. Partition and shuffle treat every copy of a shard, or part of one, as a shard of its own:

    shard of 4, 10 chosen      ids 0 1 2 3 | 0 1 2 3 | 1 3      units 4, 4, 2

As in `smalti.order.mosaic.shuffles`, draws use numpy's `Generator`, whose results may change between numpy versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic.spans import Ids, Ints, expand, narrow_dtype

SAMPLINGS = ("balanced", "fixed")


def sample_counts(
    shard_sizes: Sequence[int] | NDArray[Any],
    choose: int,
    *,
    granularity: int = 1,
    seed: int,
    epoch: int = 0,
    use_epoch: bool = True,
) -> Ints:
    """Return the number of samples to take of each shard, `choose` in all; int64, shape (shards,).

    Args:
        shard_sizes: Samples in each shard of one stream.
        choose: Samples to take of all of them together, from 0.
        granularity: Samples taken at a time from the same shard, from 1.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0.
        use_epoch: Draw anew in each epoch.

    Raises:
        ValueError: an argument is out of range, or samples are to be taken of a stream that has none.
    """
    for name, value, low in (("choose", choose, 0), ("granularity", granularity, 1), ("seed", seed, 0)):
        if value < low:
            raise ValueError(f"`{name}` must be at least {low}, found {value}.")
    if epoch < 0:
        raise ValueError(f"`epoch` must be at least 0, found {epoch}.")
    sizes = np.asarray(shard_sizes, dtype=np.int64)
    total = int(sizes.sum())
    if not total:
        if choose:
            raise ValueError(f"`choose` must be 0 for a stream without samples, found {choose}.")
        return np.zeros(sizes.shape, dtype=np.int64)
    copies, rest = divmod(choose, total)
    counts: Ints = sizes * copies
    if rest:
        rng = np.random.default_rng(seed + epoch if use_epoch else seed)
        counts += _drawn(sizes, rest, granularity, rng)
    return counts


def _drawn(sizes: Ints, choose: int, granularity: int, rng: np.random.Generator) -> Ints:
    """Return counts of `choose` samples, fewer than there are, drawn `granularity` at a time from random shards."""
    picks = -(-sizes // granularity)
    last_picks = np.cumsum(picks) - 1
    pick_sizes = np.full(int(picks.sum()), granularity, dtype=np.int64)
    # An empty shard has no pick and overwrites another shard's, as in MosaicML.
    pick_sizes[last_picks] = sizes - (picks - 1) * granularity
    order = rng.permutation(pick_sizes.size)
    taken = np.cumsum(pick_sizes[order])
    stop = int(np.searchsorted(taken, choose)) + 1
    drawn, excess = order[:stop], int(taken[stop - 1]) - choose
    shard_of = np.searchsorted(last_picks, drawn)
    counts = np.zeros(sizes.shape, dtype=np.int64)
    np.add.at(counts, shard_of, pick_sizes[drawn])
    counts[shard_of[-1]] -= excess
    return counts


@dataclass(frozen=True, eq=False)
class Resampled:
    """The samples of one epoch, before partition and shuffle."""

    units: Ints
    """Sizes of the copies and parts of shards that the shuffle treats as shards; int64."""
    ids: Ids | None
    """The sample id of each id of the partition; None where that is the id itself plus `first_id`."""
    first_id: int
    """The first sample id of the first stream."""

    def __len__(self) -> int:
        return int(self.units.sum())

    def sample_ids(self, order: Ids) -> Ids:
        """Return the sample ids for ids of the partition."""
        if self.ids is not None:
            return self.ids[order]
        if not self.first_id:
            return order
        return order.astype(narrow_dtype(self.first_id + len(self)), copy=False) + self.first_id


@dataclass(frozen=True, eq=False)
class StreamCounts:
    """The number of samples that an epoch takes of each shard of one stream."""

    shard_sizes: Ints
    """Samples in each of its shards."""
    counts: Ints
    """Samples that the epoch takes of each."""
    first_id: int
    """The sample id of its first sample."""


def resample(streams: Sequence[StreamCounts], *, seed: int, epoch: int, sampling: str = "balanced") -> Resampled:
    """Return the samples of an epoch over one or several streams; batches of streams resample each stream alone.

    Args:
        streams: Counts of every stream.
        seed: Base seed of the run.
        epoch: Epoch, from 0.
        sampling: `balanced` takes other samples each epoch, `fixed` the same ones.

    Raises:
        ValueError: `sampling` is neither.
    """
    if sampling not in SAMPLINGS:
        raise ValueError(f"`sampling` must be one of {', '.join(SAMPLINGS)}, found {sampling!r}.")
    sizes = np.concatenate([stream.shard_sizes for stream in streams])
    counts = np.concatenate([stream.counts for stream in streams])
    firsts = np.concatenate([np.cumsum(s.shard_sizes) - s.shard_sizes + s.first_id for s in streams])
    if np.array_equal(counts, sizes) and _are_consecutive(streams):
        return Resampled(sizes[sizes > 0], None, streams[0].first_id)
    copies, parts = np.divmod(counts, np.maximum(sizes, 1))
    entries = copies + (parts > 0)
    units = np.repeat(sizes, entries)
    last_entries = np.cumsum(entries) - 1
    units[last_entries[parts > 0]] = parts[parts > 0]
    last_id = max(stream.first_id + int(stream.shard_sizes.sum()) for stream in streams)
    ids = expand(np.repeat(firsts, entries), units, narrow_dtype(last_id))
    rng = np.random.default_rng(seed + epoch if sampling == "balanced" else seed)
    _draw_parts(ids, (sizes, firsts, parts), np.cumsum(counts), rng)
    return Resampled(units, ids, streams[0].first_id)


def _are_consecutive(streams: Sequence[StreamCounts]) -> bool:
    ends = [stream.first_id + int(stream.shard_sizes.sum()) for stream in streams]
    return all(end == stream.first_id for end, stream in zip(ends, streams[1:], strict=False))


def _draw_parts(ids: Ids, shards: tuple[Ints, Ints, Ints], ends: Ints, rng: np.random.Generator) -> None:
    """Draw the samples of every part of a shard, in stored order, into the places of `ids` that end at `ends`."""
    for shard in np.flatnonzero(shards[2]).tolist():
        size, first, part = (int(column[shard]) for column in shards)
        chosen = rng.choice(size, part, replace=False)
        chosen.sort()
        end = int(ends[shard])
        ids[end - part : end] = first + chosen
