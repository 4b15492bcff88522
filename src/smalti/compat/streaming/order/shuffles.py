"""MosaicML's five shuffles, bit for bit: `py1e`, `py1br`, `py1s`, `py2s` and `naive`.

Each maps the sample ids of the partition to shuffled ones, for all samples at once: O(N). All but `naive` lay the
shards out in an order that the seed fixes for the whole run, cut them at canonical nodes, and permute each node's spans
for the epoch; they differ in how samples are then mixed:

    py1s    every span by itself
    py2s    every shard by itself, once for the run; then every span by itself
    py1br   blocks of 0.75 to 1.25 `block_size`, staggered by node; up to 0.75 of a block at a node's end is not mixed
    py1e    every span by itself; then each sample moves by up to (0.75 to 1.25 `block_size` - span) / 2 either way; a
            span longer than that is not mixed with its neighbours

All draws use numpy's `Generator`, method by method in MosaicML's order. numpy guarantees the stream of its bit
generators (PCG64 here) but not the results of these methods: a numpy that changes them changes these orders, here and
in MosaicML alike. Tests compare the installed numpy with orders that MosaicML wrote on numpy 2.1.

`Spans` are shards laid end to end in some order, cut where a canonical node ends; here they are arrays instead of
MosaicML's lists of pairs. The only randomness is in the permutations drawn by the caller's generators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from smalti.attributes import check_choice
from smalti.errors import ArgumentError, WorldMismatch

Ints = NDArray[np.int64]
Ids = NDArray[np.integer[Any]]
_INT32_IDS = 1 << 31
MIN_BLOCK_SIZES = {"py1br": 2, "py1e": 1}  # with smaller blocks, MosaicML draws from an empty range


def check_at_least(least: int, **values: int) -> None:
    """Check that numbers are not below `least`.

    Raises:
        ValueError: one is.
    """
    for name, value in values.items():
        if value < least:
            raise ArgumentError(f"`{name}` must be at least {least}, found {value}.")


def narrow_dtype(count: int) -> DTypeLike:
    """Return int32 if it holds range(count), which halves the memory, else int64."""
    return np.int32 if count <= _INT32_IDS else np.int64


def expand(starts: Ints, sizes: Ints, dtype: DTypeLike) -> Ids:
    """Return the ranges [first, first + size), one after the other; shape (sizes.sum(),). Uses no further memory."""
    held = sizes > 0
    starts, sizes = starts[held], sizes[held]
    steps = np.ones(int(sizes.sum()), dtype=dtype)
    if steps.size:
        begins = np.cumsum(sizes) - sizes
        steps[0] = starts[0]
        steps[begins[1:]] = starts[1:] - (starts[:-1] + sizes[:-1] - 1)
        np.cumsum(steps, dtype=dtype, out=steps)
    return steps


@dataclass(frozen=True, eq=False)
class Spans:
    """Shards, or parts of them, in layout order, divided among canonical nodes."""

    starts: Ints
    """First place of every span in the layout (for sample ids: the first id)."""
    sizes: Ints
    """Places of every span."""
    bounds: list[int]
    """Node c holds the spans [bounds[c], bounds[c + 1])."""

    @property
    def ends(self) -> list[int]:
        """The end of every span, laid one after the other, after a leading 0."""
        return [0, *np.cumsum(self.sizes).tolist()]


def cut_at_nodes(starts: Ints, sizes: Ints, canonical_nodes: int) -> Spans:
    """Return spans laid end to end and cut so that canonical node c of C holds the places [c*N/C, (c+1)*N/C).

    A span is cut only where a node ends inside it; an empty span at a boundary belongs to the earlier node.

        laid out     | shard 2 | shard 0 |      shard 1       |     4, 6 and 12 samples; the boundary at place 11
        two nodes    | shard 2 | shard 0 | 1 |    shard 1     |
                     -------- node 0 ------- | --- node 1 ----
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    node_ends = np.array([total * (node + 1) // canonical_nodes for node in range(canonical_nodes)], dtype=np.int64)
    inner = np.unique(node_ends[(node_ends > 0) & (node_ends < total)])
    owners = np.searchsorted(ends, inner)
    cut = ends[owners] != inner
    inner, owners = inner[cut], owners[cut]
    piece_ends = np.insert(ends, owners, inner)
    piece_begins = np.concatenate(([0], piece_ends))[: piece_ends.size]
    span_of = np.insert(np.arange(sizes.size), owners, owners)
    piece_starts = starts[span_of] + piece_begins - (ends - sizes)[span_of]
    bounds = [0, *np.searchsorted(piece_ends, node_ends, side="right").tolist()]
    return Spans(piece_starts, piece_ends - piece_begins, bounds)


def shuffled_ids(
    algorithm: str,
    shard_sizes: Sequence[int] | NDArray[Any],
    *,
    canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int,
) -> Ids:
    """Return the shuffled sample id of every id of an epoch: a permutation of range(N); int32, int64 from 2^31 ids.

    Args:
        algorithm: One of `SHUFFLES`.
        shard_sizes: Samples in each shard, in stored order.
        canonical_nodes: Nodes that the shards are divided among; samples stay in their node. Not used by `naive`.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0; added to the seed.
        block_size: Samples within which `py1br` and `py1e` mix, from 2 and 1; not used by the others.

    Raises:
        ValueError: an argument is out of range.
        WorldMismatch: `py1e` has a canonical node without samples, which MosaicML refuses too.
    """
    check_choice("algorithm", algorithm, SHUFFLES)
    for name, value, least in (
        ("canonical_nodes", canonical_nodes, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("block_size", block_size, MIN_BLOCK_SIZES.get(algorithm, 0)),
    ):
        if value < least:
            raise ArgumentError(f"`{name}` must be at least {least} for the shuffle {algorithm!r}, found {value}.")
    sizes = np.asarray(shard_sizes, dtype=np.int64)
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ArgumentError(f"`shard_sizes` must be a row of numbers from 0, found shape {sizes.shape}.")
    run_rng, epoch_rng = np.random.default_rng(seed), np.random.default_rng(seed + epoch)
    return _ALGORITHMS[algorithm](sizes, canonical_nodes, block_size, run_rng, epoch_rng)


def spans_of_epoch(
    sizes: Ints, canonical_nodes: int, run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Spans:
    """Return the shards in the order of one epoch, cut at canonical nodes, before their samples are mixed."""
    order = run_rng.permutation(sizes.size)
    starts = np.cumsum(sizes) - sizes
    spans = cut_at_nodes(starts[order], sizes[order], canonical_nodes)
    order = np.arange(spans.sizes.size)
    for begin, end in pairwise(spans.bounds):
        epoch_rng.shuffle(order[begin:end])
    return Spans(spans.starts[order], spans.sizes[order], spans.bounds)


def _shuffle_each(ids: Ids, ends: list[int], rng: np.random.Generator) -> None:
    for begin, end in pairwise(ends):
        rng.shuffle(ids[begin:end])


def _naive(
    sizes: Ints, _canonical_nodes: int, _block: int, _run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Ids:
    total = int(sizes.sum())
    ids = np.arange(total, dtype=narrow_dtype(total))
    epoch_rng.shuffle(ids)
    return ids


def _py1s(
    sizes: Ints, canonical_nodes: int, _block: int, run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Ids:
    spans = spans_of_epoch(sizes, canonical_nodes, run_rng, epoch_rng)
    ids = expand(spans.starts, spans.sizes, narrow_dtype(int(sizes.sum())))
    _shuffle_each(ids, spans.ends, epoch_rng)
    return ids


def _py2s(
    sizes: Ints, canonical_nodes: int, _block: int, run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Ids:
    order = run_rng.permutation(sizes.size)
    laid_out = sizes[order]
    dtype = narrow_dtype(int(sizes.sum()))
    ids = expand((np.cumsum(sizes) - sizes)[order], laid_out, dtype)
    places = np.cumsum(laid_out) - laid_out
    _shuffle_each(ids, [*places.tolist(), ids.size], run_rng)
    # From here on, spans hold places in `ids`, not sample ids.
    spans = cut_at_nodes(places, laid_out, canonical_nodes)
    mixed = np.empty_like(ids)
    node_ends = spans.ends
    order = np.arange(spans.sizes.size)
    for first, last in pairwise(spans.bounds):
        epoch_rng.shuffle(order[first:last])
        at = node_ends[first]
        for span in order[first:last].tolist():
            size, source = int(spans.sizes[span]), int(spans.starts[span])
            part = mixed[at : at + size]
            part[:] = ids[source : source + size]
            epoch_rng.shuffle(part)
            at += size
    return mixed


def _py1br(
    sizes: Ints, canonical_nodes: int, block: int, run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Ids:
    spans = spans_of_epoch(sizes, canonical_nodes, run_rng, epoch_rng)
    ids = expand(spans.starts, spans.sizes, narrow_dtype(int(sizes.sum())))
    ends = spans.ends
    staggers = epoch_rng.integers(0, int(0.75 * block), canonical_nodes).tolist()
    for stagger, (first, last) in zip(staggers, pairwise(spans.bounds), strict=True):
        # The blocks of one node: from the second on, each begins `stagger` before the end of those before it.
        blocks, counted = [], ends[first]
        while counted < ends[last]:
            length = int(epoch_rng.integers(int(0.75 * block), int(1.25 * block)))
            start, stop = max(counted - stagger, ends[first]), min(counted - stagger + length, ends[last])
            blocks.append((start, stop))
            counted += stop - start
        for begin, end in blocks:
            epoch_rng.shuffle(ids[begin:end])
    return ids


def _py1e(
    sizes: Ints, canonical_nodes: int, block: int, run_rng: np.random.Generator, epoch_rng: np.random.Generator
) -> Ids:
    spans = spans_of_epoch(sizes, canonical_nodes, run_rng, epoch_rng)
    ids = expand(spans.starts, spans.sizes, narrow_dtype(int(sizes.sum())))
    ends = spans.ends
    for first, last in pairwise(spans.bounds):
        if ends[first] == ends[last]:
            raise WorldMismatch(
                "The number of samples assigned to a canonical node is 0. The shuffle 'py1e' has "
                f"{canonical_nodes} canonical nodes for {ids.size} samples; choose fewer canonical nodes, or another "
                "shuffle.",
                canonical_nodes=canonical_nodes,
                num_samples=int(ids.size),
            )
        _shuffle_each(ids, ends[first : last + 1], epoch_rng)
        node_ids = ids[ends[first] : ends[last]]
        moved = np.arange(node_ids.size, dtype=np.float64)  # the position of each sample, from the node's start
        for begin, end in pairwise(ends[first : last + 1]):
            start, stop = begin - ends[first], end - ends[first]
            lower, upper = moved_by(start, stop, node_ids.size, block, epoch_rng)
            moved[start:stop] += epoch_rng.uniform(lower, upper, stop - start)
        # MosaicML's sort is not stable: the order of two equal positions depends on the processor, here as there.
        # A node of n samples has about n^2 / 2^52 such pairs: 0.02 of 10^7 samples, 2 of 10^8.
        node_ids[:] = node_ids[np.argsort(moved)]
    return ids


def moved_by(start: int, stop: int, total: int, block: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return between which distances `py1e` moves the samples of a span [start, stop) of a node of `total` samples."""
    reach = max((int(rng.integers(int(0.75 * block), int(1.25 * block))) - (stop - start)) / 2, 0.0)
    return max(-reach, -start), min(reach, total - stop)


_ALGORITHMS: dict[str, Callable[[Ints, int, int, np.random.Generator, np.random.Generator], Ids]] = {
    "py1e": _py1e,
    "py1br": _py1br,
    "py1s": _py1s,
    "py2s": _py2s,
    "naive": _naive,
}
SHUFFLES = tuple(_ALGORITHMS)
