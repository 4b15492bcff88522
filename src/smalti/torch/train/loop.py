"""The training loop of one rank: epochs, evaluation and checkpoints. The ranks are started by `launchers`."""

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from smalti.errors import TrainingError
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.data import DeviceBatch, RunData, to_device
from smalti.torch.train.life import Life
from smalti.torch.train.measures import memory_figures
from smalti.torch.train.models import save_model
from smalti.torch.train.run.checkpoint import (
    RunState,
    Snapshot,
    check_same_run,
    check_state,
    restore_state,
    split_state,
)
from smalti.torch.train.run.folder import MODEL_FOLDER
from smalti.torch.train.saves import Saves
from smalti.torch.train.step import Learner, evaluate, learning_rate_at, private_randomness


def train_here(config: TrainConfig, life: Life) -> TrainResult:
    """Train as one rank of a life of the run. Collective.

    Raises:
        TrainingError: the run was stopped by SIGTERM (a checkpoint was saved), a rank is gone, or the gradient is not a
            number.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    with private_randomness(life.ranks.device):
        return TrainingRun(config, life).train()


@dataclass
class Throughput:
    """Seconds and samples of this life's training on this rank, without evaluation and saving."""

    seconds: float = 0.0
    data_seconds: float = 0.0
    """Part of `seconds` spent waiting for the loader."""
    samples: int = 0

    @property
    def data_fraction(self) -> float:
        """Share of the time that was spent waiting for the loader."""
        return self.data_seconds / self.seconds if self.seconds else 0.0


