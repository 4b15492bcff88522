"""The folder of a run: its lock, the count of its lives, its ledger of samples, and finally the model and the result.

One process writes at a time, under an exclusive lock that the kernel releases when the process dies.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smalti import ledger
from smalti.errors import CheckpointError, StoreNotFound, TrainingError
from smalti.storage import open_store
from smalti.storage.local_files import local_files
from smalti.torch.train.config import TrainResult
from smalti.torch.train.run.events import LineLog, read_lines
from smalti.torch.train.run.files import read_json, replace_json, sync_folder

MODEL_FOLDER = "model"
RESULT_FILE = "result.json"
SAMPLES_FOLDER = "samples"
"""The ledger of a run with `log_samples`."""
WriteModel = Callable[[Path], None]
"""Writes the files of a model into a new local folder."""
_WAIT_SECONDS = 30.0  # ranks of a killed run may still be saving their last checkpoint
_POLL_SECONDS = 0.2


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
    is_held = False
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"another process has been training in {run_dir} for the last {wait_seconds:.0f} s; "
                    "wait for it, end it, or choose another `run_dir`.",
                    run_dir=str(run_dir),
                )
            time.sleep(_POLL_SECONDS)
        is_held = True
        yield
    finally:
        if is_held:
            # Closing alone does not release it while a forked process, such as a loader's worker, has the file open.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def begin_life(run_dir: Path, *, num_ranks: int) -> int:
    """Record one more start of the run, and return its number, from 0. The caller holds the lock.

    Raises:
        TrainingError: the file of starts is damaged or cannot be written.
    """
    path = run_dir / "lives.jsonl"
    log = LineLog(path)
    try:
        life = len(read_lines(path, advice="Restore the file, or remove that line and start the run again."))
        log.append({"life": life, "num_ranks": num_ranks, "time": round(time.time(), 3), "pid": os.getpid()})
        return life
    finally:
        log.close()


def read_sample_order(run_dir: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> dict[int, list[int]]:
    """Return the sample ids that each epoch was trained on, in the epoch's order, over all lives of the run.

    The last epoch may be unfinished; it then ends at the last position that was trained on, or, in a store, at the last
    checkpoint. `storage_options` are those of the store.

    Raises:
        TrainingError: a position was taken twice, or one is missing; the ledger is damaged, or there is none.
        StoreError: the ledger cannot be read.
    """
    try:
        with local_files(open_store(run_dir, storage_options).child(SAMPLES_FOLDER)) as folder:
            return ledger.read_sample_order(folder)
    except StoreNotFound as error:
        raise TrainingError(f"{error} Train with `log_samples=True`.", run_dir=str(run_dir)) from error


def write_result(folder: Path, result: TrainResult, write_model: WriteModel) -> None:
    """Write `model/` atomically, then `result.json`; an earlier model is replaced when the new one is complete.

    Args:
        folder: the local folder of the run.
        result: the figures.
        write_model: writes the files of the model into the folder that it is called with.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    token = uuid.uuid4().hex[:8]
    fresh, old, target = folder / f".model-{token}", folder / f".replaced-model-{token}", folder / MODEL_FOLDER
    try:
        for leftover in (*folder.glob(".model-*"), *folder.glob(".replaced-model-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        write_model(fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        sync_folder(folder)
        shutil.rmtree(old, ignore_errors=True)
        replace_json(folder / RESULT_FILE, result.to_json())
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise CheckpointError(
            f"the trained model cannot be written to {target}: {error}. The checkpoint {result.checkpoint} "
            "holds it: make room and start the run again.",
            path=str(target),
        ) from error


def read_result(run_dir: Path) -> dict[str, Any]:
    """Return the result of a finished run, as it was written.

    Raises:
        TrainingError: there is no result, or it cannot be read.
    """
    path = run_dir / RESULT_FILE
    try:
        return read_json(path)
    except CheckpointError as error:
        raise TrainingError(
            f"the training processes ended well, but {path} holds no result: {error}. Do all processes see "
            "the same `run_dir`?",
            path=str(path),
        ) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
