"""A run in MLflow, recorded by a child process that takes the events of the run.

MLflow's own asynchronous logging (3.17) is not used: its requests to a server that does not answer pile up, and the
program ends only when its threads have tried all of them. The calls that begin and end a run have no such mode.

Intended behaviour:
1. The training never waits for the tracking server: events are put into a bounded queue, and those that do not fit are
   left out. MLflow is imported in the child alone.
2. A fault is logged once, with MLflow's own text. The child tries again until the run is over, and has `END_SECONDS`
   after that. A child that ends before that is a fault; its last lines are logged.
3. A run that is resumed continues its run in MLflow, which is found by the address of its folder.
4. When this process is killed, the child ends too and the run in MLflow gets the status KILLED.
5. Storage options reach the child through a pipe, those of the server through its environment.
"""

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from smalti.errors import MissingDependency, SchemaError
from smalti.torch.train.config import RunConfig, TrainConfig, check_tracking_address
from smalti.torch.train.run.events import Event

FROM_ENVIRONMENT = "environment"
"""In place of an address: that of MLFLOW_TRACKING_URI."""
END_SECONDS = 60.0
"""Longest wait for the child after the run."""
_EXIT_SECONDS = 5.0  # longest wait for a child that has closed its output, and for the rest of its errors
_TAIL_LINES, _LINE_CHARS = 5, 300  # of its errors
_QUEUE = 10_000  # events that wait for the child
_KINDS = frozenset({"start", "data", "step", "report", "epoch", "end"})
# Of each request: MLflow's own defaults wait for many minutes.
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}

log = logging.getLogger("smalti.train")


class MlflowRun:
    """Takes the events of a run, and hands them to the child process.

    Args:
        config: of the run.
        parameters: what to record as its parameters.

    Raises:
        MissingDependency: MLflow is not installed.
        SchemaError: there is no address of a tracking server, or it contains a password.
    """

    def __init__(self, config: RunConfig, parameters: Mapping[str, Any]) -> None:
        if find_spec("mlflow") is None:
            raise MissingDependency("`mlflow` needs MLflow's client: pip install 'smalti[mlflow]'.", package="mlflow")
        self._settings = {
            "server": server_of(config),
            "experiment": config.mlflow_experiment or RunConfig.mlflow_experiment,
            "run_dir": config.run_dir,
            "run_dir_options": config.run_dir_options,
            "parameters": dict(parameters),
            "has_model": isinstance(config, TrainConfig),
        }
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(_QUEUE)
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._faults: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._left_out = 0
        self.link: str | None = None
        """Address of the run's page; None until the server has answered."""

    def __call__(self, event: Event) -> None:
        """Queue an event for the child; starts it at the first one."""
        if event["event"] not in _KINDS:
            return
        if self._process is None:
            self._start()
        self._put(event)

    def close(self, outcome: str) -> None:
        """Record the outcome of the run, and end the child; blocks for `END_SECONDS` at most."""
        if self._process is None:
            return
        self._put({"event": "close", "outcome": outcome})
        self._put(None)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail(f"it did not take all of the run within {END_SECONDS:.0f} s")
        self._process.kill()
        self._process.wait(END_SECONDS)
        for thread in self._threads:
            thread.join(END_SECONDS)
        if self._left_out:
            log.warning("%s events of the run were left out of MLflow, which was too slow", self._left_out)

    def _start(self) -> None:
        environment = {**_LIMITS, **os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "smalti.torch.train.tracking.mlflow_client"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # an interrupt from the keyboard leaves it the time to record the end
        )
        for each in (self._keep_errors, self._write, self._read):
            thread = threading.Thread(target=each, args=(self._process,), name="smalti-mlflow", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _put(self, message: dict[str, Any] | None) -> None:
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._left_out += 1
            if message is None or message["event"] == "close":  # these two make room for themselves
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()
                self._queue.put_nowait(message)

    def _write(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None  # noqa: S101 - it was opened as a pipe
        with contextlib.suppress(OSError), process.stdin as pipe:  # the reading thread reports a child that has died
            pipe.write(json.dumps(self._settings) + "\n")
            while (message := self._queue.get()) is not None:
                pipe.write(json.dumps(message) + "\n")
                pipe.flush()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        with process.stdout as lines:
            for line in lines:
                message = _parsed(line)
                self.link = message.get("link", self.link)
                if "fault" in message:
                    self._fail(str(message["fault"]))
        # It has ended, or closed its output.
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_EXIT_SECONDS)
            self._threads[0].join(_EXIT_SECONDS)
            if code not in {0, -9} and not self._faults:  # -9: killed by `close`
                self._fail(f"its process ended with exit code {code}: {' | '.join(self._last_lines) or 'no output'}")

    def _keep_errors(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None  # noqa: S101 - it was opened as a pipe
        with process.stderr as lines:
            self._last_lines.extend(line.strip()[:_LINE_CHARS] for line in lines if line.strip())

    def _fail(self, reason: str) -> None:
        if not self._faults:
            log.warning("the run is not recorded in MLflow for now, the training continues: %s", reason)
        self._faults.append(reason)


def server_of(config: RunConfig) -> str:
    """Return the address of the tracking server.

    Raises:
        SchemaError: there is none, or it contains a password.
    """
    address = config.mlflow or ""
    if address == FROM_ENVIRONMENT:
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address:
        raise SchemaError("`mlflow` is 'environment', and MLFLOW_TRACKING_URI is not set: set it, or give an address.")
    check_tracking_address(address)
    return address


def _parsed(line: str) -> dict[str, Any]:
    """Return a message of the child; empty for other output, such as that of a library."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
