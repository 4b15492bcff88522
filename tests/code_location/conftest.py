"""Instances, folders and resources that the code location's tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.resources.storage import LocalStorage, StorageResource
from tests.code_location.instances import instance_in_memory
from tests.spark.own_session import own_session


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that forgets everything."""
    with instance_in_memory() as made:
        yield made


@pytest.fixture
def storage(tmp_path: Path) -> StorageResource:
    """Storage in a folder of the test."""
    return LocalStorage(root=str(tmp_path / "data"))


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """The Spark session that the runs of a file find and leave alone."""
    with own_session() as made:
        yield made
