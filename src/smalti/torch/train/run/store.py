"""The files of a run as its ranks write them: in a local folder, or in a store by way of a local scratch folder.

    <run_dir>/lives/00000.json                   one per start of the run, created exclusively; in a local folder
                                                 lives.jsonl has one line for each
              checkpoints/step-00000120-00000/   step and life; see `checkpoint`
              metrics.jsonl  samples/  model/  result.json

One process writes into a local folder at a time, under an exclusive lock that the kernel releases when the process
dies.

Intended behaviour in a store:
1. A process whose run was started again elsewhere stops at its next save. What it may put before it notices does not
   replace anything: checkpoints are ordered by life first.
2. The log of events is put whole, files of the ledger in segments: each save puts the last one and what is new. Both
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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from smalti import ledger
from smalti.errors import CheckpointError, StoreError, StoreExists, StoreNotFound, TrainingError
from smalti.ledger.records import segment_name
from smalti.regular_files import open_regular, read_regular
from smalti.storage import Store, open_store
from smalti.storage.local_files import local_files
from smalti.storage.store import delete_own, put_own
from smalti.torch.train.config import RunConfig
from smalti.torch.train.run.checkpoint import CHECKPOINTS, CheckpointFolder, newest_life
from smalti.torch.train.run.events import METRICS_FILE, EventLog, OnEvent, following, read_lines
from smalti.torch.train.run.files import read_json, replace_json, sync_folder

MODEL_FOLDER = "model"
RESULT_FILE = "result.json"
SAMPLES_FOLDER = "samples"
"""The ledger of a run with `log_samples`."""
WriteModel = Callable[[Path], None]
"""Writes the files of a model into a new local folder."""
_LIVES = "lives"
_LIFE = re.compile(rf"{_LIVES}/(\d{{5,}})\.json")
_SCRATCH = "smalti-run-"
_SWEEP_SECONDS = 60.0  # a younger scratch folder may not be locked yet
_SEGMENT_BYTES = 1 << 23  # of a file of the ledger
_MAX_READ = 1 << 26  # bytes of a log that are read from a store at once
_WAIT_SECONDS = 30.0  # ranks of a killed run may still be saving their last checkpoint
_POLL_SECONDS = 0.2
_STORE_POLL_SECONDS = 5.0  # between two looks at a log in a store


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
        """Begin a life of the run, and yield its number, from 0; others cannot begin one in the body. For rank 0.

        Raises:
            TrainingError: another process trains in the folder, the folder cannot be written, or the file of starts is
                damaged.
        """
        with run_lock(self.path):
            path = self.path / "lives.jsonl"
            log = EventLog(path)
            try:
                lines = read_lines(path, advice="Restore the file, or remove that line and start the run again.")
                life = max([newest_life(self.path / CHECKPOINTS), *(int(line["life"]) for line in lines)]) + 1
                log.append({"life": life, "num_ranks": num_ranks, "time": round(time.time(), 3), "pid": os.getpid()})
            finally:
                log.close()
            yield life

    def checkpoints(self, **options: Any) -> CheckpointFolder:
        """Return the checkpoints of the run; the options are those of `CheckpointFolder`."""
        return CheckpointFolder(self.path / CHECKPOINTS, **options)

    def samples_so_far(self, path: Path | None) -> Callable[[], None]:  # noqa: ARG002 - it lies where it belongs
        """Return a function that publishes this rank's file of the ledger as it is now."""
        return lambda: None

    def put_log(self) -> None:
        """Publish the log of events so far. For rank 0."""

    def write_result(self, result: Mapping[str, Any], write_model: WriteModel | None = None) -> None:
        """Write `model/` atomically, then `result.json`. For rank 0.

        An earlier model is replaced when the new one is complete.

        Args:
            result: JSON values.
            write_model: writes the files of the model into the folder that it is called with; None: there is no model.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        token, folder, target = secrets.token_hex(4), self.path, self.path / MODEL_FOLDER
        fresh, old = folder / f".model-{token}", folder / f".replaced-model-{token}"
        try:
            for leftover in (*folder.glob(".model-*"), *folder.glob(".replaced-model-*")):
                shutil.rmtree(leftover, ignore_errors=True)
            if write_model is not None:
                write_model(fresh)
                if target.exists():
                    target.rename(old)
                fresh.rename(target)
                sync_folder(folder)
                shutil.rmtree(old, ignore_errors=True)
            replace_json(folder / RESULT_FILE, result)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            what, advice = "result", ""
            if write_model is not None:
                what, advice = "trained model", f" The checkpoint {result['checkpoint']} holds it:"
            raise CheckpointError(
                f"the {what} cannot be written to {folder}: {error}.{advice} make room and start the run again.",
                path=str(folder),
            ) from error

    def read_result(self) -> dict[str, Any]:
        """Return the result of a finished run, as it was written.

        Raises:
            TrainingError: there is no result, or it cannot be read.
        """
        path = self.path / RESULT_FILE
        try:
            return read_json(path)
        except CheckpointError as error:
            raise TrainingError(
                f"the training processes ended well, but {path} holds no result: {error}. Do all processes see "
                "the same `run_dir`?",
                path=str(path),
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
        lives = [int(match[1]) for info in self.store.list(_LIVES) if (match := _LIFE.fullmatch(info.key))]
        life = max([newest_life(self.store.child(CHECKPOINTS)), *lives]) + 1
        facts = {"num_ranks": num_ranks, "time": round(time.time(), 3), "host": socket.gethostname()}
        while True:
            record = json.dumps({"life": life, "token": secrets.token_hex(8), "pid": os.getpid(), **facts}).encode()
            try:
                put_own(self.store, _life_key(life), record)
                break
            except StoreExists:
                life += 1
        self._life = life
        self.prepare()
        try:
            yield life
        except BaseException:
            with contextlib.suppress(StoreError, TrainingError):  # the error itself matters more
                self.put_log()
            raise

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

    def checkpoints(self, **options: Any) -> CheckpointFolder:
        """Return the checkpoints of the run; those of a newer life have other names, so no `guard` is needed."""
        return super().checkpoints(**{**options, "guard": contextlib.nullcontext, "remote": self})

    def samples_so_far(self, path: Path | None) -> Callable[[], None]:
        """Return a function that puts this rank's file of the ledger as it is now; it raises StoreErrors."""
        if path is None:
            return super().samples_so_far(path)
        first = self._whole_segments.get(path, 0)
        with open_regular(path) as file:
            file.seek(first * _SEGMENT_BYTES)
            data = file.read()  # now: later lines are not of this checkpoint

        def put_segments() -> None:
            key = path.relative_to(self.path).as_posix()
            for number, at in enumerate(range(0, len(data), _SEGMENT_BYTES), first):
                self.store.put(segment_name(key, number), data[at : at + _SEGMENT_BYTES])
                if at + _SEGMENT_BYTES <= len(data):
                    self._whole_segments[path] = number + 1

        return put_segments

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

    def write_result(self, result: Mapping[str, Any], write_model: WriteModel | None = None) -> None:
        """Put the model, and `result.json` last; it does not exist while a model is being replaced.

        Raises:
            CheckpointError: the scratch folder cannot be written.
            TrainingError: the run was started again elsewhere.
            StoreError: the store cannot be written.
        """
        super().write_result(result, write_model)
        self.check_current()
        if write_model is not None:
            delete_own(self.store, RESULT_FILE)
            files = (path for path in sorted((self.path / MODEL_FOLDER).rglob("*")) if path.is_file())
            keys = {path.relative_to(self.path).as_posix(): path for path in files}
            for key, path in keys.items():
                self.store.put_file(key, path)
            for info in list(self.store.list(MODEL_FOLDER)):
                if info.key not in keys:
                    delete_own(self.store, info.key)
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
        if scratch is None:
            for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):  # by killed processes
                with contextlib.suppress(OSError), open_regular(left / ".lock") as file:  # used, foreign, or gone
                    if os.fstat(file.fileno()).st_mtime <= time.time() - _SWEEP_SECONDS:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(left, ignore_errors=True)
            made = tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True)
            scratch = stack.enter_context(made)
            Path(scratch, ".lock").touch()
        folder = Path(scratch)
        used = stack.enter_context(open_regular(folder / ".lock"))
        fcntl.flock(used, fcntl.LOCK_SH)  # until the body or this process ends
        stack.callback(fcntl.flock, used, fcntl.LOCK_UN)  # a forked process may have the file open
        yield StoreRun(store, config.run_dir, folder)


