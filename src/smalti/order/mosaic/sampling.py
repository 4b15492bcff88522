"""MosaicML's sampling: how many samples of each shard an epoch takes, and which; bit for bit.

A stream that gives `choose` samples to an epoch repeats itself whole as often as that fits, and takes the rest from a
random part of its shards. The partition and the shuffle then see a set in which every copy of a shard, or part of one,
is a shard of its own:

    shard of 4, 10 chosen      ids 0 1 2 3 | 0 1 2 3 | 1 3      units 4, 4, 2

As in `smalti.order.mosaic.shuffles`, the draws are those of numpy's `Generator`, which numpy does not promise to keep.
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
    """How many samples to take of each shard, `choose` in all; int64, shape (shards,).

    Args:
        shard_sizes: Samples in each shard of one stream.
        choose: Samples to take of all of them together, from 0.
        granularity: Samples taken at a time from the same shard, from 1.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0.
        use_epoch: Whether each epoch draws anew.

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
    """`choose` samples, fewer than there are, taken `granularity` at a time from shards in random order."""
    picks = -(-sizes // granularity)
    last_picks = np.cumsum(picks) - 1
    pick_sizes = np.full(int(picks.sum()), granularity, dtype=np.int64)
    # An empty shard has no pick, and so overwrites another shard's, as it does with the peer.
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
    """One epoch's samples, before any partition or shuffle."""

    units: Ints
    """Sizes of the copies and parts of shards that the shuffle treats as shards; int64."""
    ids: Ids | None
    """The sample id of each id of the partition; None where it is the id itself, plus `first_id`."""
    first_id: int
    """The first sample id of the first stream."""

    def __len__(self) -> int:
        return int(self.units.sum())

    def sample_ids(self, order: Ids) -> Ids:
        """The sample ids for ids of the partition."""
        if self.ids is not None:
            return self.ids[order]
        if not self.first_id:
            return order
        return order.astype(narrow_dtype(self.first_id + len(self)), copy=False) + self.first_id


@dataclass(frozen=True, eq=False)
class Chosen:
    """What one stream gives to an epoch."""

    shard_sizes: Ints
    """Samples in each of its shards."""
    counts: Ints
    """Samples that the epoch takes of each."""
    first_id: int
    """The sample id of its first sample."""


def resample(streams: Sequence[Chosen], *, seed: int, epoch: int, sampling: str = "balanced") -> Resampled:
    """The samples of an epoch over one or several streams; a stream's own batches resample it alone.

    Args:
        streams: What every stream gives.
        seed: Base seed of the run.
        epoch: Epoch, from 0.
        sampling: `balanced` takes other samples each epoch, `fixed` the same ones.

    Raises:
        ValueError: `sampling` is none of these.
    """
    if sampling not in SAMPLINGS:
        raise ValueError(f"`sampling` must be one of {', '.join(SAMPLINGS)}, found {sampling!r}.")
    sizes = np.concatenate([stream.shard_sizes for stream in streams])
    counts = np.concatenate([stream.counts for stream in streams])
    firsts = np.concatenate([np.cumsum(s.shard_sizes) - s.shard_sizes + s.first_id for s in streams])
    if np.array_equal(counts, sizes) and _adjoin(streams):
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


def _adjoin(streams: Sequence[Chosen]) -> bool:
    ends = [stream.first_id + int(stream.shard_sizes.sum()) for stream in streams]
    return all(end == stream.first_id for end, stream in zip(ends, streams[1:], strict=False))


def _draw_parts(ids: Ids, shards: tuple[Ints, Ints, Ints], ends: Ints, rng: np.random.Generator) -> None:
    """Draws the samples of every part of a shard, in stored order, into the places that end at `ends`."""
    for shard in np.flatnonzero(shards[2]).tolist():
        size, first, part = (int(column[shard]) for column in shards)
        chosen = rng.choice(size, part, replace=False)
        chosen.sort()
        end = int(ends[shard])
        ids[end - part : end] = first + chosen
