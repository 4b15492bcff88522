"""One checkpoint: its name, its content, and the files of its folder, which are written, verified and read here.

Tensors are stored as safetensors, everything else as JSON. Nothing is pickled or unpickled, so a file from an unknown
source can at worst be refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.errors import CheckpointError
from smalti.torch.train.run.files import (
    FILES,
    Written,
    read_json,
    read_tensors,
    sha256_of,
    sync_folder,
    write_json,
    write_tensors,
)

if TYPE_CHECKING:
    import torch

CHECKSUMS_FILE = "checksums.json"
STATE_FILE = "state.json"
_STATE_FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})(?:-(\d{5,})(?:-(\d+))?)?")
BEFORE_LIVES = -1
"""Life of checkpoints whose names have none."""


@dataclass(frozen=True)
class Snapshot:
    """The content of one checkpoint."""

    step: int
    """Optimiser steps done."""
    tensors: "Mapping[str, Mapping[str, torch.Tensor]]"
    """Named tensors by file: `model`, `optimizer`."""
    state: Mapping[str, Any]
    """Everything else, as JSON: cursor, epoch, optimiser settings, configuration."""


@dataclass(frozen=True, order=True)
class CheckpointName:
    """The name of a checkpoint; the newest life with a checkpoint has the newest one."""

    life: int
    step: int
    attempt: int = 0
    """Number of times that the life had begun to save the step before."""

    def __str__(self) -> str:
        life = "" if self.life == BEFORE_LIVES else f"-{self.life:05d}"
        return f"step-{self.step:08d}{life}" + (f"-{self.attempt}" if self.attempt else "")

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """Return the name in a text; None if it is none."""
        match = _NAME.fullmatch(text)
        return match and cls(int(match[2] or BEFORE_LIVES), int(match[1]), int(match[3] or 0))

    def is_replaced_by(self, other: "CheckpointName") -> bool:
        """Return whether another checkpoint is a later one of the same life and step."""
        return (other.life, other.step) == (self.life, self.step) and other.attempt > self.attempt


def write_checkpoint(
    snapshot: Snapshot, staging: Path, files: Mapping[str, Written], on_durable: Callable[[Path], None]
) -> None:
    """Write the files of a snapshot into a staging folder, and the checksums of these and of all ranks' files last.

    Raises:
        OSError: a file cannot be written.
    """
    staging.mkdir(parents=True, exist_ok=True)
    for stem, tensors in snapshot.tensors.items():
        write_tensors(staging / f"{stem}.safetensors", tensors)
        on_durable(staging / f"{stem}.safetensors")
    write_json(staging / STATE_FILE, {**snapshot.state, "step": snapshot.step, "format": _STATE_FORMAT})
    on_durable(staging / STATE_FILE)
    sums = {path.name: sha256_of(path) for path in sorted(staging.iterdir()) if path.is_file()}
    sums.update({f"{FILES}/{name}": written.sha256 for name, written in sorted(files.items())})
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
    named = CheckpointName.parse(path.name)
    if type(state.get("step")) is not int or (named is not None and named.step != state["step"]):
        raise CheckpointError(
            f"{path / STATE_FILE} is of step {state.get('step')!s:.40}, expected that of its folder's name; the folder "
            "was renamed, or the file was edited.",
            path=str(path),
        )
    tensors = {file.stem: read_tensors(file) for file in sorted(path.glob("*.safetensors"))}
    return Snapshot(state["step"], tensors, state)
