"""A run's figures reach a terminal, TensorBoard and MLflow while it trains, and none of them can end or hold it up."""

import contextlib
import io
import json
import logging
import math
import random
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from smalti.errors import SchemaError
from smalti.storage import open_store
from smalti.torch.train import launch, train
from smalti.torch.train.config import RunConfig
from smalti.torch.train.run.events import figures_of
from smalti.torch.train.tracking.mlflow_run import MlflowRun
from smalti.torch.train.tracking.tracked import Progress, _parameters

pytestmark = [pytest.mark.torch, pytest.mark.slow]


class Terminal(io.StringIO):
    def isatty(self):
        return True


STEP = {
    "event": "step",
    "time": 0.0,
    "step": 5,
    "epoch": 0,
    "loss": 0.5,
    "data_fraction": 0.25,
    "images_per_second": 75.4,
}


def test_a_terminal_shows_a_bar_with_the_figures_of_the_newest_step_and_the_remaining_time():
    terminal = Terminal()
    bar = Progress(stream=terminal)
    bar({"event": "start", "time": 0.0, "step": 0, "steps_per_epoch": 5, "total_steps": 10})
    bar(STEP)
    bar.close("finished")
    shown = terminal.getvalue().split("\r")[-1]
    assert "training:  50%" in shown
    assert "5/10" in shown
    assert "loss 0.5, 75 samples/s, data 25%" in shown


def test_elsewhere_a_line_now_and_then_has_them_and_the_remaining_time():
    now, stream = [0.0], io.StringIO()
    lines = Progress(stream=stream, clock=lambda: now[0])
    lines({"event": "start", "time": 0.0, "step": 0, "steps_per_epoch": 50, "total_steps": 100})
    for step in (5, 10, 20, 40):
        now[0] = step * 2.0  # lines are at least 30 seconds apart
        lines({**STEP, "step": step})
    lines.close("finished")
    assert stream.getvalue().splitlines() == [
        "step 20 of 100: loss 0.5, 75 samples/s, data 25%, 02:40 left",
        "step 40 of 100: loss 0.5, 75 samples/s, data 25%, 02:00 left",
        "training finished",
    ]


EPOCH = {
    "event": "epoch", "time": 0.0, "step": 5, "epoch": 0, "loss": 0.5, "images_per_second": 75.4,
    "metrics": {"loss": 0.5, "f1": 0.25, "lost": "nan"},
}  # fmt: skip


@pytest.mark.parametrize("is_brief", [True, False])
def test_each_epoch_is_a_line_with_its_figures_wherever_it_is_written(is_brief):
    now, stream = [0.0], io.StringIO()
    lines = Progress(is_brief=is_brief, stream=stream, clock=lambda: now[0])
    lines({"event": "start", "time": 0.0, "step": 0, "steps_per_epoch": 5, "total_steps": 15})
    now[0] = 60.0
    lines(STEP)
    lines(EPOCH)
    lines.close("finished")
    epoch = "epoch 1 of 3: loss 0.5, 75 samples/s, f1 0.25"
    step = "step 5 of 15: loss 0.5, 75 samples/s, data 25%, 02:00 left"
    assert stream.getvalue().splitlines() == ([epoch] if is_brief else [step, epoch, "training finished"])


def test_a_stream_that_nobody_reads_does_not_end_a_training():
    stream = io.StringIO()
    stream.close()
    Progress(stream=stream)(EPOCH)


@pytest.mark.parametrize(("progress", "epochs"), [(None, 2), (False, 0)])
def test_a_training_writes_a_line_for_each_epoch_unless_it_is_not_wanted(config, capfd, progress, epochs):
    train(replace(config, progress=progress))
    assert [line[:12] for line in capfd.readouterr().err.splitlines()] == ["epoch 1 of 2", "epoch 2 of 2"][:epochs]


def test_a_function_gets_a_line_for_each_epoch_with_its_speed_and_the_share_of_waiting():
    stream = io.StringIO()
    lines = Progress(is_brief=True, stream=stream)
    lines({"event": "start", "time": 0.0, "step": 0})
    lines({"event": "report", "time": 0.0, "step": 3, "metrics": {"loss": 0.5}})
    speed = {"samples_per_second": 75.4, "data_fraction": 0.25}
    lines({"event": "pass", "time": 0.0, "split": "train", "epoch": 1, **speed})
    assert stream.getvalue() == "epoch 2: loss 0.5, 75 samples/s, data 25%\n"


