"""The child process of `mlflow_run`: records a run in MLflow from the events that come as lines on standard input.

Lines to standard output: {"link": address of the run's page} and {"fault": reason}.
"""

import contextlib
import json
import os
import posixpath
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException

from smalti.torch.train.tracking.figures import figures_of

_FLUSH_SECONDS = 3.0  # between two requests
_RETRY_SECONDS = 15.0  # after a fault
_MAX_METRICS = 1000  # in one request, as the server demands
_MAX_WAITING = 50_000  # metrics that are kept for a server that does not answer
_MAX_PARAMS = 100  # in one request
_MAX_VALUE = 6000  # characters of a parameter
_MAX_NAME = 250  # characters of the name of a metric or parameter
_REFUSED = re.compile(r"[^/\w.\- :]")  # characters in such a name
_MAX_DIGEST = 36  # characters that MLflow's digests may have
_POLL_SECONDS = 1.0
_ORPHAN_SECONDS = 30.0  # to record the end after the parent has died
_RUN_DIR_TAG = "smalti.run_dir"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}


class Recorder:
    """The run in MLflow. Whatever a request could not record is tried again with the next one."""

    def __init__(self, settings: Mapping[str, Any], say: Callable[[dict[str, str]], None]) -> None:
        self._settings, self._say = settings, say
        self._client = MlflowClient(settings["server"])
        self._run_id, self._experiment_id = "", ""
        self._params: list[Param] = []
        self._is_begun = False
        self._start: dict[str, Any] = {}
        self._metrics: list[Metric] = []
        self._data: list[dict[str, Any]] = []
        self._last_step = 0
        self._next_request = 0.0
        self._is_ended = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event, and record it with others now and then."""
        kind = event["event"]
        if kind == "start":
            self._start = dict(event)
            self._next_request = 0.0
        if "digest" in event:
            self._data.append(dict(event))
        step = int(event.get("step", self._last_step))
        self._last_step = step
        at = int(event["time"] * 1000)
        figures = figures_of(dict(event))
        self._metrics += [Metric(_allowed(name), value, at, step) for name, value in figures.items()]
        del self._metrics[:-_MAX_WAITING]
        self._is_ended = self._is_ended or kind == "end"
        if time.monotonic() >= self._next_request:
            self._next_request = time.monotonic() + (_FLUSH_SECONDS if self.flush() else _RETRY_SECONDS)

    def flush(self) -> bool:
        """Record what has come so far; return whether that succeeded."""
        return self._tried(self._record)

    def close(self, outcome: str) -> bool:
        """Record the model of a finished run, and the outcome; return whether all of it was recorded.

        The outcome is recorded even if something else was not: else the run would be shown as running for ever.
        """
        if not self._start:
            return True
        is_whole = self.flush()
        if not self._run_id:
            return False
        if is_whole and self._is_ended and self._settings["has_model"]:
            is_whole = self._tried(self._log_model)
        status = _STATUS.get(outcome, "KILLED")
        return self._tried(lambda: self._client.set_terminated(self._run_id, status)) and is_whole

    def _tried(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - of whichever library: reported, and tried again
            self._say({"fault": f"{type(error).__name__}: {error}"[:500]})
            return False
        return True

    def _record(self) -> None:
        if not self._is_begun:
            self._begin()
        for facts in list(self._data):
            self._client.log_inputs(self._run_id, datasets=[_dataset_of(facts, self._settings)])
            self._data.remove(facts)
        while self._metrics:
            self._client.log_batch(self._run_id, metrics=self._metrics[:_MAX_METRICS])
            del self._metrics[:_MAX_METRICS]

    def _begin(self) -> None:
        if not self._run_id:
            self._run_id = self._opened_run()  # before anything else can fail: the next try must not make another run
            self._say({"link": self._link()})
        while self._params:
            self._client.log_batch(self._run_id, params=self._params[:_MAX_PARAMS])
            del self._params[:_MAX_PARAMS]
        facts = {
            name: self._start[name] for name in ("life", "num_ranks", "num_hosts", "device") if name in self._start
        }
        self._client.log_batch(self._run_id, tags=[RunTag(f"smalti.{name}", str(each)) for name, each in facts.items()])
        self._is_begun = True

    def _opened_run(self) -> str:
        """Return the run of an earlier life, or one that is made now, whose parameters are then still to be sent."""
        settings, client = self._settings, self._client
        self._experiment_id = self._experiment()
        earlier = self._earlier_run() if self._start.get("life") else None
        if earlier is not None:
            client.update_run(earlier, status="RUNNING")
            return earlier
        tags = {_RUN_DIR_TAG: settings["run_dir"], "mlflow.source.name": "smalti", "mlflow.source.type": "JOB"}
        name = settings["run_dir"].rstrip("/").rpartition("/")[2]
        run = client.create_run(self._experiment_id, tags=tags, run_name=name)
        texts = {_allowed(name): text[:_MAX_VALUE] for name, text in _flat(settings["parameters"]).items()}
        self._params = [Param(name, text) for name, text in texts.items()]
        return str(run.info.run_id)

    def _experiment(self) -> str:
        name = self._settings["experiment"]
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            made = self._client.get_experiment_by_name(name)  # by another run, meanwhile
            if made is None:
                raise
            return str(made.experiment_id)

    def _earlier_run(self) -> str | None:
        run_dir = str(self._settings["run_dir"])
        if "'" in run_dir:  # the filter cannot hold it
            return None
        found = self._client.search_runs(
            [self._experiment_id], f"tags.`{_RUN_DIR_TAG}` = '{run_dir}'", max_results=1, order_by=["start_time DESC"]
        )
        return str(found[0].info.run_id) if found else None

    def _link(self) -> str:
        server = str(self._settings["server"]).rstrip("/")
        page = f"experiments/{self._experiment_id}/runs/{self._run_id}"
        # Other addresses, such as those of databases, open no page, and may contain secrets.
        return f"{server}/#/{page}" if server.startswith(("http:", "https:")) else page

    def _log_model(self) -> None:
        from smalti.storage import open_store
        from smalti.storage.local_files import local_files
        from smalti.torch.train.run.folder import MODEL_FOLDER
        from smalti.torch.train.tracking.served_model import write_mlflow_model

        store = open_store(self._settings["run_dir"], self._settings["run_dir_options"]).child(MODEL_FOLDER)
        with local_files(store) as folder, tempfile.TemporaryDirectory(prefix="smalti-mlflow-") as scratch:
            made = Path(scratch) / "model"
            if not write_mlflow_model(folder, made, run_id=self._run_id):
                self._client.log_artifacts(self._run_id, str(folder), MODEL_FOLDER)
                return
            model = self._client.create_logged_model(self._experiment_id, "model", source_run_id=self._run_id)
            self._client.log_model_artifacts(model.model_id, str(made))
            self._client.finalize_logged_model(model.model_id, "READY")
            self._client.log_outputs(self._run_id, [LoggedModelOutput(model.model_id, self._last_step)])


def _dataset_of(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> DatasetInput:
    address = str(facts.get("data") or settings["parameters"].get("data") or "")
    source = {"url": address, "version": facts.get("version"), "digest": facts["digest"]}
    dataset = Dataset(
        name=address.rstrip("/").rpartition("/")[2] or "data",
        digest=str(facts["digest"])[:_MAX_DIGEST],
        source_type="smalti",
        source=json.dumps(source),
        profile=json.dumps({name: facts[name] for name in ("train_samples", "eval_samples") if name in facts}),
    )
    tags = [InputTag("mlflow.data.context", "training"), InputTag("version", str(facts.get("version")))]
    return DatasetInput(dataset, tags)


def _allowed(name: str) -> str:
    """Return a name that MLflow takes: with `_` for characters that it refuses, and not like a path elsewhere."""
    name = _REFUSED.sub("_", name)[:_MAX_NAME]
    if name != posixpath.normpath(name) or name.startswith((".", "/")):
        name = re.sub(r"^\.+", "_", name.replace("/", "_"))
    return name or "_"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values under dotted names, as texts."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _end_as_orphan(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


def record(lines: TextIO, say: Callable[[dict[str, str]], None]) -> bool:
    """Record a run from its lines: settings, events, and at last the outcome; return whether all was recorded."""
    recorder = Recorder(json.loads(lines.readline()), say)
    outcome = "killed"  # unless the last line names another one
    for line in lines:
        event = json.loads(line)
        if event["event"] == "close":
            outcome = event["outcome"]
            break
        recorder.take(event)
    return recorder.close(outcome)


def _main() -> int:
    threading.Thread(target=_end_as_orphan, args=(os.getppid(),), daemon=True).start()
    output = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # of the libraries

        def say(message: dict[str, str]) -> None:
            output.write(json.dumps(message) + "\n")
            output.flush()

        return 0 if record(sys.stdin, say) else 1


if __name__ == "__main__":
    sys.exit(_main())
