"""Checkpoints: the state of a run in one folder per step, published atomically and verified before it is used.

    checkpoints/step-00000120/   model.safetensors  optimizer.safetensors  state.json  files/  checksums.json

Intended behaviour:
1. A checkpoint is written into a hidden folder; each file is flushed, the checksums are written last, and one rename
   publishes the folder.
2. Model, optimiser, cursor and the files that the ranks give (see `parts`) are one unit; they cannot be of different
   steps.
3. Loading takes the newest folder whose files all have their checksums, and reports the newer ones that it skipped.
4. Nothing is deleted before the newest checkpoint was read back and verified; broken checkpoints are deleted then, too.
5. One process writes at a time (see `folder.run_lock`). What a killed process left is hidden, and removed by the
   next save.

Tensors are stored as safetensors, everything else as JSON. Nothing is pickled or unpickled, so a file from an unknown
source can at worst be refused.
"""

import contextlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from smalti.errors import CheckpointError, CursorError
from smalti.storage.local import sync_path
from smalti.torch.train.config import IMAGES, TrainConfig
from smalti.torch.train.run.parts import FILES, Parts, Written, flush_files, sha256_of

PathOrText = TypeVar("PathOrText", Path, str)
Named = TypeVar("Named")
CheckState = Callable[[Mapping[str, Any]], None]
"""Raises a CheckpointError if a checkpoint's `state.json` is not what its reader expects."""

_STATE_FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
CHECKSUMS_FILE = "checksums.json"
STATE_FILE = "state.json"
_FIXED = (
    "task",
    "task_options",
    "freeze",
    "train_split",
    "image_column",
    "label_column",
    "num_classes",
    "class_names",
    "image_size",
    "model",
    "width",
    "seed",
)
"""Fields of the configuration that may not change between two lives of a run; others (batch size, ranks, rates) may."""
_BEFORE: Mapping[str, Any] = {"task": IMAGES, "task_options": {}, "freeze": []}
"""Their values in checkpoints that were written before they were fields."""


@dataclass(frozen=True)
class Snapshot:
    """The content of one checkpoint."""

    step: int
    """Optimiser steps done."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """Named tensors by file: `model`, `optimizer`."""
    state: Mapping[str, Any]
    """Everything else, as JSON: cursor, epoch, optimiser settings, configuration."""


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that could not be used, and the reason."""

    path: Path | str
    """Its folder, or its address in a store."""
    reason: str


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint."""

    path: Path | str
    """Its folder, or its address in a store."""
    snapshot: Snapshot
    skipped: tuple[Skipped, ...] = ()
    """Newer checkpoints that did not verify, newest first."""

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint's address and step, and the skipped ones, as JSON values."""
        return {
            "checkpoint": str(self.path),
            "step": self.snapshot.step,
            "skipped": [{"path": str(skip.path), "reason": skip.reason} for skip in self.skipped],
        }


def ignore(_: object) -> None:
    """Do nothing."""