def interrupted(context):
    if context.config:
        context.save(3, {}, wait=True)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        (True, "the newest checkpoint is .*step-00000003-00000: start the run again with the same `run_dir`"),
        (False, "no checkpoint"),
    ],
)
def test_an_interrupt_says_which_checkpoint_there_is_and_how_to_go_on(tmp_path, caplog, saves, said):
    with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.WARNING, logger="smalti.train"):
        launch(interrupted, saves, run_dir=str(tmp_path / "run"))
    [record] = caplog.records
    assert re.match(f"interrupted; {said}", record.getMessage())


def test_figures_have_the_names_of_their_kind_and_texts_and_places_are_none():
    assert figures_of({**STEP, "life": 0}) == {
        "step/loss": 0.5, "step/data_fraction": 0.25, "step/images_per_second": 75.4,
    }  # fmt: skip
    report = {"event": "report", "time": 1.0, "step": 2, "metrics": {"loss": "inf", "f1": 1}, "measures": {"x": 2.0}}
    assert figures_of(report) == {"loss": math.inf, "f1": 1.0, "step/x": 2.0}
    assert figures_of({"event": "epoch", "epoch": 0, "accuracy": 0.5, "confusion": [[1]]}) == {"epoch/accuracy": 0.5}
    task = {"event": "epoch", "metrics": {"f1": 0.5}, "train_metrics": {"f1": 0.75}, "loss": 1}
    assert figures_of(task) == {"epoch/f1": 0.5, "epoch/train_f1": 0.75, "epoch/loss": 1.0}
    assert figures_of({"event": "output", "line": "1"}) == {}


# ------------------------------------------------------------ TensorBoard


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]}


class LostError(Exception):
    pass


def lose_after(step):
    """Return a listener that ends the run after a step, as a death would."""

    def listen(event):
        if event["event"] == "step" and event["step"] == step:
            raise LostError

    return listen


def test_tensorboard_shows_each_step_once_although_a_life_was_lost_and_steps_were_taken_again(config):
    """Seven steps an epoch; the first life ends after step 5, and its newest checkpoint is that of step 3."""
    tracked = replace(config, tensorboard=True, log_every=1)
    with pytest.raises(LostError):
        train(tracked, on_event=lose_after(5))
    heard = []
    result = train(tracked, on_event=heard.append)
    assert result.resumed_from["step"] == 3
    shown = scalars(Path(config.run_dir) / "tensorboard")
    assert [step for step, _ in shown["step/loss"]] == list(range(1, 15))
    assert {"step/learning_rate", "step/data_fraction", "step/peak_memory_mb", "step/images_per_second"} <= set(shown)
    assert shown["epoch/accuracy"][-1] == (14, pytest.approx(result.accuracy))
    assert [event["link"] for event in heard if event["event"] == "tracking"] == [f"{config.run_dir}/tensorboard"]


def test_the_event_files_of_a_run_in_a_store_are_put_there(config, tmp_path):
    def report(context):
        for step in (1, 2, 3):
            context.report({"f1": step / 4}, step=step)

    launch(report, run_dir="memory://tracking/run", tensorboard=True)
    store = open_store("memory://tracking/run/tensorboard")
    for info in store.list():
        (tmp_path / info.key).write_bytes(store.get(info.key))
    shown = scalars(tmp_path)
    assert shown["f1"] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [step for step, _ in shown["step/peak_memory_mb"]] == [1, 2, 3]


# ------------------------------------------------------------ MLflow


def learn(context):
    """Three steps over the squares; the first life is lost after its second."""
    loader = context.dataloader("train", batch_size=20)
    step = 0 if context.latest() is None else context.latest().step
    for batch in loader:
        step += 1
        context.report({"seen": len(batch["label"]), "inf": math.inf}, step=step)
        context.save(step, {}, wait=True)
        if step == 2:
            raise LostError
    return step


