"""EpochReader: what a StreamingDataset does, for the library's own use.

A user's subclass may replace any public name of StreamingDataset. So the dataset keeps one of these, which nobody
subclasses, and the library's code calls it instead of the dataset. Of the dataset itself only `__getitem__` is called,
which is handed in as `get`.

The columns that `include_ids=True` adds; a data set or a transform must have none of their names.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats
from smalti.catalog import Manifest
from smalti.cursor import Cursor, MixedStream
from smalti.dataset.arguments import checked
from smalti.dataset.lookahead import History, planned_ahead
from smalti.dataset.order import (
    MixingOptions,
    Opened,
    OrderOptions,
    Pass,
    Planned,
    Reading,
    RunPlace,
    RunTracker,
    Sizes,
    begun,
    check_next_epoch,
    cursor_after,
    reading_world,
)
from smalti.dataset.resume import as_saved, at_epoch, changes_weights, first_cursor, saved_cursor
from smalti.errors import SchemaError, SmaltiError
from smalti.order import Division, GlobalOrder, StepBatch
from smalti.stream import OpenStreams, ShardSet, Stream, StreamOptions, open_streams
from smalti.whole import whole_number
from smalti.world import World, detect_world

MARKS = ("_sample_id", "_position", "_stream")
"""Sample id, place in the epoch's order, and number of the stream."""


def check_names(sets: Sequence[ShardSet]) -> None:
    """Return only if no stream has a column with the name of a mark.

    Raises:
        SchemaError: one has.
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


def with_marks(samples: Sequence[Any], marks: Mapping[str, NDArray[np.int64]]) -> list[Any]:
    """Return samples with the marks of each added.

    Raises:
        SchemaError: a sample has a field of that name already, from a transform or an overridden `__getitem__`.
    """
    values = {name: column.tolist() for name, column in marks.items()}
    marked = []
    for at, sample in enumerate(samples):
        taken = [name for name in values if name in sample]
        if taken:
            raise SchemaError(
                f"sample {values['_sample_id'][at]} has a field {taken[0]!r} after its transform, and "
                "`include_ids=True` adds one of that name. Leave `include_ids` out, or give the field another name.",
                column=taken[0],
            )
        marked.append(sample | {name: column[at] for name, column in values.items()})
    return marked


_Reader = TypeVar("_Reader", bound="EpochReader")
Get = Callable[[int], Any]
"""Returns the sample with an id: the `__getitem__` of the user's dataset."""

MOST_EPOCH = 1 << 62
"""As far as a saved state goes."""
_MOST_TOLD = 64  # sample ids in a message


