"""The training loop of one rank: epochs, evaluation and checkpoints. The ranks are started by `launchers`.

It is written as a function of `launch` would be: data, checkpoints, stops and the pace come from a `Context`.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from smalti.dataset import OrderOptions
from smalti.errors import CheckpointError, SchemaError, TrainingError
from smalti.stream import Stream
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.context import Context
from smalti.torch.train.life import Life
from smalti.torch.train.ranks import memory_figures
from smalti.torch.train.result import TrainResult
from smalti.torch.train.run.files import Snapshot, pack_state, unpack_state
from smalti.torch.train.run.store import MODEL_FOLDER
from smalti.torch.train.trainer.state import (
    RunState,
    TrainerContext,
    changed_settings,
    check_same_rate,
    restore_state,
    split_state,
)
from smalti.torch.train.trainer.step import Learner, Sums, evaluate
from smalti.torch.train.trainer.task import MARKS, Batch, Task, save_model, task_of


def train_here(config: TrainConfig, life: Life, task: Task | None = None) -> TrainResult:
    """Train as one rank of a life of the run; a task that is given is that of the configuration. Collective.

    Raises:
        TrainingError: the run was stopped by SIGTERM (a checkpoint was saved), a rank is gone, or the gradient is not a
            number.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    device = life.ranks.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # restores torch's own generators
        return Trainer(life, config, task).train()


