"""The training loop of one rank: epochs, evaluation and checkpoints. The ranks are started by `launchers`.

It is written as a function of `launch` would be: data, checkpoints, stops and the pace come from a `Context`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from smalti.dataset import OrderOptions
from smalti.errors import SchemaError
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.context import Context
from smalti.torch.train.life import Life
from smalti.torch.train.ranks import memory_figures
from smalti.torch.train.run.checkpoint import Snapshot
from smalti.torch.train.run.files import pack_state, unpack_state
from smalti.torch.train.run.store import MODEL_FOLDER
from smalti.torch.train.trainer.models import save_model
from smalti.torch.train.trainer.scoring import check_finite, evaluate, weighted_sums
from smalti.torch.train.trainer.state import (
    RunState,
    TrainerContext,
    changed_settings,
    check_same_rate,
    restore_state,
    split_state,
)
from smalti.torch.train.trainer.step import Learner, private_randomness
from smalti.torch.train.trainer.task import MARKS, Batch, Task, task_of


def train_here(config: TrainConfig, life: Life, task: Task | None = None) -> TrainResult:
    """Train as one rank of a life of the run; a task that is given is that of the configuration. Collective.

    Raises:
        TrainingError: the run was stopped by SIGTERM (a checkpoint was saved), a rank is gone, or the gradient is not a
            number.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    with private_randomness(life.ranks.device):
        return Trainer(life, config, task).train()


