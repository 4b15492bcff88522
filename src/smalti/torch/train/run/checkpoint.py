"""Checkpoints: the state of a run in one folder per step, published whole and verified before it is used.

    checkpoints/step-00000120-00000/   model.safetensors  optimizer.safetensors  state.json  files/  checksums.json

A name has the step and the life; a life that saves a step again appends a number, from 1. A checkpoint of a later life
is newer. Names without a life are of earlier versions of Smalti, in local folders, and older than all others.

Intended behaviour:
1. A checkpoint is written into a hidden local folder, flushed and verified, its checksums last. One rename publishes it
   in a local folder. In a store, each rank puts the files that it gives (see `files`), and rank 0 the rest, with
   `checksums.json` last, when all ranks are done; without it, the checkpoint does not exist.
2. Model, optimiser, cursor and the files that the ranks give are one unit; they cannot be of different steps.
3. Loading takes the newest checkpoint whose files all have their checksums, and reports the newer ones that it skipped.
   A fault of the store ends the run: skipping a checkpoint because of it would undo training silently.
4. Nothing is deleted before a listing has shown all files of the newest checkpoint; broken ones are deleted then, too.
   Names are never used twice, so an earlier checkpoint of a step exists until the new one does.
5. One process writes at a time (`store.run_lock`), and in a store the newest life, which `store` describes. What a
   killed process left is removed by the next save.

The files of one checkpoint are in `files`.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from smalti.errors import CheckpointError, SmaltiError, StoreError, StoreNotFound, TrainingError
from smalti.storage import Store
from smalti.storage.local import sync_path
from smalti.storage.store import check_key
from smalti.torch.train.run.files import (
    BEFORE_LIVES,
    CHECKSUMS_FILE,
    FILES,
    STATE_FILE,
    CheckpointName,
    Snapshot,
    Written,
    load_checkpoint,
    read_checksums,
    read_json,
    sha256_of,
    sync_folder,
    verify_checkpoint,
    write_checkpoint,
)

CheckState = Callable[[Mapping[str, Any]], None]
"""Raises a CheckpointError if a checkpoint's `state.json` is not what its reader expects."""
Guard = Callable[[], AbstractContextManager[object]]
"""Returns a context in which checkpoints are published and removed; it raises a CheckpointError if that must not be."""

CHECKPOINTS = "checkpoints"


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


class RunInStore(Protocol):
    """The run whose checkpoints are in a store; `store.StoreRun` is one."""

    address: str
    store: Store

    def check_current(self) -> None:
        """Raise a TrainingError if the run was started again elsewhere."""

    def put_log(self) -> None:
        """Put the log of events if it has grown."""


