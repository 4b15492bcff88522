"""A data set of rows, the compute of the stand-in, and what shards hold: for tests of stages on the cluster."""

from pathlib import Path
from typing import Any

from smalti.catalog import load_manifest
from smalti.storage import open_store
from smalti_dagster.declaration import Partitions, Prepare, Shards, Source
from smalti_dagster.resources.databricks.compute import DatabricksResource
from tests.code_location.databricks.workspace import Workspace
from tests.code_location.declared import declare

NOTES = declare(
    name="notes",
    train=None,
    source=Source(dataframe="tests.code_location.databricks.stages:documents_by_day"),
    partitions=Partitions(by="key", column="day"),
    prepare=Prepare(function="assets.tokens:tokenize"),
    shards=Shards(columns={"tokens": "ndarray:int32:128"}),
)
"""Documents of two days, packed by the shipped tokenizer."""


def compute(workspace: Workspace, **settings: Any) -> DatabricksResource:
    """A new cluster with a secret, whose code includes that of these tests."""
    given: dict[str, Any] = {
        "volume": workspace.volume,
        "host": workspace.url,
        "token": workspace.token,
        "cluster": {"spark_version": "17.3.x-scala2.13", "num_workers": 1},
        "packages": ["smalti", "smalti_dagster", "assets", "pipelines", "tests.code_location.databricks"],
        "environment": {"AWS_SECRET_ACCESS_KEY": "{{secrets/keys/AWS_SECRET_ACCESS_KEY}}"},
        "poll_seconds": 0.2,
    }
    return DatabricksResource(**{**given, **settings})


def content(place: Path) -> list[Any]:
    """The shards of the newest version, with their hashes; their names, and so the digest, are of one write alone."""
    found = load_manifest(open_store(place / "shards")).shards
    return [(each.partition, each.samples, each.stored.num_bytes, dict(each.stored.hashes)) for each in found]
