"""The training loop of one rank: epochs, evaluation and checkpoints. The ranks are started by `launchers`."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.life import Life, Saves
from smalti.torch.train.ranks import memory_figures, pace_figures
from smalti.torch.train.run.checkpoint import Snapshot
from smalti.torch.train.run.files import pack_state, unpack_state
from smalti.torch.train.run.store import MODEL_FOLDER
from smalti.torch.train.trainer.data import RunData
from smalti.torch.train.trainer.models import save_model
from smalti.torch.train.trainer.scoring import check_finite, evaluate, weighted_sums
from smalti.torch.train.trainer.state import (
    RunState,
    changed_settings,
    check_same_rate,
    check_same_run,
    check_state,
    restore_state,
    split_state,
)
from smalti.torch.train.trainer.step import Learner, private_randomness
from smalti.torch.train.trainer.task import Batch, Task, task_of


def train_here(config: TrainConfig, life: Life, task: Task | None = None) -> TrainResult:
    """Train as one rank of a life of the run; a task that is given is that of the configuration. Collective.

    Raises:
        TrainingError: the run was stopped by SIGTERM (a checkpoint was saved), a rank is gone, or the gradient is not a
            number.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    with private_randomness(life.ranks.device):
        return TrainingRun(config, life, task_of(config, task)).train()


