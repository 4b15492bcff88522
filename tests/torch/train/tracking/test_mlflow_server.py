"""A training recorded on a real tracking server: its parameters, figures and data, and a model that answers."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.torch.train import train
from tests.torch.train.tracking.test_tracking import LostError, lose_after

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[4]
SERVER = ROOT / ".venv" / "mlflow" / "bin" / "mlflow"  # `make test-nightly` installs it
LOOK = """
import json, sys
from mlflow import MlflowClient
from mlflow.pyfunc import load_model
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("flowers").experiment_id
[run] = client.search_runs([experiment])
model_id = run.outputs.model_outputs[0].model_id if run.outputs and run.outputs.model_outputs else None
found = {
    "status": run.info.status, "params": run.data.params, "metrics": run.data.metrics,
    "steps": [each.step for each in client.get_metric_history(run.info.run_id, "step/loss")],
    "data": [each.dataset.source for each in run.inputs.dataset_inputs],
    "run": run.info.run_id, "experiment": experiment,
}
if model_id:
    model = load_model(f"models:/{model_id}")
    found["signature"] = str(model.metadata.signature)
    images = np.full((3, 24, 24, 3), 60, np.uint8)
    for at in range(3): images[at, :, :, at] += 110
    found["answer"] = model.predict(images).round(4).tolist()
print("found:" + json.dumps(found))
"""


@pytest.fixture
def server(tmp_path):
    """The address of a tracking server with its own database and artifacts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [SERVER, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db",
             "--artifacts-destination", f"{tmp_path}/artifacts"],
            stdout=log, stderr=log, start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        )  # fmt: skip
        try:
            wait_for(address, process)
            yield address
        finally:
            os.killpg(process.pid, 9)
            process.wait(timeout=500)


def wait_for(address, process):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server did not answer")


def test_a_resumed_training_is_one_run_with_figures_data_and_a_model_with_a_signature(config, server, caplog):
    tracked = replace(config, mlflow=server, mlflow_experiment="flowers", log_every=1)
    with pytest.raises(LostError):
        train(tracked, on_event=lose_after(5))
    assert look(server)["status"] == "FAILED"
    heard = []
    result = train(tracked, on_event=heard.append)
    found = look(server)
    assert caplog.records == []
    assert found["status"] == "FINISHED"
    assert {name: found["params"][name] for name in ("batch_size", "data", "task_options.class_names")} == {
        "batch_size": "8", "data": config.data, "task_options.class_names": '["red", "green", "blue"]',
    }  # fmt: skip
    assert set(found["steps"]) == set(range(1, 15))
    assert found["metrics"]["epoch/accuracy"] == pytest.approx(result.accuracy)
    [source] = map(json.loads, found["data"])
    assert (source["url"], source["version"]) == (config.data, 1)
    [link] = [event["link"] for event in heard if event["event"] == "tracking"]
    assert link == f"{server}/#/experiments/{found['experiment']}/runs/{found['run']}"
    assert "uint8" in found["signature"]
    assert "(-1, 24, 24, 3)" in found["signature"]
    assert [sum(row) for row in found["answer"]] == [pytest.approx(1, abs=1e-3)] * 3


def look(server):
    done = subprocess.run(
        [sys.executable, "-c", LOOK, server], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    [line] = [each for each in done.stdout.splitlines() if each.startswith("found:")]
    return json.loads(line.removeprefix("found:"))