class Trainer:
    """The built-in trainer in one life of a run, on one rank. All methods are collective."""

    def __init__(self, life: Life, config: TrainConfig, given: Task | None) -> None:
        self.life, self.ranks = life, life.ranks
        self.context = context = TrainerContext(life, config, None)
        self.began = time.monotonic()
        self.state = RunState()
        task = task_of(config, given)
        self.loader = open_split(context, config, task, config.train_split, training=True)
        manifest = self.loader.streaming_dataset.manifest
        # With what the version of the data adds, such as the names of classes.
        self.config = config = task.configured(config, manifest)
        self.task = task = task_of(config, given)
        task.check(config, manifest.schema.columns())
        self.held_out: StreamingDataLoader | None = None
        if config.eval_split is not None:
            self.held_out = open_split(context, config, task, config.eval_split, training=False)
        self.learner = Learner(config, self.ranks, task)
        if (latest := context.latest(files=())) is not None:
            self._restore(latest.state)
        context.begin(
            epoch=self.state.epoch,
            version=manifest.version,
            digest=manifest.digest,
            train_samples=self.loader.streaming_dataset.size,
            eval_samples=0 if self.held_out is None else self.held_out.streaming_dataset.size,
            steps_per_epoch=len(self.loader),
        )

    def train(self) -> TrainResult:
        """Train the remaining epochs, write the model and return the result."""
        while self.state.epoch < self.config.epochs:
            self._train_epoch()
            self._end_epoch()
        result = self._result()
        values = result.to_json()
        figures = {name: value for name, value in values.items() if name not in {"history", "resumed_from"}}
        write = partial(self.life.run.write_result, values, self._save_model)
        self.context.end(write, "write the model and the result", **figures)
        return result

    # ------------------------------------------------------------ an epoch

    def _train_epoch(self) -> None:
        """Take the remaining steps of the current epoch; none if a checkpoint was saved after its last one."""
        cursor = self.loader.state_dict()
        if cursor["epoch"] > self.state.epoch:
            return
        consumed, size = cursor["sample_in_epoch"], self.loader.streaming_dataset.size
        for columns in self.loader:
            batch = self.task.batch(columns, self.config, self.ranks.device, epoch=self.state.epoch)
            self._step(batch, done=(self.state.epoch + consumed / size) / self.config.epochs)
            consumed += self.config.batch_size
            self._after_step(is_last=consumed >= size)

    def _step(self, batch: Batch, *, done: float) -> None:
        """Take one optimiser step; `done` is the fraction of the run before it."""
        state = self.state
        step = state.step + 1
        outcome = self.learner.step(batch, step=step, done=done)
        state.step = step
        loss, scores, _ = weighted_sums(outcome, batch)
        state.add(loss, scores, batch.num_real)
        if step % self.config.log_every == 0 or step == 1:  # the same steps on all ranks
            loss_sum, samples = self.ranks.total([loss, batch.num_real], "sum the loss of a step")
            self.life.events.emit(
                "step",
                step=step,
                epoch=state.epoch,
                loss=loss_sum / max(1.0, samples),
                learning_rate=self.learner.last_rate,
                **self.context.pace(),
                **memory_figures(self.ranks.device),
            )

    def _after_step(self, *, is_last: bool) -> None:
        step = self.state.step
        if self.context.should_stop():
            self._save(wait=True)
            raise self.context._saves.stopped(self.context.newest, f" after step {step}", step=step)
        if step % self.config.checkpoint_every == 0 and not is_last:
            self._save()

    def _end_epoch(self) -> None:
        """Evaluate, add the epoch's summary to the history, and save a checkpoint."""
        state, life = self.state, self.life
        sums = self._sums()
        means = state.means(sums)
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
        summary.update(self._evaluate(train_metrics))
        self.learner.end_epoch(summary["loss"])
        for earlier in state.history[-1:]:
            earlier.pop("most_wrong", None)  # those of the newest epoch are enough
        state.history.append(summary)
        state.begin_epoch(state.epoch + 1)
        figures = {**summary, **summary["metrics"]}
        self._save(metrics={name: value for name, value in figures.items() if isinstance(value, int | float)})
        life.events.emit("epoch", life=life.number, **summary)
        self.ranks.run_on_first(life.run.put_log, "write the log")

    def _evaluate(self, train_metrics: dict[str, float]) -> dict[str, Any]:
        if self.held_out is None:
            return {**_figures(train_metrics), "eval_samples": 0}
        self.learner.align_buffers()
        began = time.perf_counter()
        scores = evaluate(self.learner.model, self.held_out, self.config, self.ranks, self.task)
        check_finite(scores.metrics, self.state.epoch)
        seconds = time.perf_counter() - began
        return {**scores.report, **_figures(scores.metrics), "eval_samples": scores.samples, "eval_seconds": seconds}

    # ------------------------------------------------------------ figures and checkpoints

    def _result(self) -> TrainResult:
        last, context = self.state.history[-1], self.context
        metrics = _metrics_of(last)
        result = TrainResult(
            accuracy=last.get("accuracy"),
            loss=last["loss"],
            metrics=metrics,
            # Metrics of torchmetrics are of an evaluation only.
            main_metric=self.task.main_metric if self.task.main_metric in metrics else "loss",
            higher_is_better=self.task.higher_is_better and self.task.main_metric in metrics,
            epochs=self.state.epoch,
            steps=self.state.step,
            history=tuple(self.state.history),
            model_dir=f"{self.life.run.address}/{MODEL_FOLDER}",
            checkpoint=context.newest,
            images_per_second=context.pace()["images_per_second"],
            seconds=time.monotonic() - self.began,
            resumed_from=context._saves.resumed_from,
        )
        # Durations differ between ranks; the result is the same on all.
        return self.ranks.share(result, "agree on the result")

    def _sums(self) -> list[float]:
        return self.ranks.total(self.state.sums, "sum their figures")

    def _save_model(self, folder: Path) -> None:
        save_model(self.learner.model, self.config, folder, self.task)

    def _save(self, *, metrics: Mapping[str, float] | None = None, wait: bool = False) -> None:
        """Begin to save a checkpoint after the last step, with figures if there are any.

        With `wait`, it is published then.
        """
        learner = self.learner
        tensors, rest = split_state(learner.optimizer)
        files = {"model": learner.model.state_dict(), "optimizer": tensors}
        more, scheduler = pack_state(None if learner.scheduler is None else learner.scheduler.state_dict())
        if learner.scheduler is not None:
            files["scheduler"] = more
        state = {
            **self.state.to_json(self._sums()),
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


def open_split(
    context: Context, config: TrainConfig, task: Task, split: str | None, *, training: bool
) -> StreamingDataLoader:
    """Return a loader of a split as a task reads it. Collective.

    Raises:
        CursorError: the version's digest is not the pinned one, or ranks see different versions.
        SchemaError: a column is missing, or the split has no samples.
    """
    order: dict[str, Any] = {"order": OrderOptions(affinity=config.affinity)} if training else {}
    loader = context.dataloader(
        split,
        batch_size=config.batch_size,
        shuffle=training,
        shuffle_seed=config.seed,
        transform=_with_marks(task.transform(config, training=training)),
        include_ids=True,
        loader={"num_workers": config.num_workers},
        **order,
    )
    if loader.streaming_dataset.size == 0:
        raise SchemaError(
            f"split {split!r} of {config.data} has no samples; train on another split or write the data again."
        )
    return loader


@dataclass(frozen=True)
class _WithMarks:
    """A transform of batches that keeps the ids and positions of their samples."""

    transform: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    on_batches = True

    @property
    def thread_safe(self) -> bool:
        """True if loaders may call it from several threads."""
        return bool(getattr(self.transform, "thread_safe", False))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the transformed batch, with its marks."""
        return {**{name: batch[name] for name in MARKS}, **self.transform(batch)}


def _with_marks(transform: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return _WithMarks(transform) if getattr(transform, "on_batches", False) else transform  # type: ignore[arg-type]


def _figures(metrics: dict[str, float]) -> dict[str, Any]:
    """Return the figures of an evaluation for an epoch's summary."""
    accuracy = {"accuracy": metrics["accuracy"]} if "accuracy" in metrics else {}
    return {"loss": metrics["loss"], **accuracy, "metrics": metrics}


def _metrics_of(summary: dict[str, Any]) -> dict[str, float]:
    """Return all figures of an epoch; of one before there were tasks, those of classification."""
    return dict(summary.get("metrics") or {"loss": summary["loss"], "accuracy": summary["accuracy"]})
