"""MosaicML's weights: the samples that each stream gives to an epoch, from the weights given by the user; bit for bit.

Relative weights (`proportion`) divide an epoch of a given size; absolute ones (`repeat`, `choose`, or none) determine
its size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic.spans import Ints

_NAMES = ("proportion", "repeat", "choose")


@dataclass(frozen=True)
class StreamWeight:
    """The weight of one stream, as given by the user: one of the fields, or none."""

    proportion: float | None = None
    """Share of the epoch, from 0; all streams have one or none has. They need not sum to 1."""
    repeat: float | None = None
    """Times that the stream is read, from 0."""
    choose: int | None = None
    """Samples that are read, from 0."""

    def __post_init__(self) -> None:
        given = [name for name in _NAMES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"at most one of {', '.join(_NAMES)} may be given for a stream, found {', '.join(given)}.")
        for name in given:
            if not getattr(self, name) >= 0:
                raise ValueError(f"`{name}` must be at least 0, found {getattr(self, name)}.")


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
        raise ValueError(f"`weights` must be as many as the streams, found {len(weights)} for {len(sizes)} streams.")
    relative = [weight.proportion is not None for weight in weights]
    if any(relative) and not all(relative):
        raise ValueError(
            "`proportion` must be given for all streams or for none: it is relative, `repeat` and `choose` are "
            f"absolute; found it for {sum(relative)} of {len(relative)} streams."
        )
    samples = np.array([stream.sum() for stream in sizes], dtype=np.int64)
    if all(relative):
        parts = np.array([weight.proportion for weight in weights], dtype=np.float64)
        choose, proportions = _shared_out(epoch_size or int(samples.sum()), parts, seed)
    elif epoch_size and all(weight == StreamWeight() for weight in weights):
        choose, proportions = _shared_out(epoch_size, samples.astype(np.float64), seed)
    elif epoch_size:
        raise ValueError(f"`epoch_size` must not be given with `repeat` or `choose`, found {epoch_size}.")
    else:
        choose = np.array([_taken(weight, int(count)) for weight, count in zip(weights, samples, strict=True)])
        if not choose.sum():
            raise ValueError("the streams' weights must take at least one sample, found none.")
        proportions = choose / choose.sum()
    return [
        MosaicStream(stream, int(count), float(part))
        for stream, count, part in zip(sizes, choose, proportions, strict=True)
    ]


def _taken(weight: StreamWeight, samples: int) -> int:
    if weight.choose is not None:
        return weight.choose
    return samples if weight.repeat is None else int(weight.repeat * samples)


def _shared_out(epoch_size: int, parts: NDArray[np.float64], seed: int) -> tuple[Ints, NDArray[np.float64]]:
    if not parts.sum() > 0:
        raise ValueError("the streams' weights must sum to more than 0: all streams are empty, or have weight 0.")
    proportions = parts / parts.sum()
    choose = (epoch_size * proportions).astype(np.int64)
    lacking = epoch_size - int(choose.sum())
    choose[np.random.default_rng(seed).choice(len(parts), lacking, replace=False)] += 1
    return choose, proportions
