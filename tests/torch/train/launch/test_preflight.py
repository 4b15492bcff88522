"""The preflight: what the ranks cannot reach is an error on the driver, and none of them is started."""

import os
from dataclasses import replace

import pytest

from smalti.errors import TrainingError
from smalti.storage import open_store
from smalti.torch.train import launch
from smalti.torch.train.config import RunConfig
from smalti.torch.train.launchers.preflight import check_as_executor, check_places
from tests.torch.train.conftest import publish_squares

pytestmark = pytest.mark.torch


def never_called(context):
    raise AssertionError("a rank was started")


@pytest.fixture
def options(squares, tmp_path):
    return {"data": str(squares), "run_dir": str(tmp_path / "run"), "launcher": "processes", "num_processes": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nowhere/data"}, "nothing was started: the ranks could not read the data, nowhere/data: "),
        ({"version": 9}, "could not read the data.*has no version 9: the newest is 1"),
        ({"digest": "0" * 64}, "could not read the data.*expected 0000"),
        ({"run_dir": "/dev/null/run"}, "could not write the run, /dev/null/run: "),
    ],
    ids=["data", "version", "digest", "run"],
)
def test_a_place_that_the_ranks_cannot_use_is_named_and_no_rank_is_started(options, changes, message):
    with pytest.raises(TrainingError, match=message):
        launch(never_called, **{**options, **changes})


def test_it_leaves_nothing_in_the_folder_of_the_run(options, tmp_path):
    check_places(RunConfig(**options))
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_executors_are_checked_without_the_files_of_the_drivers_home(s3_server, s3_bucket, clean_environment, tmp_path):
    """The key is in ~/.aws, where this process finds it, as an executor on another machine would not."""
    config = RunConfig(data=f"s3://{s3_bucket}/set", run_dir=f"s3://{s3_bucket}/run", launcher="spark")
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    publish_squares(config.data, train=1)
    aws = tmp_path / "home" / ".aws"
    aws.mkdir(parents=True)
    (aws / "credentials").write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    clean_environment.delenv("AWS_ACCESS_KEY_ID")
    clean_environment.delenv("AWS_SECRET_ACCESS_KEY")
    check_places(replace(config, launcher="processes"))
    with pytest.raises(TrainingError, match=r"could not read the data") as caught:
        check_as_executor(config)
    assert "give the credentials as `storage_options`" in str(caught.value)
    assert "S3_ENDPOINT_URL" in str(caught.value)
    check_as_executor(replace(config, storage_options={"key": key, "secret": secret}))
    store = open_store(config.run_dir, {"key": key, "secret": secret})
    assert list(store.list()) == []
