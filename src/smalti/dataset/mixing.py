"""Between what a saved cursor holds of a mixture and the orders that are planned from it. Pure."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import WINDOW, Cursor, MixedStream, Mixture, Weights
from smalti.errors import CursorError, WorldMismatch
from smalti.order.mixture import (
    MIXTURE_VERSION,
    ChangingMixture,
    MixtureOptions,
    StreamWeight,
    Weighting,
    check_not_empty,
    portions_of,
    samples_taken,
)
from smalti.order.mosaic import MosaicStream, weigh_streams
from smalti.world import World

Sizes = Sequence[NDArray[np.int64] | Sequence[int]]
"""Of every stream, the samples of each of its shards."""


@dataclass(frozen=True)
class MixingOptions:
    """What the user chose about several streams, or about how much of one an epoch takes."""

    weights: tuple[StreamWeight, ...] = (StreamWeight(),)
    """One for each stream."""
    epoch_size: int | None = None
    """Samples of an epoch; None for what the weights take."""
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    change_weights: bool = False
    """Whether a state that was saved with other weights is continued with these."""

    def __post_init__(self) -> None:
        # What contradicts itself in any data set, said before one is opened.
        samples_taken([1] * len(self.weights), self.weights, epoch_size=self.epoch_size, seed=0)

    @property
    def is_plain(self) -> bool:
        """Whether an epoch is every sample of one stream once."""
        return self.weights == (StreamWeight(),) and self.epoch_size is None

    def mixture(self, streams: Sequence[MixedStream]) -> Mixture:
        """What of it is saved, for a run that begins with it."""
        return Mixture(
            streams=tuple(streams),
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            batching_method=self.batching_method,
            global_batch=None,
            local_batch=None,
            history=(Weights(0, 0, tuple(map(_saved, self.weights)), self.epoch_size),),
            version=MIXTURE_VERSION,
        )


def plain_mixture(stream: MixedStream) -> Mixture:
    """The mixture that a cursor without one stands for."""
    return MixingOptions().mixture([stream])


def digest_of(streams: Sequence[MixedStream]) -> str:
    """One digest for all streams; a single one has its own."""
    if len(streams) == 1:
        return streams[0].digest
    told = json.dumps([[stream.digest, stream.split] for stream in streams])
    return hashlib.sha256(told.encode()).hexdigest()


def begun(start: Cursor, readers: World, batch_size: int | None) -> Cursor:
    """The start of a pass, which fixes the batches that its epoch is made of, if it is the epoch's start.

    Raises:
        ValueError: batches of streams, and nobody says how large.
        CursorError: one of MosaicML's orders, whose batches of streams cannot change inside an epoch.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method == "random":
        return start
    if start.samples and mixture.global_batch and start.algorithm == WINDOW:
        return start
    if batch_size is None:
        raise ValueError(
            f"`batch_size` is needed: batching_method={mixture.batching_method!r} makes an epoch of batches."
        )
    global_batch = batch_size * readers.num_ranks
    then, here = (mixture.global_batch, mixture.local_batch), (global_batch, batch_size)
    decisive = 2 if mixture.batching_method == "device_per_stream" else 1
    if start.samples and mixture.global_batch and then[:decisive] != here[:decisive]:
        raise CursorError(
            f"cannot resume inside an epoch of {mixture.batching_method!r} batches in MosaicML's order "
            f"{start.algorithm!r}: it was begun with batches of {then[0]} samples over all ranks, {then[1]} on each, "
            f"and here are {here[0]} and {here[1]}. Choose `batch_size` so that they are the same, call `set_epoch`, "
            "or use the `window` order, which goes on with any.",
            what="batch",
            saved=then,
            found=here,
        )
    return replace(start, mixture=replace(mixture, global_batch=global_batch, local_batch=batch_size))