@dataclass
class CheckpointFolder:
    """The checkpoints of one run, as seen by one life of it. One process writes; any may read.

    Args:
        root: their local folder; of a run in a store, a scratch folder.
        keep: number of verified checkpoints to keep, at least 1.
        on_durable: called with the path of each local file, and finally of the folder, when it has become durable.
        check_state: called with the state of a checkpoint that verifies; a CheckpointError makes `load_newest` skip it.
        keep_best: `min` or `max` and the name of a figure; the best checkpoint by it is kept as well.
        guard: see `Guard`.
        life: number of the life that saves.
        remote: the run in a store.
    """

    root: Path
    keep: int = 2
    on_durable: Callable[[Path], None] = field(default=ignore)
    check_state: CheckState = field(default=ignore)
    keep_best: str | None = None
    guard: Guard = field(default=contextlib.nullcontext)
    life: int = 0
    remote: RunInStore | None = None
    _verified: set[CheckpointName] = field(default_factory=set, init=False)
    _scores: dict[CheckpointName, float | None] = field(default_factory=dict, init=False)
    _attempts: dict[int, int] = field(default_factory=dict, init=False)
    """Number of times that this life has begun to save a step, by step; equal on all ranks."""

    # ------------------------------------------------------------ saving

    def address_of(self, step: int) -> str:
        """Return the address of the checkpoint of a step."""
        return str(self._place(self._name(step)))

    def staging(self, step: int, token: str, rank: int) -> Path:
        """Return the hidden local folder into which a rank copies its files: one for all ranks of a local run.

        `token` is equal on all ranks.
        """
        return self.root / f".step-{step:08d}-{token}{'' if self.remote is None else f'-{rank}'}"

    def discard(self, staging: Path, *, is_first: bool) -> None:
        """Remove a staging folder; one that all ranks share is removed by rank 0."""
        if is_first or self.remote is not None:
            shutil.rmtree(staging, ignore_errors=True)

    def begin(self, step: int) -> None:
        """Begin to save a step, on every rank. A step that is saved again gets a name of its own."""
        self._attempts[step] = self._attempts.get(step, 0) + 1

    def contribute(self, step: int, staging: Path, names: Sequence[str]) -> dict[str, Written]:
        """Make the files of one rank, which are in its staging folder, part of a checkpoint, and return them.

        Raises:
            CheckpointError: they cannot be read or written.
            StoreError: the store cannot be written.
        """
        written: dict[str, Written] = {}
        paths = {name: staging / FILES / name for name in names}
        try:
            for name, path in paths.items():
                sync_path(path)
                written[name] = Written(sha256_of(path), path.stat().st_size)
        except OSError as error:
            raise _not_written(step, staging, error) from error
        store = self._store
        if store is not None:
            for name, path in paths.items():
                store.put_file(f"{self._name(step)}/{FILES}/{name}", path)
        return written

    def save(
        self, snapshot: Snapshot, staging: Path | None = None, files: Mapping[str, Written] = MappingProxyType({})
    ) -> Path | str:
        """Publish a checkpoint, remove those that are no longer kept, and return the path or address of the new one.

        Args:
            snapshot: the content.
            staging: the folder of this rank, if ranks have contributed files; see `staging`.
            files: the files of all ranks.

        Raises:
            CheckpointError: it could not be written or does not verify; earlier checkpoints are untouched.
            TrainingError: the run was started again elsewhere.
            StoreError: the store cannot be written; earlier checkpoints are untouched.
        """
        if self.remote is not None:
            self.remote.check_current()
            for folder in self._loaded.glob("*/step-*"):
                # Those whose files were given to some rank may still be read.
                if folder.is_dir() and not _given_mark(folder).exists():
                    shutil.rmtree(folder, ignore_errors=True)
        if staging is None:
            self.begin(snapshot.step)
            while (self.root / str(self._name(snapshot.step))).exists():  # another program has saved it
                self.begin(snapshot.step)
            staging = self.staging(snapshot.step, secrets.token_hex(4), 0)
        name = self._name(snapshot.step)
        try:
            write_checkpoint(snapshot, staging, files, self.on_durable)
            verify_checkpoint(staging, without=files)
            sizes = {path.name: path.stat().st_size for path in sorted(staging.iterdir()) if path.is_file()}
            with self.guard():
                self._publish(name, staging, sizes)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, SmaltiError):
                raise
            raise _not_written(snapshot.step, self.root, error) from error
        shutil.rmtree(staging, ignore_errors=True)
        sizes |= {f"{FILES}/{file}": written.num_bytes for file, written in files.items()}
        found = self._files()
        if found.get(name) != sizes:
            shared = f" Do all ranks see {self.root} as the same folder? If not, give `run_dir` the address of a store."
            raise CheckpointError(
                f"{self._place(name)} has the files {found.get(name)} (bytes), expected {sizes}. Nothing older was "
                f"removed; start the run again.{shared if self.remote is None else ''}",
                step=snapshot.step,
            )
        self._verified.add(name)
        with contextlib.suppress(CheckpointError), self.guard():  # the next life removes older ones, too
            self._prune(found)
        return self._place(name)

    def _publish(self, name: CheckpointName, staging: Path, files: Iterable[str]) -> None:
        """Publish rank 0's files of a checkpoint, the checksums last."""
        store = self._store
        if self.remote is None or store is None:
            staging.rename(self.root / str(name))
            sync_folder(self.root)
            self.on_durable(self.root / str(name))
            return
        for file in files:
            if file != CHECKSUMS_FILE:
                store.put_file(f"{name}/{file}", staging / file)
        self.remote.put_log()
        self.remote.check_current()
        store.put_file(f"{name}/{CHECKSUMS_FILE}", staging / CHECKSUMS_FILE)

    def _prune(self, files: Mapping[CheckpointName, Mapping[str, int]]) -> None:
        """Remove what is neither among the newest verified checkpoints nor the best."""
        published = [name for name in self._published(files) if not any(map(name.is_replaced_by, self._verified))]
        good = [name for name in published if name in self._verified]
        kept = set(good[-self.keep :])
        if len(good) < self.keep:
            # Checkpoints that this process has not verified may be needed to make up the number.
            kept.update(name for name in published if name not in self._verified and name < good[-1])
        if (best := self._best(published)) is not None:
            kept.add(best)
        store = self._store
        for name, names in files.items():
            if name in kept or name.life > self.life:  # a later life's are not ours to remove
                continue
            if store is None:
                shutil.rmtree(self.root / str(name), ignore_errors=True)
                continue
            with contextlib.suppress(StoreError):  # best effort; the next save tries again
                for file in sorted(names, key=lambda file: file != CHECKSUMS_FILE):
                    store.delete(f"{name}/{file}")
        for left in self.root.glob(".*step-*") if store is None else ():
            shutil.rmtree(left, ignore_errors=True)

    # ------------------------------------------------------------ finding

    def newest(self) -> str | None:
        """Return the address of the newest published checkpoint, verified or not; None if there is none.

        Raises:
            StoreError: the store cannot be read.
        """
        return next((str(self._place(name)) for name in reversed(self._published(self._files()))), None)

    def best(self) -> str | None:
        """Return the address of the checkpoint with the best figure that verifies; None if none has the figure.

        Raises:
            StoreError: the store cannot be read.
        """
        best = self._best(self._published(self._files()))
        return None if best is None else str(self._place(best))

    def load_newest(self) -> Loaded | None:
        """Return the newest checkpoint that verifies, or None if there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, and none verifies.
            StoreError: the store cannot be read.
        """
        skipped: list[Skipped] = []
        for name in reversed(self._published(self._files())):
            try:
                snapshot = load_checkpoint(self._local(name))
                self.check_state(snapshot.state)
            except CheckpointError as error:
                skipped.append(Skipped(self._place(name), str(error)))
                continue
            self._verified.add(name)
            return Loaded(self._place(name), snapshot, tuple(skipped))
        if skipped:
            reasons = "; ".join(f"{Path(skip.path).name}: {skip.reason}" for skip in skipped)
            raise CheckpointError(
                f"none of the {len(skipped)} checkpoints in {self._folder} verifies ({reasons}). Restore one, "
                "or remove that folder to train from the beginning.",
                skipped=tuple(str(skip.path) for skip in skipped),
            )
        return None

    def load(self, address: str) -> Snapshot:
        """Return the state at an address that `load_newest` returned on some rank, verified.

        Raises:
            CheckpointError: a file of the state is missing, changed or malformed.
            StoreError: the store cannot be read.
        """
        return load_checkpoint(self._local(_parsed(address), lambda file: "/" not in file), with_files=False)

    def files(self, address: str, patterns: Sequence[str] = ("*",)) -> Path | None:
        """Return a local folder with the files of a checkpoint that was found; None if it has none.

        From a store, those whose names match a pattern are fetched.

        Raises:
            CheckpointError: a file is missing or changed.
            StoreError: the store cannot be read.
        """
        name = _parsed(address)
        if self.remote is not None:
            mark = _given_mark(self._fetched(name))  # the ranks of a machine share the folder
            with contextlib.suppress(OSError):  # fetching to the same disk says more
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
        folder = self._local(name, lambda file: any(fnmatchcase(file, f"{FILES}/{pattern}") for pattern in patterns))
        return folder / FILES if (folder / FILES).is_dir() else None

    def _best(self, published: Sequence[CheckpointName]) -> CheckpointName | None:
        """Return the checkpoint with the best figure that verifies, the newest of equals."""
        if self.keep_best is None:
            return None
        scored = [(score, name) for name in published if (score := self._score(name)) is not None]
        return next((name for _, name in sorted(scored, reverse=True) if self._verifies(name)), None)

    def _score(self, name: CheckpointName) -> float | None:
        """Return the figure of a checkpoint such that greater is better; None if it has none."""
        if name not in self._scores:
            direction, _, figure = (self.keep_best or "").partition(" ")
            value: Any = None
            with contextlib.suppress(  # damaged
                CheckpointError, StoreNotFound, ValueError, RecursionError, TypeError, KeyError
            ):
                key, store = f"{name}/{STATE_FILE}", self._store
                state = read_json(self.root / key) if store is None else json.loads(store.get(key))
                value = state["metrics"][figure]
            number = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
            self._scores[name] = -number if number is not None and direction == "min" else number
        return self._scores[name]

    def _verifies(self, name: CheckpointName) -> bool:
        try:
            if name not in self._verified:
                load_checkpoint(self._local(name))
        except CheckpointError:
            return False
        self._verified.add(name)
        return True

    # ------------------------------------------------------------ names and files

    @property
    def _store(self) -> Store | None:
        """The store whose folders are the checkpoints; None if they are local."""
        return None if self.remote is None else self.remote.store.child(CHECKPOINTS)

    def _files(self) -> dict[CheckpointName, dict[str, int]]:
        return files_in(self._store or self.root)

    @property
    def _folder(self) -> Path | str:
        return self.root if self.remote is None else f"{self.remote.address}/{CHECKPOINTS}"

    def _place(self, name: CheckpointName) -> Path | str:
        return self.root / str(name) if self.remote is None else f"{self._folder}/{name}"

    def _name(self, step: int) -> CheckpointName:
        return CheckpointName(self.life, step, max(0, self._attempts.get(step, 0) - 1))

    def _published(self, files: Mapping[CheckpointName, Mapping[str, int]]) -> list[CheckpointName]:
        """Return the checkpoints that were published: in a local folder all, and a missing checksum is damage."""
        return [name for name, names in files.items() if self.remote is None or CHECKSUMS_FILE in names]

    def _local(self, name: CheckpointName, is_wanted: Callable[[str], object] = str) -> Path:
        """Return a local folder with those files of a checkpoint that are wanted, by default all.

        From a store, each is verified.
        """
        store = self._store
        if store is None:
            return self.root / str(name)
        folder = self._fetched(name)
        try:
            try:
                self._fetch(store, name, folder, is_wanted)
            except CheckpointError:
                # Fetched once more: an error of the transfer would undo training.
                (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
                self._fetch(store, name, folder, is_wanted)
        except StoreNotFound as error:
            place = f"{CHECKPOINTS}/{name}"
            raise CheckpointError(f"{self._place(name)} is not complete: {error}", path=place) from error
        except (StoreError, CheckpointError):
            raise
        except OSError as error:
            raise TrainingError(
                f"a checkpoint cannot be fetched to {folder}: {error}. Make room, or set TMPDIR to another disk.",
                path=str(folder),
            ) from error
        return folder

    @property
    def _loaded(self) -> Path:
        return self.root.parent / "loaded"

    def _fetched(self, name: CheckpointName) -> Path:
        """Return the scratch folder for the files of a checkpoint in a store."""
        return self._loaded / f"{name.life}-{name.attempt}" / f"step-{name.step:08d}"

    def _fetch(self, store: Store, name: CheckpointName, folder: Path, is_wanted: Callable[[str], object]) -> None:
        """Fetch the files of a checkpoint that are wanted and not here yet, and verify each."""
        store = store.child(str(name))
        if not (folder / CHECKSUMS_FILE).exists():
            self._fetch_file(store, CHECKSUMS_FILE, folder)
        sums = read_checksums(folder)
        for file in (check_key(info.key) for info in store.list()):
            if file == CHECKSUMS_FILE or not is_wanted(file):
                continue
            expected, path = sums.get(file), folder / file
            if not path.exists() or sha256_of(path) != expected:
                self._fetch_file(store, file, folder)
                if (actual := sha256_of(path)) != expected:
                    raise CheckpointError(
                        f"{store.locate(file)}: sha256 expected {expected}, found {actual}; the file has changed "
                        "since it was written.",
                        path=f"{CHECKPOINTS}/{name}/{file}",
                    )

    def _fetch_file(self, store: Store, file: str, folder: Path) -> None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        fresh = self._loaded / f".{secrets.token_hex(8)}"  # ranks of one machine may fetch to one folder
        with fresh.open("wb") as out:
            store.fetch(file, out)
        fresh.replace(folder / file)


def files_in(place: Path | Store) -> dict[CheckpointName, dict[str, int]]:
    """Return the size of each file in each checkpoint in a folder or store, published or not; oldest first.

    A local checkpoint without files is damaged, and so it is named. In a store, all names have lives.
    """
    files: dict[CheckpointName, dict[str, int]] = {}
    if isinstance(place, Path):
        for path in place.iterdir() if place.is_dir() else ():
            if (name := CheckpointName.parse(path.name)) is None:
                continue
            sizes = files[name] = {}
            for parent, _, names in os.walk(path):
                for file in (Path(parent, name) for name in names):
                    with contextlib.suppress(FileNotFoundError):  # it is being removed
                        sizes[file.relative_to(path).as_posix()] = file.stat().st_size
    else:
        for info in place.list():
            folder, _, key = info.key.partition("/")
            name = CheckpointName.parse(folder)
            if key and name is not None and name.life != BEFORE_LIVES:
                files.setdefault(name, {})[key] = info.num_bytes
    return dict(sorted(files.items()))


def _parsed(address: str) -> CheckpointName:
    name = CheckpointName.parse(address.rpartition("/")[2])
    if name is None:
        raise CheckpointError(f"{address} is not the address of a checkpoint.", path=address)
    return name


def newest_life(checkpoints: Path | Store) -> int:
    """Return the newest life that has a checkpoint in a folder or store of checkpoints; -1 if there is none."""
    return max((name.life for name in files_in(checkpoints)), default=-1)


def _given_mark(folder: Path) -> Path:
    """Return the file that says that a fetched checkpoint was given to the program of a rank."""
    return folder.with_name(f".{folder.name}.given")


def _not_written(step: int, root: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint of step {step} could not be written to {root}: {error}. "
        "Earlier checkpoints are untouched; make room or mend the disk and start the run again.",
        step=step,
    )
