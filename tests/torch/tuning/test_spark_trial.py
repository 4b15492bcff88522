"""A trial as it is sent to Spark's executors: credentials never together with code, which may be large."""

import json
import os
import pickle
from types import SimpleNamespace

import cloudpickle
import pytest

from smalti.errors import TrainingError
from smalti.torch.train.config import RunConfig
from smalti.torch.train.launchers.spark import options_of
from smalti.torch.train.launchers.start import Program
from smalti.torch.tuning import spark_trial
from smalti.torch.tuning.spark_trial import Carried, sent_task

pytestmark = [pytest.mark.torch]


VALUES = {}
"""The values that were broadcast, by number."""


class Sent:
    """A broadcast of Spark's: tasks get its number, and its value by another way."""

    def __init__(self, value):
        self.number = len(VALUES)
        VALUES[self.number] = pickle.dumps(value)

    def __reduce__(self):
        return received, (self.number,)

    def destroy(self):
        del VALUES[self.number]


def received(number):
    return SimpleNamespace(value=pickle.loads(VALUES[number]))


def train(context):
    return {"score": 1}


PROGRAM = Program(
    RunConfig(run_dir="s3://bucket/trial", data="s3://bucket/data", storage_options={"secret": "canary-1"}),
    train,
    {"large": "x" * 2**21},
)
CARRIED = Carried(options_of(PROGRAM.config), {"AWS_SECRET_ACCESS_KEY": "canary-2"})


@pytest.fixture(autouse=True)
def _without_source(monkeypatch):
    """The tests' own files would be sent, which mention the credentials."""
    monkeypatch.setattr(spark_trial, "read_source", lambda _: {})


def test_code_is_broadcast_without_credentials_and_what_goes_with_the_task_is_small(monkeypatch):
    session = SimpleNamespace(sparkContext=SimpleNamespace(broadcast=Sent))
    task, release = sent_task(session, PROGRAM, CARRIED)
    [broadcast] = VALUES.values()
    assert len(broadcast) > 2**21
    assert b"canary" not in broadcast
    sent = cloudpickle.dumps(task)
    assert len(sent) < 4096
    assert "canary" not in repr(task)
    monkeypatch.setattr(spark_trial, "run_program", credentials_of)
    [frame] = pickle.loads(sent)([None])
    assert json.loads(frame["outcome"][0]) == {"result": ["canary-1", "canary-2"], "failure": ""}
    assert os.environ.get("AWS_SECRET_ACCESS_KEY") != "canary-2"
    release()
    assert not VALUES


def credentials_of(program, on_event, *, start):
    """Return the credentials that a trial has got."""
    assert len(program.argument["large"]) == 2**21
    return [program.config.storage_options["secret"], os.environ["AWS_SECRET_ACCESS_KEY"]]


def test_spark_connect_refuses_credentials_with_much_code_and_takes_either_of_them():
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(TrainingError, match=r"have 2\d{6} bytes, and over Spark Connect at most 1048576") as caught:
        sent_task(session, PROGRAM, CARRIED)
    assert "canary" not in str(caught.value)
    small = Program(PROGRAM.config, train, {})
    task, _ = sent_task(session, small, CARRIED)
    assert b"canary-2" in cloudpickle.dumps(task)
    none = Carried(json.dumps({"storage_options": {}, "run_storage_options": None}), {"OMP_NUM_THREADS": "1"})
    assert not none.has_secrets
    sent_task(session, PROGRAM, none)
