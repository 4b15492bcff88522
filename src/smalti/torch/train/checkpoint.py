"""Checkpoints as atomic units: a folder per step that is there whole, or not at all, and is verified before it is used.

    checkpoints/step-00000120/   model.safetensors  optimizer.safetensors  state.json  checksums.json

Intended behaviour:
1. A checkpoint is written into a hidden folder, each file flushed, the checksums last; one rename publishes it.
2. Model, optimiser and place in the data are one unit; they cannot be of different steps.
3. Loading takes the newest folder whose files all have their checksums, and tells which newer ones it passed over.
4. Nothing is deleted before the newest checkpoint was read back and verified; broken ones go then, too.
5. One process writes at a time (see runlock); leftovers of a killed one are hidden and removed by the next save.
"""

import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from smalti.errors import CheckpointError
from smalti.torch.train.checkpoint_files import (
    read_json,
    read_tensors,
    sha256_of,
    sync_folder,
    write_json,
    write_tensors,
)

STATE_FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_STATE, _CHECKSUMS = "state.json", "checksums.json"


@dataclass(frozen=True)
class Snapshot:
    """What one checkpoint holds."""

    step: int
    """Optimiser steps done."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """Named tensors by file: `model`, `optimizer`."""
    state: Mapping[str, Any]
    """Everything else, as JSON: cursor, epoch, optimiser settings, configuration."""


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that could not be used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint."""

    path: Path
    snapshot: Snapshot
    skipped: tuple[Skipped, ...] = ()
    """Newer ones that did not verify, newest first."""


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass
class CheckpointFolder:
    """The checkpoints of one run. One process writes; any may read.

    Args:
        root: folder of the checkpoints; made when the first is saved.
        keep: how many verified ones to keep, at least 1.
        on_durable: called with the path after each file, and at last the folder, has become durable.
        check_state: called with the state of a checkpoint that verifies; a CheckpointError makes `load_newest` skip it.
    """

    root: Path
    keep: int = 2
    on_durable: Callable[[Path], None] = field(default=_ignore)
    check_state: Callable[[Mapping[str, Any]], None] = field(default=_ignore)
    _verified: set[str] = field(default_factory=set, init=False)

    def save(self, snapshot: Snapshot) -> Path:
        """Publishes a checkpoint, verifies it, then removes what is no longer kept; returns its folder.

        Raises:
            CheckpointError: it could not be written or does not read back; the earlier ones are untouched.
        """
        target = self.root / f"step-{snapshot.step:08d}"
        staging = self.root / f".{target.name}-{uuid.uuid4().hex[:8]}"
        try:
            staging.mkdir(parents=True)
            self._write(staging, snapshot)
            self._publish(staging, target)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint of step {snapshot.step} could not be written to {self.root}: {error}. "
                "Earlier checkpoints are untouched; make room or mend the disk and start the run again.",
                step=snapshot.step,
            ) from error
        verify_checkpoint(target)
        self._verified.add(target.name)
        self._prune()
        return target

    def load_newest(self) -> Loaded | None:
        """The newest checkpoint that verifies, or None where there has never been one.

        Raises:
            CheckpointError: there are checkpoints, and none verifies.
        """
        skipped: list[Skipped] = []
        for path in reversed(self.steps()):
            try:
                snapshot = load_checkpoint(path)
                self.check_state(snapshot.state)
            except CheckpointError as error:
                skipped.append(Skipped(path, str(error)))
                continue
            self._verified.add(path.name)
            return Loaded(path, snapshot, tuple(skipped))
        if skipped:
            reasons = "; ".join(f"{skip.path.name}: {skip.reason}" for skip in skipped)
            raise CheckpointError(
                f"none of the {len(skipped)} checkpoints in {self.root} verifies ({reasons}). Restore one, "
                "or remove that folder to train from the beginning.",
                skipped=tuple(str(skip.path) for skip in skipped),
            )
        return None

    def steps(self) -> list[Path]:
        """The folders of published checkpoints, oldest first."""
        if not self.root.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.root.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def _write(self, staging: Path, snapshot: Snapshot) -> None:
        for stem, tensors in snapshot.tensors.items():
            write_tensors(staging / f"{stem}.safetensors", tensors)
            self.on_durable(staging / f"{stem}.safetensors")
        write_json(staging / _STATE, {**snapshot.state, "step": snapshot.step, "format": STATE_FORMAT})
        self.on_durable(staging / _STATE)
        sums = {path.name: sha256_of(path) for path in sorted(staging.iterdir())}
        write_json(staging / _CHECKSUMS, {"sha256": sums})
        self.on_durable(staging / _CHECKSUMS)
        sync_folder(staging)

    def _publish(self, staging: Path, target: Path) -> None:
        if target.exists():
            # Of a life that was rolled back: the same step again, or a broken folder that loading passed over.
            target.rename(self.root / f".replaced-{target.name}-{uuid.uuid4().hex[:8]}")
        staging.rename(target)
        sync_folder(self.root)
        self.on_durable(target)

    def _prune(self) -> None:
        steps = self.steps()
        good = [path for path in steps if path.name in self._verified]
        kept = set(good[-self.keep :])
        if len(good) < self.keep:
            # Folders that this process has not looked at may be needed to make up the number.
            kept.update(path for path in steps if path.name not in self._verified and path < good[-1])
        for path in self.root.iterdir():
            stale = path.name.startswith((".step-", ".replaced-step-")) or _NAME.fullmatch(path.name)
            if stale and path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def verify_checkpoint(path: Path) -> None:
    """Returns if the folder holds exactly the files that its checksums name, each unchanged.

    Raises:
        CheckpointError: it does not; the message names the file.
    """
    sums = read_json(path / _CHECKSUMS).get("sha256")
    if not isinstance(sums, dict) or _STATE not in sums:
        raise CheckpointError(f"{path / _CHECKSUMS} lists no checksums; the file is damaged.", path=str(path))
    present = {file.name for file in path.iterdir()} - {_CHECKSUMS}
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


def load_checkpoint(path: Path) -> Snapshot:
    """The verified content of one checkpoint folder.

    Raises:
        CheckpointError: a file is missing, changed or not what it should be.
    """
    verify_checkpoint(path)
    state = read_json(path / _STATE)
    if state.get("format") != STATE_FORMAT:
        raise CheckpointError(
            f"{path / _STATE} has format {state.get('format')!r}, this Smalti reads {STATE_FORMAT}; use the "
            "version that wrote it.",
            path=str(path),
        )
    named = _NAME.fullmatch(path.name)
    if type(state.get("step")) is not int or (named is not None and int(named[1]) != state["step"]):
        raise CheckpointError(
            f"{path / _STATE} is of step {state.get('step')!s:.40}, expected that of its folder's name; the folder "
            "was renamed, or the file was edited.",
            path=str(path),
        )
    tensors = {file.stem: read_tensors(file) for file in sorted(path.glob("*.safetensors"))}
    return Snapshot(state["step"], tensors, state)