def newest_checkpoint(config: RunConfig) -> str | None:
    """Return the address of the newest published checkpoint of a run, verified or not; None if there is none.

    Raises:
        StoreError: the store cannot be read.
    """
    with opened_run(config) as run:
        return run.checkpoints().newest()


def following_run(config: RunConfig, on_event: OnEvent | None) -> AbstractContextManager[None]:
    """Return a context in which the events of a run are delivered from its log, which other processes write."""
    if (path := config.local_run_dir) is not None:
        return following(path / METRICS_FILE, on_event)
    store = open_store(config.run_dir, config.run_dir_options)

    def read(offset: int) -> bytes:
        with contextlib.suppress(StoreError):  # best effort: events do not end a run, and the next poll tries again
            return store.get_range(METRICS_FILE, offset, offset + _MAX_READ)
        return b""

    return following(read, on_event, poll_seconds=_STORE_POLL_SECONDS)


@contextlib.contextmanager
def run_lock(run_dir: Path, *, wait_seconds: float = _WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of the run folder during the body; blocks for `wait_seconds` at most.

    Raises:
        TrainingError: another process holds it, or the folder cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise TrainingError(
            f"`run_dir` {run_dir} cannot be written: {error}. Choose a folder that this user may write to.",
            run_dir=str(run_dir),
        ) from error
    deadline = time.monotonic() + wait_seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"another process has been training in {run_dir} for the last {wait_seconds:.0f} s; "
                        "wait for it, end it, or choose another `run_dir`.",
                        run_dir=str(run_dir),
                    ) from error
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        # Closing alone does not release it while a forked process, such as a loader's worker, has the file open.
        with contextlib.suppress(OSError):  # a file system without locks has refused it already
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def read_sample_order(run_dir: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> dict[int, list[int]]:
    """Return the sample ids that each epoch was trained on, in the epoch's order, over all lives of the run.

    The last epoch may be unfinished; it then ends at the last position that was trained on, or, in a store, at the last
    checkpoint.

    Args:
        run_dir: Folder or URL of the run.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        TrainingError: a position was taken twice, or one is missing; the ledger is damaged, or there is none.
        StoreError: the ledger cannot be read.

    Examples:
        >>> order = read_sample_order("s3://bucket/runs/7")  # of a run with `log_samples=True`
        >>> len(order[0])
        32
    """
    try:
        with local_files(open_store(run_dir, storage_options).child(SAMPLES_FOLDER)) as folder:
            return ledger.read_sample_order(folder)
    except StoreNotFound as error:
        raise TrainingError(f"{error} Train with `log_samples=True`.", run_dir=str(run_dir)) from error