def test_mlflow_has_parameters_metrics_with_steps_and_data_and_a_resumed_run_continues_its_own(
    squares, tmp_path, caplog
):
    options = {"data": str(squares), "run_dir": str(tmp_path / "run"), "mlflow_experiment": "flowers"}
    heard = []
    with fake_mlflow() as (address, requests):
        with pytest.raises(LostError):
            launch(learn, {"rate": 0.1, "layers": {"hidden": 3}}, mlflow=address, **options)
        begun = len(requests)
        assert launch(learn, {"rate": 0.1}, mlflow=address, on_event=heard.append, **options) == 3
    assert [record for record in caplog.records if record.name == "smalti.train"] == []
    first, second = requests[:begun], requests[begun:]
    parameters = {each["key"]: each["value"] for body in of(first, "runs/log-batch") for each in body.get("params", [])}
    assert (parameters["rate"], parameters["layers.hidden"], parameters["data"]) == ("0.1", "3", str(squares))
    assert not any("storage_options" in name for name in parameters)
    metrics = [each for body in of(first, "runs/log-batch") for each in body.get("metrics", [])]
    assert [(each["step"], each["value"]) for each in metrics if each["key"] == "seen"] == [(1, 20.0), (2, 20.0)]
    assert {"inf", "step/samples_per_second", "step/data_fraction", "step/peak_memory_mb"} <= {
        each["key"] for each in metrics
    }
    [data] = [each["dataset"] for body in of(first, "runs/log-inputs") for each in body["datasets"]]
    source = json.loads(data["source"])
    assert (data["name"], source["url"], source["version"]) == (squares.name, str(squares), 1)
    assert source["digest"].startswith(data["digest"])
    assert [body["status"] for body in of(first, "runs/update")] == ["FAILED"]
    assert (len(of(first, "runs/create")), len(of(second, "runs/create"))) == (1, 0)
    assert [body["status"] for body in of(second, "runs/update")] == ["RUNNING", "FINISHED"]
    [link] = [event["link"] for event in heard if event["event"] == "tracking"]
    assert link == f"{address}/#/experiments/7/runs/r1"


def of(requests, path):
    return [body for found, body in requests if found == path]


@contextlib.contextmanager
def fake_mlflow():
    """Yield the address of a server that answers as MLflow's does, and the paths and bodies of its requests."""
    requests = []
    run = {"info": {"run_id": "r1", "run_uuid": "r1", "experiment_id": "7", "status": "RUNNING"}, "data": {}}
    answers = {
        "experiments/get-by-name": {"experiment": {"experiment_id": "7", "name": "flowers"}},
        "runs/create": {"run": run},
        "runs/get": {"run": run},
        "runs/search": {"runs": [run]},
        "runs/update": {"run_info": run["info"]},
        "runs/log-batch": {},
        "runs/log-inputs": {},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
            size = int(self.headers.get("Content-Length") or 0)
            requests.append((path, json.loads(self.rfile.read(size) or b"{}")))
            body = json.dumps(answers.get(path, {"error_code": "ENDPOINT_NOT_FOUND"})).encode()
            self.send_response(200 if path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that the base class calls

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join(timeout=500)
        server.server_close()


@contextlib.contextmanager
def silent_server():
    """Yield the address of a server that takes connections, and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


@contextlib.contextmanager
def no_server():
    """Yield an address at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("server", [silent_server, no_server])
def test_a_server_that_does_not_answer_delays_no_event_and_the_end_by_its_limit_and_what_is_missing_is_logged(
    tmp_path, caplog, server
):
    with server() as address, caplog.at_level(logging.WARNING, logger="smalti.train"):
        run = MlflowRun(RunConfig(run_dir=str(tmp_path), mlflow=address), {}, end_seconds=1.0)
        began = time.monotonic()
        run({"event": "start", "time": 1.0, "step": 0})
        for step in range(1, 1001):
            run({**STEP, "step": step})
        assert time.monotonic() - began < 30.0  # the first request takes minutes
        run.close("finished")
        assert time.monotonic() - began < 60.0
    assert [record.getMessage() for record in caplog.records if record.name == "smalti.train"] == [
        "the run is not recorded in MLflow as a whole within 1 s after its end; missing: the whole run"
    ]


def test_requests_that_are_made_again_draw_no_random_number_of_the_program(tmp_path):
    pytest.importorskip("mlflow")
    drawn = random.getstate()
    with no_server() as address:
        run = MlflowRun(RunConfig(run_dir=str(tmp_path), mlflow=address), {}, end_seconds=4.0)
        run({"event": "start", "time": 1.0, "step": 0})
        run.close("failed")
    assert random.getstate() == drawn


PROGRAM = """
import sys
from smalti.torch.train import launch

def count(context):
    for step in range(1, 101):
        context.report({"loss": 1.0}, step=step)
    return 100

assert launch(count, run_dir=sys.argv[1], mlflow=sys.argv[2]) == 100
"""


@pytest.mark.process
@pytest.mark.nightly
def test_a_program_ends_although_its_tracking_server_never_answers(tmp_path):
    """The run waits for 15 s; MLflow's own threads would hold the program up for minutes."""
    with silent_server() as address:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), address],
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "missing: the whole run" in done.stderr


@pytest.mark.process
def test_a_client_that_cannot_be_made_is_explained(tmp_path, caplog):
    """The client of MLflow in use has no plugin for this kind of address."""
    with caplog.at_level(logging.WARNING, logger="smalti.train"):
        assert launch(lambda context: 1, run_dir=str(tmp_path), mlflow="nowhere://server") == 1
    first, last = [record.getMessage() for record in caplog.records if record.name == "smalti.train"]
    assert "the training continues: " in first
    assert "nowhere" in first
    assert last.endswith("missing: the whole run")