def check_next_epoch(start: Cursor, sizes: Sizes, global_batch: int) -> None:
    """Return only if the newest weights leave every stream a sample in the batches of the epochs after this one.

    For a run that changes weights inside an epoch. What is left of that epoch is another share than a whole one, and
    keeps the batch that it was begun with, so that it may hold where the epochs after it do not. The user should not
    learn that when the first of them begins.

    Args:
        start: where the run begins, with the weights that it changes to.
        sizes: of every stream, the samples of each of its shards.
        global_batch: samples of a step over all ranks, with which later epochs will begin.

    Raises:
        CursorError: a stream would have no sample in a `stratified` batch.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method != "stratified" or start.algorithm != WINDOW or not start.samples:
        return
    taken = changing_mixture(mixture, sizes, start.seed).samples_of(start.epoch + 1)
    if sum(count > 0 for count in taken) < 2:  # one stream is its own order, whatever the method
        return
    try:
        portions_of(taken, global_batch)
    except WorldMismatch as fault:
        raise CursorError(
            f"weights cannot change to {told(mixture.weights)} at sample {start.samples} of epoch {start.epoch}: with "
            f"them, the epochs after it cannot be read in batches of this size: {fault}",
            what="weights",
            **fault.facts,
        ) from fault


def changing_mixture(mixture: Mixture, sizes: Sizes, seed: int) -> ChangingMixture:
    """All epochs of a run in our order.

    Raises:
        ValueError: weights contradict each other.
        CursorError: weights changed inside an epoch, and its size with them.
    """
    return ChangingMixture(
        sizes,
        [
            Weighting(each.epoch, each.samples, tuple(map(_weight, each.values)), each.epoch_size)
            for each in mixture.history
        ],
        seed=seed,
        options=MixtureOptions(
            sampling_method=mixture.sampling_method,
            sampling_granularity=mixture.sampling_granularity,
            batching_method=mixture.batching_method,
            global_batch=mixture.global_batch,
            local_batch=mixture.local_batch,
        ),
    )


def mosaic_streams(mixture: Mixture | None, sizes: Sizes, seed: int) -> list[MosaicStream]:
    """What an epoch in one of MosaicML's orders takes of each stream.

    Raises:
        ValueError: weights contradict each other.
    """
    if mixture is None:
        return weigh_streams(sizes, seed=seed)
    newest = mixture.weights
    streams = weigh_streams(sizes, list(map(_weight, newest.values)), epoch_size=newest.epoch_size, seed=seed)
    for number, stream in enumerate(streams):
        check_not_empty(number, stream.choose, int(stream.shard_sizes.sum()))
    return streams


def epoch_size(cursor: Cursor, sizes: Sizes) -> int:
    """Samples that the cursor's epoch takes.

    Raises:
        ValueError: weights contradict each other, or take nothing.
    """
    if cursor.mixture is None:
        return sum(int(np.sum(each)) for each in sizes)
    if cursor.algorithm == WINDOW:
        unbatched = replace(cursor.mixture, batching_method="random")  # how large a batch is decides nothing here
        size = changing_mixture(unbatched, sizes, cursor.seed).epoch_size(cursor.epoch)
    else:
        size = sum(stream.choose for stream in mosaic_streams(cursor.mixture, sizes, cursor.seed))
    if not size:
        raise ValueError("the streams' weights must take at least one sample, found none.")
    return size


def told(weights: Weights) -> str:
    """Weights as a message says them."""
    values = ", ".join("-" if value is None else f"{value[0]}={value[1]!r}" for value in weights.values)
    return values if weights.epoch_size is None else f"{values}; epoch_size={weights.epoch_size}"


def _saved(weight: StreamWeight) -> tuple[str, float] | None:
    if weight.choose is not None:
        return "choose", int(weight.choose)
    if weight.repeat is not None:
        return "repeat", float(weight.repeat)
    return None if weight.proportion is None else ("proportion", float(weight.proportion))


def _weight(value: tuple[str, float] | None) -> StreamWeight:
    return StreamWeight() if value is None else StreamWeight(**dict([value]))  # type: ignore[arg-type]  # a name and its number