@dataclass
class CheckpointFolder:
    """The checkpoints of one run. One process writes; any may read.

    Args:
        keep: number of verified checkpoints to keep, at least 1.
        on_durable: called with the path of each file, and finally of the folder, when it has become durable.
        check_state: called with the state of a checkpoint that verifies; a CheckpointError makes `load_newest` skip it.
        keep_best: `min` or `max` and the name of a figure; the best checkpoint by it is kept as well.
    """

    root: Path
    keep: int = 2
    on_durable: Callable[[Path], None] = field(default=ignore)
    check_state: CheckState = field(default=ignore)
    keep_best: str | None = None
    _verified: set[str] = field(default_factory=set, init=False)

    def address_of(self, step: int) -> str:
        """Return the path of the checkpoint of a step."""
        return str(self.root / _name_of(step))

    def staging(self, step: int, token: str, rank: int) -> Path:  # noqa: ARG002 - all ranks share this folder
        """Return the hidden folder into which a rank copies its files; `token` is equal on all ranks."""
        return self.root / f".{_name_of(step)}-{token}"

    def discard(self, staging: Path, *, is_first: bool) -> None:
        """Remove the staging folder of all ranks; rank 0 does it."""
        if is_first:
            shutil.rmtree(staging, ignore_errors=True)

    def retract(self, step: int) -> None:
        """Prepare saving a step again: nothing is to do here, where one rename replaces a checkpoint."""

    def contribute(self, step: int, staging: Path, names: Sequence[str]) -> dict[str, Written]:
        """Make the files of one rank, which are in its staging folder, part of a checkpoint, and return them.

        Raises:
            CheckpointError: they could not be written.
        """
        try:
            return flush_files(staging, names)
        except OSError as error:
            raise _not_written(step, self.root, error) from error

    def save(self, snapshot: Snapshot, parts: Parts | None = None) -> Path:
        """Publish a checkpoint, verify it, remove those that are no longer kept, and return the new one's folder.

        Raises:
            CheckpointError: it could not be written or does not verify; earlier checkpoints are untouched.
        """
        target = self.root / _name_of(snapshot.step)
        parts = parts or Parts(self.staging(snapshot.step, uuid.uuid4().hex[:8], 0))
        try:
            write_checkpoint(snapshot, parts, self.on_durable)
            self._publish(parts.staging, target)
        except OSError as error:
            shutil.rmtree(parts.staging, ignore_errors=True)
            raise _not_written(snapshot.step, self.root, error) from error
        verify_checkpoint(target, without=parts.written)
        _check_sizes(target, parts.written)
        self._verified.add(target.name)
        self._prune()
        return target

    def newest(self) -> str | None:
        """Return the path of the newest published checkpoint, verified or not; None if there is none."""
        return next((str(path) for path in reversed(self.steps())), None)

    def best(self) -> str | None:
        """Return the path of the checkpoint with the best figure that verifies; None if none has the figure."""
        best = self._best()
        return None if best is None else str(best)

    def _best(self) -> Path | None:
        def score(path: Path) -> float | None:
            try:
                return score_of(read_json(path / STATE_FILE), self.keep_best)
            except CheckpointError:
                return None

        def verifies(path: Path) -> bool:
            try:
                if path.name not in self._verified:
                    verify_checkpoint(path)
            except CheckpointError:
                return False
            self._verified.add(path.name)
            return True

        return best_of(self.steps(), score, verifies) if self.keep_best else None

    def load_newest(self) -> Loaded | None:
        """Return the newest checkpoint that verifies, or None if there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, and none verifies.
        """
        loaded = newest_verified(reversed(self.steps()), load_checkpoint, self.check_state, where=str(self.root))
        if loaded is not None:
            self._verified.add(Path(loaded.path).name)
        return loaded

    def load(self, address: str) -> Snapshot:
        """Return the content of the checkpoint at a path that `load_newest` returned on some rank.

        Raises:
            CheckpointError: a file of the state is missing, changed or malformed.
        """
        return load_checkpoint(Path(address), with_files=False)

    def files(self, address: str, patterns: Sequence[str] = ("*",)) -> Path | None:  # noqa: ARG002 - all are here
        """Return the folder with the files of a checkpoint that `load_newest` returned; None if it has none."""
        folder = Path(address) / FILES
        return folder if folder.is_dir() else None

    def steps(self) -> list[Path]:
        """Return the folders of published checkpoints, oldest first."""
        if not self.root.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.root.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def _publish(self, staging: Path, target: Path) -> None:
        if target.exists():
            # Left by a life that was rolled back: the same step, or a broken checkpoint that loading skipped.
            target.rename(self.root / f".replaced-{target.name}-{uuid.uuid4().hex[:8]}")
        staging.rename(target)
        sync_folder(self.root)
        self.on_durable(target)

    def _prune(self) -> None:
        steps = self.steps()
        good = [path for path in steps if path.name in self._verified]
        kept = set(good[-self.keep :])
        if len(good) < self.keep:
            # Checkpoints that this process has not verified may be needed to make up the number.
            kept.update(path for path in steps if path.name not in self._verified and path < good[-1])
        if (best := self._best()) is not None:
            kept.add(best)
        for path in self.root.iterdir():
            stale = path.name.startswith((".step-", ".replaced-step-")) or _NAME.fullmatch(path.name)
            if stale and path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _name_of(step: int) -> str:
    return f"step-{step:08d}"


