"""Checkpoints: the state of a run in one folder per step, published atomically and verified before it is used.

    checkpoints/step-00000120/   model.safetensors  optimizer.safetensors  state.json  files/  checksums.json

Intended behaviour:
1. A checkpoint is written into a hidden folder; each file is flushed, the checksums are written last, and one rename
   publishes the folder. Before it, an earlier checkpoint of the same step is renamed; loading undoes that if a crash
   came in between.
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
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from smalti.errors import CheckpointError
from smalti.torch.train.run.files import read_json, read_tensors, sync_folder, write_json, write_tensors
from smalti.torch.train.run.parts import FILES, Parts, Written, flush_files, sha256_of

PathOrText = TypeVar("PathOrText", Path, str)
Named = TypeVar("Named")
CheckState = Callable[[Mapping[str, Any]], None]
"""Raises a CheckpointError if a checkpoint's `state.json` is not what its reader expects."""
Guard = Callable[[], AbstractContextManager[object]]
"""Returns a context in which checkpoints are published and removed; it raises a CheckpointError if that must not be."""

_STATE_FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
CHECKSUMS_FILE = "checksums.json"
STATE_FILE = "state.json"


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
        guard: see `Guard`.
    """

    root: Path
    keep: int = 2
    on_durable: Callable[[Path], None] = field(default=ignore)
    check_state: CheckState = field(default=ignore)
    keep_best: str | None = None
    guard: Guard = field(default=contextlib.nullcontext)
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

    def begin(self, step: int) -> None:
        """Begin to save a step, on every rank: nothing is to do here, where a rename replaces a checkpoint."""

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
            with self.guard():
                self._publish(parts.staging, target)
        except OSError as error:
            shutil.rmtree(parts.staging, ignore_errors=True)
            raise _not_written(snapshot.step, self.root, error) from error
        except CheckpointError:
            shutil.rmtree(parts.staging, ignore_errors=True)
            raise
        verify_checkpoint(target, without=parts.written)
        _check_sizes(target, parts.written)
        self._verified.add(target.name)
        with contextlib.suppress(CheckpointError), self.guard():  # the next life removes older ones, too
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
        self._restore_replaced()
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
        replaced = self.root / f".replaced-{target.name}-{uuid.uuid4().hex[:8]}"
        if target.exists():
            # The same step of this life, or of one that was rolled back, or a broken checkpoint that loading skipped.
            target.rename(replaced)
        try:
            staging.rename(target)
        except OSError:
            self._restore_replaced()
            raise
        sync_folder(self.root)
        self.on_durable(target)

    def _restore_replaced(self) -> None:
        """Name a checkpoint again as it was if the one that was to replace it is not there."""
        for path in self.root.glob(".replaced-step-*"):
            target = self.root / path.name.removeprefix(".replaced-").rpartition("-")[0]
            if not target.exists():
                with contextlib.suppress(OSError):  # a folder that may only be read
                    path.rename(target)

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
    tensors = {file.stem: read_tensors(file) for file in sorted(path.glob("*.safetensors"))}
    return Snapshot(state["step"], tensors, state)
