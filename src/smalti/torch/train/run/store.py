"""The files of a run as its ranks write them: in a local folder, or in a store by way of a local scratch folder.

    <run_dir>/lives/00000.json                   one per start of the run, created exclusively
              checkpoints/step-00000120-00000/   step and life; the files of a local checkpoint. A step that a life
                                                 saves again has one number more, from 1: step-00000120-00000-1
              metrics.jsonl  samples/  model/  result.json

Intended behaviour in a store:
1. A checkpoint is written to the scratch folder and verified there. Each rank puts the files that it gives. Rank 0 puts
   the rest, and `checksums.json` last, when all ranks are done; without it, the checkpoint does not exist. Older ones
   are removed after a listing has shown all files of the new one, and so is an earlier one of the same step.
2. Loading fetches and verifies each file. A damaged checkpoint is skipped and reported. A fault of the store ends the
   run: skipping a checkpoint because of it would undo training silently.
3. A process whose run was started again elsewhere stops at its next save. What it may put before it notices does not
   replace anything: checkpoints are ordered by life first.
4. The log of events is put whole, files of the ledger in segments: each save puts the last one and what is new. Both
   are put before the checkpoint that covers them. Lines after the last checkpoint may be lost with the
   machine; their steps are then taken again.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.errors import CheckpointError, StoreError, StoreExists, StoreNotFound, TrainingError
from smalti.ledger.segments import segment_name
from smalti.regular_files import open_regular, read_regular
from smalti.storage import Store, open_store
from smalti.storage.store import delete_own, put_own
from smalti.torch.train.config import RunConfig, TrainResult
from smalti.torch.train.run.checkpoint import CheckpointFolder, CheckState, Guard, ignore
from smalti.torch.train.run.events import METRICS_FILE
from smalti.torch.train.run.files import replace_json
from smalti.torch.train.run.folder import MODEL_FOLDER, RESULT_FILE, WriteModel, begin_life, run_lock, write_result
from smalti.torch.train.run.store_checkpoints import CHECKPOINTS, StoreCheckpoints, lives_with_checkpoints

_LIVES = "lives"
_LIFE = re.compile(rf"{_LIVES}/(\d{{5,}})\.json")
_SCRATCH = "smalti-run-"
_SWEEP_SECONDS = 60.0  # a younger scratch folder may not be locked yet
_SEGMENT_BYTES = 1 << 23  # of a file of the ledger
_MAX_READ = 1 << 26  # bytes of a log that are read from a store at once


class LocalRun:
    """The files of a run in a local folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """Local folder in which this rank writes its logs."""
        self.address = str(path)
        """Address of the run, for messages and results."""

    def prepare(self) -> None:
        """Make the logs of earlier lives available in `path`."""

    @contextlib.contextmanager
    def begun(self, *, num_ranks: int) -> Iterator[int]:
        """Begin a life of the run, and yield its number; other processes cannot begin one in the body. For rank 0.

        Raises:
            TrainingError: another process trains in the folder, or the folder cannot be written.
        """
        with run_lock(self.path):
            yield begin_life(self.path, num_ranks=num_ranks)

    def checkpoints(
        self,
        *,
        keep: int,
        life: int,  # noqa: ARG002 - for stores
        check_state: CheckState,
        keep_best: str | None = None,
        guard: Guard = contextlib.nullcontext,
    ) -> CheckpointFolder | StoreCheckpoints:
        """Return the checkpoints of the run; `guard` is as in `CheckpointFolder`."""
        return CheckpointFolder(
            self.path / CHECKPOINTS, keep=keep, check_state=check_state, keep_best=keep_best, guard=guard
        )

    def samples_so_far(self, path: Path | None) -> Callable[[], None]:  # noqa: ARG002 - it lies where it belongs
        """Return a function that publishes this rank's file of the ledger as it is now."""
        return partial(ignore, None)

    def put_log(self) -> None:
        """Publish the log of events so far. For rank 0."""

    def write_result(self, result: TrainResult, write_model: WriteModel) -> None:
        """Publish the model that `write_model` writes, and the result. For rank 0.

        Raises:
            CheckpointError: they cannot be written.
        """
        write_result(self.path, result, write_model)

    def write_value(self, value: Mapping[str, Any]) -> None:
        """Publish the result of a function. For rank 0.

        Raises:
            CheckpointError: it cannot be written.
        """
        try:
            replace_json(self.path / RESULT_FILE, value)
        except OSError as error:
            raise CheckpointError(
                f"the result cannot be written to {self.path}: {error}.", path=str(self.path)
            ) from error


