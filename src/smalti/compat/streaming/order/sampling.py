"""MosaicML's weights and sampling: the samples that an epoch takes of each stream and of each shard; bit for bit.

Relative weights (`proportion`) divide an epoch of a given size; absolute ones (`repeat`, `choose`, or none) determine
its size.

A stream that gives `choose` samples to an epoch is repeated whole as often as fits, and the rest is taken from a random
part of its shards. Partition and shuffle treat every copy of a shard, or part of one, as a shard of its own:

    shard of 4, 10 chosen      ids 0 1 2 3 | 0 1 2 3 | 1 3      units 4, 4, 2

As in `smalti.compat.streaming.order.shuffles`, draws use numpy's `Generator`, whose results may change between numpy
versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.compat.streaming.order.shuffles import Ids, Ints, check_at_least, expand, narrow_dtype
from smalti.errors import ArgumentError
from smalti.order.mixture.planning import SAMPLINGS, StreamWeight, are_relative


@dataclass(frozen=True, eq=False)
class MosaicStream:
    """One stream of an epoch, with its weight resolved."""

    shard_sizes: Ints
    """Samples in each shard, in stored order; int64."""
    choose: int
    """Samples that the epoch takes of it."""
    proportion: float
    """Its share of the epoch, in [0, 1]."""


def weigh_streams(
    shard_sizes: Sequence[Sequence[int] | NDArray[Any]],
    weights: Sequence[StreamWeight] | None = None,
    *,
    epoch_size: int | None = None,
    seed: int = 0,
) -> list[MosaicStream]:
    """Return the streams with the samples that each gives to an epoch. Pure.

    Args:
        shard_sizes: Of every stream: the samples in each of its shards.
        weights: The weight of every stream; None to read each stream once.
        epoch_size: Samples of an epoch, with relative weights or none; None or 0 for as many as the streams have.
        seed: Base seed of the run: it chooses the streams that get one more sample by rounding.

    Raises:
        ValueError: relative and absolute weights are mixed, or `epoch_size` is given with absolute ones, or there is
            nothing to take samples from.
    """
    sizes = [np.asarray(stream, dtype=np.int64) for stream in shard_sizes]
    weights = [StreamWeight()] * len(sizes) if weights is None else weights
    if len(weights) != len(sizes) or not sizes:
        raise ArgumentError(f"`weights` must be as many as the streams, found {len(weights)} for {len(sizes)} streams.")
    samples = np.array([stream.sum() for stream in sizes], dtype=np.int64)
    if are_relative(weights):
        parts = np.array([weight.proportion for weight in weights], dtype=np.float64)
        choose, proportions = _shared_out(epoch_size or int(samples.sum()), parts, seed)
    elif epoch_size and all(weight == StreamWeight() for weight in weights):
        choose, proportions = _shared_out(epoch_size, samples.astype(np.float64), seed)
    elif epoch_size:
        raise ArgumentError(f"`epoch_size` must not be given with `repeat` or `choose`, found {epoch_size}.")
    else:
        whole = zip(weights, samples.tolist(), strict=True)
        repeated = [(weight, count if weight.repeat is None else int(weight.repeat * count)) for weight, count in whole]
        choose = np.array([count if weight.choose is None else weight.choose for weight, count in repeated])
        if not choose.sum():
            raise ArgumentError("the streams' weights must take at least one sample, found none.")
        proportions = choose / choose.sum()
    return [
        MosaicStream(stream, int(count), float(part))
        for stream, count, part in zip(sizes, choose, proportions, strict=True)
    ]


def _shared_out(epoch_size: int, parts: NDArray[np.float64], seed: int) -> tuple[Ints, NDArray[np.float64]]:
    if not parts.sum() > 0:
        raise ArgumentError("the streams' weights must sum to more than 0: all streams are empty, or have weight 0.")
    proportions = parts / parts.sum()
    choose = (epoch_size * proportions).astype(np.int64)
    lacking = epoch_size - int(choose.sum())
    choose[np.random.default_rng(seed).choice(len(parts), lacking, replace=False)] += 1
    return choose, proportions


def get_sampling(
    samples_per_shard: Sequence[int] | NDArray[Any],
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool,  # noqa: FBT001 - MosaicML's signature
) -> Ints:
    """Return the number of samples to take of each shard, `choose` in all; int64, shape (shards,).

    Args:
        samples_per_shard: Samples in each shard of one stream.
        choose: Samples to take of all of them together, from 0.
        granularity: Samples taken at a time from the same shard, from 1.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0.
        use_epoch: Whether each epoch draws anew.

    Raises:
        ValueError: an argument is out of range, or samples are to be taken of a stream that has none.
    """
    check_at_least(0, choose=choose, seed=seed, epoch=epoch)
    check_at_least(1, granularity=granularity)
    sizes = np.asarray(samples_per_shard, dtype=np.int64)
    total = int(sizes.sum())
    if not total:
        if choose:
            raise ArgumentError(f"`choose` must be 0 for a stream without samples, found {choose}.")
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
    """The samples of one epoch: before the shuffle, or with the shuffled ids as `ids`."""

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


def resample(
    sizes: Ints, counts: Ints, first_id: int = 0, *, seed: int, epoch: int, sampling: str = "balanced"
) -> Resampled:
    """Return the samples of an epoch over one or several streams; batches of streams resample each stream alone.

    Args:
        sizes: Samples in each shard of the streams, which follow each other; int64.
        counts: Samples that the epoch takes of each shard; int64.
        first_id: The sample id of the first sample.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0.
        sampling: `balanced` takes other samples each epoch, `fixed` the same ones.

    Raises:
        ValueError: `sampling` is neither.
    """
    check_choice("sampling_method", sampling, SAMPLINGS)
    if np.array_equal(counts, sizes):
        return Resampled(sizes[sizes > 0], None, first_id)
    ends = first_id + np.cumsum(sizes)
    first_ids = ends - sizes
    copies, parts = np.divmod(counts, np.maximum(sizes, 1))
    entries = copies + (parts > 0)
    units = np.repeat(sizes, entries)
    last_entries = np.cumsum(entries) - 1
    units[last_entries[parts > 0]] = parts[parts > 0]
    ids = expand(np.repeat(first_ids, entries), units, narrow_dtype(int(ends[-1])))
    rng = np.random.default_rng(seed + epoch if sampling == "balanced" else seed)
    part_ends = np.cumsum(counts)
    for shard in np.flatnonzero(parts).tolist():  # the samples of every part of a shard, in stored order
        size, first, part, end = (int(column[shard]) for column in (sizes, first_ids, parts, part_ends))
        chosen = rng.choice(size, part, replace=False)
        chosen.sort()
        ids[end - part : end] = first + chosen
    return Resampled(units, ids, first_id)
