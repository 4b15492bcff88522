"""StreamingDataLoader: a torch DataLoader of whole batches, which counts and records those that its consumer takes."""

import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from smalti.attributes import Replaceable, whole_number, whole_or_none
from smalti.cache import Counters
from smalti.dataset.epoch_reader import BatchForm, EpochReader
from smalti.dataset.order import Pass, Reading
from smalti.dataset.skipping import Replacement, replaced
from smalti.dataset.streaming import sample_form
from smalti.errors import ArgumentError, ArgumentTypeError, SharedDatasetWarning, SmaltiError, StoreError, WorldMismatch
from smalti.ledger import LedgerWriter, PassStart, claim_life
from smalti.order import StepBatch
from smalti.torch.collate import SampleCollate, check_batches, columns_to_tensors
from smalti.torch.dataset import LoaderReader, StreamingDataset, view_for_loader
from smalti.torch.ranks import Agreement
from smalti.torch.shared_memory import PackingCollate, Ring
from smalti.torch.worker_processes import (
    TaskArgument,
    check_workers_while_waiting,
    end_of_worker,
    pickles_tasks,
    workers_keep_inherited_objects,
)
from smalti.torch.worker_threads import ThreadedIterator
from smalti.world import World

_STEPS_AT_ONCE = 64  # planned together: cheap per step, and little memory
WORKER_KINDS = ("auto", "thread", "process")
_SPARE_SLOTS = 4  # batches of each worker that the consumer may keep, besides those ahead, before the ring is full
NO_LEDGER = ""
"""`ledger` of a loader that is not to record, also in a run with a ledger."""
_lives_with_ledger: list[object] = []
_THREADS_PER_PROCESSOR = 16
_LOADER_IN_EPOCH: "weakref.WeakKeyDictionary[EpochReader, weakref.ref[StreamingDataLoader]]" = (
    weakref.WeakKeyDictionary()
)
"""The loader that is in the middle of an epoch, by dataset."""
_DEADLINE_SECONDS = 600.0  # a worker that delivers nothing for so long is considered dead


