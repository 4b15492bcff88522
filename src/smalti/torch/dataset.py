"""The datasets of `smalti.dataset` and `smalti.dataset.local` as datasets of torch.

StreamingDataset is an `IterableDataset` whose samples are divided over loader workers; LocalDataset is map-style.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from multiprocessing import context
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from smalti.cursor import Cursor
from smalti.dataset import StreamingDataset as CoreDataset
from smalti.dataset.epoch_reader import BatchForm, EpochReader, Form
from smalti.dataset.local import LocalDataset as _LocalDataset
from smalti.dataset.order import Pass
from smalti.dataset.resume import RunTracker
from smalti.dataset.streaming import reads_columns, sample_form, view_of
from smalti.errors import ArgumentTypeError, CursorError
from smalti.torch.ranks import group_runs, running_world
from smalti.torch.shared_progress import Board, SharedProgress
from smalti.torch.worker_processes import end_with_program
from smalti.world import World


@dataclass
class LoaderState:
    """The settings and the current pass that a loader shares with its view of a dataset, and so with the workers."""

    by_column: bool
    """True if batches are read as columns, False if as lists of samples."""
    workers_persist: bool = False
    """True if worker processes outlive a pass."""
    this_pass: Pass | None = None
    """The pass that is being read."""
    board: Board | None = None
    """The start of the pass for persistent workers: the cursor's state."""
    for_workers: bool = False
    """True in the loader's own workers, whose batches come with the replacements in them: the loader counts these."""

    def __getstate__(self) -> dict[str, Any]:
        is_shared = self.board is None or context.get_spawning_popen() is not None
        return vars(self) | ({} if is_shared else {"this_pass": self.current(), "board": None})

    def begin(self, this_pass: Pass) -> None:
        """Set the next pass, for the view and for workers that are already running."""
        self.this_pass = this_pass
        if self.workers_persist:
            self.board = self.board or Board()  # made for the first pass, before its workers are started
            with self.board.content() as content:
                content["start"] = this_pass.start.to_state()

    def current(self) -> Pass:
        """Return the pass to read, in the loader's process and in its workers."""
        if self.this_pass is None:
            raise CursorError(
                "this view of a StreamingDataset belongs to a loader: iterate the loader, or the dataset itself, and "
                "leave the loader out of Accelerate's `prepare`: it divides its batches over the ranks already."
            )
        if self.board is None:
            return self.this_pass
        with self.board.content() as content:
            return replace(self.this_pass, start=Cursor.from_state(content["start"]))


@dataclass(eq=False)
class LoaderReader(EpochReader):
    """An EpochReader that takes world and worker from torch, and the pass from a StreamingDataLoader if it has one."""

    tracker: RunTracker = field(default_factory=SharedProgress)
    loader: LoaderState | None = None
    """The loader's state, on a view that a StreamingDataLoader created."""

    @property
    def world(self) -> World:
        """The user's world, or that of the launcher or a running process group."""
        return self.chosen_world if self.chosen_world is not None else running_world()

    @property
    def worker(self) -> tuple[int, int]:
        """Number of this loader worker, and number of workers."""
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.chosen_world is None and context.get_spawning_popen() is not None and group_runs():
            state["chosen_world"] = running_world()  # a spawned worker is not in the group
        return state


class StreamingDataset(CoreDataset, IterableDataset[Any]):
    """Samples of a shard set or of a mixture of several, for a `StreamingDataLoader`, by id, or iterated one by one.

    A rank's t-th batch is read by worker t mod W, so the batches do not depend on the number of workers. Torch's own
    DataLoader, with the same `batch_size` as the dataset, reads the same samples one by one: see docs/frameworks.md.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/photos", split="train", shuffle=True, batch_size=8)
        >>> dataset.size
        32
        >>> dataset[0]["class_name"]
        'cat'
        >>> len([sample["label"] for sample in dataset])  # one epoch
        32
    """

    _smalti_reader = LoaderReader
    _smalti: LoaderReader

    def __iter__(self) -> Iterator[Any]:
        """Iterate over samples; on a loader's view over whole batches, in its workers with the replacements in each."""
        reader = self._smalti
        if get_worker_info() is not None:
            end_with_program()
        if reader.loader is None:
            return SampleIterator(reader, sample_form(self))
        form = BatchForm.COLUMNS if reader.loader.by_column else sample_form(self)
        this_pass = reader.loader.current()
        if not reader.loader.for_workers:
            return reader.batches(this_pass, form)
        return (reader.read(step, ids, form) for step, ids in reader.planned(this_pass, *reader.worker))