def _not_written(step: int, root: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint of step {step} could not be written to {root}: {error}. "
        "Earlier checkpoints are untouched; make room or mend the disk and start the run again.",
        step=step,
    )


def write_checkpoint(snapshot: Snapshot, parts: Parts, on_durable: Callable[[Path], None] = ignore) -> None:
    """Write the files of a snapshot into a staging folder, and the checksums of these and of all ranks' files last.

    Raises:
        OSError: a file cannot be written.
    """
    staging = parts.staging
    staging.mkdir(parents=True, exist_ok=True)
    for stem, tensors in snapshot.tensors.items():
        write_tensors(staging / f"{stem}.safetensors", tensors)
        on_durable(staging / f"{stem}.safetensors")
    write_json(staging / STATE_FILE, {**snapshot.state, "step": snapshot.step, "format": _STATE_FORMAT})
    on_durable(staging / STATE_FILE)
    sums = {path.name: sha256_of(path) for path in sorted(staging.iterdir()) if path.is_file()}
    sums.update({f"{FILES}/{name}": written.sha256 for name, written in sorted(parts.written.items())})
    write_json(staging / CHECKSUMS_FILE, {"sha256": sums})
    on_durable(staging / CHECKSUMS_FILE)
    for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
        sync_folder(folder)


def read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint folder, by its name.

    Raises:
        CheckpointError: they cannot be read.
    """
    sums = read_json(path / CHECKSUMS_FILE).get("sha256")
    if not isinstance(sums, dict) or STATE_FILE not in sums:
        raise CheckpointError(f"{path / CHECKSUMS_FILE} lists no checksums; the file is damaged.", path=str(path))
    return sums


def verify_checkpoint(path: Path, *, without: Mapping[str, Written] | None = None, with_files: bool = True) -> None:
    """Check that a folder holds exactly the files that its checksums name, each unchanged.

    Args:
        path: the folder.
        without: files of ranks that were read back when they were written, or lie elsewhere; they are not looked at.
        with_files: whether to look at the files of ranks at all.

    Raises:
        CheckpointError: a file is missing, changed or added.
    """
    left_out = {f"{FILES}/{name}" for name in without or {}}
    sums = {name: expected for name, expected in read_checksums(path).items() if name not in left_out}
    files = (file for file in path.rglob("*") if not file.is_dir() or file.is_symlink())
    present = {file.relative_to(path).as_posix() for file in files} - {CHECKSUMS_FILE} - left_out
    if not with_files:
        sums = {name: expected for name, expected in sums.items() if "/" not in name}
        present = {name for name in present if "/" not in name}
    if present != set(sums):
        raise CheckpointError(
            f"{path} holds the files {sorted(present)}, but its checksums name {sorted(sums)}.", path=str(path)
        )
    for name, expected in sums.items():
        try:
            found = sha256_of(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error}", path=str(path / name)) from error
        if found != expected:
            raise CheckpointError(
                f"{path / name}: sha256 expected {expected}, found {found}; the file has changed since it was written.",
                path=str(path / name),
            )


def _check_sizes(path: Path, written: Mapping[str, Written]) -> None:
    """Check that files which their ranks read back are in a published folder."""
    for name, expected in written.items():
        file = path / FILES / name
        found = file.stat().st_size if file.is_file() else None
        if found != expected.num_bytes:
            raise CheckpointError(
                f"{file} has {found} bytes, expected {expected.num_bytes}. Do all ranks see {path.parent} as the same "
                "folder? If not, give `run_dir` the address of a store.",
                path=str(file),
            )


def score_of(state: Mapping[str, Any], figure: str | None) -> float | None:
    """Return the figure of a checkpoint's state such that greater is better; None if it has none.

    Args:
        state: the state.
        figure: `min` or `max`, and a name.
    """
    direction, _, name = (figure or "").partition(" ")
    metrics = state.get("metrics")
    value = metrics.get(name) if isinstance(metrics, Mapping) else None
    if not isinstance(value, int | float):
        return None
    return float(value) if direction == "max" else -float(value)


def best_of(
    names: Iterable[Named], score: Callable[[Named], float | None], verifies: Callable[[Named], bool]
) -> Named | None:
    """Return the name with the greatest score that verifies, the last one of equals; None if no name has a score."""
    scored = [(found, place, name) for place, name in enumerate(names) if (found := score(name)) is not None]
    return next((name for _, _, name in sorted(scored, reverse=True) if verifies(name)), None)


def newest_verified(
    newest_first: Iterable[PathOrText],
    load: Callable[[PathOrText], Snapshot],
    check_state: CheckState,
    *,
    where: str,
) -> Loaded | None:
    """Return the first checkpoint that loads, or None if there is no checkpoint; only CheckpointErrors skip one.

    Raises:
        CheckpointError: there are checkpoints, and none verifies.
    """
    skipped: list[Skipped] = []
    for path in newest_first:
        try:
            snapshot = load(path)
            check_state(snapshot.state)
        except CheckpointError as error:
            skipped.append(Skipped(path, str(error)))
            continue
        return Loaded(path, snapshot, tuple(skipped))
    if skipped:
        reasons = "; ".join(f"{Path(skip.path).name}: {skip.reason}" for skip in skipped)
        raise CheckpointError(
            f"none of the {len(skipped)} checkpoints in {where} verifies ({reasons}). Restore one, "
            "or remove that folder to train from the beginning.",
            skipped=tuple(str(skip.path) for skip in skipped),
        )
    return None


def load_checkpoint(path: Path, *, with_files: bool = True) -> Snapshot:
    """Verify one checkpoint folder, with or without the files of ranks, and return its content.

    Raises:
        CheckpointError: a file is missing, changed or malformed.
    """
    verify_checkpoint(path, with_files=with_files)
    state = read_json(path / STATE_FILE)
    if state.get("format") != _STATE_FORMAT:
        raise CheckpointError(
            f"{path / STATE_FILE} has format {state.get('format')!r}, this Smalti reads {_STATE_FORMAT}; use the "
            "version that wrote it.",
            path=str(path),
        )
    named = _NAME.fullmatch(path.name)
    if type(state.get("step")) is not int or (named is not None and int(named[1]) != state["step"]):
        raise CheckpointError(
            f"{path / STATE_FILE} is of step {state.get('step')!s:.40}, expected that of its folder's name; the folder "
            "was renamed, or the file was edited.",
            path=str(path),
        )
    tensors = {file.stem: _read_tensors(file) for file in sorted(path.glob("*.safetensors"))}
    return Snapshot(state["step"], tensors, state)


def split_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return an optimiser's tensors as `<parameter number>.<name>`, and the rest of its state as JSON values.

    torch's own form is a nested structure that only a pickle can hold.
    """
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{parameter}.{name}"] = value
            else:
                numbers.setdefault(str(parameter), {})[name] = value
    return tensors, {"numbers": numbers, "groups": state["param_groups"]}


