"""The Spark resource: a cancelled step on Spark Connect, and the session of a Databricks cluster."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.resources.spark import SparkResource
from tests.spark.own_session import own_session
from tests.spark.writing.connect_program import run_on_connect

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.nightly
@pytest.mark.process
def test_a_cancelled_step_ends_what_the_connect_server_does_for_it_and_nothing_else(tmp_path: Path) -> None:
    said, errors = run_on_connect("tests.code_location.spark_on_connect", tmp_path)
    # A session of Connect; its operations are tagged; the run failed; the function on the server did not go on; the
    # session that was there is not stopped, and has no tag any more.
    assert said == ["pyspark.sql.connect.session", "True", "False", "False", "3 set()"], errors


@pytest.mark.nightly  # beside databricks/test_stages_there.py
def test_on_a_databricks_cluster_the_session_that_is_there_is_used_as_it_is_and_not_stopped(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    seen: list[Any] = []

    @dg.asset
    def counted(spark: SparkResource) -> None:
        with spark.session() as session:
            seen.append(session)
            assert session.range(3).count() == 3

    with own_session() as there:
        settings = dict(there.conf.getAll)
        given = SparkResource(master="spark://nowhere:7077", conf={"spark.sql.shuffle.partitions": "3"})
        assert dg.materialize([counted], resources={"spark": given}, instance=instance).success
        assert seen == [there]
        assert there.range(2).count() == 2
        assert dict(there.conf.getAll) == settings
