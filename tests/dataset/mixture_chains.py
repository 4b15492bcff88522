"""Runs over several streams that are resumed several times, as plans, with the claims that must hold for them.

A run is a chain of segments. A segment has a world, a batch size and weights of its own, begins at the state of the one
before, in JSON, and ends after a part of the rest of the epoch. `Run` also tracks what is expected: the samples of each
stretch of an epoch, and how often each sample was planned so far. `test_mixture_chains.py` draws the chains.
"""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from smalti.cursor import Cursor, MixedStream
from smalti.dataset.order import OrderOptions, Pass, Reading, RunOrder, check_next_epoch, with_batch_sizes
from smalti.dataset.resume import at_epoch, changes_weights, first_cursor, own_cursor, saved_cursor
from smalti.errors import CursorError
from smalti.order.mixture.planning import StreamWeight
from smalti.world import World


@dataclass(frozen=True)
class Segment:
    hosts: int
    ranks_on_host: int
    replication: int
    batch_size: int
    part: float
    """Part of the rest of the epoch that it reads; 1 for all."""
    weights: RunOrder | None = None
    """New weights; None to keep those of the segment before."""

    def worlds(self):
        num_ranks = self.hosts * self.ranks_on_host
        return [World.of_blocks(rank, num_ranks, self.hosts) for rank in range(num_ranks)]


@dataclass(frozen=True)
class Chain:
    streams: list[list[int]]
    """The shard sizes of every stream."""
    options: RunOrder
    """Shuffle and seed, and how samples are mixed within the order."""
    mixing: RunOrder
    """Weights, size of an epoch, sampling and batching."""
    segments: list[Segment]


