"""Sequences merged evenly into one, which can be entered at any rank, and permutations evaluated at single places.

Weave: the j-th of a sequence's n elements is at angle (j + u)/n of a circle, with a keyed u in [0, 1) of its own.
So each sequence keeps its order and is spread over the whole, and two of equal length do not simply alternate:

    sequence a, 4    a0    .  a1 .   a2   . a3
    sequence b, 2    .   b0   .  .   .   b1 .
    woven            a0  b0   a1     a2  b1 a3

The elements of each sequence before a rank are counted by bisecting the circle: time and memory are O(sequences).

Scatter: a Feistel network permutes numbers of as many bits as the size has; a result beyond the size is permuted again
until it is inside. So a drawn part of a shard takes no memory. Integer arithmetic only, so that all platforms and numpy
versions agree.

Units: copies and drawn parts of shards that an epoch takes of a stream; the order treats each unit as a shard.

    shard of 4, 10 taken      units of 4, 4 and 2      samples 0 1 2 3 | 0 1 2 3 | 3 0

The drawn part of a stream is an arc of a circle on which all samples of the stream lie, those of each shard spread over
it. With `balanced`, an epoch's arc begins where the last one ended, so after any number of epochs each sample was drawn
equally often, or once more than others. Within a shard the samples lie in the order of a keyed permutation. Memory is
O(units), and only the samples that are looked up are computed.

Batches of streams as places in the streams' own orders; a position's stream and place are arithmetic.

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

from smalti.errors import ArgumentError, WorldMismatch
from smalti.order.keys import Purpose, raw_keys
from smalti.order.window import Ids
from smalti.splitmix import GOLDEN, Words, mixed

_ROUNDS = 6  # even, so that the halves are back in place; with fewer than four the result is not close to random
_WORD = (1 << 64) - 1
_ANGLE_BITS = 28  # an angle times a sequence's length stays below 2^63
_ANGLES = 1 << _ANGLE_BITS
MAX_LENGTH = 1 << 34
"""The most elements of one sequence, inclusive."""


def scattered(places: Ids, sizes: Ids, keys: Words) -> Ids:
    """Return the image of places[i] under the permutation of range(sizes[i]) chosen by keys[i]; int64, shape (n,).

    Every place is below its size, every size below 2^53. For one size and key this is a bijection.
    """
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    limits = sizes.astype(np.uint64)
    found = places.astype(np.uint64)
    todo = np.arange(found.size)
    while todo.size:
        found[todo] = _permuted(found[todo], bits[todo], keys[todo])
        todo = todo[found[todo] >= limits[todo]]
    return found.astype(np.int64)


def _permuted(words: Words, bits: Words, keys: Words) -> Words:
    one = np.uint64(1)
    left = bits >> one
    right = bits - left
    for number in range(_ROUNDS):
        low = words & ((one << right) - one)
        high = words >> right
        stirred = mixed((low + np.uint64(number * int(GOLDEN) & _WORD)) ^ keys)
        words = (low << left) | (high ^ (stirred & ((one << left) - one)))
        left, right = right, left
    return words


@dataclass(frozen=True, eq=False)
class Weave:
    """Sequences of the given lengths as one sequence. Pure."""

    lengths: Ids
    """Elements of each sequence, 0 to `MAX_LENGTH`; int64, shape (sequences,)."""
    keys: Words
    """Keys that each sequence's angles are drawn from."""
    group: int = 1
    """Consecutive elements of a sequence that share an angle, and so stay together, 1 to `MAX_LENGTH`; the last group
    may be smaller."""

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def _groups(self) -> Ids:
        return -(-self.lengths // self.group)

    def counts_before(self, ranks: Ids) -> Ids:
        """Return each sequence's elements before each rank in [0, len(weave)]; int64, shape (ranks, sequences)."""
        counts, tied, lacking = self._bisected(ranks)
        return _filled(counts, tied, lacking)

    def locate(self, ranks: Ids) -> tuple[Ids, Ids]:
        """Return the sequence at each rank in [0, len(weave)), and the number of its element; int64, shape (ranks,)."""
        distinct, back = np.unique(ranks, return_inverse=True)
        counts, tied, lacking = self._bisected(distinct)
        sequence = (np.cumsum(tied, axis=1) > lacking[:, None]).argmax(axis=1)
        element = np.take_along_axis(_filled(counts, tied, lacking), sequence[:, None], axis=1)[:, 0]
        return sequence[back], element[back]

    def _bisected(self, ranks: Ids) -> tuple[Ids, Ids, Ids]:
        """Return, for each rank's angle, the elements before it and at it, and how many of the latter precede the rank.

        Shapes (ranks, sequences), (ranks, sequences) and (ranks,); the first two by sequence.
        """
        angles = np.zeros(ranks.shape, dtype=np.int64)
        for bit in range(_ANGLE_BITS, -1, -1):
            further = np.minimum(angles + (1 << bit), _ANGLES)
            angles = np.where(self._below(further).sum(axis=1) <= ranks, further, angles)
        counts = self._below(angles)
        tied = self._below(np.minimum(angles + 1, _ANGLES)) - counts
        return counts, tied, ranks - counts.sum(axis=1)

    def _below(self, angles: Ids) -> Ids:
        """Return the elements of every sequence before each angle; shape (angles, sequences)."""
        product = angles[:, None] * self._groups
        whole = product >> _ANGLE_BITS
        drawn = mixed(self.keys + whole.astype(np.uint64)) >> np.uint64(64 - _ANGLE_BITS)
        groups = whole + (drawn.astype(np.int64) < (product & (_ANGLES - 1)))
        counts: Ids = np.minimum(groups * self.group, self.lengths)
        return counts


def _filled(counts: Ids, tied: Ids, lacking: Ids) -> Ids:
    """Return the counts plus `lacking` of the elements at the same angle, taken sequence by sequence."""
    first = np.cumsum(tied, axis=1) - tied
    filled: Ids = counts + np.clip(lacking[:, None] - first, 0, tied)
    return filled


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
    """Key of each shard's permutation, and of its places on the circle; 0 without a drawn part."""

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
    shard_sizes: Ids, taken: int, first_id: int, stream: int, seed: int, first: int, granularity: int
) -> Units:
    """Return the units of a stream of which an epoch takes `taken` samples: whole copies, then a part of every shard.

    Args:
        shard_sizes: Samples in each shard; int64, shape (shards,).
        taken: Samples that the epoch takes.
        first_id: Sample id of the stream's first sample.
        stream: Number of the stream.
        seed: The run's seed, for the stream's circle; the order's own seed may differ.
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
    keys = np.zeros(shard_sizes.size, dtype=np.uint64)
    if part:
        keys = raw_keys(shard_sizes.size, Purpose.DRAWS, seed=seed, run=stream)
        # The epoch's arc: its start in each shard's permutation, and its samples in each shard.
        circle = Weave(shard_sizes, keys, min(granularity, MAX_LENGTH))
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