def restore_state(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]
) -> None:
    """Load a state that `split_state` took apart into `optimizer`.

    Raises:
        CheckpointError: the state belongs to another optimiser or model.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in rest["numbers"].items()}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            entries.setdefault(int(number), {})[name] = _like(parameters[int(number)], tensor, key)
        # JSON has no tuples, and AdamW unpacks its betas.
        groups = [{name: _with_tuples(name, value) for name, value in group.items()} for group in rest["groups"]]
        _check_parameter_groups(groups, optimizer)
        optimizer.load_state_dict({"state": entries, "param_groups": groups})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the optimiser state of the checkpoint does not fit this model: {error}. Train on with the configuration "
            "that wrote it."
        ) from error


def _with_tuples(name: str, value: Any) -> Any:
    return tuple(value) if isinstance(value, list) and name != "params" else value


def _check_parameter_groups(groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Check that groups hold settings that fit the optimiser; the number of groups is checked when they are loaded.

    Numbers may differ from the optimiser's own. Switches may not: they decide how it computes, and this program sets
    them. A switch may be missing: it was added by a later version of torch than the one that wrote the groups.
    """
    for group, own in zip(groups, optimizer.param_groups, strict=False):
        for name, value in own.items():
            if name == "params":
                continue
            if value is None or isinstance(value, bool):
                fits = name not in group or group[name] is value
            else:
                fits = _kind(group[name]) == _kind(value)
            if not fits:
                raise ValueError(f"`{name}` is {group[name]!s:.40}, expected one like {value}")