class Trainer:
    """The built-in trainer in one life of a run, on one rank. All methods are collective."""

    def __init__(self, life: Life, config: TrainConfig, given: Task | None) -> None:
        self.life, self.ranks = life, life.ranks
        task = task_of(config, given)
        self.figure = config.keep_best or f"{'max' if task.higher_is_better else 'min'} {task.main_metric}"
        """By which evaluations are compared."""
        if config.keep == "best":
            config = replace(config, keep_best=self.figure)
        self.context = context = TrainerContext(life, config, task)
        self.began = time.monotonic()
        self.state = RunState()
        order = OrderOptions(affinity=config.affinity, batching_method=config.batching)
        mixed = config.mixed_streams() or None
        self.loader = open_split(context, config, task, config.train_split, training=True, streams=mixed, order=order)
        manifests = self.loader.streaming_dataset.manifests
        self.config = config = _configured(task, config, self.loader)
        self.task = task = task_of(config, given)
        for manifest in manifests:
            task.check(config, manifest.schema.columns())
        self.held_out: StreamingDataLoader | None = None
        if config.eval_split is not None or config.eval_data is not None:
            streams = None if config.eval_data is None else (Stream(remote=config.eval_data),)
            self.held_out = open_split(context, config, task, config.eval_split, training=False, streams=streams)
            if streams is not None:
                _configured(task, config, self.held_out)
        self.learner = Learner(config, self.ranks, task)
        if (latest := context.latest(files=())) is not None:
            self._restore(latest.state)
        context.begin(
            epoch=self.state.epoch,
            version=manifests[0].version,
            digest=manifests[0].digest,
            train_samples=self.loader.streaming_dataset.epoch_size,
            eval_samples=0 if self.held_out is None else self.held_out.streaming_dataset.size,
            steps_per_epoch=len(self.loader),
            total_steps=config.max_steps or len(self.loader) * config.epochs,
        )

    def train(self) -> TrainResult:
        """Train the rest of the run, write the model and return the result."""
        while self._is_epoch_read() or not self._is_over():
            if self._train_epoch():
                self._end_epoch()
        if not self.state.is_evaluated:
            self._evaluate_within_epoch()
            self.life.events.emit("epoch", life=self.life.number, **(self.state.partial or {}))
        result = self._result()
        values = result.to_json()
        figures = {name: value for name, value in values.items() if name not in {"history", "resumed_from"}}
        save = partial(save_model, self.learner.model, self.config, task=self.task)
        write = partial(self.life.run.write_result, values, save)
        self.context.end(write, "write the model and the result", **figures)
        return result

    def _is_over(self) -> bool:
        config, state = self.config, self.state
        if config.patience is not None and state.since_best(self.figure) >= config.patience:
            return True
        return state.epoch >= config.epochs if config.max_steps is None else state.step >= config.max_steps

    # ------------------------------------------------------------ an epoch

    def _is_epoch_read(self) -> bool:
        """Return whether a checkpoint was saved after the last step of the epoch, and before the epoch's end."""
        return bool(self.loader.state_dict()["epoch"] > self.state.epoch)

    def _train_epoch(self) -> bool:
        """Take the remaining steps of the current epoch, and return whether it was read to its end.

        There are none if a checkpoint was saved after its last one.
        """
        if self._is_epoch_read():
            return True
        consumed, size = self.loader.state_dict()["sample_in_epoch"], self.loader.streaming_dataset.epoch_size
        if consumed and self._is_evaluation_due():  # a stop came before it
            self._evaluate_within_epoch()
        if self._is_over():
            return False
        for columns in self.loader:
            batch = self.task.batch(columns, self.config, self.ranks.device, epoch=self.state.epoch)
            done = (self.state.epoch + consumed / size) / self.config.epochs
            if self.config.max_steps is not None:
                done = self.state.step / self.config.max_steps
            self._step(batch, done=done)
            consumed += self.config.batch_size
            if self.context.should_stop():
                self._save(wait=True)
                raise self.context.stopped(self.state.step)
            if consumed < size:
                if self._is_evaluation_due():
                    self._evaluate_within_epoch()
                elif self.state.step % self.config.checkpoint_every == 0:
                    self._save()
                if self._is_over():
                    return False
        return True

    def _step(self, batch: Batch, *, done: float) -> None:
        """Take one optimiser step; `done` is the fraction of the run before it."""
        state = self.state
        step = state.step + 1
        self.learner.step(batch, step=step, done=done)
        state.step = step
        if step % self.config.log_every == 0 or step == 1:  # the same steps on all ranks
            newest = self._look()[-1]
            loss_sum, samples = self.ranks.total([newest.loss, newest.num_samples], "sum the loss of a step")
            self.life.events.emit(
                "step",
                step=step,
                epoch=state.epoch,
                loss=loss_sum / max(1.0, samples),
                learning_rate=self.learner.last_rate,
                **self.context.pace(),
                **memory_figures(self.ranks.device),
            )

    def _look(self) -> list[Sums]:
        """Add the sums of the steps since the last look to those of the epoch, and return them; waits for the device.

        Raises:
            TrainingError: the loss or the gradient of a step is not a number.
        """
        steps = self.learner.take()
        for step in steps:
            self.state.sums.add(step)
        return steps

    # ------------------------------------------------------------ evaluations

    def _is_evaluation_due(self) -> bool:
        every, state = self.config.eval_every, self.state
        return every is not None and state.step % every == 0 and not state.is_evaluated

    def _evaluate_within_epoch(self) -> None:
        """Evaluate, and save a checkpoint with the figures."""
        self.state.partial = summary = self._summary()
        self._save(metrics=self.state.add_evaluation(summary))
        where, measures = {"step": self.state.step, "epoch": self.state.epoch}, self.context.stats()
        self.life.events.emit("report", **where, metrics=summary["metrics"], measures=measures)

    def _end_epoch(self) -> None:
        """Evaluate, add the epoch's summary to the history, and save a checkpoint."""
        state, life = self.state, self.life
        summary = self._summary()
        self.learner.end_epoch(summary["loss"])
        for earlier in state.history[-1:]:
            earlier.pop("most_wrong", None)  # those of the newest epoch are enough
        state.history.append(summary)
        state.partial = None
        figures = state.add_evaluation(summary)
        state.epoch, state.sums = state.epoch + 1, Sums(scores=dict.fromkeys(state.sums.scores, 0.0))
        self._save(metrics=figures)
        life.events.emit("epoch", life=life.number, **summary)
        self.ranks.run_on_first(life.run.put_log, "write the log")

    def _summary(self) -> dict[str, Any]:
        """Return the figures of the epoch so far, in training and in an evaluation now."""
        state, sums = self.state, self._sums()
        means = state.sums.means(sums)
        train_metrics = {"loss": means["loss"], **self.task.figures(means)}
        summary: dict[str, Any] = {
            "epoch": state.epoch,
            "step": state.step,
            "train_loss": means["loss"],
            "train_metrics": train_metrics,
            **({"train_accuracy": train_metrics["accuracy"]} if "accuracy" in train_metrics else {}),
            "train_samples": round(sums[-1]),
            **self.context.pace(),
        }
        if self.held_out is None:
            return {**summary, **_figures(train_metrics), "eval_samples": 0}
        self.learner.align_buffers()
        began = time.perf_counter()
        scores = evaluate(self.learner.model, self.held_out, self.config, self.ranks, self.task)
        for name, value in scores.metrics.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the held-out {name} of epoch {self.state.epoch} is {value}: the model's scores are not finite "
                    "although its gradients were. Lower `learning_rate`, or look at the model.",
                    epoch=self.state.epoch,
                )
        seconds = time.perf_counter() - began
        evaluated = {**_figures(scores.metrics), "eval_samples": scores.samples, "eval_seconds": seconds}
        return {**summary, **scores.report, **evaluated}

    # ------------------------------------------------------------ figures and checkpoints

    def _result(self) -> TrainResult:
        state, context = self.state, self.context
        history = [*state.history, *([state.partial] if state.partial is not None else [])]
        summary = self._load_best() if self.config.keep == "best" else history[-1]
        # An epoch before there were tasks has those of classification.
        metrics = dict(summary.get("metrics") or {"loss": summary["loss"], "accuracy": summary["accuracy"]})
        result = TrainResult(
            accuracy=metrics.get("accuracy"),
            loss=metrics["loss"],
            metrics=metrics,
            # Metrics of torchmetrics are of an evaluation only.
            main_metric=self.task.main_metric if self.task.main_metric in metrics else "loss",
            higher_is_better=self.task.higher_is_better and self.task.main_metric in metrics,
            epochs=state.epoch,
            steps=state.step,
            history=tuple(history),
            evaluation=summary,
            model_dir=f"{self.life.run.address}/{MODEL_FOLDER}",
            checkpoint=context.newest,
            **context.pace(),
            seconds=time.monotonic() - self.began,
            resumed_from=context.resumed_from,
        )
        # Durations differ between ranks; the result is the same on all.
        return self.ranks.share(result, "agree on the result")

    def _load_best(self) -> dict[str, Any]:
        """Load the weights of the best evaluation whose checkpoint verifies, and return its summary."""
        best = self.context.best(files=())
        if best is None:
            raise CheckpointError(
                f"no checkpoint in {self.config.run_dir} has the figure of `{self.figure}`, by which the best model is "
                "kept: choose `keep='last'`, or train in another `run_dir`."
            )
        snapshot: Snapshot = best.state
        self.learner.load(snapshot.tensors["model"])
        return dict(snapshot.state.get("partial") or snapshot.state["history"][-1])

    def _sums(self) -> list[float]:
        self._look()
        return self.ranks.total(self.state.sums.values, "sum their figures")

    def _save(self, *, metrics: Mapping[str, float] | None = None, wait: bool = False) -> None:
        """Begin to save a checkpoint after the last step, with figures if there are any.

        With `wait`, it is published then.
        """
        learner, sums = self.learner, self._sums()
        tensors, rest = split_state(learner.optimizer)
        files = {"model": learner.model.state_dict(), "optimizer": tensors}
        more, scheduler = pack_state(None if learner.scheduler is None else learner.scheduler.state_dict())
        if learner.scheduler is not None:
            files["scheduler"] = more
        state = {
            **self.state.to_json(sums),
            "optimizer": rest,
            "scheduler": scheduler,
            "config": self.config.public_json(),
            # There are no generator states: every step seeds its own generators; see Learner.
            "random": {"scheme": "seed, step, rank", "seed": self.config.seed},
        }
        self.context.save(self.state.step, (files, state), metrics=metrics, wait=wait)

    def _restore(self, snapshot: Snapshot) -> None:
        state, learner = snapshot.state, self.learner
        self.state = RunState.from_json(state, is_first=self.ranks.is_first)
        learner.load(snapshot.tensors["model"])
        changed = changed_settings(self.config, state["config"])
        restore_state(learner.optimizer, snapshot.tensors["optimizer"], state["optimizer"], changed)
        if learner.scheduler is not None and state.get("scheduler") is not None:
            check_same_rate(self.config, state["config"])
            learner.scheduler.load_state_dict(unpack_state(snapshot.tensors["scheduler"], state["scheduler"]))