class TrainingRun:
    """One life of a run on one rank. All methods are collective."""

    def __init__(self, config: TrainConfig, life: Life) -> None:
        self.config, self.ranks, self.run, self.life = config, life.ranks, life.run, life
        self.began = time.monotonic()
        self.throughput = Throughput()
        self.state = RunState()
        self.saves = Saves(life, config, check_state)
        self.resumed_from = self.saves.find(lambda snapshot: {"epoch": snapshot.state["epoch"]})
        self.checkpoint = "" if self.resumed_from is None else str(self.resumed_from["checkpoint"])
        snapshot = self.saves.load(self.checkpoint) if self.checkpoint else None
        if snapshot is not None:
            check_same_run(config, snapshot.state)
        # A run keeps the version that it began with, even if a newer one has been published since.
        version = config.version if config.version is not None or snapshot is None else snapshot.state["version"]
        self.data = RunData(config, self.ranks, version=version)
        self.loader = self.data.loader(self.data.train, life.ledger)
        self.learner = Learner(config, self.ranks)
        if snapshot is not None:
            self._restore(snapshot)
        self._emit_start()

    def train(self) -> TrainResult:
        """Train the remaining epochs, write the model and return the result."""
        while self.state.epoch < self.config.epochs:
            self._train_epoch()
            self._end_epoch()
        self.saves.finish()
        result = self._result()
        self.ranks.run_on_first(
            lambda: self.run.write_result(result, partial(save_model, self.learner.model, self.config)),
            "write the model and the result",
        )
        figures = {name: value for name, value in result.to_json().items() if name not in {"history", "resumed_from"}}
        self.life.events.emit("end", life=self.life.number, **figures)
        self.ranks.run_on_all(self.life.put_logs, "write the logs")
        return result

    # ------------------------------------------------------------ start

    def _restore(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        self.state = RunState.from_json(state, is_first=self.ranks.is_first)
        self.learner.load(snapshot.tensors["model"])
        restore_state(self.learner.optimizer, snapshot.tensors["optimizer"], state["optimizer"])
        self.loader.load_state_dict(state["cursor"])

    def _emit_start(self) -> None:
        self.life.events.emit(
            "start",
            life=self.life.number,
            step=self.state.step,
            epoch=self.state.epoch,
            num_ranks=self.ranks.num_ranks,
            num_hosts=self.ranks.world.num_hosts,
            device=str(self.ranks.device),
            version=self.data.version,
            digest=self.data.digest,
            train_samples=self.data.train.size,
            eval_samples=0 if self.data.evaluation is None else self.data.evaluation.size,
            steps_per_epoch=len(self.loader),
            resumed_from=self.resumed_from,
        )

    # ------------------------------------------------------------ an epoch

    def _train_epoch(self) -> None:
        """Take the remaining steps of the current epoch; none if a checkpoint was saved after its last one."""
        cursor = self.loader.state_dict()
        if cursor["epoch"] > self.state.epoch:
            return
        consumed, size = cursor["sample_in_epoch"], self.data.train.size
        mark = time.perf_counter()
        for columns in self.loader:
            self.throughput.data_seconds += time.perf_counter() - mark
            batch = to_device(columns, self.config, self.ranks.device, epoch=self.state.epoch)
            self._step(batch, done=(self.state.epoch + consumed / size) / self.config.epochs)
            consumed += self.config.batch_size
            self.throughput.seconds += time.perf_counter() - mark
            self._after_step(is_last=consumed >= size)
            mark = time.perf_counter()

    def _step(self, batch: DeviceBatch, *, done: float) -> None:
        """Take one optimiser step; `done` is the fraction of the run before it."""
        state = self.state
        step, rate = state.step + 1, learning_rate_at(self.config, done)
        logits, losses = self.learner.step(batch, step=step, rate=rate)
        state.step = step
        loss = float((losses * batch.weights).sum())
        state.loss_sum += loss
        state.num_correct += float(((logits.argmax(dim=1) == batch.labels) * batch.weights).sum())
        state.num_samples += batch.num_real
        self.throughput.samples += batch.num_real
        if step % self.config.log_every == 0 or step == 1:  # the same steps on all ranks
            loss_sum, samples = self.ranks.total([loss, batch.num_real], "sum the loss of a step")
            self.life.events.emit(
                "step",
                step=step,
                epoch=state.epoch,
                loss=loss_sum / max(1.0, samples),
                learning_rate=rate,
                images_per_second=self.images_per_second(),
                data_fraction=self.throughput.data_fraction,
                **memory_figures(self.ranks.device),
            )

    def _after_step(self, *, is_last: bool) -> None:
        if self.saves.should_stop():
            self._save(wait=True)
            raise TrainingError(
                f"stopped by SIGTERM after step {self.state.step}; the checkpoint {self.checkpoint} was "
                "saved: start the run again with the same `run_dir` to resume.",
                stopped=True,
                step=self.state.step,
                checkpoint=self.checkpoint,
            )
        if self.state.step % self.config.checkpoint_every == 0 and not is_last:
            self._save()

    def _end_epoch(self) -> None:
        """Evaluate, add the epoch's summary to the history, and save a checkpoint."""
        state = self.state
        loss_sum, correct, samples = self._sums()
        summary: dict[str, Any] = {
            "epoch": state.epoch,
            "step": state.step,
            "train_loss": loss_sum / max(1.0, samples),
            "train_accuracy": correct / max(1.0, samples),
            "train_samples": round(samples),
            "images_per_second": self.images_per_second(),
            "data_fraction": self.throughput.data_fraction,
        }
        summary.update(self._evaluate(summary))
        for earlier in state.history[-1:]:
            earlier.pop("most_wrong", None)  # those of the newest epoch are enough
        state.history.append(summary)
        state.begin_epoch(state.epoch + 1)
        self._save()
        self.life.events.emit("epoch", life=self.life.number, **summary)
        self.ranks.run_on_first(self.run.put_log, "write the log")

    def _evaluate(self, summary: dict[str, Any]) -> dict[str, Any]:
        if self.data.evaluation is None:
            return {"loss": summary["train_loss"], "accuracy": summary["train_accuracy"], "eval_samples": 0}
        self.learner.align_buffers()
        began = time.perf_counter()
        scores = evaluate(self.learner.model, self.data.loader(self.data.evaluation), self.config, self.ranks)
        if not math.isfinite(scores.loss):
            raise TrainingError(
                f"the held-out loss of epoch {self.state.epoch} is {scores.loss}: the model's scores are not finite "
                "although its gradients were. Lower `learning_rate`, or look at the model.",
                epoch=self.state.epoch,
            )
        return {
            "loss": scores.loss,
            "accuracy": scores.accuracy,
            "eval_samples": scores.samples,
            "confusion": scores.confusion,
            "most_wrong": scores.most_wrong,
            "eval_seconds": time.perf_counter() - began,
        }

    # ------------------------------------------------------------ figures and checkpoints

    def _result(self) -> TrainResult:
        last = self.state.history[-1]
        result = TrainResult(
            accuracy=last["accuracy"],
            loss=last["loss"],
            epochs=self.state.epoch,
            steps=self.state.step,
            history=tuple(self.state.history),
            model_dir=f"{self.run.address}/{MODEL_FOLDER}",
            checkpoint=self.checkpoint,
            images_per_second=self.images_per_second(),
            seconds=time.monotonic() - self.began,
            resumed_from=self.resumed_from,
        )
        # Durations differ between ranks; the result is the same on all.
        return self.ranks.share(result, "agree on the result")

    def images_per_second(self) -> float:
        """Return the training samples per second of this life over all ranks, estimated from this rank's."""
        throughput = self.throughput
        return throughput.samples * self.ranks.num_ranks / throughput.seconds if throughput.seconds else 0.0

    def _sums(self) -> list[float]:
        return self.ranks.total(self.state.sums, "sum their figures")

    def _save(self, *, wait: bool = False) -> None:
        """Begin to save a checkpoint after the last step; with `wait`, it is published then."""
        sums = self._sums()
        self.checkpoint = self.saves.save(self.state.step, lambda: self._snapshot(sums), wait=wait)

    def _snapshot(self, sums: list[float]) -> Snapshot:
        tensors, rest = split_state(self.learner.optimizer)
        state = {
            **self.state.to_json(sums),
            "cursor": self.loader.state_dict(),
            "optimizer": rest,
            "config": self.config.public_json(),
            "version": self.data.version,
            "digest": self.data.digest,
            "life": self.life.number,
            # There are no generator states: every step seeds its own generators; see Learner.
            "random": {"scheme": "seed, step, rank", "seed": self.config.seed},
        }
        return Snapshot(self.state.step, {"model": self.learner.model.state_dict(), "optimizer": tensors}, state)