@dataclass(eq=False)
class EpochReader:
    """Samples by id, epochs and cursors, batches in the planned order."""

    declared: tuple[Stream, ...]
    """The shard sets, as the user declared them."""
    stream_options: tuple[StreamOptions, ...]
    mixing: MixingOptions
    order: OrderOptions
    batch_size: int | None = None
    predownload: int | None = None
    transform: Callable[[Any], Any] | None = None
    """The constructor's argument; of each sample, or of each batch if it has an attribute `on_batches`."""
    include_ids: bool = False
    cache_limit: int | None = None
    chosen_world: World | None = None
    tracker: RunTracker = field(default_factory=RunTracker)
    opened: Opened = field(default_factory=Opened)
    history: History = field(default_factory=History)
    reweighted: Cursor | None = None
    """The loaded state, if its weights were changed when it was loaded."""
    # Of the latest two passes, such as the one that is read and the next one, whose length a loader is asked for:
    # with batches of streams in MosaicML's orders, only planning the epoch tells it.
    known_divisions: tuple[tuple[Any, Division], ...] = ()

    def view(self: _Reader) -> _Reader:
        """Return a copy that shares what was opened and the progress, for a loader to change."""
        return copy.copy(self)

    # ------------------------------------------------------------------ what there is

    @property
    def stream(self) -> OpenStreams:
        """The opened shard sets, as one run of samples; the first use opens them."""
        stream = self.opened.stream
        if stream is None:
            known = self.tracker.get().versions
            stream = open_streams(self.stream_options, known, cache_limit=self.cache_limit)
            agreed = self.tracker.agree(stream.versions)
            if agreed != stream.versions:  # another worker opened them first, before a new version was published
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
        """Ranks and hosts that share the epoch, those included that read the same samples."""
        return self.chosen_world if self.chosen_world is not None else detect_world()

    @property
    def readers(self) -> World:
        """The world of those who read different samples."""
        return reading_world(self.world, self.order)

    @property
    def worker(self) -> tuple[int, int]:
        """Number of this loader worker, and how many there are."""
        return 0, 1

    @property
    def transforms_samples(self) -> bool:
        """Whether there is a transform that is called with each sample."""
        return self.transform is not None and not getattr(self.transform, "on_batches", False)

    def sample(self, sample_id: int) -> Any:
        """Return one sample, transformed.

        Raises:
            IndexError: there is no such sample.
        """
        stream = self.opened.stream or self.stream
        if not 0 <= sample_id < len(stream):
            raise IndexError(f"sample {sample_id} of {stream.root}: it has samples 0 to {len(stream) - 1}.")
        sample = stream.sample(sample_id)
        return self.transform(sample) if self.transform is not None and self.transforms_samples else sample

    def stats(self, *, least: bool = True) -> CacheStats:
        """Return what reading has cost, here and in loader workers."""
        return self.history.stats(self.stream, least=least)

    def close(self) -> None:
        """Let go of open shards and fetching threads; the next use opens the same versions."""
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
        self.tracker.set(self.tracker.get().at_epoch(whole_number("epoch", epoch, 0, MOST_EPOCH)))

    def cursor(self) -> Cursor:
        """Return where the next iteration begins."""
        return self._cursor_at(self.tracker.get())

    def cursor_at_start(self) -> Cursor:
        """Return the start of the next iteration's epoch."""
        place = self.tracker.get()
        return self._fresh_cursor(place, place.next_epoch if place.resume is None else place.resume.epoch)

    def state_dict(self, num_samples: Any, *, from_beginning: bool) -> dict[str, Any]:
        """Return the state after `num_samples` global samples of the epoch at hand."""
        count = whole_number("num_samples", num_samples, 0)
        place = self.tracker.get()
        cursor = place.begun or self._cursor_at(place)
        before = cursor.samples if from_beginning else 0
        return cursor.advanced(count - before).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue where `state` was saved."""
        readers = self.readers
        if not self.history.begun:  # else loader workers may hold what is open
            self.opened.stream = as_saved(self.stream_options, self.stream, state, self.cache_limit)
        cursor = saved_cursor(
            state,
            self._first_cursor(),
            self.order,
            num_ranks=readers.num_ranks,
            sizes=self.sizes,
            change_weights=self.mixing.change_weights,
        )
        reweighted = cursor if changes_weights(state, cursor) else None
        if self.batch_size is not None:  # what it would refuse then is refused now
            start = begun(cursor, readers, self.batch_size)
            if reweighted is not None:
                check_next_epoch(start, self.sizes, self.batch_size * readers.num_ranks)
        self.reweighted = reweighted
        self.tracker.set(self.tracker.get().resumed(cursor, self.stream.versions))

    def begin_pass(self, batch_size: int | None = None, number: int | None = None) -> Pass:
        """Settle where an iteration begins, and count its epoch as begun.

        Args:
            batch_size: samples per rank and step, if the dataset has no batch size of its own.
            number: what `progress.enter` returned.
        """
        self._follow_versions()
        sizes, readers, size = self.sizes, self.readers, self.batch_size or batch_size  # opened before anybody waits
        if self.include_ids:
            check_names(self.stream.sets)

        def settle(place: RunPlace) -> Cursor:
            start = begun(self._cursor_at(place), readers, size)
            if size is not None and self.reweighted is not None and place.resume == self.reweighted:
                check_next_epoch(start, sizes, size * readers.num_ranks)
            return start

        start, is_first = self.tracker.begin(settle, number)
        this_pass = Pass(start, self.world)
        if size and is_first:
            self.history.begin(Reading(this_pass, sizes, size, self.order), self.stream)
        return this_pass

    def cursor_after(self, this_pass: Pass, steps: int) -> Cursor:
        """Return where the run stands after so many steps of a pass."""
        return cursor_after(this_pass.start, self.division(this_pass), steps)

    @property
    def sizes(self) -> Sizes:
        """Of every stream, the samples of each of its shards."""
        return [each.shard_sizes for each in self.stream.sets]

    def _follow_versions(self) -> None:
        """Open the versions that the program has changed to since this worker process opened others."""
        known, stream = self.tracker.get().versions, self.opened.stream
        if stream is not None and known and stream.versions != known:
            self.close()

    def _first_cursor(self) -> Cursor:
        sets = self.stream.sets
        mixed = [MixedStream(each.manifest.digest, each.options.split, each.num_samples) for each in sets]
        return first_cursor(self.order, self.readers, mixed, self.sizes, self.mixing)

    def _fresh_cursor(self, place: RunPlace, epoch: int) -> Cursor:
        return at_epoch(place.adopted or self._first_cursor(), epoch, self.sizes)

    def _cursor_at(self, place: RunPlace) -> Cursor:
        return place.resume if place.resume is not None else self._fresh_cursor(place, place.next_epoch)

    # ------------------------------------------------------------------ iteration

    def batches(self, this_pass: Pass, get: Get, *, columns: bool) -> Iterator[Any]:
        """Yield this worker's batches of a pass."""
        for step, ids in self.planned(this_pass, *self.worker):
            yield self.read(step, ids, None if columns else get)

    def planned(
        self, this_pass: Pass, worker: int = 0, num_workers: int = 1, *, num_readers: int = 1
    ) -> Iterator[Planned]:
        """Return the steps of one loader worker and the sample ids to read at each; shards are fetched as it goes."""
        place = {"worker": worker, "num_workers": num_workers, "num_readers": num_readers}
        return planned_ahead(self.reading(this_pass), self.stream, predownload=self.predownload, **place)

    def read(self, step: StepBatch, ids: NDArray[np.int64], get: Get | None) -> Any:
        """Return one batch, transformed: a list of samples from `get`, or columns without it."""
        return self._read_columns(step, ids) if get is None else self._read_samples(step, ids, get)

    def division(self, this_pass: Pass) -> Division:
        """Return which positions of the order this rank takes at which step."""
        asked, known = (this_pass, self.batch_size, self.order), self.known_divisions  # threads replace it
        for of, division in known:
            if of == asked:
                return division
        division = self.reading(this_pass).division
        self.known_divisions = ((asked, division), *known[:1])
        return division

    def plan(self, this_pass: Pass) -> GlobalOrder:
        """Return the global order of a pass's epoch."""
        return self.reading(this_pass).plan

    def reading(self, this_pass: Pass) -> Reading:
        """Return one rank's part of a pass: its steps and their sample ids; pure."""
        if self.batch_size is None:
            raise ValueError(
                "`batch_size` is needed to iterate a StreamingDataset: who reads what depends on it. Give it to the "
                "dataset, or use StreamingDataLoader(dataset, batch_size=...)."
            )
        return Reading(this_pass, self.sizes, self.batch_size, self.order)

    def for_loader(self: _Reader, batch_size: Any, *, drop_last: bool) -> _Reader:
        """Return a view that reads batches of this size.

        Raises:
            ValueError: no batch size, two that differ, or none that can be.
        """
        view, size = self.view(), checked(batch_size=batch_size)
        if size is not None and self.batch_size not in {None, size}:
            raise ValueError(f"`batch_size` is {size} for the loader and {self.batch_size} for the dataset; give one.")
        view.batch_size = size if size is not None else self.batch_size
        if view.batch_size is None:
            raise ValueError("`batch_size` is needed, on the loader or on the dataset: samples per rank and step.")
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
            return self.transform(columns)
        except Exception as error:
            more = ", ..." if len(ids) > _MOST_TOLD else ""
            self._note(error, f"transforming a batch of samples {', '.join(map(str, ids[:_MOST_TOLD].tolist()))}{more}")
            raise

    def _read_samples(self, step: StepBatch, ids: NDArray[np.int64], get: Get) -> list[Any]:
        samples = [self._noted_sample(sample_id, get) for sample_id in ids.tolist()]
        return with_marks(samples, self._marks(step, ids)) if self.include_ids else samples

    def _noted_sample(self, sample_id: int, get: Get) -> Any:
        try:
            return get(sample_id)
        except Exception as error:
            self._note(error, f"reading sample {sample_id}")
            raise

    def _note(self, error: Exception, doing: str) -> None:
        """Say in the traceback of the user's own code what it was called with."""
        told = isinstance(error, SmaltiError) and "sample_id" in error.facts
        if not told and hasattr(error, "add_note"):  # from Python 3.11 on
            digests = ", ".join(manifest.digest[:12] for manifest in self.manifests)
            error.add_note(f"while {doing} of {self.stream.root}, version digest {digests}")

    def _marks(self, step: StepBatch, ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        marks = {"_sample_id": ids, "_position": step.positions}
        return marks | {"_stream": self.stream.stream_of(ids)} if len(self.declared) > 1 else marks
