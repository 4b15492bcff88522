"""The training loop of one rank: epochs, evaluation, checkpoints. How ranks come to be is not here: see launch."""

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.errors import TrainingError
from smalti.ledger import LedgerWriter
from smalti.torch.train.batches import DeviceBatch, to_device
from smalti.torch.train.checkpoint import CheckpointFolder, Snapshot, load_checkpoint, restore_state, split_state
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.data import RunData
from smalti.torch.train.evaluation import evaluate
from smalti.torch.train.events import METRICS_FILE, EventLog, OnEvent
from smalti.torch.train.progress import Progress, check_same_run, check_state
from smalti.torch.train.ranks import Ranks, joined_ranks
from smalti.torch.train.run_folder import MODEL_FOLDER, SAMPLES_FOLDER, begin_life, run_lock, write_result
from smalti.torch.train.step import Learner, learning_rate_at, private_randomness
from smalti.torch.train.stopping import StopSignal

_CHECKPOINTS = "checkpoints"


def train_here(config: TrainConfig, on_event: OnEvent | None = None, meeting_port: int | None = None) -> TrainResult:
    """Trains as one rank: the one that the environment or a process group tells, or the only one. Collective.

    Raises:
        TrainingError: the run was stopped by SIGTERM (a checkpoint was saved), another trains in the same
            folder, a rank is gone, or the gradient is not a number.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    run_dir = Path(config.run_dir)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        ranks = stack.enter_context(joined_ranks(config, meeting_port))
        config.batch_per_rank(ranks.num_ranks)
        stack.enter_context(private_randomness(ranks.device))
        # Held by rank 0 until the stack unwinds, or the process dies.
        ranks.first_does(lambda: stack.enter_context(run_lock(run_dir)), "take the run folder's lock")
        life = ranks.first_does(lambda: begin_life(run_dir, num_ranks=ranks.num_ranks), "count the run's lives")
        events = EventLog(run_dir / METRICS_FILE if ranks.is_first else None, on_event)
        stack.callback(events.close)
        ledger: LedgerWriter | None = None
        if config.log_samples:
            ledger = stack.enter_context(LedgerWriter(run_dir / SAMPLES_FOLDER, life=life, world=ranks.world))
        return Run(config, ranks, Reports(events, ledger, stop, life)).train()


@dataclass(frozen=True)
class Reports:
    """Where a run tells what it does, and is told to stop."""

    events: EventLog
    ledger: LedgerWriter | None
    stop: StopSignal
    life: int


@dataclass
class Clock:
    """Seconds and samples of this life's training on this rank; evaluation and saving are left out."""

    seconds: float = 0.0
    data_seconds: float = 0.0
    """Of these: waiting for the loader."""
    samples: int = 0


