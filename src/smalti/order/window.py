"""The `window` algorithm, version 2: an epoch's global order, planned from shards in O(shards) memory.

With N samples and C canonical nodes:

1. Shards are permuted by a key of (seed) alone, laid end to end, and cut into C runs; run c holds [c*N/C, (c+1)*N/C).
   A shard belongs to the same run in every epoch, so a host that reads the same runs finds its shards in its cache.
   With an `affinity` below 1, some shards move between runs from epoch to epoch: see below.
2. In each epoch, a run's pieces (shards or parts of one) are permuted by a key of (seed, epoch, run).
3. Inside a run, each `block_size` consecutive samples form a window, permuted by a key of (seed, epoch, run, window),
   computed when first needed.
4. The global order G weaves the runs together: with m = N // C, position p < C*m is sample p // C of the run at place
   p % C; the few left over come from the longer runs, by place. Which run stands at which place is drawn from (seed):
   version 1 of the design put run c at place c, so that neighbouring runs, cut from one sorted shard, followed each
   other in every batch (see docs/adr/0003-order-as-a-pure-function.md for the measurement).

    place        0      1      2     ...  C-1
    p = 0..C-1   r3[0]  r0[0]  r7[0]  ...  r5[0]
    p = C..      r3[1]  r0[1]  r7[1]  ...  r5[1]

Host h of H takes the positions p with p % H == h: when H divides C, these are C/H whole runs.

`GlobalOrder` is the interface of all orders, those of `mixture` and `mosaic` too: sample ids by position.

The affinity is the part of its shards that a run keeps from each epoch to the next. With 1, shards are laid out by the
seed alone, and a run has the same shards in every epoch. With less, shards move between runs:

1. Shard i belongs to cohort i % K, with K = the shards of a run, rounded down to a power of two, 64 at most. The slots
   of a cohort are spread evenly over the layout: in every K slots there is one of each cohort.
2. In each epoch the cohort's shards fill its slots, permuted by a key of (seed, generation, cohort). The generation of
   cohort k in epoch e is floor(e * (1 - affinity) + k / K).

So in each epoch the same part of the cohorts begin a new generation, in turn: their shards are dealt to the runs anew,
all others stay where they are. With affinity 3/4, K = 4 and two runs of 4 slots:

    cohort of each slot   0  1  2  3 | 0  1  2  3
    epoch 0               s0 s1 s2 s3| s4 s5 s6 s7
    epoch 1               s0 s1 s2 s7| s4 s5 s6 s3     cohort 3 dealt anew
    epoch 2               s0 s1 s6 s7| s4 s5 s2 s3     cohort 2

Any epoch is computed by itself, in O(shards). A slot's width is its shard's share of its cohort's samples: where sizes
differ, each cohort is spread evenly by samples, and the cuts between runs stay within a few shards of their places.
"""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import ArgumentError, SampleIndexError
from smalti.order.keys import Purpose, keyed_permutation, raw_keys, stable_order_at

Positions = np.ndarray[Any, "np.dtype[np.int64]"]
Ids = NDArray[np.int64]
# The default shuffle block; see `default_block_size`.
_MIXED_SAMPLES = 1 << 20  # samples in one window of every run together
# Samples in a window; smaller ones mix too little for the cost of a key. Runs of the default number are not shorter.
_MIN_BLOCK = 4096
_MAX_CANONICAL_NODES = 64
_FEW_PLACES = 16  # in a window: one in so many, in the first lookup of a plan
MAX_COHORTS = 64
_UNIT = 10**6
"""An affinity is counted in millionths, so that 0.8 moves every fifth cohort exactly; a multiple of `MAX_COHORTS`."""


class GlobalOrder(ABC):
    """The order of one epoch: a sample id at each position in [0, len(order))."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of positions of the epoch."""

    @abstractmethod
    def ids_at(self, positions: Positions) -> Positions:
        """Return sample ids at the given positions, each in [0, len(order)); int64, the shape of `positions`."""

    def spans_of_host(self, host: int, num_hosts: int) -> tuple[Ids, Ids, Ids] | None:
        """Return where in the epoch a host needs each piece, a shard or part of one, that it reads.

        Returns:
            For every piece, as int64 arrays of shape (pieces,): the id of a sample in it, and the span of positions,
            begin and end, of the windows that it lies in. Positions after the last full row of runs are left out. None
            for an order that is not made of windows.
        """
        del host, num_hosts
        return None

    def sample_ids(self, begin: int, end: int) -> Positions:
        """Return sample ids at positions [begin, end) of the epoch, as `ids_at`; int64, shape (end - begin,).

        Raises:
            IndexError: the span is not inside [0, len(order)].
        """
        if not 0 <= begin <= end <= len(self):
            raise SampleIndexError(f"span [{begin}, {end}) is not inside the epoch's positions [0, {len(self)}).")
        return self.ids_at(np.arange(begin, end, dtype=np.int64))