def test_a_wrong_address_of_a_server_is_explained(config, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SchemaError, match="MLFLOW_TRACKING_URI is not set"):
        train(replace(config, mlflow="environment"))
    with pytest.raises(SchemaError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        train(replace(config, mlflow="https://me:canary@mlflow.example"))
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:canary@db.example/runs")
    with pytest.raises(SchemaError, match="without a password") as caught:
        train(replace(config, mlflow="environment"))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        ("postgresql://me:canary@db.example/runs", True),
        ("mysql+pymysql://me:can/ary@db.example/runs", True),
        ("postgresql://db.example/runs?user=me&password=canary", True),
        ("https://canary@mlflow.example", True),
        ("http://mlflow.example:5000/of@team", False),
        ("postgresql://me@db.example:5432/runs", False),
        ("sqlite:////runs/of@team.db", False),
        ("databricks://profile", False),
    ],
)
def test_a_tracking_address_with_a_password_is_refused_without_repeating_it(address, is_refused):
    if not is_refused:
        assert RunConfig(run_dir="run", mlflow=address).public_json()["mlflow"] == address
        return
    with pytest.raises(SchemaError, match="without a password") as caught:
        RunConfig(run_dir="run", mlflow=address)
    assert "canary" not in str(caught.value)


CANARY = "CANARYcanaryCANARY"


class RecordingClient:
    """Keeps all that it is given."""

    def __init__(self, server):
        self.given = [server]

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.given += [args, kwargs]
            return SimpleNamespace(experiment_id="7", info=SimpleNamespace(run_id="r1"))

        return call


def test_no_secret_of_a_run_or_of_its_functions_config_is_a_parameter_or_a_tag():
    pytest.importorskip("mlflow")
    clients = []
    config = RunConfig(
        data="s3://bucket/set", storage_options={"key": "AKID", "secret": CANARY}, run_dir="run",
        mlflow="http://127.0.0.1:9",
    )  # fmt: skip
    own = {
        "api_key": CANARY,
        "hub": {"token": CANARY, "url": f"https://user:{CANARY}@host/x", "signed": f"https://host/x?a={CANARY}"},
        "max_tokens": 512,
        "tokenizer": "byte pairs",
    }

    def connect(server):
        clients.append(RecordingClient(server))
        return clients[0]

    run = MlflowRun(config, _parameters(config, own), connect=connect)
    run({"event": "start", "time": 1.0, "life": 0, "digest": "d", "data": config.data})
    run.close("finished")
    assert run.missing() == []
    given = repr(clients[0].given)
    assert CANARY not in given
    assert "byte pairs" in given
    assert "512" in given


class RefusingClient:
    """Answers as MLflow does when a name has a wrong character, and refuses the first parameters."""

    def __init__(self):
        self.names, self.statuses, self.runs, self.is_down = [], [], 0, True

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7")

    def create_run(self, experiment_id, tags, run_name):
        self.runs += 1
        return SimpleNamespace(info=SimpleNamespace(run_id=f"r{self.runs}"))

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        if self.is_down:
            raise OSError("no answer")
        for each in (*metrics, *params):
            if not re.fullmatch(r"[/\w.\- :]*", each.key):
                raise ValueError(f"invalid name {each.key}")
            self.names.append(each.key)

    def set_terminated(self, run_id, status):
        self.statuses.append((run_id, status))


def test_names_that_mlflow_refuses_are_changed_and_the_outcome_is_recorded_whatever_failed(caplog):
    pytest.importorskip("mlflow")
    config, fake = RunConfig(run_dir="run", mlflow="sqlite:///canary.db"), RefusingClient()
    run = MlflowRun(config, {"rate (%)": 1, "a": {"..": 2}}, connect=lambda _: fake)
    run({"event": "start", "time": 1.0, "life": 0})
    run({"event": "report", "time": 2.0, "step": 1, "metrics": {"f1@0.5": 0.5, "/x": 1.0}})
    run.close("failed")
    assert (fake.runs, fake.statuses) == (1, [("r1", "FAILED")])
    assert run.link == "experiments/7/runs/r1"
    assert run.missing() == ["2 parameters", "2 figures"]
    assert [record.getMessage() for record in caplog.records] == [
        "the run is not recorded in MLflow for now, the training continues: OSError: no answer",
        "the run is not recorded in MLflow as a whole; missing: 2 parameters, 2 figures",
    ]
    fake.is_down = False
    run.end("finished")
    assert run.missing() == []
    assert (fake.runs, fake.names) == (1, ["rate ___", "a...", "f1_0.5", "_x"])
