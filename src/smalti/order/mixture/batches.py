"""Batches of streams as places in the streams' own orders; a position's stream and place are arithmetic.

`random` uses nothing of this: it mixes all streams as one. With streams a and b, a global batch of 4 and 2 ranks of 2,
which take the positions in turn:

    stratified           every batch has the same number of each         a0 b0 a1 a2 | a3 a5 a4 b1 | ...
    per_stream           a batch is of one stream                        b0 b1 b2 b3 | a0 a1 a2 a3 | ...
    device_per_stream    a rank's batch is of one stream                 a0 b0 a1 b1 | a2 a4 a3 a5 | ...

When no more batches can be made, the streams' remaining samples come last, woven evenly: none is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smalti.errors import WorldMismatch
from smalti.order.mixture.weave import Weave, Words, mixed, scattered
from smalti.order.window import Ids


@dataclass(frozen=True, eq=False)
class Stratified:
    """Batches with the same number of every stream."""

    portions: Ids
    """Samples of each stream in a batch; int64, shape (streams,)."""
    num_batches: int
    key: Words | None
    """Key of the order within each batch, shape (1,); None for stream after stream."""

    @cached_property
    def used(self) -> Ids:
        """Samples of each stream in whole batches."""
        return self.portions * self.num_batches

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Return the stream and place of each position."""
        ends = np.cumsum(self.portions)
        batch, within = np.divmod(positions, int(ends[-1]))
        if self.key is not None:
            keys = mixed(self.key + batch.astype(np.uint64))
            within = scattered(within, np.full(within.shape, ends[-1], dtype=np.int64), keys)
        stream = np.searchsorted(ends, within, side="right")
        portion = self.portions[stream]
        return stream, batch * portion + within - (ends[stream] - portion)


@dataclass(frozen=True, eq=False)
class OneStream:
    """Batches of one stream each, for one reader or for several readers that take positions in turn."""

    weave: Weave
    """The streams' whole batches."""
    batch_size: int
    """Samples of one batch of one reader."""
    readers: int
    """1 if the batch is a global one, else the number of ranks."""

    @cached_property
    def used(self) -> Ids:
        """Samples of each stream in whole steps."""
        whole = len(self.weave) // self.readers * self.readers
        counts: Ids = self.weave.counts_before(np.array([whole], dtype=np.int64))[0]
        return counts * self.batch_size

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Return the stream and place of each position."""
        step, within = np.divmod(positions, self.batch_size * self.readers)
        sample, reader = np.divmod(within, self.readers)
        stream, batch = self.weave.locate(step * self.readers + reader)
        return stream, batch * self.batch_size + sample


def portions_of(taken: Sequence[int], global_batch: int) -> list[int]:
    """Return the samples of each stream in a stratified batch.

    Each stream's share of a batch is its share of the epoch, rounded down; the streams with the largest remainders (the
    first of equals) get one sample more, until the batch is full.

    Raises:
        WorldMismatch: a stream of which samples are taken would have none in a batch.
    """
    total = sum(taken)
    exact = [count * global_batch for count in taken]  # in samples times `total`
    portions = [share // total for share in exact]
    order = sorted(range(len(exact)), key=lambda stream: (-(exact[stream] % total), stream))
    for stream in order[: global_batch - sum(portions)]:
        portions[stream] += 1
    for stream, portion in enumerate(portions):
        if not portion and exact[stream]:
            enough = -(-total // taken[stream])
            raise WorldMismatch(
                f"batching 'stratified': stream {stream} would have no sample in a global batch of {global_batch}; "
                f"enlarge the batch ({enough} is enough), or the stream's weight.",
                stream=stream,
                global_batch=global_batch,
                enough=enough,
            )
    return portions
