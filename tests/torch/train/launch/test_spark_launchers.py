"""Training under Spark's TorchDistributor: on the driver's machine, and on executors that inherit nothing from it."""

import contextlib
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from smalti.errors import TrainingError
from smalti.storage import open_store
from smalti.torch.train import launch, read_sample_order, train
from smalti.torch.train.run.events import read_lines
from tests.canary import has_secret, watching
from tests.torch.train.launch.test_restarts import TOTAL, check_samples, count, with_faults

pytestmark = [
    pytest.mark.torch,
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.slow,
    # TorchDistributor does not close the pipe of its child.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECRETS = tuple(text[::-1] for text in ("7951-yranac", "5676-yranac", "4852-yranac"))
"""Not in this file as they are: with the function, the file is sent to executors."""
CANARY = SECRETS[0]


@contextlib.contextmanager
def session(master: str, tmp_path, monkeypatch, **settings: str):
    """A Spark session of our own, stopped at the end; others' must not be there, as a JVM has one context.

    The environment of the tests is not activated: the first `python3` of PATH cannot run anything.
    """
    from pyspark.sql import SparkSession

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(_other_python(tmp_path)), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _other_python(tmp_path) -> Path:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    return other.parent


def model_beside_the_script(folder: Path, builds: str, monkeypatch) -> str:
    """Write a model that only this process can import, with a module that it needs; return the model's name."""
    folder.mkdir()
    (folder / "beside_model.py").write_text(
        "from beside_layers import build\n\ndef make(config): return build(config)\n"
    )
    (folder / "beside_layers.py").write_text(f"from tests.torch.train.tiny_models import {builds} as build\n")
    for name in ("beside_model", "beside_layers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    return "beside_model:make"


@pytest.mark.nightly
def test_two_local_processes_train_in_the_order_of_one(config, tmp_path, monkeypatch):
    alone = replace(config, run_dir=str(tmp_path / "alone"))
    train(alone)
    heard = []
    with session("local[1]", tmp_path, monkeypatch):
        spread = replace(config, launcher="spark-local", num_processes=2)
        spread = replace(spread, model=model_beside_the_script(tmp_path / "beside", "convolution", monkeypatch))
        result = train(spread, on_event=heard.append)
        assert read_sample_order(config.run_dir) == read_sample_order(alone.run_dir)
        assert result.steps == 14
        assert heard == read_lines(Path(config.run_dir) / "metrics.jsonl")
        assert (heard[0]["num_ranks"], heard[0]["num_hosts"]) == (2, 1)


@pytest.mark.nightly
def test_a_failed_or_killed_local_process_is_named(config, tmp_path, monkeypatch):
    with session("local[1]", tmp_path, monkeypatch):
        spread = replace(config, launcher="spark-local", num_processes=2)
        broken = replace(spread, run_dir=str(tmp_path / "broken"), model="tests.torch.train.tiny_models:broken")
        with pytest.raises(TrainingError, match=r"rank [01] of 2 failed .* RuntimeError: the model's own fault 4711"):
            train(broken)
        killed = replace(spread, run_dir=str(tmp_path / "k"), model="tests.torch.train.tiny_models:killed_on_rank_1")
        with pytest.raises(TrainingError, match=r"rank 1 of 2 failed .* it was killed"):
            train(killed)


@pytest.mark.nightly
def test_i5_after_a_lost_executor_training_goes_on_with_exact_data(squares, tmp_path, monkeypatch):
    """Spark aborts a barrier stage that failed, so the launcher starts it again."""
    options = {
        "data": str(squares), "run_dir": str(tmp_path / "run"), "log_samples": True, "timeout_seconds": 280.0,
        "launcher": "spark",
    }  # fmt: skip
    with session("local-cluster[2,1,1024]", tmp_path, monkeypatch):
        result = launch(count, with_faults(options, "executor"), num_processes=2, max_restarts=2, **options)
    assert result == [10, TOTAL, 2]
    check_samples(options)
    assert len(read_lines(tmp_path / "run" / "lives.jsonl")) >= 2


def test_two_executors_train_in_a_store_in_the_order_of_one_and_get_the_credentials(
    config, s3_server, s3_bucket, tmp_path, monkeypatch
):
    """They share no disk: each has the run in the store only. The credentials are searched for in all that is left."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    options = {"endpoint_url": s3_server, "key": CANARY, "secret": SECRETS[1]}
    heard = []
    alone = replace(config, run_dir=str(tmp_path / "alone"))
    train(alone)
    (tmp_path / "events").mkdir()
    logged = {"eventLog.enabled": "true", "eventLog.compress": "false", "eventLog.dir": f"file://{tmp_path}/events"}
    searched = (tmp_path, Path(find_spec("pyspark").origin).parent / "work")
    with (
        watching(SECRETS, *searched) as (commands, files),
        session("local-cluster[2,1,1024]", tmp_path, monkeypatch, **logged, **{"local.dir": f"{tmp_path}/spark"}),
    ):
        # Set after the executors' JVMs may have started: nothing but the trainer carries it there.
        monkeypatch.setenv("DATABRICKS_TOKEN", CANARY)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        spread = replace(
            config,
            launcher="spark",
            num_processes=2,
            model=model_beside_the_script(tmp_path / "beside", "needs_token", monkeypatch),
            run_dir=f"s3://{s3_bucket}/run",
            storage_options={"auto_mkdir": SECRETS[2]},
            run_storage_options=options,
        )
        result = train(spread, on_event=heard.append)
    assert list((tmp_path / "events").rglob("*"))
    assert any(b"torch.distributed.run" in command for command in commands)
    assert has_secret(SECRETS, commands) == []
    assert files == set()
    store = open_store(f"s3://{s3_bucket}", options)
    assert [
        each.key for each in store.list() if any(secret.encode() in store.get(each.key) for secret in SECRETS)
    ] == []
    assert result.steps == 14
    assert read_sample_order(spread.run_dir, storage_options=options) == read_sample_order(alone.run_dir)
    # LOCAL_WORLD_SIZE is 1 in both processes, yet they share this host.
    assert (heard[0]["num_ranks"], heard[0]["num_hosts"]) == (2, 1)
    assert [event["step"] for event in heard if event["event"] == "epoch"] == [7, 14]
    assert heard[-1]["event"] == "end"


@pytest.mark.nightly  # beside the training of the test above
def test_two_executors_run_a_function_in_a_store_whose_error_is_named_without_credentials(
    config, s3_server, s3_bucket, tmp_path, monkeypatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    reports = []

    def read_and_fail(context):
        """Count the samples of a step over both executors, and fail."""
        batch = next(iter(context.dataloader("train", batch_size=50)))
        count = torch.tensor(len(batch["label"]))
        torch.distributed.all_reduce(count)
        context.report({"samples": count, "given": context.config}, step=1)
        raise RuntimeError("the function's own fault 4711")

    with (
        watching(SECRETS, tmp_path, Path(find_spec("pyspark").origin).parent / "work") as (commands, files),
        session("local-cluster[2,1,1024]", tmp_path, monkeypatch),
        pytest.raises(TrainingError, match=r"rank [01] of 2 failed .* RuntimeError: the function's own fault 4711"),
    ):
        launch(
            read_and_fail,
            42,
            on_event=reports.append,
            launcher="spark",
            num_processes=2,
            data=config.data,
            run_dir=f"s3://{s3_bucket}/function",
            run_storage_options={"endpoint_url": s3_server, "key": CANARY, "secret": SECRETS[1]},
        )
    assert [event["metrics"] for event in reports if event["event"] == "report"] == [{"samples": 50.0, "given": 42.0}]
    assert has_secret(SECRETS, commands) == []
    assert files == set()