class Run:
    """One life of a run on one rank. All methods are collective."""

    def __init__(self, config: TrainConfig, ranks: Ranks, reports: Reports) -> None:
        self.config, self.ranks, self.reports = config, ranks, reports
        self.run_dir = Path(config.run_dir)
        self.began = time.monotonic()
        self.clock = Clock()
        self.progress = Progress()
        self.folder = CheckpointFolder(
            self.run_dir / _CHECKPOINTS, keep=config.keep_checkpoints, check_state=check_state
        )
        self.resumed_from = self._find_checkpoint()
        self.checkpoint = "" if self.resumed_from is None else str(self.resumed_from["checkpoint"])
        snapshot = load_checkpoint(Path(self.checkpoint)) if self.checkpoint else None
        if snapshot is not None:
            check_same_run(config, snapshot.state)
        # A run stays with the version that it began with, even if a newer one has been published since.
        version = config.version if config.version is not None or snapshot is None else snapshot.state["version"]
        self.data = RunData(config, ranks, version=version)
        self.loader = self.data.loader(self.data.train, reports.ledger)
        self.learner = Learner(config, ranks)
        if snapshot is not None:
            self._restore(snapshot)
        self._announce()

    def train(self) -> TrainResult:
        """All epochs that are left, then the model and the result."""
        while self.progress.epoch < self.config.epochs:
            self._train_epoch()
            self._end_epoch()
        result = self._result()
        self.ranks.first_does(
            lambda: write_result(self.config, self.learner.model, result), "write the model and the result"
        )
        self.reports.events.emit("end", life=self.reports.life, **_brief(result))
        return result

    # ------------------------------------------------------------ beginning

    def _find_checkpoint(self) -> dict[str, Any] | None:
        """Which checkpoint to go on from, the same on all ranks."""

        def newest() -> dict[str, Any] | None:
            loaded = self.folder.load_newest()
            if loaded is None:
                return None
            return {
                "checkpoint": str(loaded.path),
                "step": loaded.snapshot.step,
                "epoch": loaded.snapshot.state["epoch"],
                "skipped": [{"path": str(skip.path), "reason": skip.reason} for skip in loaded.skipped],
            }

        return self.ranks.first_does(newest, "find the newest checkpoint")

    def _restore(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        self.progress = Progress.from_state(state, is_first=self.ranks.is_first)
        self.learner.load(snapshot.tensors["model"])
        restore_state(self.learner.optimizer, snapshot.tensors["optimizer"], state["optimizer"])
        self.loader.load_state_dict(state["cursor"])

    def _announce(self) -> None:
        reports, progress, data = self.reports, self.progress, self.data
        reports.events.emit(
            "start",
            life=reports.life,
            step=progress.step,
            epoch=progress.epoch,
            num_ranks=self.ranks.num_ranks,
            num_hosts=self.ranks.world.num_hosts,
            device=str(self.ranks.device),
            version=data.version,
            digest=data.digest,
            train_samples=data.train.size,
            eval_samples=0 if data.evaluation is None else data.evaluation.size,
            steps_per_epoch=len(self.loader),
            resumed_from=self.resumed_from,
        )

    # ------------------------------------------------------------ an epoch

    def _train_epoch(self) -> None:
        """The steps of the current epoch that are left; none, if a checkpoint was saved after its last one."""
        cursor = self.loader.state_dict()
        if cursor["epoch"] > self.progress.epoch:
            return
        place, size = cursor["sample_in_epoch"], self.data.train.size
        mark = time.perf_counter()
        for columns in self.loader:
            self.clock.data_seconds += time.perf_counter() - mark
            batch = to_device(columns, self.config, self.ranks.device, epoch=self.progress.epoch)
            self._step(batch, done=(self.progress.epoch + place / size) / self.config.epochs)
            place += self.config.batch_size
            self.clock.seconds += time.perf_counter() - mark
            self._after_step(is_last=place >= size)
            mark = time.perf_counter()

    def _step(self, batch: DeviceBatch, *, done: float) -> None:
        progress = self.progress
        step, rate = progress.step + 1, learning_rate_at(self.config, done)
        logits, losses = self.learner.step(batch, step=step, rate=rate)
        progress.step = step
        loss = float((losses * batch.weights).sum())
        progress.loss_sum += loss
        progress.right += float(((logits.argmax(dim=1) == batch.labels) * batch.weights).sum())
        progress.samples += batch.num_real
        self.clock.samples += batch.num_real
        if step % self.config.log_every == 0 or step == 1:  # the same steps on all ranks
            loss_sum, samples = self.ranks.total([loss, batch.num_real], "sum the loss of a step")
            self.reports.events.emit(
                "step",
                step=step,
                epoch=progress.epoch,
                loss=loss_sum / max(1.0, samples),
                learning_rate=rate,
                images_per_second=self.images_per_second(),
            )

    def _after_step(self, *, is_last: bool) -> None:
        if self.ranks.any(self.reports.stop.requested, "agree whether to stop"):
            self._save()
            raise TrainingError(
                f"stopped by SIGTERM after step {self.progress.step}; the checkpoint {self.checkpoint} was "
                "saved: start the run again with the same `run_dir` to go on.",
                stopped=True,
                step=self.progress.step,
                checkpoint=self.checkpoint,
            )
        if self.progress.step % self.config.checkpoint_every == 0 and not is_last:
            self._save()

    def _end_epoch(self) -> None:
        """Evaluates, closes the epoch's books and saves."""
        progress = self.progress
        loss_sum, right, samples = self._sums()
        summary: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_loss": loss_sum / max(1.0, samples),
            "train_accuracy": right / max(1.0, samples),
            "train_samples": round(samples),
            "images_per_second": self.images_per_second(),
            "data_fraction": self.clock.data_seconds / self.clock.seconds if self.clock.seconds else 0.0,
        }
        summary.update(self._evaluate(summary))
        progress.history.append(summary)
        progress.begin_epoch(progress.epoch + 1)
        self._save()
        self.reports.events.emit("epoch", life=self.reports.life, **summary)

    def _evaluate(self, summary: dict[str, Any]) -> dict[str, Any]:
        if self.data.evaluation is None:
            return {"loss": summary["train_loss"], "accuracy": summary["train_accuracy"], "eval_samples": 0}
        self.learner.align_buffers()
        began = time.perf_counter()
        scores = evaluate(self.learner.model, self.data.loader(self.data.evaluation), self.config, self.ranks)
        if not math.isfinite(scores.loss):
            raise TrainingError(
                f"the held-out loss of epoch {self.progress.epoch} is {scores.loss}: the model's scores are not finite "
                "although its gradients were. Lower `learning_rate`, or look at the model.",
                epoch=self.progress.epoch,
            )
        return {
            "loss": scores.loss,
            "accuracy": scores.accuracy,
            "eval_samples": scores.samples,
            "confusion": scores.confusion,
            "eval_seconds": time.perf_counter() - began,
        }

    # ------------------------------------------------------------ figures and checkpoints

    def _result(self) -> TrainResult:
        last = self.progress.history[-1]
        figures = TrainResult(
            accuracy=last["accuracy"],
            loss=last["loss"],
            epochs=self.progress.epoch,
            steps=self.progress.step,
            history=tuple(self.progress.history),
            model_dir=str(self.run_dir / MODEL_FOLDER),
            checkpoint=self.checkpoint,
            images_per_second=self.images_per_second(),
            seconds=time.monotonic() - self.began,
            resumed_from=self.resumed_from,
        )
        # Clocks differ from rank to rank; the result is the same on all.
        return self.ranks.share(figures, "agree on the result")

    def images_per_second(self) -> float:
        """Training samples per second of this life over all ranks, as this rank sees it."""
        return self.clock.samples * self.ranks.num_ranks / self.clock.seconds if self.clock.seconds else 0.0

    def _sums(self) -> list[float]:
        progress = self.progress
        return self.ranks.total([progress.loss_sum, progress.right, progress.samples], "sum their figures")

    def _save(self) -> None:
        """One checkpoint of the place after the last step: written by rank 0, while the others wait."""
        sums, began = self._sums(), time.perf_counter()
        self.checkpoint = self.ranks.first_does(
            lambda: str(self.folder.save(self._snapshot(sums))), "save a checkpoint"
        )
        self.reports.events.emit(
            "checkpoint", step=self.progress.step, path=self.checkpoint, seconds=time.perf_counter() - began
        )

    def _snapshot(self, sums: list[float]) -> Snapshot:
        tensors, rest = split_state(self.learner.optimizer)
        state = {
            **self.progress.to_state(sums),
            "cursor": self.loader.state_dict(),
            "optimizer": rest,
            "config": self.config.public_json(),
            "version": self.data.version,
            "digest": self.data.digest,
            "life": self.reports.life,
            # Every step seeds its own generators: see Learner.
            "random": {"scheme": "seed, step, rank", "seed": self.config.seed},
        }
        return Snapshot(self.progress.step, {"model": self.learner.model.state_dict(), "optimizer": tensors}, state)


def _brief(result: TrainResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_json().items() if name not in {"history", "resumed_from"}}
