"""The checkpoints of a run in a store: published, listed, fetched, verified and removed.

The module `store` beside this one shows their names and says how they are to behave.
"""

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from smalti.errors import CheckpointError, StoreError, StoreNotFound, TrainingError
from smalti.storage import Store
from smalti.storage.store import check_key
from smalti.torch.train.run.checkpoint import (
    CHECKSUMS_FILE,
    STATE_FILE,
    CheckState,
    Loaded,
    Snapshot,
    best_of,
    ignore,
    load_checkpoint,
    newest_verified,
    read_checksums,
    score_of,
    verify_checkpoint,
    write_checkpoint,
)
from smalti.torch.train.run.parts import FILES, Parts, Written, flush_files, sha256_of

CHECKPOINTS = "checkpoints"
_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(step-(\d{{8,}})-(\d{{5,}})(?:-(\d+))?)/(.+)")


class RunInStore(Protocol):
    """The run whose checkpoints these are; `store.StoreRun` is one."""

    path: Path
    """Local scratch folder."""
    address: str
    store: Store

    def check_current(self) -> None:
        """Raise a TrainingError if the run was started again elsewhere."""

    def put_log(self) -> None:
        """Put the log of events if it has grown."""


@dataclass(frozen=True, order=True)
class _Name:
    """A checkpoint in a store; the newest life with a checkpoint has the newest one."""

    life: int
    step: int
    attempt: int = 0
    """Number of times that the life had begun to save the step before."""

    def __str__(self) -> str:
        return f"step-{self.step:08d}-{self.life:05d}" + (f"-{self.attempt}" if self.attempt else "")

    def is_replaced_by(self, other: "_Name") -> bool:
        """Return whether another checkpoint is a later one of the same life and step."""
        return (other.life, other.step) == (self.life, self.step) and other.attempt > self.attempt