def _kind(value: Any) -> Any:
    """Return a value that is equal for settings of one kind: numbers, or tuples of equally many numbers."""
    if isinstance(value, tuple):
        return [_kind(each) for each in value]
    return float if type(value) in {int, float} else type(value)


def _like(parameter: torch.Tensor, tensor: torch.Tensor, key: str) -> torch.Tensor:
    """Return the tensor in the parameter's memory layout.

    Files hold tensors row by row, while parameters may be channels_last. The fused optimisers treat both as flat memory
    and would otherwise give each weight the momentum of another.
    """
    if tensor.dim() == 0:
        return tensor
    if tensor.shape != parameter.shape:
        if _is_factor(tensor.shape, parameter.shape):
            return tensor
        raise ValueError(f"{key} has shape {tuple(tensor.shape)}, its parameter {tuple(parameter.shape)}")
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def _is_factor(shape: torch.Size, of: torch.Size) -> bool:
    """Return whether a tensor holds one value per row or column of a weight, as optimisers with factors keep them."""
    return len(shape) == len(of) and all(own in (1, whole) for own, whole in zip(shape, of, strict=True))


@dataclass
class RunState:
    """The mutable state of a run; equal on all ranks except for the running sums, which are of this rank."""

    step: int = 0
    epoch: int = 0
    """Epoch being trained, from 0."""
    loss_sum: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    num_samples: float = 0.0
    """Sum of losses, of each of the task's scores, and of samples of this epoch so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One summary per finished epoch."""

    @property
    def sums(self) -> list[float]:
        """The running sums of this rank."""
        return [self.loss_sum, *self.scores.values(), self.num_samples]

    def to_json(self, sums: list[float]) -> dict[str, Any]:
        """Return the state as JSON values; `sums` are the running sums over all ranks."""
        return {"epoch": self.epoch, "sums": sums, "scores": list(self.scores), "history": self.history}

    @classmethod
    def from_json(cls, state: Mapping[str, Any], *, is_first: bool) -> "RunState":
        """Return the state of a checkpoint; only rank 0 takes the sums, so that they are counted once."""
        loss_sum, *scores, num_samples = state["sums"] if is_first else [0.0] * len(state["sums"])
        by_name = dict(zip(_scores_of(state), scores, strict=True))
        return cls(state["step"], state["epoch"], loss_sum, by_name, num_samples, list(state["history"]))

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch with sums of zero."""
        self.epoch, self.loss_sum, self.num_samples = epoch, 0.0, 0.0
        self.scores = dict.fromkeys(self.scores, 0.0)

    def add(self, loss: float, scores: Mapping[str, float], num_samples: int) -> None:
        """Add the sums of a step."""
        self.loss_sum += loss
        self.num_samples += num_samples
        for name, value in scores.items():
            self.scores[name] = self.scores.get(name, 0.0) + value

    def means(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the means of the loss and of the scores by name; `sums` are those of all ranks."""
        samples = max(1.0, sums[-1])
        return {name: value / samples for name, value in zip(("loss", *self.scores), sums, strict=False)}


