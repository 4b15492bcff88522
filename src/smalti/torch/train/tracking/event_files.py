"""TensorBoard's event files in the folder of a run, one for each life of it.

`tensorboard --logdir <run_dir>/tensorboard` shows them. For a run in a store, the file is written to a temporary folder
and put whole, by a thread of its own, after each epoch and every minute.
"""

import contextlib
import importlib
import logging
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from smalti.errors import MissingDependency, StoreError
from smalti.storage import open_store
from smalti.torch.train.config import RunConfig
from smalti.torch.train.run.events import Event, figures_of

FOLDER = "tensorboard"
_PUT_SECONDS = 60.0  # between two puts of a file to a store
_END_SECONDS = 60.0  # longest wait for the last put

log = logging.getLogger("smalti.train")


class EventFiles:
    """Takes the events of a run, and writes their figures for TensorBoard.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        try:
            importlib.import_module("tensorboard")  # by torch, when the first file is opened
        except ImportError as error:
            raise MissingDependency(
                "`tensorboard=True` needs TensorBoard: pip install 'smalti[tensorboard]'.", package="tensorboard"
            ) from error
        self._config = config
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path()
        self._writer: Any = None
        self._putting = ThreadPoolExecutor(1, thread_name_prefix="smalti-tensorboard")
        self._last_put: Future[None] | None = None
        self._put_time = 0.0
        self._failed = False
        self.link: str | None = None
        """Address of the files; None until there are some."""

    def __call__(self, event: Event) -> None:
        """Write the figures of an event."""
        if self._failed:
            return
        try:
            if event["event"] == "start":
                self._open(int(event["step"]))
            if self._writer is None:
                return
            for name, value in figures_of(event).items():
                self._writer.add_scalar(name, value, int(event["step"]), walltime=event["time"])
            if event["event"] == "epoch" or time.monotonic() - self._put_time > _PUT_SECONDS:
                self._publish()
        except (OSError, FutureTimeout) as error:
            self._fail(error)

    def close(self, outcome: str) -> None:  # noqa: ARG002 - as other trackers
        """Complete the files."""
        try:
            if self._writer is not None and not self._failed:
                self._writer.close()
                self._publish(wait=True)
        except (OSError, FutureTimeout) as error:
            self._fail(error)
        finally:
            self._putting.shutdown(wait=False)
            if self._scratch is not None:
                with contextlib.suppress(OSError):
                    self._scratch.cleanup()

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        path = self._config.local_run_dir
        if path is None and self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="smalti-tensorboard-", ignore_cleanup_errors=True)
        self._folder = Path(self._scratch.name) if self._scratch is not None else Path(str(path)) / FOLDER
        # Steps that are taken again replace those of earlier lives.
        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=10)
        self._put_time = time.monotonic()
        self.link = f"{self._config.run_dir.rstrip('/')}/{FOLDER}"

    def _publish(self, *, wait: bool = False) -> None:
        self._put_time = time.monotonic()
        if self._scratch is None:
            return
        if self._last_put is not None and self._last_put.done():
            self._last_put.result()
        if wait or self._last_put is None or self._last_put.done():
            self._writer.flush()
            self._last_put = self._putting.submit(self._put)
        if wait:
            self._last_put.result(timeout=_END_SECONDS)

    def _put(self) -> None:
        store = open_store(self._config.run_dir, self._config.run_dir_options)
        for path in sorted(self._folder.iterdir()):
            store.put_file(f"{FOLDER}/{path.name}", path)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        kind = "the store" if isinstance(error, StoreError) else "the disk"
        log.warning("TensorBoard's files are no longer written, the training continues; %s: %s", kind, error)
