"""The context of a user's training function: its ranks, data, checkpoints and reports; docs/training.md has an example.

The cursors of the loaders are saved with the function's state, so that both are of one step.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from smalti.dataset import OrderOptions
from smalti.errors import CheckpointError, CursorError, TrainingError
from smalti.stream import Stream
from smalti.torch.loader import NO_LEDGER, StreamingDataLoader, ledger_required
from smalti.torch.train.config import RunConfig
from smalti.torch.train.data import MIXTURE, EvaluationLoader, PinnedData, Pins, TrainingLoader, cursor_name
from smalti.torch.train.life import BY_FUNCTION, DONE, Life, Saves, checked_step
from smalti.torch.train.ranks import memory_figures, pace_figures
from smalti.torch.train.run.files import Snapshot, pack_state, unpack_state

T = TypeVar("T")
_KIND = "function"
"""`kind` in the state of checkpoints of functions; the trainer's have none."""


@dataclass(frozen=True)
class Checkpoint:
    """The newest checkpoint that verified."""

    step: int
    state: Any
    """The value that the function saved; tensors are on the CPU."""
    address: str
    files: Path | None = None
    """Local folder with the files that were saved with the state, to be read only; None if there are none."""


class Context:
    """The argument of a training function, on each rank.

    Examples:
        >>> def fit(context):
        ...     model = torch.nn.Linear(1, 1).to(context.device)
        ...     checkpoint = context.latest()  # None at the first start
        ...     step = 0 if checkpoint is None else checkpoint.step
        ...     for batch in context.dataloader(batch_size=5):
        ...         loss = model(batch["user_id"][:, None].float()).mean()
        ...         step += 1
        ...         context.report({"loss": loss}, step=step)
        ...     context.save(step, {"model": model.state_dict()})
        ...     return step
        >>> launch(fit, data="s3://bucket/users", run_dir="s3://bucket/runs/8")
        3
    """

    def __init__(self, life: Life, run: RunConfig, config: Any) -> None:
        self.config = config
        """The `config` that `launch` was called with."""
        self.run = run
        """The place of the run, and the way in which it was launched."""
        self.log = logging.getLogger("smalti.train")
        """A logger; lines of child processes are delivered as `output` events."""
        self._life, self._ranks = life, life.ranks
        self.world = life.ranks.world
        """The ranks of the run, and which of them this is."""
        self.rank = life.ranks.rank
        """Number of this rank, from 0."""
        self.is_first = life.ranks.is_first
        """True on rank 0."""
        self.device = life.ranks.device
        """The device of this rank."""
        self.ledger = life.ledger
        """The ledger of this rank, for a loader that the function makes itself; None: the run has no `log_samples`.

        The training loaders of `dataloader` record in it already. It takes one iteration after the other. Shuffled
        loaders without a ledger are refused while a run has one."""
        self._loaders: dict[str, StreamingDataLoader] = {}
        self._data = PinnedData(run, life.ranks)
        self._has_begun = self._stopped = False
        self._saved: str | None = None
        self._saves = Saves(life, run, self._check_state)
        self._files: dict[tuple[str, ...], Path | None] = {}
        self._state: Any = None
        self._cursors: Mapping[str, Any] = {}
        if (snapshot := self._saves.resume()) is not None:
            self._state, self._cursors, self._data.pins = self._unpacked(snapshot)

    def latest(self, *, files: Sequence[str] = ("*",)) -> Checkpoint | None:
        """Return the newest checkpoint of earlier lives that verifies, the same on all ranks; None if there is none.

        From a store, each rank fetches the saved files whose names match one of the patterns `files`.

        Raises:
            CheckpointError: a file was changed since the checkpoint was verified.
            StoreError: the store cannot be read.
        """
        resumed = self._saves.resumed_from
        if resumed is None:
            return None
        address, patterns = str(resumed["checkpoint"]), tuple(files)
        if patterns not in self._files:
            self._files[patterns] = self._saves.checkpoints.files(address, patterns)
        return Checkpoint(int(resumed["step"]), self._state, address, self._files[patterns])

    def dataloader(
        self,
        split: str | None = None,
        *,
        batch_size: int,
        data: str | None = None,
        streams: Sequence[Stream] | None = None,
        shuffle: bool = True,
        resume: bool | None = None,
        loader: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> StreamingDataLoader:
        """Return a loader of this rank's share of a split, which resumes at the cursor of the newest checkpoint.

        A loader that does not resume, as for an evaluation, yields each sample once and repeats none: its last batch
        may be smaller, so a mean over batches must be weighted, and a rank may have one batch fewer than others. Call
        the model itself there, not DistributedDataParallel around it, and `reduce` the sums after the loop.

        Args:
            split: the split; None: all samples.
            batch_size: samples per step over all ranks.
            data: address of the shard set; None: that of the run.
            streams: shard sets to mix, in place of `data`; the run keeps to the versions that it began with. Those
                without `storage_options` have those of the run, if they are on the service of its data.
            shuffle: whether the order is shuffled.
            resume: whether the loader's cursor is saved and restored; None: if it shuffles, as training data do.
            loader: further arguments of `StreamingDataLoader`, such as `num_workers`.
            options: further arguments of `StreamingDataset`, such as `shuffle_seed`, `transform` or `version`.

        Raises:
            WorldMismatch: the batch does not divide over the ranks.
            CursorError: the data have another digest than the run's `digest`, or than those of the checkpoint, or the
                run's data are at another address than those.
            SchemaError: the split has no samples.
            TrainingError: there are both `data` and `streams`, or a stream is no `Stream` with an address.
        """
        if data is not None and streams is not None:
            raise TrainingError("`dataloader` takes `data` or `streams`, not both: make the data one of the streams.")
        mixed = (self._data.single(data, options.get("storage_options")),) if streams is None else tuple(streams)
        resume = shuffle if resume is None else resume
        # Without repeats: figures of an evaluation count each sample once.
        order = {} if resume else {"order": OrderOptions(tail="short")}
        dataset = self._data.open(mixed, split, batch_size, shuffle=shuffle, options={**order, **options})
        if self._has_begun:  # what the trainer opens before is in its event `start`
            for stream in dataset.streams:
                version, digest = self._data.pins[str(stream.remote)]
                part = stream.split or split
                self._life.events.emit("data", data=stream.remote, split=part, version=version, digest=digest)
        ledger = self._life.ledger if resume else None
        pinned = {"pin_memory": self.device.type == "cuda"}
        given: dict[str, Any] = {"ledger": ledger or NO_LEDGER, **pinned, **(loader or {})}
        if not resume:
            # A `tail` of the caller's own decides what ranks without samples get.
            kind = StreamingDataLoader if "order" in options else EvaluationLoader
            batches: StreamingDataLoader = kind(dataset, **given)
        else:
            batches = TrainingLoader(dataset, **given)
            if self._has_begun:  # the trainer's own events say the same of its epochs
                batches.on_end = lambda epoch: self._life.events.emit("pass", split=split, epoch=epoch, **self.stats())
            address = self._data.address(data) if streams is None else MIXTURE
            name = cursor_name(split, address)
            if name in self._loaders:
                shown = address if streams is None else "a mixture"
                raise CursorError(
                    f"there are two resuming loaders of split {split!r} of {shown}; their cursors "
                    "would have one name: give all but one `resume=False`, or iterate over the first again."
                )
            self._loaders[name] = batches
            if name in self._cursors:
                batches.load_state_dict(self._cursors[name])
            elif data is None and streams is None:
                self._check_cursor(name, split)
        return batches

    def epoch(self, loader: StreamingDataLoader) -> int:
        """Return the number of the epoch that the next iteration over a loader begins or continues, from 0."""
        return int(loader.state_dict()["epoch"])

    def report(self, metrics: "Mapping[str, float | torch.Tensor]", *, step: int) -> None:
        """Record figures of a step, of rank 0, with measures of speed and memory: an event of the run. Not collective.

        Raises:
            TrainingError: a figure is not a number, or `step` is not a whole number from 0.
        """
        step = checked_step(step)
        figures = {name: _figure(name, value, step) for name, value in metrics.items()}
        # JSON has no infinities.
        shown = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
        measures = {**self.stats(), **memory_figures(self.device)}
        self._life.events.emit("report", step=step, metrics=shown, measures=measures)

    def best(self, *, files: Sequence[str] = ("*",)) -> Checkpoint | None:
        """Return the checkpoint with the best figure, as `keep_best` of the run says; None if none has one. Collective.

        Checkpoints of this life are looked at, too, after the last one is published.

        Raises:
            SmaltiError: the last checkpoint could not be written, or the best one cannot be read.
        """
        address = self._saves.find_best()
        if address is None:
            return None
        snapshot = self._saves.load(address)
        state, _, _ = self._unpacked(snapshot)
        return Checkpoint(snapshot.step, state, address, self._saves.checkpoints.files(address, files))

    def save(
        self,
        step: int,
        state: Any = None,
        files: str | Path | None = None,
        *,
        metrics: "Mapping[str, float | torch.Tensor] | None" = None,
        wait: bool = False,
    ) -> str:
        """Begin to save a checkpoint, and return its address. Collective; the loop continues while it is written.

        The state is that of rank 0. Files may come from any ranks: from each its own, as of a sharded model, or from
        several the same. They are copied before this returns. A checkpoint that could not be written is an error of
        the next `save` or `should_stop`, or at the end of the function.

        Args:
            step: optimiser steps done, not fewer than at the last checkpoint; one of the same step is replaced.
            state: tensors, arrays, numbers and texts, and lists, tuples and dicts of them, such as `state_dict()`s.
            files: a local folder with files of any kind, or a file; `latest` returns them.
            metrics: figures of this checkpoint, for `keep_best` of the run.
            wait: whether to wait until the checkpoint is published.

        Raises:
            CheckpointError: this or the last checkpoint could not be written or does not verify; earlier ones are
                untouched.
            TrainingError: the step is lower than that of the last checkpoint, or differs between ranks; the run was
                started again elsewhere, or the last checkpoint was not written in time.
            StoreError: the store cannot be written.
        """
        step = checked_step(step)
        cursors = {name: loader.state_dict() for name, loader in self._loaders.items()}
        figures = {name: _figure(name, value, step) for name, value in (metrics or {}).items()}
        known = {name: value for name, value in figures.items() if math.isfinite(value)}  # JSON has no others
        self._saved = self._saves.save(step, lambda: self._packed(step, state, cursors, known), files, wait=wait)
        return self._saved

    def stats(self) -> dict[str, float]:
        """Return the speed of this life's training loaders so far. Not collective.

        Returns:
            `samples_per_second` over all ranks, and `data_fraction`, the share of the time of the loops in which they
            waited for data, in [0, 1]; empty before the second batch.
        """
        measured = [loader._streaming_dataset._smalti.stats(least=False) for loader in self._loaders.values()]
        return pace_figures(measured, self.world.num_ranks)

    def reduce(self, value: Any, how: Literal["mean", "sum"] = "mean") -> Any:
        """Return the mean or the sum of a value over all ranks, the same on each. Collective.

        Args:
            value: a number, or a tensor with the same shape on all ranks.
            how: `mean` or `sum`.

        Returns:
            A float, or a tensor of the shape and device of `value`, computed in double precision. Its dtype is that of
            `value`; for integers and booleans, sums are int64 and means float64.

        Examples:
            >>> loss = context.reduce(loss_sum, "sum") / context.reduce(num_samples, "sum")
        """
        if how not in ("mean", "sum"):
            raise TrainingError(f"`how` is {how!r}; expected 'mean' or 'sum'.")
        tensor = value if isinstance(value, torch.Tensor) else None
        if tensor.is_complex() if tensor is not None else not isinstance(value, Real):
            raise TrainingError(f"`value` is {value!r:.80}; expected a number, or a tensor of real numbers.")
        numbers = [float(value)] if tensor is None else tensor.detach().double().flatten().tolist()
        parts = self._ranks.num_ranks if how == "mean" else 1
        totals = [total / parts for total in self._ranks.total(numbers, "reduce a value")]
        if tensor is None:
            return totals[0]
        # A mean of integers is none, and a sum of small ones need not fit their dtype.
        whole = torch.int64 if how == "sum" else torch.float64
        dtype = tensor.dtype if tensor.dtype.is_floating_point else whole
        return torch.tensor(totals, dtype=torch.float64).reshape(tensor.shape).to(tensor.device, dtype)

    def should_stop(self) -> bool:
        """Return whether the run is to stop: SIGTERM, SIGUSR1, `request_stop` or `stop` on some rank. Collective.

        Call it after each step, on all ranks. They exchange the answer about once a second, at most every 16th call.
        A function that stops saves a checkpoint and returns; `launch` then raises a TrainingError, unless it was
        stopped by `stop`.

        Raises:
            SmaltiError: the last checkpoint could not be written.
        """
        self._stopped = self._stopped or self._saves.should_stop()
        return self._stopped

    def request_stop(self) -> None:
        """Make a next `should_stop` true on all ranks, such as after a notice of preemption; from any thread."""
        self._life.stop.request(BY_FUNCTION)

    def stop(self, reason: str) -> None:
        """Make a next `should_stop` true on all ranks because the training is done; from any thread of any rank.

        What the function returns then is the result of the run, and the event `end` has the reason.

        Examples:
            >>> if loss > best:
            ...     context.stop("the loss rises")
        """
        self._life.stop.request(DONE, reason)

    # ------------------------------------------------------------ not for functions

    def begin(self, **facts: Any) -> None:
        """Record that the life begins, at the step that it resumes from, with facts of the program."""
        resumed, ranks = self._saves.resumed_from, self._ranks
        self._life.events.emit(
            "start",
            life=self._life.number,
            step=0 if resumed is None else int(resumed["step"]),
            num_ranks=ranks.num_ranks,
            num_hosts=ranks.world.num_hosts,
            device=str(ranks.device),
            **facts,
            resumed_from=resumed,
        )
        self._has_begun = True

    def end(self, write: Callable[[], T], what: str, **facts: Any) -> T:
        """Publish the result of the program and the logs, and return what `write` returns on rank 0. Collective.

        Args:
            write: writes the result; called on rank 0, and may take longer than one wait of the ranks.
            what: what it does.
            facts: further facts of the event `end`.

        Raises:
            TrainingError: the program has stopped before it was done.
        """
        self._saves.finish()
        if self._stopped and not self._saves.is_done:
            raise self._saves.stopped(self._saved or "")
        result = self._ranks.run_long_on_first(write, what)
        reason = {"stopped": self._saves.stop_cause} if self._stopped else {}
        self._life.events.emit("end", life=self._life.number, **facts, **reason)
        self._ranks.run_on_all(self._life.put_logs, "write the logs")
        return result

    @property
    def newest(self) -> str:
        """Address of the newest checkpoint of this life, or of the one that it resumed from; empty if there is none."""
        return self._saved or str((self._saves.resumed_from or {}).get("checkpoint", ""))

    def _check_cursor(self, name: str, split: str | None) -> None:
        """Check that the checkpoint has no cursor of this split of data at another address."""
        mark = f"{split or ''}@"
        if found := [other.removeprefix(mark) for other in self._cursors if other.startswith(mark)]:
            raise CursorError(
                f"the checkpoint has the cursor of split {split!r} of {', '.join(found)}, and the run's data are now "
                f"at {name.removeprefix(mark)}: it would begin the epochs again. Give the same address, or another "
                "`run_dir`.",
                expected=tuple(found),
                found=name.removeprefix(mark),
            )

    # ------------------------------------------------------------ the layout of checkpoints

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a checkpoint was saved by a function."""
        if state.get("kind") != _KIND or not isinstance(state.get("cursors"), dict) or "state" not in state:
            raise CheckpointError(
                "state.json was not written by a function of `launch`; the folder belongs to a run of `train`, or the "
                "file was edited. Use another `run_dir`.",
                field="kind",
            )

    def _packed(self, step: int, state: Any, cursors: Mapping[str, Any], metrics: Mapping[str, float]) -> Snapshot:
        tensors, packed = pack_state(state)
        data = {address: list(facts) for address, facts in self._data.pins.items()}
        rest = {"kind": _KIND, "state": packed, "cursors": cursors, "data": data, "metrics": metrics}
        return Snapshot(step, {"state": tensors}, {**rest, "life": self._life.number})

    def _unpacked(self, snapshot: Snapshot) -> tuple[Any, Mapping[str, Any], Pins]:
        """Return the program's state, the cursors of its loaders by name, and the pins of its data."""
        state = unpack_state(snapshot.tensors.get("state", {}), snapshot.state["state"])
        pins = {address: (version, digest) for address, (version, digest) in snapshot.state["data"].items()}
        return state, snapshot.state["cursors"], pins


# ------------------------------------------------------------ the function


def run_function(function: Callable[[Context], Any], argument: Any, config: RunConfig, life: Life) -> dict[str, Any]:
    """Call a function as one rank, and return its result, that of rank 0 on all ranks. Collective.

    Args:
        function: called with a context.
        argument: the context's `config`.
        config: the run.
        life: a life of it.

    Raises:
        TrainingError: the run was stopped by SIGTERM, a rank is gone, or the value cannot be stored.
    """
    context = Context(life, config, argument)
    context.begin()
    with ledger_required() if life.ledger is not None else nullcontext():
        value = function(context)

    def write() -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(json.dumps({"value": value}, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TrainingError(
                f"the function returned {value!r:.80}, which JSON cannot hold ({error}); return numbers, texts, lists "
                "and dicts, and save tensors in a checkpoint."
            ) from error
        life.run.write_result(result)
        return result

    return context.end(write, "write the result")


def _figure(name: str, value: Any, step: int) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"`{name}` of step {step} is {value!r:.80}, expected a number.", step=step) from error