def _configured(task: Task, config: TrainConfig, loader: StreamingDataLoader) -> TrainConfig:
    """Return the configuration with what the versions of a loader's data add, such as the names of classes.

    Raises:
        SchemaError: they differ from one another, or from what the configuration has.
    """
    dataset, data = loader.streaming_dataset, config.data
    for stream, manifest in zip(dataset.streams, dataset.manifests, strict=True):
        config = task.configured(replace(config, data=str(stream.remote)), manifest)  # errors name `data`
    return replace(config, data=data)


def open_split(
    context: Context, config: TrainConfig, task: Task, split: str | None, *, training: bool, **options: Any
) -> StreamingDataLoader:
    """Return a loader of a split as a task reads it. Collective.

    Args:
        context: of the run.
        config: the settings of batches and workers.
        task: reads the samples.
        split: the split; None: all samples.
        training: whether the samples are trained on.
        options: further arguments of `Context.dataloader`.

    Raises:
        CursorError: the version's digest is not the pinned one, or ranks see different versions.
        SchemaError: a column is missing, or the split has no samples.
    """
    transform = task.transform(config, training=training)
    loader = context.dataloader(
        split,
        batch_size=config.batch_size,
        shuffle=training,
        shuffle_seed=config.seed,
        transform=_WithMarks(transform) if getattr(transform, "on_batches", False) else transform,  # type: ignore[arg-type]
        include_ids=True,
        loader={"num_workers": config.num_workers},
        **options,
    )
    if loader.streaming_dataset.size == 0:
        places = ", ".join(dict.fromkeys(str(stream.remote) for stream in loader.streaming_dataset.streams))
        raise SchemaError(
            f"split {split!r} of {places} has no samples; train on another split or write the data again."
        )
    return loader


class _WithMarks:
    """A transform of batches that keeps the ids and positions of their samples."""

    on_batches = True

    def __init__(self, transform: Callable[..., Mapping[str, Any]]) -> None:
        self.transform = transform
        self.thread_safe = bool(getattr(transform, "thread_safe", False))
        self.takes_epoch = bool(getattr(transform, "takes_epoch", False))

    def __call__(self, batch: Mapping[str, Any], **drawn_for: Any) -> dict[str, Any]:
        """Return the transformed batch, with its marks."""
        return {**{name: batch[name] for name in MARKS}, **self.transform(batch, **drawn_for)}


def _figures(metrics: dict[str, float]) -> dict[str, Any]:
    """Return the figures of an evaluation for an epoch's summary."""
    accuracy = {"accuracy": metrics["accuracy"]} if "accuracy" in metrics else {}
    return {"loss": metrics["loss"], **accuracy, "metrics": metrics}
