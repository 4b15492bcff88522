"""What the user says of a mixture; frozen, checked once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from smalti.errors import WorldMismatch
from smalti.order.mosaic.weights import StreamWeight

SAMPLINGS = ("balanced", "fixed")
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


@dataclass(frozen=True, eq=False)
class StreamShare:
    """One stream of a mixture, and how much of it an epoch takes."""

    shard_sizes: Sequence[int] | NDArray[Any]
    """Samples in each of its shards, in stored order."""
    weight: StreamWeight = field(default_factory=StreamWeight)
    """`proportion`, `repeat` or `choose`; none of them for every sample once, or, with an `epoch_size`, for a part of
    it as large as the stream's part of all samples."""


@dataclass(frozen=True)
class MixtureOptions:
    """How the streams are drawn from and batched. All of it fixes the order."""

    sampling_method: str = "balanced"
    """What an epoch takes of a stream that it takes a part of: `balanced` goes on where the last epoch stopped, so that
    no sample is ever taken two times more than another; `fixed` takes the same samples each epoch."""
    sampling_granularity: int = 1
    """Samples that are drawn from a shard together, from 1: with as many as a shard has, an epoch opens few shards."""
    epoch_size: int | None = None
    """Samples of an epoch, from 1, with proportions or without any weight; None for as many as the streams have."""
    batching_method: str = "random"
    """`random` mixes all streams; `stratified` gives each global batch the same number of each stream; `per_stream` and
    `device_per_stream` take each global batch, or each rank's, from one stream."""
    global_batch: int | None = None
    """Samples of one step over all ranks; every method but `random` needs it."""
    local_batch: int | None = None
    """Samples of one step and rank; `device_per_stream` needs it."""

    def __post_init__(self) -> None:
        for name, allowed in (("sampling_method", SAMPLINGS), ("batching_method", BATCHINGS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, found {getattr(self, name)!r}.")
        for name in ("sampling_granularity", "epoch_size", "global_batch", "local_batch"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 1 << 62:
                raise ValueError(f"`{name}` must lie in [1, 2^62), found {value}.")
        self._check_batches()

    def _check_batches(self) -> None:
        method, whole, local = self.batching_method, self.global_batch, self.local_batch
        if method == "random":
            return
        if whole is None:
            raise ValueError(f"`global_batch` must be given with batching {method!r}, found None.")
        if method != "device_per_stream":
            return
        if local is None:
            raise ValueError(f"`local_batch` must be given with batching {method!r}, found None.")
        if whole % local:
            raise WorldMismatch(
                f"batching {method!r}: a global batch of {whole} cannot be divided into batches of {local}; choose a "
                "global batch that is a multiple of the local one.",
                global_batch=whole,
                local_batch=local,
            )