@dataclass
class Run:
    """A chain that is being checked."""

    chain: Chain
    mixing: RunOrder
    state: str | None = None
    expected: list[int] = field(default_factory=list)
    """The sample id at each position of the current epoch."""
    consumed: dict[int, int] = field(default_factory=dict)
    """The id that was read at each position of the current epoch."""
    planned: Counter = field(default_factory=Counter)
    """Times that each sample was planned in earlier epochs and stretches, whether or not it was read."""
    epochs: int = 0
    """Epochs read to their end."""
    _begin: int = 0
    """Position in the epoch at which the current weights began."""
    _known: object = None
    """Epoch and mixture for which `expected` was made."""
    changes: int = 0
    """Changes of weights inside epochs."""
    refusals: int = 0
    """Refused changes of weights."""

    @property
    def totals(self):
        return [sum(stream) for stream in self.chain.streams]

    def read(self, segment):
        options = replace(self.chain.options, replication=segment.replication)
        readers = segment.worlds()[0].replicated(segment.replication)
        cursor = self._begin_with_weights(segment, options, readers)
        self._expect(cursor)
        ranks = [
            Reading(Pass(cursor, world), self.chain.streams, segment.batch_size, options) for world in segment.worlds()
        ]
        (num_steps,) = {rank.division.num_steps for rank in ranks}  # I4: equally many on all ranks
        steps = num_steps if segment.part == 1 else int(num_steps * segment.part)
        taken = [ids_of(rank, ranks[-1].plan, steps) for rank in ranks[:-1]] + [ranks[-1].steps(0, steps)]
        for number, rank in enumerate(taken):
            group = taken[number - number % segment.replication]
            assert [ids.tolist() for _, ids in rank] == [ids.tolist() for _, ids in group], "replicas read the same"
        self._consume(taken[:: segment.replication], steps)
        (self.state,) = {json.dumps(rank.cursor_after(steps).to_state()) for rank in ranks}  # I5
        if json.loads(self.state)["epoch"] > cursor.epoch:
            self._end_epoch()

    def _begin_with_weights(self, segment, options, readers):
        """Return the start of a segment; with the former weights if those of the segment are refused.

        They may be refused only because a stream is too small a part of a batch, and before anything is read.
        """
        before = self.mixing
        if segment.weights is not None:
            self.mixing = segment.weights
        try:
            cursor = self._begin_segment(segment, options, readers)
            if self.state and changes_weights(own_cursor(json.loads(self.state)), cursor):
                check_next_epoch(cursor, self.chain.streams, segment.batch_size * readers.num_ranks)
            return cursor
        except CursorError as error:
            if not str(error).startswith("weights cannot change to"):
                raise
            assert segment.weights is not None
            assert self.chain.mixing.batching_method == "stratified"
            self.refusals += 1
            self.mixing = before
            return self._begin_segment(segment, options, readers)

    def _begin_segment(self, segment, options, readers):
        return with_batch_sizes(self._start(options, readers), readers, segment.batch_size)

    def _start(self, options, readers):
        streams = [MixedStream(str(number), None, total) for number, total in enumerate(self.totals)]
        options = joined(options, self.mixing)
        fresh = first_cursor(options, readers, streams, self.chain.streams)
        if self.state is None:
            return fresh
        state = json.loads(self.state)
        cursor = saved_cursor(own_cursor(state), fresh, options, sizes=self.chain.streams)
        assert (cursor.epoch, cursor.samples) == (state["epoch"], state["sample_in_epoch"])
        return cursor if cursor.samples else at_epoch(cursor, cursor.epoch, self.chain.streams)

    def _expect(self, cursor):
        """Compute the order that is to be read from here on, as a single reader would read it."""
        known, self._known = self._known, (cursor.epoch, cursor.mixture)
        if known == self._known and cursor.samples:
            return
        plan = Reading(Pass(cursor, World()), self.chain.streams, 1, OrderOptions()).plan
        ids, place = plan.sample_ids(0, len(plan)).tolist(), cursor.samples
        assert len(ids) == cursor.epoch_size
        if place and ids == self.expected:
            return
        assert ids[:place] == self.expected[:place], "I3: what was read stays as it was"
        if place > self._begin:  # a second change at one place replaces the first, of which nothing was planned
            self.changes += 1
            self._count_as_planned()
        self._begin, self.expected = place, ids
        self._check_amounts(ids[place:])

    def _consume(self, groups, steps):
        for step in range(steps):
            assert all(group[step][1].size for group in groups), "I4: every rank has something to read"
            held = [
                pair
                for group in groups
                for pair in zip(group[step][0].positions.tolist(), group[step][1].tolist(), strict=True)
                if pair[0] >= 0
            ]
            assert len(dict(held)) == len(held), "I4: no position goes to two groups in one step"
            assert not dict(held).keys() & self.consumed.keys(), "I1: a position is read once"
            self.consumed.update(held)

    def _end_epoch(self):
        assert self.consumed == dict(enumerate(self.expected)), "I1 to I3: all of it, in the order of one reader alone"
        self._count_as_planned()
        self.epochs, self.expected, self.consumed, self._begin = self.epochs + 1, [], {}, 0

    @property
    def _spans(self):
        """The sample ids of each stream."""
        ends = np.cumsum(self.totals).tolist()
        return [range(end - total, end) for end, total in zip(ends, self.totals, strict=True)]

    def _count_as_planned(self):
        self.planned.update(self.expected[self._begin :])
        if self.mixing.sampling_method == "balanced":
            for span in self._spans:
                times = [self.planned[sample] for sample in span]
                assert max(times, default=0) - min(times, default=0) <= 1, "equally often, or once more"

    def _check_amounts(self, ids):
        """Check the samples of each stream against the weights, for an epoch or the rest of one."""
        counts = [sum(sample in span for sample in ids) for span in self._spans]
        whole = self._whole_epoch()
        if self._begin or not all(share.denominator == 1 for share in whole):
            shares = [share * len(ids) / sum(whole) for share in whole]
            assert all(abs(count - share) < 1 for count, share in zip(counts, shares, strict=True))
        else:
            assert counts == whole
        if self.mixing.sampling_method == "balanced":
            for span in self._spans:
                times = Counter(sample for sample in ids if sample in span)
                assert max(times.values(), default=0) - min((times[sample] for sample in span), default=0) <= 1

    def _whole_epoch(self):
        weights, size = self.mixing.weights, self.mixing.epoch_size
        if weights[0].proportion is not None:
            parts = [Fraction(str(weight.proportion)) for weight in weights]
            return [part * (size or sum(self.totals)) / sum(parts) for part in parts]
        if size is not None:
            return [Fraction(total * size, sum(self.totals)) for total in self.totals]
        return [Fraction(self._samples(weight, total)) for weight, total in zip(weights, self.totals, strict=True)]

    @staticmethod
    def _samples(weight, total):
        if weight.repeat is not None:
            return int(Fraction(str(weight.repeat)) * total)
        return total if weight.choose is None else weight.choose


def joined(options, mixing):
    """Return the options of `mixing` with the order of `options`; weights may change."""
    names = ("shuffle", "seed", "num_canonical_nodes", "shuffle_block_size", "affinity", "tail", "replication")
    return replace(mixing, change_weights=True, **{name: getattr(options, name) for name in names})


def ids_of(rank, plan, steps):
    """Return `rank.steps(0, steps)` with an existing plan: planning takes most of these tests' time."""
    return [(step, plan.ids_at(step.lookup)) for step in rank.division.steps(0, steps)]


def check(chain):
    """Read the chain's segments, then on to the end of its last epoch, and return the run."""
    run = Run(chain, chain.mixing)
    for segment in chain.segments:
        run.read(segment)
    if run.consumed or not run.epochs:
        run.read(replace(chain.segments[-1], part=1, weights=None))
    assert Cursor.from_state(json.loads(run.state)).samples == 0
    return run


def proportions(values, epoch_size=None, **options):
    """Return options that mix by proportion."""
    weights = tuple(StreamWeight(proportion=value) for value in values)
    return RunOrder(weights=weights, epoch_size=epoch_size, **options)


def chosen(counts, **options):
    """Return options that mix by numbers of samples."""
    return RunOrder(weights=tuple(StreamWeight(choose=count) for count in counts), **options)