class StreamingDataLoader(DataLoader[Any]):
    """Batches of a StreamingDataset as dicts of tensors (and lists, for columns of varying size), with resume.

    Each `for batch in loader` is one epoch, or after `load_state_dict` the rest of one. `state_dict()` counts the
    batches that were taken out of the loader, not those that workers have prefetched; it is equal on all ranks.

    Args:
        dataset: what to read. An overridden `__getitem__` and per-sample transforms are called, for each sample.
        batch_size: samples per rank and step; needed here or on the dataset.
        num_workers: loader workers, threads or processes; 0 reads in the consumer's own thread.
        worker_kind: `thread`, `process`, or `auto`: threads, which deliver batches without a copy, if only the
            library's code runs in them (no `collate_fn`, per-sample transform, overridden `__getitem__`,
            `worker_init_fn` or `multiprocessing_context`, and a transform on batches only if its `thread_safe` is
            true); otherwise processes.
        collate_fn: makes a batch from a list of samples; by default columns become tensors directly.
        drop_last: leave out an incomplete last step; by default the dataset's `tail` decides.
        timeout: seconds to wait for a worker's batch; 0 means ten minutes.
        ledger: folder of the run's ledger, in which each step is recorded as it is taken, for `smalti ledger check`; a
            folder for each loader of a run. The first iteration begins a new life there, which is collective where a
            process group runs. Or this rank's own `LedgerWriter`.
        kwargs: DataLoader's other arguments. `shuffle`, `sampler` and `batch_sampler` belong to the dataset.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True)
        >>> loader = StreamingDataLoader(dataset, batch_size=5)
        >>> for batch in loader:
        ...     state = loader.state_dict()  # save it with the model
        ...     break
        >>> loader.load_state_dict(state)
        >>> sum(len(batch["user_id"]) for batch in loader)  # the other 10 of 15
        10
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        worker_kind: str = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0.0,
        ledger: str | Path | LedgerWriter | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise ArgumentTypeError(
                f"`dataset` must be a smalti StreamingDataset, found {type(dataset).__name__}; other datasets go to "
                "torch's own DataLoader."
            )
        for name in ("shuffle", "sampler", "batch_sampler"):
            if kwargs.pop(name, None):
                raise ArgumentError(
                    f"`{name}` is not the loader's: the dataset plans the order; give it `shuffle=True`."
                )
        num_workers = whole_number("num_workers", num_workers, 0)
        ahead = whole_or_none("prefetch_factor", kwargs.get("prefetch_factor"), 0)
        if ahead is not None:  # a worker must read at least one batch ahead
            kwargs["prefetch_factor"] = max(1, ahead) if num_workers else ahead
        view, self._loader_state = view_for_loader(
            dataset,
            batch_size,
            drop_last=drop_last,
            per_sample=collate_fn is not None,
            workers_persist=bool(kwargs.get("persistent_workers")),
        )
        # The library reads these and not the public names, which a subclass may replace.
        self._streaming_dataset, self._view = dataset, view._smalti
        declared = self._view.declared
        self._agreement = Agreement(repr([(stream.remote, stream.split) for stream in declared]))
        self._kind = _worker_kind(worker_kind, self._view, kwargs, by_column=self._loader_state.by_column)
        self._ledger = ledger
        self._pass: Pass | None = None
        self._taken = 0
        self._by_sample = SampleCollate()
        by_default: Callable[[Any], Any] = columns_to_tensors if self._loader_state.by_column else self._by_sample
        super().__init__(
            view,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate_fn or by_default,
            timeout=timeout or (_DEADLINE_SECONDS if num_workers else 0),
            **kwargs,
        )
        # The dataset yields whole batches, so torch's batch_size is None; these are for code that inspects the loader.
        self.__dict__["batch_size"], self.__dict__["drop_last"] = self._view.batch_size, drop_last

    @Replaceable
    def streaming_dataset(self) -> StreamingDataset:
        """The dataset that the loader was created with."""
        return self._streaming_dataset

    @Replaceable
    def worker_kind(self) -> str:
        """The kind of workers: `thread` or `process`."""
        return self._kind

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, to count what is taken
        """Iterate over one epoch, or the rest of one.

        Raises:
            CursorError: another rank of the process group began at another place.
            SchemaError: a batch by column would mix streams with different columns.
            SmaltiError: fewer batches were delivered than planned.
            RuntimeError: a worker process ended.
        """
        reader = self._streaming_dataset._smalti
        self._warn_of_other_loader(reader)
        this_pass = reader.begin_pass(self._view.batch_size)
        _LOADER_IN_EPOCH[reader] = weakref.ref(self)
        self._pass, self._taken, taken = this_pass, 0, 0
        self._agreement.check(self._view.reading(this_pass))
        if self._loader_state.by_column:
            check_batches(self._view.reading(this_pass), self._view.stream.sets)
        self._by_sample.stored = frozenset(name for each in self._view.stream.sets for name in each.columns)
        self._loader_state.begin(this_pass)
        planned = self._view.reading(this_pass).division.num_steps
        recorder = self._recorder(this_pass)
        skips = self._view.skip_count(this_pass)
        batches: Iterator[Any] = iter(())
        try:
            if planned:
                batches = self._open(this_pass)
            counters, size = self._view.stream.cache.counters, self._view.batch_size or 0
            for batch, replacements in timed(batches, counters, size):
                skips.counted(batch, replacements)
                taken += 1
                self._pass, self._taken = this_pass, taken  # another iteration may have begun since
                if recorder is not None:
                    recorder.take(replacements)
                yield batch
        except GeneratorExit:  # the consumer stopped early; persistent workers keep running
            raise
        except BaseException as error:
            try:  # torch's SIGCHLD handler may raise while this runs
                end = end_of_worker(error, _workers_of(batches if self._iterator is None else self._iterator))
            finally:
                self._end_workers(batches)
            if end is not None:
                raise end from error
            raise
        finally:
            if isinstance(batches, ThreadedIterator):
                batches.close()
            _LOADER_IN_EPOCH.pop(reader, None)
        if taken != planned:
            raise SmaltiError(
                f"epoch {this_pass.start.epoch} ended after {taken} of {planned} planned batches on rank "
                f"{this_pass.world.rank}: a loader worker stopped early. Resume from the state after the last batch.",
                planned=planned,
                delivered=taken,
            )
        if recorder is not None:
            recorder.end()

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than processors, as torch does, and of far more threads than can be of use."""
        if self._kind == "process":
            super().check_worker_number_rationality()
            return
        limit = _THREADS_PER_PROCESSOR * (os.cpu_count() or 1)
        if self.num_workers > limit:
            warnings.warn(
                f"`num_workers` is {self.num_workers}: this machine has {os.cpu_count()} processors, and more than "
                f"{limit} threads only take memory and wait for each other. Start with 2 to 8.",
                UserWarning,
                stacklevel=3,
            )

    def _warn_of_other_loader(self, reader: EpochReader) -> None:
        """Warn if another loader is in the middle of an epoch of the same dataset, whose epochs the two would share."""
        known = _LOADER_IN_EPOCH.get(reader)
        other = None if known is None else known()
        if other is not None and other is not self:
            warnings.warn(
                f"two StreamingDataLoaders read {self._view.stream.root} through one dataset at the same time. A "
                "dataset has one sequence of epochs, so each loader gets every other epoch. Give each loader a "
                "StreamingDataset of its own.",
                SharedDatasetWarning,
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, equal on all ranks."""
        view = self._view
        return view.reading(Pass(view.cursor_at_start(), view.world)).division.num_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch taken, as a small JSON-able dict, equal on all ranks."""
        reader = self._streaming_dataset._smalti
        if self._pass is None or reader.tracker.get().begun is None:
            return reader.cursor().to_state()
        if isinstance(self._ledger, LedgerWriter):
            self._ledger.mark()  # a run may resume here
        return self._view.reading(self._pass).cursor_after(self._taken).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue where `state` was saved, with any world, number of workers or batch size.

        Raises:
            CursorError: the state is damaged, or belongs to another data set, version, split, seed or order.
        """
        self._streaming_dataset._smalti.load_state_dict(state)

    def _recorder(self, this_pass: Pass) -> "PassRecorder | None":
        if self._ledger is None and _lives_with_ledger and self._view.order.shuffle:
            raise SmaltiError(
                "this run has `log_samples`, and a shuffled loader that the function has made itself would not record "
                "what it reads. Make it by `context.dataloader`, or pass `ledger=context.ledger` to it; or leave "
                "`log_samples` out."
            )
        if self._ledger is None or self._ledger == NO_LEDGER:
            return None
        if not isinstance(self._ledger, LedgerWriter):
            self._ledger = open_ledger(self._ledger, this_pass.world)
        return PassRecorder(self._ledger, self._view.reading(this_pass))

    def _open(self, this_pass: Pass) -> Iterator[Any]:
        if self.num_workers and self._kind == "process":
            return self._processes()
        # Torch draws a seed for worker processes here: random numbers must not depend on the kind of workers.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        if not self.num_workers:
            return map(self._reader(), self._view.planned(this_pass))
        return ThreadedIterator(
            self._view.planned(this_pass, num_readers=self.num_workers),
            self._reader(),
            num_threads=self.num_workers,
            num_ahead=self.num_workers * (self.prefetch_factor or 1),
            timeout=self.timeout,
        )

    def _processes(self) -> Iterator[Any]:
        """Return torch's iterator over worker processes; new workers send batches through a ring."""
        if self._iterator is not None:  # persistent workers have a ring
            if _can_continue(self._iterator):
                return super().__iter__()
            self._end_workers(self._iterator)
        collate, view = self.collate_fn, self.dataset
        self.collate_fn = partial(_collate_first, collate)
        ring = Ring.create(self.num_workers, (self.prefetch_factor or 1) + _SPARE_SLOTS)
        if ring is not None:
            self.collate_fn = PackingCollate(self.collate_fn, ring)
        # In a file, as a worker that dies at its start would block this process otherwise.
        task = TaskArgument(view) if pickles_tasks(self.multiprocessing_context) else nullcontext(view)
        try:
            self._loader_state.for_workers = True
            with task as argument, workers_keep_inherited_objects():
                self.__dict__["dataset"] = argument
                batches = super().__iter__()
            check_workers_while_waiting(batches)
            return batches
        finally:
            self.collate_fn, self.__dict__["dataset"] = collate, view
            self._loader_state.for_workers = False

    def _reader(self) -> Callable[[tuple[StepBatch, Any]], tuple[Any, Sequence[Replacement]]]:
        """Return a function that reads and collates one planned batch, as `EpochReader.read` does; thread-safe."""
        view, collate, pinned = self._view, self.collate_fn, _pinning() if self.pin_memory else None
        form = (
            BatchForm.COLUMNS if self._loader_state.by_column else sample_form(cast("StreamingDataset", self.dataset))
        )

        def read(planned: tuple[StepBatch, Any]) -> tuple[Any, Sequence[Replacement]]:
            batch, replacements = view.read(*planned, form)
            batch = collate(batch)
            return batch if pinned is None else pinned(batch), replacements

        return read

    def _end_workers(self, batches: Iterator[Any]) -> None:
        """End the workers of a failed epoch now: the traceback would keep them alive, and forks would inherit them."""
        persistent, self._iterator = self._iterator, None
        for each in (persistent, batches):
            shut_down = getattr(each, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()


def _collate_first(collate: Callable[[Any], Any], pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the collated batch, and the replacements that it comes with."""
    return collate(pair[0]), pair[1]


def timed(
    batches: Iterator[Any], counters: Counters, batch_size: int, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Any]:
    """Yield batches, and count for `stats` how long the loop waits for each and works on it."""
    mark = clock()
    for batch in batches:
        waited = clock() - mark
        yield batch
        now = clock()
        counters.add(
            loop_samples=batch_size,
            loop_microseconds=round((now - mark) * 1e6),
            loop_wait_microseconds=round(waited * 1e6),
        )
        mark = now


def _workers_of(batches: Any) -> Sequence[BaseProcess]:
    return getattr(batches, "_workers", ())


def _can_continue(persistent: Any) -> bool:
    """Return whether idle workers can read another epoch; an interrupt, sent to every process, has ended them."""
    collate = persistent._collate_fn
    is_worn = isinstance(collate, PackingCollate) and collate.ring.is_worn
    return not is_worn and all(worker.is_alive() for worker in _workers_of(persistent))


def _worker_kind(choice: str, view: LoaderReader, options: Mapping[str, Any], *, by_column: bool) -> str:
    """Return `thread` or `process`, for the user's choice."""
    if choice not in WORKER_KINDS:
        raise ArgumentError(f"`worker_kind` must be one of {', '.join(WORKER_KINDS)}, found {choice!r}.")
    for_processes = [name for name in ("worker_init_fn", "multiprocessing_context") if options.get(name) is not None]
    if choice == "thread" and for_processes:
        raise ArgumentError(
            f"`{for_processes[0]}` is for worker processes; leave it out, or give worker_kind='process'."
        )
    if choice != "auto":
        return choice
    is_thread_safe = by_column and (view.transform is None or bool(getattr(view.transform, "thread_safe", False)))
    return "thread" if is_thread_safe and not for_processes else "process"


def _pinning() -> Callable[[Any], Any] | None:
    """Return a function that copies a batch into page-locked memory for the current device; None without a device."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":
        return None
    device = torch.accelerator.current_device_index()

    def pinned(batch: Any) -> Any:
        torch.accelerator.set_device_index(device)  # a new thread would use device 0, and create a context there
        return pin_memory(batch)  # type: ignore[no-untyped-call]  # torch's own

    return pinned


@contextmanager
def ledger_required() -> Iterator[None]:
    """Refuse in the body, in all threads, to iterate over shuffled loaders that have no ledger."""
    life = object()
    _lives_with_ledger.append(life)
    try:
        yield
    finally:
        _lives_with_ledger.remove(life)


def open_ledger(folder: str | Path, world: World, mode: str = "steps") -> LedgerWriter:
    """Return a writer of this rank's file of a new life of the run. Collective if a process group is running.

    Raises:
        StoreError: the folder cannot be written.
        WorldMismatch: there are several ranks and no process group in which they could agree on the life's number.
    """
    if dist.is_available() and dist.is_initialized():
        # Rank 0 claims the number. Its failure is raised on every rank, as the others would wait for it.
        outcome: list[int | str | None] = [None]
        if dist.get_rank() == 0:
            try:
                outcome = [claim_life(folder)]
            except StoreError as fault:
                outcome = [str(fault)]
        dist.broadcast_object_list(outcome, src=0)
        if not isinstance(outcome[0], int):
            raise StoreError(f"the first rank could not number this life of the run: {outcome[0]}")
        return LedgerWriter(folder, life=outcome[0], world=world, mode=mode)
    if world.num_ranks != 1:
        raise WorldMismatch(
            f"a ledger of {world.num_ranks} ranks without a process group: they cannot agree on the number of the "
            "run's life. Make the group first, or pass as `ledger` a LedgerWriter(folder, life=..., world=...) whose "
            "life one process got from `claim_life` and shared with the others.",
            num_ranks=world.num_ranks,
        )
    return LedgerWriter(folder, life=claim_life(folder), world=world, mode=mode)


class PassRecorder:
    """A recorder of one pass; call `take` once for each batch, in order."""

    def __init__(self, writer: LedgerWriter, reading: Reading) -> None:
        start, options = reading.this_pass.start, reading.options
        writer.begin_pass(PassStart(start, reading.batch_size, options.tail, options.replication))
        self._writer, self._number = writer, writer.num_passes
        firsts = range(0, reading.division.num_steps, _STEPS_AT_ONCE)
        self._epoch = start.epoch
        self._planned = chain.from_iterable(reading.steps(first, first + _STEPS_AT_ONCE) for first in firsts)

    def take(self, replacements: Sequence[Replacement] = ()) -> None:
        """Record the next step's samples, before the step takes effect; those replaced as skipped.

        Raises:
            SmaltiError: another iteration with the same ledger has begun since; a ledger records one at a time.
        """
        if self._writer.num_passes != self._number:
            raise SmaltiError(
                f"ledger {self._writer.path}: a step of epoch {self._epoch} was taken after another iteration began; "
                "a run with a ledger reads one epoch after the other. Give loaders that read in turns ledgers of their "
                "own.",
                epoch=self._epoch,
            )
        step, ids = next(self._planned)
        skipped = [each.skipped for each in replacements if each.skipped.position >= 0]
        step, ids = replaced(step, ids, replacements)
        self._writer.record(step.step, self._epoch, step.positions, ids, skipped)

    def end(self) -> None:
        """Record that the epoch was read to its end."""
        self._writer.end_pass()
