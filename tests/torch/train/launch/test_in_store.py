"""A run on S3: killed at any time and started again with an empty disk, it ends like one that was not interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from safetensors.torch import load

from smalti.storage import open_store
from smalti.torch.train import TrainConfig, read_sample_order, train

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

SECRET = "SECRETTESTSECRET"  # of the fixture
LIVES = """
import json, os, signal, sys, tempfile
import torch._dynamo  # with the first optimiser
import smalti.storage.backends.s3, smalti.torch.train.trainer.loop
from smalti.torch.train import TrainConfig, train
from smalti.storage.object_store import FsspecStore
for line in sys.stdin:
    config, key, begin, disk = json.loads(line)
    life = os.fork()
    if life:
        print(os.waitstatus_to_exitcode(os.waitpid(life, 0)[1]), flush=True)
        continue
    os.dup2(2, 1)
    tempfile.tempdir = disk
    def put_file(self, name, path, put=FsspecStore.put_file):
        if name.endswith(key) and begin: os.kill(os.getpid(), signal.SIGKILL)
        put(self, name, path)
        if name.endswith(key): os.kill(os.getpid(), signal.SIGKILL)
    FsspecStore.put_file = put_file
    train(TrainConfig.from_json(config))
    os._exit(0)
"""
"""A program that forks for each line: one import of torch serves all lives, each of which is a process of its own."""


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """The program, and the file of what its processes print."""
    printed = tmp_path_factory.mktemp("lives") / "printed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with printed.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-c", LIVES],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )
    with program:
        yield program, printed
        program.stdin.close()


@pytest.fixture
def options(s3_server, s3_bucket):
    return {"endpoint_url": s3_server, "key": "AKIDTEST", "secret": SECRET}


@pytest.fixture
def remote(config, s3_bucket, options) -> TrainConfig:
    return replace(config, run_dir=f"s3://{s3_bucket}/run", run_storage_options=options)


def killed_at(lives, config: TrainConfig, key: str, disk, *, begin: bool) -> None:
    """Train on a machine with an empty disk until a file is put, and kill the process before or after that."""
    disk.mkdir()
    program, printed = lives
    print(json.dumps([config.to_json(), key, begin, str(disk)]), file=program.stdin, flush=True)
    assert program.stdout.readline() == f"{-signal.SIGKILL}\n", printed.read_text()
    for path in disk.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_run_that_is_killed_between_and_during_saves_ends_like_an_uninterrupted_one(
    config, remote, options, tmp_path, lives
):
    whole = train(config)
    # With half a checkpoint, with all but a whole one, and directly after it.
    killed_at(lives, remote, "step-00000006-00000/optimizer.safetensors", tmp_path / "a", begin=False)
    killed_at(lives, remote, "step-00000006-00001/checksums.json", tmp_path / "b", begin=True)
    killed_at(lives, remote, "step-00000009-00002/checksums.json", tmp_path / "c", begin=False)
    result = train(remote)
    assert result.resumed_from["step"] == 9
    assert result.resumed_from["skipped"] == []
    assert result.checkpoint == f"{remote.run_dir}/checkpoints/step-00000014-00003"
    store = open_store(remote.run_dir, options)
    expected = load(open_store(config.run_dir).get("model/model.safetensors"))
    found = load(store.get("model/model.safetensors"))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    assert json.loads(store.get("result.json")) == result.to_json()
    assert (result.steps, result.accuracy) == (whole.steps, whole.accuracy)
    assert read_sample_order(remote.run_dir, storage_options=options) == read_sample_order(config.run_dir)
    lines = [json.loads(line) for line in store.get("metrics.jsonl").splitlines()]
    assert [event["life"] for event in lines if event["event"] == "start"] == [0, 1, 2, 3]
    assert lines[-1]["event"] == "end"
    assert [event["step"] for event in lines if event["event"] == "epoch"] == [7, 14]
    assert {info.key.split("/")[1] for info in store.list("checkpoints")} == {
        "step-00000012-00003", "step-00000014-00003"
    }  # fmt: skip
    assert not any(SECRET.encode() in store.get(info.key) for info in store.list())


@pytest.mark.nightly
def test_two_processes_train_in_a_store_and_leave_nothing_on_the_disk(remote, options, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    heard = []
    both = replace(remote, launcher="processes", num_processes=2, epochs=1)
    result = train(both, on_event=heard.append)
    assert result.model_dir == f"{remote.run_dir}/model"
    assert [event["step"] for event in heard if event["event"] == "epoch"] == [7]
    assert [event["event"] for event in heard if event["event"] in {"start", "end"}] == ["start", "end"]
    order = read_sample_order(remote.run_dir, storage_options=options)
    assert sorted(order[0]) == list(range(50))
    again = train(both, on_event=heard.append)
    assert again.resumed_from["step"] == 7
    assert [event["event"] for event in heard].count("epoch") == 1  # earlier ones are not delivered again
    assert list(disk.glob("smalti-run-*")) == []


@pytest.mark.nightly  # beside the run that is killed in saves
def test_what_a_killed_process_left_on_the_disk_is_removed_by_the_next_run(remote, lives, tmp_path, monkeypatch):
    killed_at(lives, remote, "step-00000003-00000/model.safetensors", tmp_path / "disk", begin=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    (left,) = (tmp_path / "disk").glob("smalti-run-*")
    os.utime(left / ".lock", (time.time() - 600,) * 2)
    train(replace(remote, epochs=1))
    assert not left.exists()
