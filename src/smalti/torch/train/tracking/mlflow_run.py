"""A run in MLflow, recorded by a thread of the process that started the run.

MLflow's own asynchronous logging (3.17) is not used. The calls that begin and end a run have no such mode. Requests to
a server that does not answer wait in a queue without bound, and the program ends only when each was tried: after 60
calls 82 s later, with a timeout of 5 s and one retry in place of MLflow's 120 s and seven.

Intended behaviour:
1. The training never waits for the tracking server: events are put into a bounded queue, and those that do not fit are
   left out. MLflow is imported by the thread.
2. A fault is logged once, with MLflow's own text, and so is a server that does not answer for `SLOW_SECONDS`. The
   thread tries again until the run is over.
3. The end of the run waits for `END_SECONDS` at most, or for `SILENT_SECONDS` if the server has not answered once. Then
   it logs what was not recorded. The thread does not hold up the end of the program.
4. A run that is resumed continues its run in MLflow, which is found by the address of its folder. The run of a process
   that was killed is shown as running until then.
"""

import contextlib
import importlib
import json
import logging
import os
import posixpath
import queue
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smalti.errors import MissingDependency, SchemaError
from smalti.storage import open_store
from smalti.storage.local_files import local_files
from smalti.torch.train.config import RunConfig, TrainConfig, check_tracking_address
from smalti.torch.train.run.events import Event, figures_of
from smalti.torch.train.run.store import MODEL_FOLDER
from smalti.torch.train.tracking.served_model import write_mlflow_model

FROM_ENVIRONMENT = "environment"
"""In place of an address: that of MLFLOW_TRACKING_URI."""
END_SECONDS = 60.0
"""Longest wait at the end of the run for a server that has answered before."""
SILENT_SECONDS = 15.0
"""Longest wait there for a server that has not."""
SLOW_SECONDS = 30.0
"""A server that has not answered for so long is reported."""
_QUEUE = 10_000  # events that wait for the thread
_KINDS = frozenset({"start", "data", "step", "report", "epoch", "end"})
_FLUSH_SECONDS = 3.0  # between two requests
_RETRY_SECONDS = 15.0  # after a fault
_MAX_METRICS = 1000  # in one request, as the server demands
_MAX_WAITING = 50_000  # metrics that are kept for a server that does not answer
_MAX_VALUE = 6000  # characters of a parameter
_MAX_NAME = 250  # characters of the name of a metric or parameter
_REFUSED = re.compile(r"[^/\w.\- :]")  # characters in such a name
_MAX_DIGEST = 36  # characters that MLflow's digests may have
_RUN_DIR_TAG = "smalti.run_dir"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}

log = logging.getLogger("smalti.train")


