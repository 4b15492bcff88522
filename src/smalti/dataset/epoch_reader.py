"""EpochReader: the implementation of StreamingDataset, for the library's own use.

A user's subclass may replace any public name of StreamingDataset. So the dataset holds an EpochReader, which users do
not subclass, and the library calls that instead of the dataset. Only `__getitem__` of the dataset itself is called; it
is passed in as `get`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import whole_number, whole_or_none
from smalti.cache import CacheStats
from smalti.catalog import Manifest
from smalti.cursor import Cursor, MixedStream
from smalti.dataset.lookahead import PassHistory, planned_ahead
from smalti.dataset.order import (
    MAX_COUNT,
    Pass,
    Planned,
    Reading,
    RunOrder,
    Sizes,
    check_next_epoch,
    with_batch_sizes,
)
from smalti.dataset.resume import (
    OpenedOnce,
    RunPlace,
    RunTracker,
    at_epoch,
    changes_weights,
    first_cursor,
    own_cursor,
    saved_cursor,
    saved_versions,
)
from smalti.dataset.skipping import Replacement, SkipCount, is_of_sample, read_each, replaced
from smalti.errors import ArgumentError, SampleIndexError, SchemaError, SmaltiError
from smalti.order import StepBatch
from smalti.stream import OpenStreams, ShardSet, Stream, StreamOptions, open_streams
from smalti.world import World, detect_world

MARKS = ("_sample_id", "_position", "_stream")
"""The columns that `include_ids=True` adds: sample id, position in the epoch's order, number of the stream."""
MAX_EPOCH = 1 << 62  # the largest that a saved state can hold
_MAX_IDS_IN_ERROR = 64

_Reader = TypeVar("_Reader", bound="EpochReader")
Get = Callable[[int], Any]
"""The `__getitem__` of the user's dataset: sample id to sample."""


class BatchForm(Enum):
    """A form of batches that are read by column."""

    COLUMNS = "columns"
    """Column to values."""
    ROWS = "rows"
    """A list of samples: the columns of the transformed batch, split."""


Form = Get | BatchForm
"""The way in which a batch is read: by column, or as a list of samples that this function reads one by one."""