class TrainingRun:
    """One life of a run on one rank. All methods are collective."""

    def __init__(self, config: TrainConfig, life: Life, task: Task) -> None:
        self.config, self.ranks, self.run, self.life, self.task = config, life.ranks, life.run, life, task
        self.began = time.monotonic()
        self.state = RunState()
        self.saves = Saves(life, config, check_state)
        snapshot = self.saves.resume(lambda snapshot: {"epoch": snapshot.state["epoch"]})
        self.resumed_from = self.saves.resumed_from
        self.checkpoint = "" if self.resumed_from is None else str(self.resumed_from["checkpoint"])
        if snapshot is not None:
            check_same_run(config, snapshot.state)
        # A run keeps the version that it began with, even if a newer one has been published since.
        version = config.version if config.version is not None or snapshot is None else snapshot.state["version"]
        self.data = RunData(config, self.ranks, version=version, task=task)
        self.config = config = self.data.config
        self.loader = self.data.loader(self.data.train, life.ledger)
        self.learner = Learner(config, self.ranks, task)
        if snapshot is not None:
            self._restore(snapshot)
        self.saves.emit_start(
            epoch=self.state.epoch,
            version=self.data.version,
            digest=self.data.digest,
            train_samples=self.data.train.size,
            eval_samples=0 if self.data.evaluation is None else self.data.evaluation.size,
            steps_per_epoch=len(self.loader),
        )

    def train(self) -> TrainResult:
        """Train the remaining epochs, write the model and return the result."""
        while self.state.epoch < self.config.epochs:
            self._train_epoch()
            self._end_epoch()
        result = self._result()
        figures = {name: value for name, value in result.to_json().items() if name not in {"history", "resumed_from"}}
        write = partial(self.run.write_result, result, self._save_model)
        self.saves.end(write, "write the model and the result", **figures)
        return result

    # ------------------------------------------------------------ start

    def _restore(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        self.state = RunState.from_json(state, is_first=self.ranks.is_first)
        self.learner.load(snapshot.tensors["model"])
        changed = changed_settings(self.config, state["config"])
        restore_state(self.learner.optimizer, snapshot.tensors["optimizer"], state["optimizer"], changed)
        if self.learner.scheduler is not None and state.get("scheduler") is not None:
            check_same_rate(self.config, state["config"])
            self.learner.scheduler.load_state_dict(unpack_state(snapshot.tensors["scheduler"], state["scheduler"]))
        self.loader.load_state_dict(state["cursor"])

    # ------------------------------------------------------------ an epoch

    def _train_epoch(self) -> None:
        """Take the remaining steps of the current epoch; none if a checkpoint was saved after its last one."""
        cursor = self.loader.state_dict()
        if cursor["epoch"] > self.state.epoch:
            return
        consumed, size = cursor["sample_in_epoch"], self.data.train.size
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
                **self._pace(),
                **memory_figures(self.ranks.device),
            )

    def _after_step(self, *, is_last: bool) -> None:
        if self.saves.should_stop():
            self._save(wait=True)
            raise self.saves.stopped(self.checkpoint, f" after step {self.state.step}", step=self.state.step)
        if self.state.step % self.config.checkpoint_every == 0 and not is_last:
            self._save()

    def _end_epoch(self) -> None:
        """Evaluate, add the epoch's summary to the history, and save a checkpoint."""
        state = self.state
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
            **self._pace(),
        }
        summary.update(self._evaluate(train_metrics))
        self.learner.end_epoch(summary["loss"])
        for earlier in state.history[-1:]:
            earlier.pop("most_wrong", None)  # those of the newest epoch are enough
        state.history.append(summary)
        state.begin_epoch(state.epoch + 1)
        figures = {**summary, **summary["metrics"]}
        self._save(metrics={name: value for name, value in figures.items() if isinstance(value, int | float)})
        self.life.events.emit("epoch", life=self.life.number, **summary)
        self.ranks.run_on_first(self.run.put_log, "write the log")

    def _evaluate(self, train_metrics: dict[str, float]) -> dict[str, Any]:
        if self.data.evaluation is None:
            return {**_figures(train_metrics), "eval_samples": 0}
        self.learner.align_buffers()
        began = time.perf_counter()
        loader = self.data.loader(self.data.evaluation)
        scores = evaluate(self.learner.model, loader, self.config, self.ranks, self.task)
        check_finite(scores.metrics, self.state.epoch)
        seconds = time.perf_counter() - began
        return {**scores.report, **_figures(scores.metrics), "eval_samples": scores.samples, "eval_seconds": seconds}

    # ------------------------------------------------------------ figures and checkpoints

    def _result(self) -> TrainResult:
        last = self.state.history[-1]
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
            model_dir=f"{self.run.address}/{MODEL_FOLDER}",
            checkpoint=self.checkpoint,
            images_per_second=self._pace()["images_per_second"],
            seconds=time.monotonic() - self.began,
            resumed_from=self.resumed_from,
        )
        # Durations differ between ranks; the result is the same on all.
        return self.ranks.share(result, "agree on the result")

    def _pace(self) -> dict[str, float]:
        """Return the training samples per second of this life over all ranks, and the share of waiting for data."""
        figures = pace_figures([self.data.train.stats(least=False)], self.ranks.num_ranks)
        return {
            "images_per_second": figures.get("samples_per_second", 0.0),
            "data_fraction": figures.get("data_fraction", 0.0),
        }

    def _sums(self) -> list[float]:
        return self.ranks.total(self.state.sums, "sum their figures")

    def _save(self, *, metrics: Mapping[str, float] | None = None, wait: bool = False) -> None:
        """Begin to save a checkpoint after the last step, with figures if there are any.

        With `wait`, it is published then.
        """
        sums = self._sums()
        self.checkpoint = self.saves.save(self.state.step, lambda: self._snapshot(sums, dict(metrics or {})), wait=wait)

    def _save_model(self, folder: Path) -> None:
        save_model(self.learner.model, self.config, folder, self.task)

    def _snapshot(self, sums: list[float], metrics: dict[str, float]) -> Snapshot:
        tensors, rest = split_state(self.learner.optimizer)
        scheduler = self.learner.scheduler
        more, packed = pack_state(None if scheduler is None else scheduler.state_dict())
        state = {
            **self.state.to_json(sums),
            "metrics": metrics,
            "cursor": self.loader.state_dict(),
            "optimizer": rest,
            "scheduler": packed,
            "config": self.config.public_json(),
            "version": self.data.version,
            "digest": self.data.digest,
            "life": self.life.number,
            # There are no generator states: every step seeds its own generators; see Learner.
            "random": {"scheme": "seed, step, rank", "seed": self.config.seed},
        }
        files = {"model": self.learner.model.state_dict(), "optimizer": tensors}
        return Snapshot(self.state.step, files if scheduler is None else {**files, "scheduler": more}, state)


def _figures(metrics: dict[str, float]) -> dict[str, Any]:
    """Return the figures of an evaluation for an epoch's summary."""
    accuracy = {"accuracy": metrics["accuracy"]} if "accuracy" in metrics else {}
    return {"loss": metrics["loss"], **accuracy, "metrics": metrics}


def _metrics_of(summary: dict[str, Any]) -> dict[str, float]:
    """Return all figures of an epoch; of one before there were tasks, those of classification."""
    return dict(summary.get("metrics") or {"loss": summary["loss"], "accuracy": summary["accuracy"]})