class StoreRun(LocalRun):
    """The files of a run in a store, and the local scratch folder in which they are written."""

    def __init__(self, store: Store, address: str, scratch: Path) -> None:
        super().__init__(scratch)
        self.address = address.rstrip("/")
        self.store = store
        self._life: int | None = None
        self._log_bytes = 0
        self._whole_segments: dict[Path, int] = {}
        """Segments of a file of the ledger that were put and will not grow."""
        self._log_lock = threading.Lock()

    def prepare(self) -> None:
        """Fetch the log of events of earlier lives, unless it is here.

        Raises:
            StoreError: it cannot be read.
        """
        path = self.path / METRICS_FILE
        if not path.exists():
            with contextlib.suppress(StoreNotFound):
                path.write_bytes(self.store.get(METRICS_FILE))

    @contextlib.contextmanager
    def begun(self, *, num_ranks: int) -> Iterator[int]:
        """Begin a life of the run, and yield its number; earlier lives stop at their next save. For rank 0.

        The log of events is published at the end if the body raises, as far as possible.

        Raises:
            StoreError: the store cannot be read or written, or does not honour exclusive puts.
        """
        self.store.check_exclusive_puts(_LIVES)
        self._life = self._claim_life(num_ranks)
        self.prepare()
        try:
            yield self._life
        except BaseException:
            with contextlib.suppress(StoreError, TrainingError):  # the error itself matters more
                self.put_log()
            raise

    def _claim_life(self, num_ranks: int) -> int:
        lives = [int(match[1]) for info in self.store.list(_LIVES) if (match := _LIFE.fullmatch(info.key))]
        life = max([-1, *lives, *lives_with_checkpoints(self.store)]) + 1
        facts = {"num_ranks": num_ranks, "time": round(time.time(), 3), "host": socket.gethostname()}
        while True:
            record = json.dumps({"life": life, "token": secrets.token_hex(8), "pid": os.getpid(), **facts}).encode()
            try:
                put_own(self.store, _life_key(life), record)
            except StoreExists:
                life += 1
                continue
            return life

    def check_current(self) -> None:
        """Check that the run was not started again since this life began.

        Raises:
            TrainingError: it was.
            StoreError: the store cannot be read.
        """
        if self._life is not None and self.store.exists(_life_key(self._life + 1)):
            raise TrainingError(
                f"the run {self.address} was started again elsewhere: this process was its life {self._life}, and "
                f"{self.store.locate(_life_key(self._life + 1))} says who continues it. This process stops and saves "
                "nothing; its checkpoints so far are not lost.",
                run_dir=self.address,
                life=self._life,
                is_superseded=True,
            )

    def checkpoints(
        self,
        *,
        keep: int,
        life: int,
        check_state: CheckState,
        keep_best: str | None = None,
        guard: Guard = contextlib.nullcontext,  # noqa: ARG002 - those of a newer life have other names
    ) -> StoreCheckpoints:
        """Return the checkpoints of the run."""
        return StoreCheckpoints(self, keep=keep, life=life, check_state=check_state, keep_best=keep_best)

    def samples_so_far(self, path: Path | None) -> Callable[[], None]:
        """Return a function that puts this rank's file of the ledger as it is now; it raises StoreErrors."""
        if path is None:
            return super().samples_so_far(path)
        first = self._whole_segments.get(path, 0)
        with open_regular(path) as file:
            file.seek(first * _SEGMENT_BYTES)
            data = file.read()  # now: later lines are not of this checkpoint
        return partial(self._put_segments, path, first, data)

    def _put_segments(self, path: Path, first: int, data: bytes) -> None:
        key = path.relative_to(self.path).as_posix()
        for number, at in enumerate(range(0, len(data), _SEGMENT_BYTES), first):
            self.store.put(segment_name(key, number), data[at : at + _SEGMENT_BYTES])
            if at + _SEGMENT_BYTES <= len(data):
                self._whole_segments[path] = number + 1

    def put_log(self) -> None:
        """Put the log of events if it has grown. May be called from several threads.

        Raises:
            TrainingError: the run was started again elsewhere; the log is that of the newer life.
            StoreError: it cannot be written.
        """
        path = self.path / METRICS_FILE
        with self._log_lock:
            data = read_regular(path) if path.exists() else b""
            data = data[: data.rfind(b"\n") + 1]  # another thread may be writing the next line
            if len(data) > self._log_bytes:
                self.check_current()
                self.store.put(METRICS_FILE, data)
                self._log_bytes = len(data)

    def write_result(self, result: TrainResult, write_model: WriteModel) -> None:
        """Put the model, and `result.json` last; it does not exist while a model is being replaced.

        Raises:
            CheckpointError: the scratch folder cannot be written.
            TrainingError: the run was started again elsewhere.
            StoreError: the store cannot be written.
        """
        write_result(self.path, result, write_model)
        self.check_current()
        delete_own(self.store, RESULT_FILE)
        folder = self.path / MODEL_FOLDER
        keys = {path.relative_to(self.path).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        for key, path in keys.items():
            self.store.put_file(key, path)
        for info in list(self.store.list(MODEL_FOLDER)):
            if info.key not in keys:
                delete_own(self.store, info.key)
        self.store.put_file(RESULT_FILE, self.path / RESULT_FILE)

    def write_value(self, value: Mapping[str, Any]) -> None:
        """Put the result of a function.

        Raises:
            CheckpointError: the scratch folder cannot be written.
            TrainingError: the run was started again elsewhere.
            StoreError: the store cannot be written.
        """
        super().write_value(value)
        self.check_current()
        self.store.put_file(RESULT_FILE, self.path / RESULT_FILE)


def _life_key(life: int) -> str:
    return f"{_LIVES}/{life:05d}.json"


@contextlib.contextmanager
def opened_run(config: RunConfig, scratch: str | None = None) -> Iterator[LocalRun]:
    """Open the files of a run in the body.

    Args:
        config: the run.
        scratch: the scratch folder of the process that started this one; None: a new one if `run_dir` is in a store.

    Raises:
        StoreError: the address of `run_dir` is invalid.
    """
    if (path := config.local_run_dir) is not None:
        yield LocalRun(path)
        return
    store = open_store(config.run_dir, config.run_dir_options)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_new_scratch()) if scratch is None else Path(scratch)
        stack.enter_context(_using(folder))
        yield StoreRun(store, config.run_dir, folder)


