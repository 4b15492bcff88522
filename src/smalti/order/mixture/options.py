"""The user's choices about a mixture: a weight for each stream, and how streams are drawn from and batched."""

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
    """`proportion`, `repeat` or `choose`. Without any, the epoch takes every sample once; with an `epoch_size`, a share
    of it in proportion to the stream's samples."""


@dataclass(frozen=True)
class MixtureOptions:
    """Options of drawing from streams and of batching. Every field affects the order."""

    sampling_method: str = "balanced"
    """Of a stream of which an epoch takes a part: `balanced` continues where the last epoch stopped, so that samples
    are taken equally often, give or take one; `fixed` takes the same samples each epoch."""
    sampling_granularity: int = 1
    """Samples drawn together from one shard, from 1; the larger, the fewer shards an epoch opens."""
    epoch_size: int | None = None
    """Samples of an epoch, from 1, with proportions or without any weight; None for as many as the streams have."""
    batching_method: str = "random"
    """`random` mixes all streams; `stratified` gives each global batch the same number of each stream; `per_stream` and
    `device_per_stream` take each global batch, or each rank's, from one stream."""
    global_batch: int | None = None
    """Samples of one step over all ranks; required by all methods but `random`."""
    local_batch: int | None = None
    """Samples of one step and rank; required by `device_per_stream`."""

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