def view_for_loader(
    dataset: StreamingDataset, batch_size: Any, *, drop_last: bool, per_sample: bool, workers_persist: bool
) -> tuple[StreamingDataset, LoaderState]:
    """Return a view of a dataset that iterates whole batches, for a loader, and the state that both share.

    Raises:
        ValueError: there is no batch size, two sizes differ, or the size is invalid.
        TypeError: the dataset overrides `__iter__`, which a loader of whole batches cannot call.
    """
    if type(dataset).__iter__ is not StreamingDataset.__iter__:
        raise ArgumentTypeError(
            f"{type(dataset).__name__} overrides `__iter__`, and StreamingDataLoader reads samples by `__getitem__`: "
            "the override would be ignored. Override `__getitem__` or `get_item` instead, or use "
            "torch.utils.data.DataLoader, which calls `__iter__`."
        )
    reader = dataset._smalti.for_loader(batch_size, drop_last=drop_last)
    columns = reads_columns(dataset) and not per_sample
    reader.loader = LoaderState(by_column=columns, workers_persist=workers_persist)
    return view_of(dataset, reader), reader.loader


class LocalDataset(_LocalDataset, Dataset[dict[str, Any]]):
    """The samples of a complete shard set in a local folder, for torch's `DataLoader` with any sampler.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> dataset = LocalDataset("/data/users", columns=["user_id"])
        >>> next(iter(DataLoader(dataset, batch_size=3)))
        {'user_id': tensor([0, 1, 2])}
    """

    def __getitems__(self, sample_ids: list[int]) -> list[dict[str, Any]]:
        """Return the samples of one batch; torch's loader calls this instead of `__getitem__` for each sample."""
        if type(self).__getitem__ is not _LocalDataset.__getitem__:  # a subclass's takes one number
            return [self[each] for each in sample_ids]
        samples: list[dict[str, Any]] = self[list(sample_ids)]
        return samples


class SampleIterator(Iterator[Any]):
    """One worker's samples of an epoch, or of the rest of one, with a state for torchdata's StatefulDataLoader.

    torchdata saves the state of the iterator inside every worker with the batches that the consumer took, and passes it
    to the same worker later. So a state belongs to one worker. Unlike a loader's cursor, it can be loaded only with the
    same ranks, workers and batch size; anything else is an error.

    In a worker process the epoch begins when the iterator is created, elsewhere with the first sample. The position of
    the dataset's reader advances as in any iteration.
    """

    def __init__(self, reader: EpochReader, form: Form) -> None:
        self._reader, self._form, self._place = reader, form, reader.worker
        self._number = reader.tracker.enter()
        self._pass: Pass | None = None
        self._rest: Iterator[Any] = iter(())
        self._num_taken = 0
        if self._number is not None:
            self._begin(num_taken=0)

    def __next__(self) -> Any:
        """Return the next sample."""
        if self._pass is None:
            self._begin(num_taken=0)
        sample = next(self._rest)
        self._num_taken += 1
        return sample

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker as a small JSON-able dict; it differs between workers."""
        start = self._reader.cursor() if self._pass is None else self._pass.start
        return {"start": start.to_state(), "given": self._num_taken, "reader": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last sample before `state` was saved, without reading the samples before it.

        Raises:
            CursorError: the state is damaged, or of another data set, order, rank, worker or batch size.
        """
        num_taken, start, reader = state.get("given"), state.get("start"), state.get("reader")
        if (
            type(num_taken) is not int
            or num_taken < 0
            or not isinstance(start, Mapping)
            or not isinstance(reader, Mapping)
        ):
            raise CursorError(
                "saved state of an iterator: expected 'start' and 'reader' as mappings, and 'given' as a whole number "
                f"from 0, found {type(start).__name__}, {type(reader).__name__} and {num_taken!r:.80}; the state is "
                "damaged: use an older checkpoint."
            )
        for name, now in self._identity().items():
            if reader.get(name) != now:
                raise CursorError(
                    f"cannot resume here: this state was saved with {name} {reader.get(name)!r:.80}, and here it is "
                    f"{now!r}. A state of torchdata's StatefulDataLoader holds for the same processes, workers and "
                    "batch size; one of smalti.StreamingDataLoader holds for any.",
                    what=name,
                    saved=reader.get(name),
                    found=now,
                )
        self._reader.load_state_dict(start)
        self._begin(num_taken)

    def _identity(self) -> dict[str, Any]:
        world = self._reader.world if self._pass is None else self._pass.world
        worker, num_workers = self._place
        return {
            "rank": world.rank,
            "num_ranks": world.num_ranks,
            "worker": worker,
            "num_workers": num_workers,
            "batch_size": self._reader.batch_size,
        }

    def _begin(self, num_taken: int) -> None:
        """Begin after `num_taken` samples: complete steps are skipped without reading, part of a step by reading it."""
        this_pass = self._reader.begin_pass(number=self._number)
        self._pass, self._num_taken = this_pass, num_taken
        reading, (_, num_workers) = self._reader.reading(this_pass), self._place
        division = reading.division
        own_steps, samples_in_step = divmod(num_taken, division.batch_size)
        steps = own_steps * num_workers  # of all workers, so that the next step is this worker's again
        if steps >= division.num_steps:
            self._rest = iter(())
            return
        later = replace(this_pass, start=reading.cursor_after(steps)) if steps else this_pass
        batches = self._reader.batches(this_pass, self._form, later)
        self._rest = islice(chain.from_iterable(batches), samples_in_step, None)
