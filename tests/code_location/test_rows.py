"""Data sets of rows: a table, a query and a function, from the source to a version, in Dagster's own runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from smalti.catalog import history, load_manifest, tags
from smalti_dagster.declaration import Prepare, Shards, Source, Split
from smalti_dagster.declaration.configuration import OVERRIDDEN
from smalti_dagster.lineage import run_tags
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import CHECKED
from tests.code_location.declared import define
from tests.code_location.documented_keys import documented_keys
from tests.code_location.row_set import Rows, write
from tests.spark.own_session import own_session

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """The session of all tests of one worker, which runs find and leave alone."""
    with own_session() as made:
        yield made


def test_a_table_is_published_split_by_a_column_and_an_unchanged_one_gives_no_new_version(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "table", 1, 2, 3, 4)
    source = Source(table=str(tmp_path / "table"), format="parquet")
    rows = Rows(instance, storage, source=source, split=Split(column="kind"))
    first = rows.run()
    assert first["raw"]["how_identified"] == "the source's versions or files, and the query"
    assert (first["shards"]["version"], first["shards"]["splits"]) == (1, "even, odd")
    assert [row["number"] for row in rows.stored("even")] == [2, 4]
    assert tags(rows.place) == {CHECKED: 1}
    again = rows.run()
    assert again["shards"]["what_was_done"].startswith("nothing changed since version 1")
    assert len(history(rows.place)) == 1

    write(tmp_path / "table", 5, 6, name="more.parquet")
    assert rows.run()["shards"]["version"] == 2
    (tmp_path / "table" / "more.parquet").unlink()
    back = rows.run(shards={"accept_removed": ["*"]})
    assert "the same as version 1" in back["shards"]["what_was_done"]
    assert back["shards"]["digest"] == first["shards"]["digest"]


@pytest.mark.nightly  # the check itself: test_shard_tags.py, losing more rows than declared
def test_losing_most_rows_blocks_the_version(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "table", *range(20))
    source = Source(table=str(tmp_path / "table"), format="parquet")
    rows = Rows(instance, storage, source=source, split=Split(validation=0))
    rows.run()
    write(tmp_path / "table", 1, 2)
    rows.run(fails=True)
    assert tags(rows.place) == {CHECKED: 1}
    assert load_manifest(rows.place).version == 2


def test_a_query_is_read_and_its_override_holds_for_one_run_and_is_shown(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any
) -> None:
    rows = Rows(instance, storage, source=Source(sql="SELECT id FROM range(10)"), split=Split(validation=0.3))
    declared = rows.run()
    assert declared["shards"]["samples"] == 10
    other = rows.run(raw={"source": "SELECT id FROM range(11)"})
    assert other["shards"]["samples"] == 11
    assert other["raw"][OVERRIDDEN]["source"]["in this run"] == "SELECT id FROM range(11)"
    assert rows.run(shards={"accept_removed": ["*"]})["shards"]["digest"] == declared["shards"]["digest"]


def numbers(spark: Any) -> Any:
    """Twelve rows that Spark knows no source of."""
    return spark.createDataFrame([(number, f"text {number}") for number in range(12)], "number int, text string")


def pairs(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Merges the rows of a batch into one."""
    numbers = batch.column("number").to_pylist()
    return pa.RecordBatch.from_pydict({"total": [sum(numbers)], "rows": [len(numbers)]})


def test_a_function_prepares_the_rows_of_one_split_at_a_time(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any
) -> None:
    here = "tests.code_location.test_rows"
    rows = Rows(
        instance,
        storage,
        source=Source(dataframe=f"{here}:numbers"),
        prepare=Prepare(function=f"{here}:pairs"),
        split=Split(validation=0.5, key="number"),
        shards=Shards(compression="zstd"),
    )
    found = rows.run()
    assert found["raw"]["how_identified"] == "the content of all rows"
    assert found["raw"]["dagster/row_count"] == 12
    number, text = (record.data for record in found["raw"]["column_profile"].records)
    assert (number["column"], number["type"], number["null"]) == ("number", "int", "0.0%")
    assert (number["smallest"], number["largest"], number["range"]) == ("0", "11", "")
    assert (text["smallest"], text["largest"], text["range"]) == ("text 0", "text 10", "length 6 to 7")
    assert found["raw"]["profiled_rows"] == "all 12 rows"
    assert found["raw"]["first_rows"].records[1].data == {"number": "1", "text": "text 1"}
    for stage in ("raw", "prepared", "shards"):
        assert found[stage].keys() <= documented_keys(stage)
    columns = [column.name for column in found["prepared"]["dagster/column_schema"].columns]
    assert columns == ["total", "rows"]
    both = [*rows.stored("train"), *rows.stored("validation")]
    assert sum(row["rows"] for row in both) == 12
    assert sum(row["total"] for row in both) == sum(range(12))
    again = rows.run()
    assert again["shards"]["version"] == 1
    assert again["prepared"]["dagster/column_schema"] == found["prepared"]["dagster/column_schema"]


def test_rows_that_changed_between_two_stages_are_refused(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "table", 1, 2, 3, 4)
    rows = Rows(instance, storage, source=Source(table=str(tmp_path / "table"), format="parquet"))
    defs = define(rows.declared, storage=storage, spark=SparkResource(master="local[2,2]"))
    job = defs.resolve_job_def("sales_reshard_job")
    assert job.execute_in_process(instance=instance, asset_selection=[rows.declared.key("raw")]).success
    write(tmp_path / "table", 5, 6)
    with pytest.raises(dg.Failure, match="changed since sales/raw was materialised"):
        job.execute_in_process(instance=instance, asset_selection=[rows.declared.key("shards")])


def test_a_run_says_in_its_tags_which_data_it_read_and_wrote(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any
) -> None:
    rows = Rows(instance, storage, source=Source(sql="SELECT id FROM range(10)"))
    facts = rows.run()
    [run] = instance.get_runs()
    assert run_tags(rows.declared).items() <= run.tags.items()
    assert run.tags["smalti/source"] == facts["raw"]["digest"]
    assert (run.tags["smalti/version"], run.tags["smalti/digest"]) == ("1", facts["shards"]["digest"])