@dataclass(eq=False)
class EpochReader:
    """Samples by id, epochs and cursors, batches in the planned order."""

    declared: tuple[Stream, ...]
    """The shard sets, as the user declared them."""
    stream_options: tuple[StreamOptions, ...]
    order: RunOrder
    batch_size: int | None = None
    predownload: int | None = None
    transform: Callable[[Any], Any] | None = None
    """The constructor's argument; called with each sample, or with each batch if it has an attribute `on_batches`, and
    then with `epoch` and `sample_ids` too, if it has one `takes_epoch`."""
    include_ids: bool = False
    max_skipped: float | None = None
    """The number of samples that cannot be read and may be skipped in an iteration, or below 1 their share of those
    that the rank reads; None to raise the error of the first."""
    cache_limit: int | None = None
    chosen_world: World | None = None
    tracker: RunTracker = field(default_factory=RunTracker)
    opened: OpenedOnce = field(default_factory=OpenedOnce)
    history: PassHistory = field(default_factory=PassHistory)
    reweighted: Cursor | None = None
    """The loaded state, if its weights were changed when it was loaded."""

    # ------------------------------------------------------------------ streams and world

    @property
    def stream(self) -> OpenStreams:
        """The opened shard sets, as one run of samples; the first use opens them."""
        stream = self.opened.stream
        if stream is None:
            known = self.tracker.get().versions
            stream = open_streams(self.stream_options, known, cache_limit=self.cache_limit)
            agreed = self.tracker.agree(stream.versions)
            if agreed != stream.versions:  # another worker opened them first, and a new version was published since
                stream.close()
                stream = open_streams(self.stream_options, agreed, cache_limit=self.cache_limit)
            self.opened.stream = stream
        return stream

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The version that is read of each stream."""
        return tuple(each.manifest for each in self.stream.sets)

    @property
    def world(self) -> World:
        """All ranks and hosts, including ranks that read the same samples."""
        return self.chosen_world if self.chosen_world is not None else detect_world()

    @property
    def readers(self) -> World:
        """The world of ranks that read different samples."""
        return self.world.replicated(self.order.replication)

    @property
    def worker(self) -> tuple[int, int]:
        """Number of this loader worker, and how many there are."""
        return 0, 1

    @property
    def transforms_samples(self) -> bool:
        """True if there is a transform that is called with each sample."""
        return self.transform is not None and not getattr(self.transform, "on_batches", False)

    def sample(self, sample_id: int) -> Any:
        """Return one sample, transformed.

        Raises:
            IndexError: there is no such sample.
        """
        stream = self.opened.stream or self.stream
        if not 0 <= sample_id < len(stream):
            raise SampleIndexError(f"sample {sample_id} of {stream.root}: it has samples 0 to {len(stream) - 1}.")
        if self.transform is None:
            return stream.sample(sample_id)
        if self.transforms_samples:
            return self.transform(stream.sample(sample_id))
        # As a transform on batches makes it of a batch of one; the transform sees its marks.
        ids, no_position = np.array([sample_id]), np.array([-1])
        row = rows_of(self._read_columns(StepBatch(0, ids, no_position, self.next_epoch), ids), 1)[0]
        return {name: value for name, value in row.items() if name not in MARKS} if self.include_ids else row

    def stats(self, *, least: bool = True) -> CacheStats:
        """Return the cost of reading, in this process and in loader workers."""
        return self.history.stats(self.stream, least=least)

    def close(self) -> None:
        """Close open shards and end fetching threads; the next use opens the same versions."""
        if self.opened.stream is not None:
            self.opened.stream.close()
            self.opened.stream = None

    # ------------------------------------------------------------------ epochs and cursors

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration reads."""
        place = self.tracker.get()
        return place.next_epoch if place.resume is None else place.resume.epoch

    def set_epoch(self, epoch: Any) -> None:
        """Make the next iteration read `epoch` from its start."""
        self.tracker.set(self.tracker.get().at_epoch(whole_number("epoch", epoch, 0, MAX_EPOCH)))

    def cursor(self) -> Cursor:
        """Return the start of the next iteration."""
        return self._cursor_at(self.tracker.get())

    def cursor_at_start(self) -> Cursor:
        """Return the start of the next iteration's epoch."""
        place = self.tracker.get()
        return self._fresh_cursor(place, place.next_epoch if place.resume is None else place.resume.epoch)

    def state_dict(self, num_samples: Any, *, from_beginning: bool) -> dict[str, Any]:
        """Return the state after `num_samples` global samples of the current epoch."""
        count = whole_number("num_samples", num_samples, 0)
        place = self.tracker.get()
        cursor = place.begun or self._cursor_at(place)
        before = cursor.samples if from_beginning else 0
        return cursor.advanced(count - before).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a saved state."""
        readers, saved = self.readers, own_cursor(state)
        if not self.history.begun:  # later, loader workers may use the opened streams
            stream, versions = self.stream, saved_versions(self.stream_options, self.stream, saved)
            if versions != stream.versions:
                self.opened.stream = open_streams(self.stream_options, versions, cache_limit=self.cache_limit)
                stream.close()
        cursor = saved_cursor(saved, self._first_cursor(), self.order, sizes=self.sizes)
        reweighted = cursor if changes_weights(saved, cursor) else None
        if self.batch_size is not None:  # refuse now what beginning the pass would refuse
            start = with_batch_sizes(cursor, readers, self.batch_size)
            if reweighted is not None:
                check_next_epoch(start, self.sizes, self.batch_size * readers.num_ranks)
        self.reweighted = reweighted
        self.tracker.set(self.tracker.get().resumed(cursor, self.stream.versions))

    def begin_pass(self, batch_size: int | None = None, number: int | None = None) -> Pass:
        """Determine the start of an iteration, and record that its epoch began.

        `batch_size` is used if the dataset has none of its own; `number` is the return value of `tracker.enter`.
        """
        known, opened = self.tracker.get().versions, self.opened.stream
        if opened is not None and known and opened.versions != known:
            self.close()  # the main process has changed to other versions; the next use opens those
        # Before `settle`, which other workers wait for: the first use of `sizes` opens the streams.
        sizes, readers, size = self.sizes, self.readers, self.batch_size or batch_size
        if self.include_ids:
            check_names(self.stream.sets)

        def settle(place: RunPlace) -> Cursor:
            start = with_batch_sizes(self._cursor_at(place), readers, size)
            if size is not None and self.reweighted is not None and place.resume == self.reweighted:
                check_next_epoch(start, sizes, size * readers.num_ranks)
            return start

        start, is_first = self.tracker.begin(settle, number)
        this_pass = Pass(start, self.world)
        if size and is_first:
            self.history.begin(Reading(this_pass, sizes, size, self.order), self.stream)
        return this_pass

    @property
    def sizes(self) -> Sizes:
        """The samples of each shard, by stream."""
        return [each.shard_sizes for each in self.stream.sets]

    def _first_cursor(self) -> Cursor:
        sets = self.stream.sets
        mixed = [MixedStream(opened.manifest.digest, opened.options.split, opened.num_samples) for opened in sets]
        return first_cursor(self.order, self.readers, mixed, self.sizes)

    def _fresh_cursor(self, place: RunPlace, epoch: int) -> Cursor:
        return at_epoch(place.adopted or self._first_cursor(), epoch, self.sizes)

    def _cursor_at(self, place: RunPlace) -> Cursor:
        return place.resume if place.resume is not None else self._fresh_cursor(place, place.next_epoch)

    # ------------------------------------------------------------------ iteration

    def batches(self, this_pass: Pass, form: Form, rest: Pass | None = None) -> Iterator[Any]:
        """Yield this worker's batches of a pass, or only of the `rest` of it; samples that are skipped are counted."""
        skips = self.skip_count(this_pass)
        for step, ids in self.planned(rest or this_pass, *self.worker):
            yield skips.counted(*self.read(step, ids, form))

    def skip_count(self, this_pass: Pass) -> SkipCount:
        """Return the count of the samples that are skipped in an iteration that begins now."""
        division, limit = self.reading(this_pass).division, self.max_skipped or 0
        share = division.num_steps * division.batch_size if limit < 1 else 1
        return SkipCount(int(limit * share), self.stream.cache.counters, self.stream.root)

    def planned(
        self, this_pass: Pass, worker: int = 0, num_workers: int = 1, *, num_readers: int = 1
    ) -> Iterator[Planned]:
        """Yield the steps of one loader worker with their sample ids; shards of later steps are prefetched."""
        return planned_ahead(
            self.reading(this_pass),
            self.stream,
            worker=worker,
            num_workers=num_workers,
            num_readers=num_readers,
            predownload=self.predownload,
        )

    def read(self, step: StepBatch, ids: NDArray[np.int64], form: Form) -> tuple[Any, tuple[Replacement, ...]]:
        """Return one batch, transformed, and what stands in it for samples that cannot be read and may be skipped.

        Raises:
            Exception: an error that is not of single samples, such as one of a store; or of a transform that fails for
                the batch as a whole only; or any, if nothing may be skipped.
        """
        if self.max_skipped is None:
            return self._read(step, ids, form), ()
        if not isinstance(form, BatchForm):
            get = form
            samples, found = read_each(step, ids, lambda sample_id, _: self._noted_sample(sample_id, get), self.stream)
            return self._marked(samples, *replaced(step, ids, found)), found
        try:
            return self._read(step, ids, form), ()
        except Exception as error:
            if not is_of_sample(error):
                raise

            def read_one(sample_id: int, position: int) -> None:
                self._read_columns(replace(step, positions=np.array([position])), np.array([sample_id]))

            _, found = read_each(step, ids, read_one, self.stream)
            if not found:
                raise
        return self._read(*replaced(step, ids, found), form), found

    def _read(self, step: StepBatch, ids: NDArray[np.int64], form: Form) -> Any:
        if form is BatchForm.COLUMNS:
            return self._read_columns(step, ids)
        if isinstance(form, BatchForm):
            return rows_of(self._read_columns(step, ids), len(ids))
        return self._marked([self._noted_sample(sample_id, form) for sample_id in ids.tolist()], step, ids)

    def reading(self, this_pass: Pass) -> Reading:
        """Return this rank's part of a pass: its steps and their sample ids; pure."""
        if self.batch_size is None:
            raise ArgumentError(
                "`batch_size` is needed to iterate a StreamingDataset: it decides which rank reads which samples. "
                "Give it to the dataset, or use StreamingDataLoader(dataset, batch_size=...)."
            )
        return Reading(this_pass, self.sizes, self.batch_size, self.order)

    def for_loader(self: _Reader, batch_size: Any, *, drop_last: bool) -> _Reader:
        """Return a view that reads batches of this size, and shares the opened streams and the run's place.

        Raises:
            ValueError: there is no batch size, or two that differ, or it is not a whole number from 1.
        """
        view, size = copy.copy(self), whole_or_none("batch_size", batch_size, 1, MAX_COUNT)
        if size is not None and self.batch_size not in {None, size}:
            raise ArgumentError(
                f"`batch_size` is {size} for the loader and {self.batch_size} for the dataset; give one."
            )
        view.batch_size = size if size is not None else self.batch_size
        if view.batch_size is None:
            raise ArgumentError("`batch_size` is needed, on the loader or on the dataset: samples per rank and step.")
        if drop_last:
            view.order = replace(view.order, tail="drop")
        return view

    def _read_columns(self, step: StepBatch, ids: NDArray[np.int64]) -> Any:
        columns = self.stream.batch(ids)
        if self.include_ids:
            columns |= self._marks(step, ids)
        if self.transform is None:
            return columns
        try:
            drawn_for = (
                {"epoch": step.epoch, "sample_ids": ids} if getattr(self.transform, "takes_epoch", False) else {}
            )
            return self.transform(columns, **drawn_for)
        except Exception as error:
            more = ", ..." if len(ids) > _MAX_IDS_IN_ERROR else ""
            self._note(
                error, f"transforming a batch of samples {', '.join(map(str, ids[:_MAX_IDS_IN_ERROR].tolist()))}{more}"
            )
            raise

    def _marked(self, samples: list[Any], step: StepBatch, ids: NDArray[np.int64]) -> list[Any]:
        """Return the samples with their marks added, if they are to be.

        Raises:
            SchemaError: a sample has a field of that name already, from a transform or an overridden `__getitem__`.
        """
        if not self.include_ids:
            return samples
        values = {name: column.tolist() for name, column in self._marks(step, ids).items()}
        marked = []
        for at, sample in enumerate(samples):
            taken = [name for name in values if name in sample]
            if taken:
                raise SchemaError(
                    f"sample {values['_sample_id'][at]} has a field {taken[0]!r} after its transform, and `include_ids="
                    "True` adds one of that name. Leave `include_ids` out, or give the field another name.",
                    column=taken[0],
                )
            marked.append(sample | {name: column[at] for name, column in values.items()})
        return marked

    def _noted_sample(self, sample_id: int, get: Get) -> Any:
        try:
            return get(sample_id)
        except Exception as error:
            self._note(error, f"reading sample {sample_id}")
            raise

    def _note(self, error: Exception, doing: str) -> None:
        """Add the samples and version that were read to an exception, which may be raised by the user's code."""
        names_sample = isinstance(error, SmaltiError) and "sample_id" in error.facts
        if not names_sample and hasattr(error, "add_note"):  # from Python 3.11 on
            digests = ", ".join(manifest.digest[:12] for manifest in self.manifests)
            error.add_note(f"while {doing} of {self.stream.root}, version digest {digests}")

    def _marks(self, step: StepBatch, ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        marks = {"_sample_id": ids, "_position": step.positions}
        return marks | {"_stream": self.stream.stream_of(ids)} if len(self.declared) > 1 else marks


def check_names(sets: Sequence[ShardSet]) -> None:
    """Check that no stream has a column named like one of `MARKS`.

    Raises:
        SchemaError: a stream has one.
    """
    for number, each in enumerate(sets):
        taken = [name for name in MARKS if name in each.columns]
        if taken:
            raise SchemaError(
                f"stream {number} ({each.options.root}) has a column {taken[0]!r}, and `include_ids=True` adds columns "
                f"{', '.join(MARKS)}: one would overwrite the other. Leave `include_ids` out, or write the data set "
                "with another name for the column.",
                column=taken[0],
                stream=number,
            )


def rows_of(batch: Any, count: int) -> list[dict[str, Any]]:
    """Return the samples of a batch of columns that a transform on batches returned.

    Raises:
        SchemaError: it is not a mapping of columns with a value for each of `count` samples.
    """
    columns = batch.items() if isinstance(batch, Mapping) else [("", batch)]
    for name, values in columns:
        is_column = hasattr(values, "__getitem__") and hasattr(values, "__len__")
        if isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) == 0:
            is_column = False
        if not (name and is_column and len(values) == count):
            thing = values if name else batch
            shape = getattr(thing, "shape", None)
            kind = type(thing).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
            found = f"the column {name!r} as {kind}" if name else kind
            raise SchemaError(
                f"the transform on batches returned {found} for {count} samples, and only columns with a value for "
                "each sample can be read one by one. Read whole batches (StreamingDataLoader, `batches()`), or give a "
                "transform of samples.",
                column=name,
            )
    return [{name: _value(values[row]) for name, values in columns} for row in range(count)]


def _value(value: Any) -> Any:
    return None if value is np.ma.masked else value  # as a sample that no transform was called with has it
