"""Declared data sets on an object store: nothing of a set is written outside its own prefix."""

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.declaration import Image, Prepare, Source, Train
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.models.model import build_model
from smalti_dagster.resources.deployment import detect_resources
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import S3Storage
from tests.code_location.declared import FLOWERS, declare, define
from tests.code_location.events import op_config
from tests.code_location.shard_sets import make_version, rows_of
from tests.spark.own_session import own_session

pytestmark = [pytest.mark.slow, pytest.mark.spark]
MODEL = build_model(FLOWERS, FLOWERS.train)  # type: ignore[arg-type]  # it is declared
KEYS = {"aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "SECRETTESTSECRET", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """The session of all tests of one worker, which runs find and leave alone."""
    with own_session() as made:
        yield made


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, Any]]:
    """The address of an S3 server in this process, and a client for its one bucket."""
    import boto3
    import moto.server

    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **KEYS)
    client.create_bucket(Bucket="lake")
    yield f"http://{host}:{port}", client
    server.stop()


def keys_of(client: Any) -> set[str]:
    return {item["Key"] for item in client.list_objects_v2(Bucket="lake").get("Contents", [])}


@pytest.mark.parametrize("versions", [(1,), pytest.param((1, 1), marks=pytest.mark.nightly)], ids=["once", "again"])
def test_images_are_drawn_prepared_and_published_below_the_prefix_of_their_set(
    instance: dg.DagsterInstance, bucket: tuple[str, Any], spark: Any, versions: tuple[int, ...]
) -> None:
    url, client = bucket
    storage = S3Storage(root="s3://lake/root", endpoint_url=url, **KEYS)
    declared = declare(
        source=Source(generate="assets.drawing:draw_flowers", generate_options={"per_class": 2}),
        prepare=Prepare(image=Image(size=16)),
        train=Train(),
    )
    defs = define(declared, storage=storage, spark=SparkResource(master="local[2,2]"))
    for version in versions:
        assert defs.resolve_job_def("flowers_reshard_job").execute_in_process(instance=instance).success
        event = latest(instance, declared.key("shards"))
        assert event is not None
        facts = facts_of(event)
        assert (facts["version"], facts["samples"]) == (version, 10)
        assert facts["dagster/uri"] == "s3://lake/root/flowers/shards"
    found = keys_of(client)
    assert {key.rsplit("/", maxsplit=1)[0].split("/")[2] for key in found} == {
        "checks",
        "generated",
        "inventories",
        "prepared",
        "shards",
    }
    assert all(key.startswith("root/flowers/") for key in found)


@pytest.mark.torch
def test_a_model_its_checkpoints_and_its_figures_are_kept_below_the_storage_root(
    instance: dg.DagsterInstance, bucket: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, client = bucket
    for name, value in ({"S3_ENDPOINT_URL": url} | {name.upper(): value for name, value in KEYS.items()}).items():
        monkeypatch.setenv(name, value)
    stage = detect_resources({"SMALTI_STAGE": "staging", "SMALTI_ROOT": "s3://lake/trained", **os.environ})
    plain = S3Storage(root=stage["smalti_storage"].root, stage="staging", endpoint_url=url, **KEYS)
    make_version(instance, plain, {"train": rows_of(3, 3), "validation": rows_of(1, 1)})
    resources = {name: stage[name] for name in ("smalti_storage", "smalti_trainer")}
    options = {"epochs": 1, "batch_size": 4, "task_options": {"image_size": 32}}
    done = dg.materialize(
        [MODEL], instance=instance, resources=resources, run_config=op_config({"model": options}), selection=[MODEL]
    )
    run = f"s3://lake/trained/stage-staging/runs/flowers/{done.run_id}"
    [event] = done.get_asset_materialization_events()
    facts = event.materialization.metadata
    assert facts["model"].value == f"{run}/model"
    assert facts["checkpoint"].value == f"{run}/checkpoints/step-00000002-00000"
    found = {key for key in keys_of(client) if key.startswith("trained/stage-staging/runs/")}
    prefix = run.removeprefix("s3://lake/")
    assert {key.removeprefix(f"{prefix}/").split("/")[0] for key in found} == {
        "checkpoints",
        "lives",
        "metrics.jsonl",
        "model",
        "result.json",
    }
    assert f"{prefix}/model/model.safetensors" in found