@dataclass
class StoreCheckpoints:
    """The checkpoints of a run in a store, as seen by one life of it; `store` says how they are published.

    Args:
        keep: number of verified checkpoints to keep, at least 1.
        check_state: called with the state of a checkpoint that verifies; a CheckpointError makes `load_newest` skip it.
    """

    run: RunInStore
    keep: int = 2
    life: int = 0
    check_state: CheckState = field(default=ignore)
    keep_best: str | None = None
    """`min` or `max` and the name of a figure; the best checkpoint by it is kept as well."""
    _scores: dict[_Name, float | None] = field(default_factory=dict, init=False)
    _verified: set[_Name] = field(default_factory=set, init=False)
    _attempts: dict[int, int] = field(default_factory=dict, init=False)
    """Number of times that this life has begun to save a step, by step; equal on all ranks."""

    def address_of(self, step: int) -> str:
        """Return the address of the checkpoint of a step."""
        return self._address(self._name(step))

    def _name(self, step: int) -> _Name:
        return _Name(self.life, step, max(0, self._attempts.get(step, 0) - 1))

    def staging(self, step: int, token: str, rank: int) -> Path:
        """Return the hidden folder into which a rank copies its files of a checkpoint."""
        return self.run.path / CHECKPOINTS / f".step-{step:08d}-{token}-{rank}"

    def discard(self, staging: Path, *, is_first: bool) -> None:  # noqa: ARG002 - each rank has its own
        """Remove a rank's staging folder."""
        shutil.rmtree(staging, ignore_errors=True)

    def begin(self, step: int) -> None:
        """Begin to save a step, on every rank. A step that is saved again gets a name of its own.

        So the earlier checkpoint of the step exists until the new one is published.
        """
        self._attempts[step] = self._attempts.get(step, 0) + 1

    def contribute(self, step: int, staging: Path, names: Sequence[str]) -> dict[str, Written]:
        """Put the files of one rank, which are in its staging folder, and return them.

        Raises:
            CheckpointError: they cannot be read.
            StoreError: the store cannot be written.
        """
        try:
            written = flush_files(staging, names)
        except OSError as error:
            raise CheckpointError(f"the files in {staging} cannot be read: {error}", path=str(staging)) from error
        for name in names:
            self.run.store.put_file(f"{CHECKPOINTS}/{self._name(step)}/{FILES}/{name}", staging / FILES / name)
        return written

    def save(self, snapshot: Snapshot, parts: Parts | None = None) -> str:
        """Publish a checkpoint, remove those that are no longer kept, and return the new one's address.

        Raises:
            CheckpointError: it could not be written to the scratch folder, or is incomplete in the store.
            TrainingError: the run was started again elsewhere.
            StoreError: the store cannot be written; earlier checkpoints are untouched.
        """
        self.run.check_current()
        self._remove_loaded()
        if parts is None:
            self.begin(snapshot.step)
            parts = Parts(self.staging(snapshot.step, secrets.token_hex(4), 0))
        name = self._name(snapshot.step)
        try:
            sizes = self._put(name, snapshot, parts)
        finally:
            shutil.rmtree(parts.staging, ignore_errors=True)
        files = self._files()
        if files.get(name) != sizes:
            raise CheckpointError(
                f"{self._address(name)} was put with the files {sizes} (bytes), and the store lists {files.get(name)}. "
                "Nothing older was removed; start the run again.",
                step=snapshot.step,
            )
        self._verified.add(name)
        self._prune(files)
        return self._address(name)

    def _put(self, name: _Name, snapshot: Snapshot, parts: Parts) -> dict[str, int]:
        """Put rank 0's files of a checkpoint, the checksums last, and return the sizes of the files of all ranks."""
        store, prefix, staging = self.run.store, f"{CHECKPOINTS}/{name}", parts.staging
        try:
            write_checkpoint(snapshot, parts)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {snapshot.step} could not be written to {staging}: {error}. Earlier "
                "checkpoints are untouched; make room or set TMPDIR to another disk, and start the run again.",
                step=snapshot.step,
            ) from error
        verify_checkpoint(staging, without=parts.written)
        sizes = {path.name: path.stat().st_size for path in sorted(staging.iterdir()) if path.is_file()}
        for file in sizes:
            if file != CHECKSUMS_FILE:
                store.put_file(f"{prefix}/{file}", staging / file)
        self.run.put_log()
        self.run.check_current()
        store.put_file(f"{prefix}/{CHECKSUMS_FILE}", staging / CHECKSUMS_FILE)
        return {**sizes, **{f"{FILES}/{file}": written.num_bytes for file, written in parts.written.items()}}

    def newest(self) -> str | None:
        """Return the address of the newest published checkpoint, verified or not; None if there is none.

        Raises:
            StoreError: the store cannot be read.
        """
        return next((self._address(name) for name in reversed(_published(self._files()))), None)

    def best(self) -> str | None:
        """Return the address of the checkpoint with the best figure that verifies; None if none has the figure.

        Raises:
            StoreError: the store cannot be read.
        """
        best = self._best(_published(self._files()))
        return None if best is None else self._address(best)

    def _best(self, published: Iterable[_Name]) -> _Name | None:
        return best_of(published, self._score, self._verifies) if self.keep_best else None

    def _score(self, name: _Name) -> float | None:
        if name not in self._scores:
            try:
                state = json.loads(self.run.store.get(f"{CHECKPOINTS}/{name}/{STATE_FILE}"))
            except (StoreNotFound, ValueError):  # damaged
                state = None
            self._scores[name] = score_of(state, self.keep_best) if isinstance(state, dict) else None
        return self._scores[name]

    def _verifies(self, name: _Name) -> bool:
        try:
            if name not in self._verified:
                self._load_whole(self._address(name))
        except CheckpointError:
            return False
        self._verified.add(name)
        return True

    def load_newest(self) -> Loaded | None:
        """Return the newest checkpoint that verifies, or None if there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, and none verifies.
            StoreError: the store cannot be read.
        """
        names = {self._address(name): name for name in _published(self._files())}
        where = f"{self.run.address}/{CHECKPOINTS}"
        loaded = newest_verified(reversed(names), self._load_whole, self.check_state, where=where)
        if loaded is not None:
            self._verified.add(names[str(loaded.path)])
        return loaded

    def load(self, address: str) -> Snapshot:
        """Fetch and verify the state at an address that `load_newest` returned on some rank, and return it.

        Raises:
            CheckpointError: a file is missing, changed or malformed.
            StoreError: the store cannot be read.
        """
        name, folder = self._place_of(address)
        self._fetch(name, folder, lambda file: "/" not in file)
        return load_checkpoint(folder, with_files=False)

    def files(self, address: str, patterns: Sequence[str] = ("*",)) -> Path | None:
        """Return a scratch folder with the files of a checkpoint whose names match a pattern; None if it has no files.

        Raises:
            CheckpointError: a file is missing or changed.
            StoreError: the store cannot be read.
        """
        name, folder = self._place_of(address)
        _mark_given(folder)
        self._fetch(name, folder, lambda file: any(fnmatchcase(file, f"{FILES}/{each}") for each in patterns))
        return folder / FILES if (folder / FILES).is_dir() else None

    def _load_whole(self, address: str) -> Snapshot:
        """Fetch and verify a whole checkpoint, and return its state."""
        name, folder = self._place_of(address)
        self._fetch(name, folder, lambda file: True)  # noqa: ARG005
        return load_checkpoint(folder)

    def _place_of(self, address: str) -> tuple[str, Path]:
        """Return the name of a checkpoint and the scratch folder for its files."""
        match = _CHECKPOINT_FILE.fullmatch(f"{CHECKPOINTS}/{address.rpartition('/')[2]}/-")
        if match is None:
            raise CheckpointError(f"{address} is not the address of a checkpoint.", path=address)
        return match[1], self._loaded / f"{match[3]}-{match[4] or 0}" / f"step-{match[2]}"

    def _remove_loaded(self) -> None:
        """Remove fetched checkpoints, except those whose files were given to some rank, which may still read them."""
        for folder in self._loaded.glob("*/step-*"):
            if folder.is_dir() and not _given_mark(folder).exists():
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _loaded(self) -> Path:
        return self.run.path / "loaded"

    def _fetch(self, name: str, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """Fetch the files of a checkpoint that are wanted and not here yet, and verify each."""
        prefix = f"{CHECKPOINTS}/{name}"
        try:
            try:
                self._fetch_once(prefix, folder, is_wanted)
            except CheckpointError:
                # Fetched once more: an error of the transfer would undo training.
                (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
                self._fetch_once(prefix, folder, is_wanted)
        except StoreNotFound as error:
            raise CheckpointError(f"{self.run.address}/{prefix} is not complete: {error}", path=prefix) from error
        except (StoreError, CheckpointError):
            raise
        except OSError as error:
            raise TrainingError(
                f"a checkpoint cannot be fetched to {folder}: {error}. Make room, or set TMPDIR to another disk.",
                path=str(folder),
            ) from error

    def _fetch_once(self, prefix: str, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        if not (folder / CHECKSUMS_FILE).exists():
            self._fetch_file(f"{prefix}/{CHECKSUMS_FILE}", folder / CHECKSUMS_FILE)
        sums = read_checksums(folder)
        for info in self.run.store.list(prefix):
            file = check_key(info.key.removeprefix(f"{prefix}/"))
            if file == CHECKSUMS_FILE or not is_wanted(file):
                continue
            expected, path = sums.get(file), folder / file
            if not path.exists() or sha256_of(path) != expected:
                self._fetch_file(info.key, path)
                if (found := sha256_of(path)) != expected:
                    raise CheckpointError(
                        f"{self.run.store.locate(info.key)}: sha256 expected {expected}, found {found}; the file has "
                        "changed since it was written.",
                        path=info.key,
                    )

    def _fetch_file(self, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._loaded / f".{secrets.token_hex(8)}"  # ranks of one machine may fetch to one folder
        with fresh.open("wb") as out:
            self.run.store.fetch(key, out)
        fresh.replace(path)

    def _files(self) -> dict[_Name, dict[str, int]]:
        """Return the size of each file in each checkpoint folder; oldest first."""
        found: dict[_Name, dict[str, int]] = {}
        for info in self.run.store.list(CHECKPOINTS):
            if match := _CHECKPOINT_FILE.fullmatch(info.key):
                name = _Name(int(match[3]), int(match[2]), int(match[4] or 0))
                found.setdefault(name, {})[match[5]] = info.num_bytes
        return dict(sorted(found.items()))

    def _prune(self, files: Mapping[_Name, Mapping[str, int]]) -> None:
        published = [name for name in _published(files) if not any(map(name.is_replaced_by, self._verified))]
        good = [name for name in published if name in self._verified]
        kept = set(good[-self.keep :])
        if len(good) < self.keep:
            # Checkpoints that this process has not verified may be needed to make up the number.
            kept.update(name for name in published if name not in self._verified and name < good[-1])
        if (best := self._best(published)) is not None:
            kept.add(best)
        for name, names in files.items():
            if name in kept or name.life > self.life:  # a later life's are not ours to remove
                continue
            with contextlib.suppress(StoreError):  # best effort; the next save tries again
                self._delete(name, names)

    def _delete(self, name: _Name, files: Iterable[str]) -> None:
        for file in sorted(files, key=lambda file: file != CHECKSUMS_FILE):
            self.run.store.delete(f"{CHECKPOINTS}/{name}/{file}")

    def _address(self, name: _Name) -> str:
        return f"{self.run.address}/{CHECKPOINTS}/{name}"


def lives_with_checkpoints(store: Store) -> Iterator[int]:
    """Yield the life of each file of a checkpoint in the store of a run."""
    for info in store.list(CHECKPOINTS):
        if match := _CHECKPOINT_FILE.fullmatch(info.key):
            yield int(match[3])


def _published(files: Mapping[_Name, Mapping[str, int]]) -> list[_Name]:
    return [name for name, names in files.items() if CHECKSUMS_FILE in names]


def _given_mark(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.given")


def _mark_given(folder: Path) -> None:
    """Mark a fetched checkpoint as given to the program of a rank; the ranks of a machine share the folder."""
    with contextlib.suppress(OSError):  # fetching to the same disk says more
        folder.parent.mkdir(parents=True, exist_ok=True)
        _given_mark(folder).touch()