def default_canonical_nodes(num_samples: int) -> int:
    """Return the number of runs for a set of `num_samples`: 64, or fewer (a power of two) so that each fills a window.

    A set with fewer samples than two of the smallest windows is one run, and so one permutation: in a short run a
    sample would have the same few neighbours in every epoch.
    """
    nodes = _MAX_CANONICAL_NODES
    while nodes > 1 and num_samples // nodes < _MIN_BLOCK:
        nodes //= 2
    return nodes


def default_block_size(canonical_nodes: int) -> int:
    """Return the default `shuffle_block_size`: 2^20 samples over all runs together, at least 4,096 in each."""
    return max(_MIXED_SAMPLES // canonical_nodes, _MIN_BLOCK)


def hosts_of_run(canonical_nodes: int, hosts: int) -> int:
    """Return how many hosts read each run; each of them fetches the run's shards."""
    return hosts // math.gcd(canonical_nodes, hosts)


def fitted_canonical_nodes(hosts: int, least: int = _MAX_CANONICAL_NODES) -> int:
    """Return the fewest canonical nodes of which each has one host, from `least`: by default that of a large set."""
    return hosts * -(-least // hosts)


def check_range(low: int, **values: int) -> None:
    """Check that numbers lie in [low, 2^63).

    Raises:
        ValueError: one does not.
    """
    for name, value in values.items():
        if not low <= value < 1 << 63:
            raise ArgumentError(f"`{name}` must lie in [{low}, 2^63), found {value}.")


def checked_sizes(
    shard_sizes: Sequence[int] | NDArray[Any], *, what: str = "`shard_sizes`", most: int = (1 << 63) - 1
) -> Ids:
    """Return the samples of each shard, 0 to `most`; int64, shape (shards,).

    Raises:
        ValueError: a size is no whole number or out of range.
    """
    sizes = np.asarray(shard_sizes)
    if sizes.ndim != 1 or not (sizes.size == 0 or np.issubdtype(sizes.dtype, np.integer)):
        raise ArgumentError(f"{what} must be a row of whole numbers, found {sizes.dtype} of shape {sizes.shape}.")
    outside = np.flatnonzero((sizes < 0) | (sizes > most))
    if outside.size:
        raise ArgumentError(f"{what} must lie in [0, {most}], found {sizes[outside[0]]} for shard {outside[0]}.")
    return sizes.astype(np.int64)


def check_affinity(affinity: Any) -> None:
    """Check that an affinity is a number in [0, 1].

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(affinity, int | float | np.number) and not isinstance(affinity, bool)
    if not (is_number and 0 <= affinity <= 1):
        raise ArgumentError(f"`affinity` must be a number in [0, 1], found {affinity!r}.")


def arranged(sizes: Ids, *, seed: int, epoch: int, runs: int, affinity: float) -> Ids:
    """Return the shards in the order in which they are laid end to end; int64, shape (shards,)."""
    moving = _UNIT - round(affinity * _UNIT)
    if not moving:
        return keyed_permutation(sizes.size, Purpose.SHARDS, seed=seed)
    cohorts = num_cohorts(sizes.size, runs)
    places = np.empty(sizes.size, dtype=np.float64)  # of each shard in the layout, from 0 to 1
    for cohort in range(cohorts):
        generation = (epoch * moving + cohort * _UNIT // cohorts) // _UNIT
        members = np.arange(cohort, sizes.size, cohorts)
        dealt = members[keyed_permutation(members.size, Purpose.COHORT, seed=seed, epoch=generation, run=cohort)]
        widths = sizes[dealt]
        ends = np.cumsum(widths)
        # Exact or correctly rounded operations only: all platforms agree.
        offset = (2 * cohort + 1) / (2 * cohorts)
        places[dealt] = (ends - widths + widths * offset) / max(1, int(ends[-1]) if ends.size else 0)
    return np.argsort(places, kind="stable")


def num_cohorts(shards: int, runs: int) -> int:
    """Return the number of cohorts: a power of two, as many as a run has shards, from 1 to `MAX_COHORTS`."""
    return 1 << (min(MAX_COHORTS, max(1, shards // runs)).bit_length() - 1)


def plan_epoch(
    shard_sizes: Sequence[int] | NDArray[Any],
    *,
    seed: int,
    epoch: int,
    canonical_nodes: int,
    shuffle_block_size: int | None = None,
    shuffle: bool = True,
    affinity: float = 1.0,
) -> "EpochPlan":
    """Return the global order of one epoch over shards of the given sizes (samples, in stored order). Pure.

    Args:
        shard_sizes: Samples of each shard, in stored order.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        canonical_nodes: Parts of equal size in which the samples are mixed.
        shuffle_block_size: Samples of the window that are mixed with each other; by default as for `OrderOptions`.
        shuffle: False for the stored order.
        affinity: Part of its shards that a run keeps from each epoch to the next, in [0, 1].

    Raises:
        ValueError: a size, seed, epoch, block size, affinity or number of canonical nodes is out of range.

    Examples:
        >>> plan = plan_epoch([100, 100, 50], seed=7, epoch=0, canonical_nodes=1)
        >>> len(plan)
        250
        >>> sorted(plan.sample_ids(0, 250)) == list(range(250))
        True
    """
    sizes = checked_sizes(shard_sizes)
    block = default_block_size(max(1, canonical_nodes)) if shuffle_block_size is None else shuffle_block_size
    check_range(0, seed=seed, epoch=epoch)
    check_range(1, canonical_nodes=canonical_nodes, shuffle_block_size=block)
    check_affinity(affinity)
    order = arranged(sizes, seed=seed, epoch=epoch, runs=canonical_nodes, affinity=affinity)
    return EpochPlan(sizes, order, canonical_nodes, seed=seed, epoch=epoch, block_size=block, shuffle=shuffle)


class EpochPlan(GlobalOrder):
    """The global order G of one epoch: `len(plan)` sample ids, any part of which can be looked up alone.

    The runs are cut from shards of the given `sizes`, laid out in the given `order`; their places depend on the seed
    alone. Memory is O(shards) plus the windows in use. Thread-safe: a pass reads it while another thread looks ahead in
    it.
    """

    def __init__(
        self, sizes: Ids, order: Ids, canonical_nodes: int, *, seed: int, epoch: int, block_size: int, shuffle: bool
    ) -> None:
        self.epoch = epoch
        self.block_size = block_size
        self.shuffle = shuffle
        self._seed, self.canonical_nodes = seed, canonical_nodes
        self._num_samples = int(sizes.sum())
        self._shard_ids = (np.cumsum(sizes) - sizes)[order]  # sample id of each laid-out shard's first sample
        self._shard_ends = np.cumsum(sizes[order])  # end of each laid-out shard
        places = keyed_permutation(canonical_nodes, Purpose.PLACES, seed=seed)
        bounds = [run * self._num_samples // canonical_nodes for run in range(canonical_nodes + 1)]
        run_bounds = np.array(bounds, dtype=np.int64)
        self._begins, self._lengths = run_bounds[:-1], np.diff(run_bounds)
        self._run_at_place = places
        self._rows = self._num_samples // canonical_nodes
        self._longer_runs = places[self._lengths[places] > self._rows]
        self._run_pieces: dict[int, tuple[Ids, Ids]] = {}
        self._windows: OrderedDict[tuple[int, int], Ids] = OrderedDict()
        self._max_windows = 2 * canonical_nodes  # the row of windows being read, and the next
        self._is_first_lookup = True

    def __len__(self) -> int:
        return self._num_samples

    def ids_at(self, positions: Ids) -> Ids:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        if not self.shuffle:
            return positions.astype(np.int64)
        flat = positions.reshape(-1)
        left_over = flat - self._rows * self.canonical_nodes
        run, index = self._run_at_place[flat % self.canonical_nodes], flat // self.canonical_nodes
        late = left_over >= 0
        if late.any():
            run[late], index[late] = self._longer_runs[left_over[late]], self._rows
        ids = np.empty(flat.size, dtype=np.int64)
        if self.block_size == 1:  # each window is one sample: no window needs a permutation
            for number in np.unique(run).tolist():
                here = np.flatnonzero(run == number)
                ids[here] = self._stored_at(number, index[here])
            return ids.reshape(positions.shape)
        is_first, self._is_first_lookup = self._is_first_lookup, False  # that of the first batch, which is waited for
        window = index // self.block_size
        # Positions in the same window are looked up together.
        by_window = np.lexsort((window, run))
        run, window, index = run[by_window], window[by_window], index[by_window] % self.block_size
        changes = np.flatnonzero((np.diff(run, prepend=-1) != 0) | (np.diff(window, prepend=-1) != 0))
        for start, stop in pairwise([*changes.tolist(), flat.size]):
            number, place, at = int(run[start]), int(window[start]), index[start:stop]
            is_few = is_first and (stop - start) * _FEW_PLACES <= self.block_size
            ids[by_window[start:stop]] = self._few(number, place, at) if is_few else self._window(number, place)[at]
        return ids.reshape(positions.shape)

    def runs_of_host(self, host: int, num_hosts: int) -> list[int]:
        """Return the runs that a host reads; the fewest if hosts divide the canonical nodes or the other way round."""
        places = range(host, num_hosts * self.canonical_nodes, num_hosts)
        return sorted({int(self._run_at_place[place % self.canonical_nodes]) for place in places})

    def pieces(self, run: int) -> tuple[Ids, Ids]:
        """Return the first sample id and the end of each piece (shard or part of one) of a run, in this epoch's order.

        Two int64 arrays of shape (pieces,); ends count from the run's start. Without a shuffle they are permuted, too.
        """
        known = self._run_pieces.get(run)
        if known is not None:
            return known
        begin = int(self._begins[run])
        end = begin + int(self._lengths[run])
        low = int(np.searchsorted(self._shard_ends, begin, side="right"))
        high = int(np.searchsorted(self._shard_ends, end, side="left")) + 1
        sizes = np.diff(np.minimum(self._shard_ends[low:high], end), prepend=begin)
        starts = self._shard_ids[low:high].copy()
        if starts.size:
            starts[0] += begin - (self._shard_ends[low - 1] if low else 0)
        is_piece = sizes > 0  # an empty shard is no piece
        starts, sizes = starts[is_piece], sizes[is_piece]
        key = keyed_permutation(starts.size, Purpose.PIECES, seed=self._seed, epoch=self.epoch, run=run)
        self._run_pieces[run] = starts[key], np.cumsum(sizes[key])
        return self._run_pieces[run]

    def spans_of_host(self, host: int, num_hosts: int) -> tuple[Ids, Ids, Ids] | None:
        """As `GlobalOrder.spans_of_host`; None without a shuffle."""
        if not self.shuffle:
            return None
        parts = []
        for run in self.runs_of_host(host, num_hosts):
            starts, ends = self.pieces(run)
            begins = np.concatenate((np.zeros(1, np.int64), ends))[: ends.size]
            first_rows = begins // self.block_size * self.block_size
            last_rows = np.minimum(-(-ends // self.block_size) * self.block_size, self._lengths[run])
            parts.append((starts, first_rows * self.canonical_nodes, last_rows * self.canonical_nodes))
        ids, begins, ends = map(np.concatenate, zip(*parts, strict=True))
        return ids, begins, ends

    def _few(self, run: int, window: int, places: Ids) -> Ids:
        """Return the sample ids at a few places of a window, of which the rest is not computed."""
        begin = window * self.block_size
        size = min(self.block_size, int(self._lengths[run]) - begin)
        keys = raw_keys(size, Purpose.WINDOW, seed=self._seed, epoch=self.epoch, run=run, window=window)
        return self._stored_at(run, begin + stable_order_at(keys, places))

    def _window(self, run: int, window: int) -> Ids:
        known = self._windows.pop((run, window), None)  # and put back as the latest; another thread computes it again
        if known is not None:
            self._windows[run, window] = known
            return known
        # The sample ids of the window before its permutation.
        starts, ends = self.pieces(run)
        begin = window * self.block_size
        end = min(begin + self.block_size, int(self._lengths[run]))
        low = int(np.searchsorted(ends, begin, side="right"))
        high = int(np.searchsorted(ends, end, side="left")) + 1
        piece_begins = np.concatenate(([ends[low - 1] if low else 0], ends[low : high - 1]))
        cut_begins = np.maximum(piece_begins, begin)
        sizes = np.minimum(ends[low:high], end) - cut_begins
        first_ids = starts[low:high] + (cut_begins - piece_begins)
        within = np.arange(end - begin, dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ids = np.repeat(first_ids, sizes) + within
        key = keyed_permutation(ids.size, Purpose.WINDOW, seed=self._seed, epoch=self.epoch, run=run, window=window)
        shuffled: Ids = ids[key]
        self._windows[run, window] = shuffled
        if len(self._windows) > self._max_windows:
            with suppress(KeyError):  # other threads took all of them out
                self._windows.popitem(last=False)
        return shuffled

    def _stored_at(self, run: int, index: Ids) -> Ids:
        """Return the sample ids at places of a run before its windows are permuted."""
        starts, ends = self.pieces(run)
        piece = np.searchsorted(ends, index, side="right")
        begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        ids: Ids = starts[piece] + index - begins[piece]
        return ids