def newest_checkpoint(config: RunConfig) -> str | None:
    """Return the address of the newest published checkpoint of a run, verified or not; None if there is none.

    Raises:
        StoreError: the store cannot be read.
    """
    with opened_run(config) as run:
        return run.checkpoints(keep=1, life=0, check_state=ignore).newest()


def log_reader(config: RunConfig) -> Path | Callable[[int], bytes]:
    """Return the log of events, for `events.following`: the file, or a function that reads it from the store."""
    if (path := config.local_run_dir) is not None:
        return path / METRICS_FILE
    store = open_store(config.run_dir, config.run_dir_options)

    def read(offset: int) -> bytes:
        with contextlib.suppress(StoreError):  # best effort: events do not end a run, and the next poll tries again
            return store.get_range(METRICS_FILE, offset, offset + _MAX_READ)
        return b""

    return read


@contextlib.contextmanager
def _new_scratch() -> Iterator[Path]:
    """Make a scratch folder for the body; removes those that killed processes have left."""
    for old in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        _remove_unused(old)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as folder:
        (Path(folder) / ".lock").touch()
        yield Path(folder)


@contextlib.contextmanager
def _using(scratch: Path) -> Iterator[None]:
    """Mark a scratch folder as used by this process, until the body or the process ends."""
    with open_regular(scratch / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may have the file open


def _remove_unused(scratch: Path) -> None:
    with contextlib.suppress(OSError), open_regular(scratch / ".lock") as file:  # used, foreign, or removed meanwhile
        if os.fstat(file.fileno()).st_mtime > time.time() - _SWEEP_SECONDS:
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(scratch, ignore_errors=True)
