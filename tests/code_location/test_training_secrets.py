"""Keys of the storage reach the processes of a training and are shown nowhere (fault J11)."""

import logging
from pathlib import Path

import dagster as dg
import pytest

from smalti.storage import open_store
from smalti_dagster.models.model import build_model
from smalti_dagster.resources.storage import S3Storage
from smalti_dagster.resources.training import TrainerResource
from tests.canary import has_secret, watching
from tests.code_location.declared import FLOWERS
from tests.code_location.events import op_config
from tests.code_location.shard_sets import make_version, rows_of
from tests.storage.conftest import clean_environment, s3_bucket, s3_server  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.torch, pytest.mark.nightly]

CANARY = "CANARYcanaryCANARY"


def test_the_storages_secret_is_in_no_event_file_checkpoint_or_command_line_of_a_training(
    tmp_path: Path,
    s3_server: str,  # noqa: F811
    s3_bucket: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    home, disk = tmp_path / "dagster", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)  # the ranks have the resource's alone
    monkeypatch.setenv("THE_SECRET", CANARY)
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    root = f"s3://{s3_bucket}"
    keys = {"endpoint_url": s3_server, "aws_access_key_id": "AKIDTEST"}
    plain = S3Storage(root=root, aws_secret_access_key=CANARY, **keys)
    referred = S3Storage(root=root, aws_secret_access_key=dg.EnvVar("THE_SECRET"), **keys)
    trainer = TrainerResource(run_root=f"{root}/runs", launcher="processes", num_processes=1)
    assert FLOWERS.train is not None
    model = build_model(FLOWERS, FLOWERS.train)
    with dg.DagsterInstance.local_temp(str(home)) as instance, watching([CANARY], home, disk) as seen:
        make_version(instance, plain, {"train": rows_of(3, 3), "validation": rows_of(1, 1)})
        done = dg.materialize(
            [model],
            instance=instance,
            resources={"smalti_storage": referred, "smalti_trainer": trainer},
            run_config=op_config({"model": {"epochs": 1, "batch_size": 4, "task_options": {"image_size": 32}}}),
            selection=[model],
        )
        assert done.success
        assert CANARY not in repr(instance.all_logs(done.run_id))
        assert CANARY not in repr(done.dagster_run)
    commands, files = seen
    assert any(b"smalti.torch.train.launchers.processes" in command for command in commands)
    assert has_secret([CANARY], commands) == []
    assert files == set()
    store = open_store(f"{root}/runs", {"endpoint_url": s3_server, "key": "AKIDTEST", "secret": CANARY})
    kept = {info.key: store.get(info.key) for info in store.list()}
    assert any("/checkpoints/" in key for key in kept)
    assert [key for key, content in kept.items() if CANARY.encode() in content] == []
    assert CANARY not in caplog.text