class MlflowRun:
    """Takes the events of a run, and records them by a thread. What a request could not record is tried again.

    Args:
        config: of the run.
        parameters: what to record as its parameters.
        end_seconds: longest wait of `close`; None: as above.
        connect: returns a client of the server at an address; None: MLflow's own.

    Raises:
        MissingDependency: MLflow is not installed.
        SchemaError: there is no address of a tracking server, or it contains a password.
    """

    def __init__(
        self,
        config: RunConfig,
        parameters: Mapping[str, Any],
        *,
        end_seconds: float | None = None,
        connect: Callable[[str], Any] | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise MissingDependency("`mlflow` needs MLflow's client: pip install 'smalti[mlflow]'.", package="mlflow")
        server = os.environ.get("MLFLOW_TRACKING_URI") if config.mlflow == FROM_ENVIRONMENT else config.mlflow
        if not server:
            raise SchemaError(
                "`mlflow` is 'environment', and MLFLOW_TRACKING_URI is not set: set it, or give an address."
            )
        self._config, self._server = config, check_tracking_address(server)
        self._end_seconds, self._connect = end_seconds, connect or _connected
        self.link: str | None = None
        """Address of the run's page; None until the server has answered."""
        self._events: queue.Queue[Event | None] = queue.Queue(_QUEUE)
        self._thread = threading.Thread(target=self._follow, name="smalti-mlflow", daemon=True)
        self._has_failed = False
        self._left_out = 0
        self._outcome = "killed"
        self._is_abandoned = False
        self._answered = time.monotonic()
        """Time at which the thread was last known not to wait for the server."""
        # What follows belongs to the thread.
        self._client: Any = None
        self._run_id, self._experiment_id = "", ""
        self._data_address = str(parameters.get("data") or "")
        self._parameters = {_allowed(name): text[:_MAX_VALUE] for name, text in _flat(parameters).items()}
        self._unsent: dict[str, str] = {}
        """Parameters of a new run that are still to be sent."""
        self._start: Event = {}
        self._is_begun = False
        self._metrics: list[tuple[str, float, int, int]] = []
        """Name, value, milliseconds since 1970, and step."""
        self._data: list[Event] = []
        self._last_step = 0
        self._next_request = 0.0
        self._has_model = False
        """True of a training that is finished, until its model is recorded."""
        self._has_outcome = False

    def __call__(self, event: Event) -> None:
        """Queue an event for the thread; starts it at the first one."""
        if event["event"] not in _KINDS:
            return
        if self._thread.ident is None:
            self._answered = time.monotonic()
            self._thread.start()
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._left_out += 1
        if self._events.qsize() > 1 and (seconds := time.monotonic() - self._answered) > SLOW_SECONDS:
            self._fail(f"the server has not answered for {seconds:.0f} s")

    def close(self, outcome: str) -> None:
        """Record the outcome of the run, and log what was not recorded; blocks for the seconds of the end at most."""
        if self._thread.ident is None:
            return
        self._outcome = outcome
        is_silent = self._client is not None and self.link is None  # the import of the client takes seconds
        seconds = self._end_seconds or (SILENT_SECONDS if is_silent else END_SECONDS)
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Full):
            self._events.put(None, timeout=seconds)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._is_abandoned = True  # the thread ends with the request that it waits for
        if missing := self.missing():
            late = f" within {seconds:g} s after its end" if self._thread.is_alive() else ""
            log.warning("the run is not recorded in MLflow as a whole%s; missing: %s", late, ", ".join(missing))

    def missing(self) -> list[str]:
        """Return what was taken and is not recorded, in words; empty if there is nothing."""
        left_out = [f"{self._left_out} events that came while the server was too slow"] if self._left_out else []
        if not self._run_id:
            return [*(["the whole run"] if self._start else []), *left_out]
        counts = {"parameters": len(self._unsent), "figures": len(self._metrics), "versions of data": len(self._data)}
        is_missing = {"the model": self._has_model, "the outcome": not self._has_outcome}
        return [
            *(f"{count} {name}" for name, count in counts.items() if count),
            *(name for name, missing in is_missing.items() if missing),
            *left_out,
        ]

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            log.warning("the run is not recorded in MLflow for now, the training continues: %s", reason)
        self._has_failed = True

    # ------------------------------------------------------------ on the thread

    def _follow(self) -> None:
        """Record the events until the run is over."""
        while (event := self._events.get()) is not None:
            if self._is_abandoned:
                return
            self._answered = time.monotonic()
            self.take(event)
        self.end(self._outcome)

    def take(self, event: Event) -> None:
        """Take an event, and record it with others now and then."""
        if event["event"] == "start":
            self._start, self._next_request = dict(event), 0.0
        if "digest" in event:
            self._data.append(dict(event))
        step = self._last_step = int(event.get("step", self._last_step))
        at = int(event["time"] * 1000)
        self._metrics += [(_allowed(name), value, at, step) for name, value in figures_of(event).items()]
        del self._metrics[:-_MAX_WAITING]
        self._has_model = self._has_model or (event["event"] == "end" and isinstance(self._config, TrainConfig))
        if time.monotonic() >= self._next_request:
            self._next_request = time.monotonic() + (_FLUSH_SECONDS if self._tried(self._record) else _RETRY_SECONDS)

    def end(self, outcome: str) -> None:
        """Record the rest, the model of a finished run, and the outcome.

        The outcome is recorded even if something else was not: else the run would be shown as running for ever.
        """
        if not self._start:
            return
        if self._tried(self._record) and self._has_model and self._tried(self._log_model):
            self._has_model = False
        if self._run_id:
            status = _STATUS.get(outcome, "KILLED")
            self._has_outcome = self._tried(lambda: self._client.set_terminated(self._run_id, status))

    def _tried(self, work: Callable[[], None]) -> bool:
        try:
            if self._client is None:
                self._client = self._connect(self._server)
            work()
        except Exception as error:  # noqa: BLE001 - of whichever library: reported, and tried again
            self._fail(f"{type(error).__name__}: {error}"[:500])
            return False
        return True

    def _record(self) -> None:
        entities, client = _entities(), self._client
        if not self._is_begun:
            if not self._run_id:
                self._run_id = self._opened_run()  # before anything can fail: the next try must not make another run
                page = f"experiments/{self._experiment_id}/runs/{self._run_id}"
                # Other addresses, such as those of databases, open no page, and may contain secrets.
                is_web = self._server.startswith(("http:", "https:"))
                self.link = f"{self._server.rstrip('/')}/#/{page}" if is_web else page
            names = [name for name in ("life", "num_ranks", "num_hosts", "device") if name in self._start]
            client.log_batch(  # in as many requests as the server demands
                self._run_id,
                params=[entities.Param(name, text) for name, text in self._unsent.items()],
                tags=[entities.RunTag(f"smalti.{name}", str(self._start[name])) for name in names],
            )
            self._unsent = {}
            self._is_begun = True
        for facts in list(self._data):
            client.log_inputs(self._run_id, datasets=[_dataset_of(facts, self._data_address)])
            self._data.remove(facts)
        while self._metrics:
            figures = self._metrics[:_MAX_METRICS]
            client.log_batch(self._run_id, metrics=[entities.Metric(*figure) for figure in figures])
            del self._metrics[: len(figures)]

    def _opened_run(self) -> str:
        """Return the run of an earlier life, or one that is made now, whose parameters are then still to be sent."""
        client, run_dir, name = self._client, self._config.run_dir, self._config.mlflow_experiment or "smalti"
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                self._experiment_id = str(client.create_experiment(name))
            except Exception:
                experiment = client.get_experiment_by_name(name)  # by another run, meanwhile
                if experiment is None:
                    raise
        if experiment is not None:
            self._experiment_id = str(experiment.experiment_id)
        if self._start.get("life") and "'" not in run_dir:  # which the filter cannot hold
            wanted = f"tags.`{_RUN_DIR_TAG}` = '{run_dir}'"
            for run in client.search_runs([self._experiment_id], wanted, max_results=1, order_by=["start_time DESC"]):
                client.update_run(str(run.info.run_id), status="RUNNING")
                return str(run.info.run_id)
        tags = {_RUN_DIR_TAG: run_dir, "mlflow.source.name": "smalti", "mlflow.source.type": "JOB"}
        run = client.create_run(self._experiment_id, tags=tags, run_name=run_dir.rstrip("/").rpartition("/")[2])
        self._unsent = dict(self._parameters)
        return str(run.info.run_id)

    def _log_model(self) -> None:
        client, run_id = self._client, self._run_id
        store = open_store(self._config.run_dir, self._config.run_dir_options).child(MODEL_FOLDER)
        with local_files(store) as folder, tempfile.TemporaryDirectory(prefix="smalti-mlflow-") as scratch:
            served = Path(scratch) / "model"
            if not write_mlflow_model(folder, served, run_id=run_id):
                client.log_artifacts(run_id, str(folder), MODEL_FOLDER)
                return
            model = client.create_logged_model(self._experiment_id, "model", source_run_id=run_id)
            client.log_model_artifacts(model.model_id, str(served))
            client.finalize_logged_model(model.model_id, "READY")
            client.log_outputs(run_id, [_entities().LoggedModelOutput(model.model_id, self._last_step)])


