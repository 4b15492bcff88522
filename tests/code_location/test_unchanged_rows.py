"""Rows that are not read again: a run over an unchanged source starts no Spark, and one that may have changed does."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.declaration import Prepare, Source, Split
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE
from tests.code_location.row_set import NoSpark, Rows, write
from tests.spark.own_session import own_session

pytestmark = [pytest.mark.slow, pytest.mark.spark]

HERE = "tests.code_location.test_unchanged_rows"
NEWS = "what_was_done"
STATE, READS = "SMALTI_TEST_STATE", "SMALTI_TEST_READS"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """The session of all tests of one worker, which runs find and leave alone."""
    with own_session() as made:
        yield made


def age(folder: Path) -> None:
    """Make the files of a folder a minute older: of those that were put just now, the state is not certain."""
    for path in filter(Path.is_file, folder.rglob("*")):
        os.utime(path, ns=(1, path.stat().st_mtime_ns - 60 * 10**9))


def test_an_unchanged_table_starts_no_spark_and_a_file_of_equal_size_is_read_again(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    write(table, 1, 2, 3, 4)
    age(table)
    source = Source(table=str(table), format="parquet")
    rows = Rows(instance, storage, source=source, split=Split(column="kind"))
    first = rows.run()
    again = rows.run(spark=NoSpark())
    assert again["raw"][NEWS] == "nothing changed: no rows were read, and no Spark was started"
    same = ("digest", "dagster/column_schema", "how_identified", "watched", UNCHANGED_WHILE)
    assert {name: again["raw"][name] for name in same} == {name: first["raw"][name] for name in same}
    assert again["shards"]["version"] == 1
    assert rows.run(spark=NoSpark())["shards"]["version"] == 1  # from one that was taken over itself

    size = (table / "part.parquet").stat().st_size
    write(table, 1, 2, 3, 6)
    assert (table / "part.parquet").stat().st_size == size
    assert rows.run()["shards"]["version"] == 2
    assert [row["number"] for row in rows.stored("even")] == [2, 6]
    assert rows.run()["raw"][NEWS] == "read again: the same rows"  # it was put just now


def test_rewrite_an_override_and_a_re_execution_of_all_read_unchanged_files_of_csv_again(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "a.csv").write_text("number,kind\n1,odd\n2,even\n")
    age(tmp_path / "table")
    source = Source(table=str(tmp_path / "table"), format="csv", options={"header": "true"})
    rows = Rows(instance, storage, source=source, split=Split(validation=0))
    rows.run()
    assert {row["number"]: row["kind"] for row in rows.stored("train")} == {"1": "odd", "2": "even"}
    rows.run(spark=NoSpark())
    rows.run(spark=NoSpark(), fails=True, raw={"source": f"{tmp_path}/./table"})
    rows.run(spark=NoSpark(), fails=True, shards={"rewrite": True})
    rows.run(spark=NoSpark(), fails=True, parent=rows.last_run())
    assert rows.run(shards={"rewrite": True})["shards"]["version"] == 2


@pytest.fixture
def versioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Rows whose version is what the file `state` says; each time that they are read adds a line to `reads`."""
    monkeypatch.setenv(STATE, str(tmp_path / "state"))
    monkeypatch.setenv(READS, str(tmp_path / "reads"))
    (tmp_path / "state").write_text("1")
    return Source(dataframe=f"{HERE}:counted", version=f"{HERE}:state")


def state() -> str | None:
    """The version of the rows, as a file says; none while it is empty."""
    return Path(os.environ[STATE]).read_text() or None


def counted(spark: Any) -> Any:
    """One row, and a note that it was read."""
    with Path(os.environ[READS]).open("a") as file:
        file.write("read\n")
    if (late := Path(os.environ[STATE] + ".late")).exists():
        Path(os.environ[STATE]).write_text(late.read_text())
    return spark.range(3)


def test_a_function_tells_the_version_of_rows_and_they_are_read_when_it_is_another_or_changed_meanwhile(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path, versioned: Source
) -> None:
    rows = Rows(instance, storage, source=versioned, split=Split(validation=0))

    def raw() -> tuple[str, int]:
        """Return the news of the first stage, and how often it has read the rows so far."""
        assert rows.run_raw().success
        return rows.facts("raw")[NEWS], len((tmp_path / "reads").read_text().splitlines())

    assert raw() == ("read: other rows", 1)
    assert raw() == ("nothing changed: no rows were read, and no Spark was started", 1)
    (tmp_path / "state").write_text("2")
    (tmp_path / "state.late").write_text("3")  # while it is read
    assert raw() == ("read again: the same rows", 2)
    (tmp_path / "state").write_text("2")  # as at the beginning of that run
    (tmp_path / "state.late").unlink()
    assert raw() == ("read again: the same rows", 3)
    assert raw()[1] == 3
    (tmp_path / "state").write_text("")
    assert raw()[1] == 4
    assert raw()[1] == 5


def test_the_rows_of_an_unchanged_source_are_prepared_and_published_without_being_identified_again(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, versioned: Source
) -> None:
    same = Prepare(function=f"{HERE}:same")
    rows = Rows(instance, storage, source=versioned, prepare=same, split=Split(validation=0))
    assert rows.run()["shards"]["samples"] == 3
    assert rows.run(spark=NoSpark())["shards"]["version"] == 1


def same(batch: Any) -> Any:
    """Return the rows of a batch."""
    return batch.select(["id"])