def check_state(state: Mapping[str, Any]) -> None:
    """Check that a checkpoint's `state.json` is the state of a run; the loader checks the cursor's own fields.

    Raises:
        CheckpointError: a field is missing or has the wrong type; the message names it.
    """
    for name, expected, is_valid in _EXPECTED:
        if name not in state or not is_valid(state[name]):
            raise CheckpointError(
                f"state.json: `{name}` is {str(state.get(name))[:80]}, expected {expected}; it was not written by this "
                "trainer, or was edited.",
                field=name,
            )
    if len(state["sums"]) != len(_scores_of(state)) + 2:
        raise CheckpointError(
            f"state.json: `sums` is {str(state['sums'])[:80]}, expected the loss, {', '.join(_scores_of(state))} and "
            "the number of samples; it was not written by this trainer, or was edited.",
            field="sums",
        )
    if len(state["history"]) != state["epoch"]:
        raise CheckpointError(
            f"state.json: `history` has {len(state['history'])} entries, expected one for each of {state['epoch']} "
            "finished epochs; it was not written by this trainer, or was edited.",
            field="history",
        )
    epoch = state["cursor"].get("epoch", state["epoch"])
    if not _is_count(epoch) or not 0 <= epoch - state["epoch"] <= 1:  # the next one, until this one is evaluated
        raise CheckpointError(
            f"state.json: `cursor` is of epoch {epoch!s:.40}, expected the run's epoch {state['epoch']}; it was not "
            "written by this trainer, or was edited.",
            field="cursor",
        )


def check_same_run(config: TrainConfig, state: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to the run that `config` describes.

    Raises:
        CursorError: a field differs that may not change within a run; the message names it.
    """
    now, then = config.public_json(), state["config"]
    changed = [name for name in _FIXED if now[name] != then.get(name, _BEFORE.get(name))]
    if changed:
        listed = "; ".join(
            f"`{name}` was {then.get(name, _BEFORE.get(name))!r} and is {now[name]!r}" for name in changed
        )
        raise CursorError(
            f"{config.run_dir} holds the checkpoints of another run: {listed}. Use another `run_dir`, or "
            "the former values to resume.",
            changed=tuple(changed),
        )
    if config.digest is not None and config.digest != state["digest"]:
        raise CursorError(
            f"{config.run_dir} was trained on data with digest {state['digest']}, and this run is pinned to "
            f"{config.digest}. Use another `run_dir` for other data.",
            expected=config.digest,
            found=state["digest"],
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float}


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_summary(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_number(value.get("loss"))


def _scores_of(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the sums between those of the loss and the samples."""
    scores = state.get("scores", ["accuracy"])  # those of checkpoints that were written when there were no others
    return [str(name) for name in scores] if isinstance(scores, list) else []


_EXPECTED: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("epoch", "a whole number from 0", _is_count),
    ("sums", "numbers", lambda value: isinstance(value, list) and all(map(_is_number, value))),
    (
        "history",
        "a list of epochs with `loss`",
        lambda value: isinstance(value, list) and all(map(_is_summary, value)),
    ),
    ("cursor", "an object", _is_mapping),
    ("optimizer", "an object", _is_mapping),
    ("config", "an object", _is_mapping),
    ("version", "a whole number from 0 or null", lambda value: value is None or _is_count(value)),
    ("digest", "a text", lambda value: isinstance(value, str)),
)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors of any memory layout to a safetensors file, and flush it to the disk.

    Raises:
        OSError: the file cannot be written.
    """
    separate: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        # safetensors has no notion of tied weights: each name gets its own bytes.
        separate[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(separate[name].data_ptr())
    try:
        # transformers opens only files whose metadata names the framework that wrote them.
        save_file(separate, str(path), metadata={"format": "pt"})
    except SafetensorError as error:  # also raised for errors of the operating system
        raise OSError(f"{path.name}: {error}") from error
    sync_path(path)


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU."""
    try:
        return dict(load_file(str(path), device="cpu"))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}", path=str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file and flush it to the disk."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    sync_path(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: the file cannot be read or does not hold an object.
    """
    try:
        value = json.loads(path.read_bytes(), parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}", path=str(path)) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, expected a JSON object.", path=str(path))
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no finite number")
    return number


def replace_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically: a reader sees either the old file or the whole new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_json(fresh, value)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk. Best effort: FUSE mounts (UC Volumes among them) refuse it."""
    with contextlib.suppress(OSError):
        sync_path(path)