def _connected(server: str) -> Any:
    # The pauses between its requests would draw from `random`, whose numbers belong to the user's program.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    return importlib.import_module("mlflow").MlflowClient(server)


def _entities() -> Any:
    return importlib.import_module("mlflow.entities")


def _dataset_of(facts: Event, address: str) -> Any:
    entities, address = _entities(), str(facts.get("data") or address)
    source = {"url": address, "version": facts.get("version"), "digest": facts["digest"]}
    dataset = entities.Dataset(
        name=address.rstrip("/").rpartition("/")[2] or "data",
        digest=str(facts["digest"])[:_MAX_DIGEST],
        source_type="smalti",
        source=json.dumps(source),
        profile=json.dumps({name: facts[name] for name in ("train_samples", "eval_samples") if name in facts}),
    )
    tags = {"mlflow.data.context": "training", "version": str(facts.get("version"))}
    return entities.DatasetInput(dataset, [entities.InputTag(name, value) for name, value in tags.items()])


def _allowed(name: str) -> str:
    """Return a name that MLflow takes: with `_` for characters that it refuses, and not like a path elsewhere."""
    name = _REFUSED.sub("_", name)[:_MAX_NAME]
    if name != posixpath.normpath(name) or name.startswith((".", "/")):
        name = re.sub(r"^\.+", "_", name.replace("/", "_"))
    return name or "_"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values under dotted names, as texts."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            texts.update(_flat(value, f"{prefix}{name}."))
        else:
            texts[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return texts
