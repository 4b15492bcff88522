"""The state of a table as its files tell it: what changes it, what does not, and when it does not say enough."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from smalti.errors import StoreNotFound
from smalti.spark.lineage import TableState, table_state
from smalti.storage import open_store
from tests.spark.lineage.lakes import iceberg_catalog, lake


def later() -> float:
    """A clock by which all files of a test are old."""
    return time.time() + 60


def state(address: object, kind: str = "parquet") -> TableState:
    return table_state(str(address), kind, clock=later)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with two files in partitions."""
    for day in ("a", "b"):
        (tmp_path / "t" / f"day={day}").mkdir(parents=True)
        (tmp_path / "t" / f"day={day}" / "part.parquet").write_bytes(b"12345")
    return tmp_path / "t"


def test_files_that_stay_are_the_same_state_and_a_new_a_changed_and_a_lost_one_are_another(files: Path) -> None:
    seen = [state(files), state(files)]
    assert seen[0] == seen[1]
    assert seen[0].is_certain
    (files / "new.parquet").write_bytes(b"")
    seen.append(state(files))
    path = files / "day=a" / "part.parquet"
    path.write_bytes(b"54321")  # as long as before
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    seen.append(state(files))
    (files / "day=b" / "part.parquet").unlink()
    seen.append(state(files))
    assert len({each.digest for each in seen}) == 4


def test_a_state_is_not_certain_in_the_seconds_after_a_put_since_another_one_may_look_the_same(files: Path) -> None:
    put = max(path.stat().st_mtime for path in files.rglob("*.parquet"))
    assert not table_state(files, "parquet", clock=lambda: put + 2).is_certain
    assert table_state(files, "parquet", clock=lambda: put + 4).is_certain


def test_a_state_is_not_certain_of_a_linked_folder_and_there_is_none_where_nothing_is_listed(
    files: Path, tmp_path: Path
) -> None:
    for wrong in ("day=*", "gone"):
        with pytest.raises(StoreNotFound, match="has no file of a table"):
            state(tmp_path / "t" / wrong)
    assert state(tmp_path / "t" / "day=a" / "part.parquet").is_certain, "one file"
    (tmp_path / "other").mkdir()
    (files / "day=c").symlink_to(tmp_path / "other")
    assert not state(files).is_certain


def test_an_object_of_equal_size_put_in_the_same_second_is_another_state() -> None:
    store = open_store("memory://tables/t")
    store.put("part.parquet", b"12345")
    before = state("memory://tables/t")
    store.put("part.parquet", b"54321")
    assert state("memory://tables/t").digest != before.digest


def test_a_delta_table_is_another_state_after_each_commit_and_the_same_after_a_checkpoint(tmp_path: Path) -> None:
    delta, root = lake("deltalake"), str(tmp_path / "t")
    delta.write_deltalake(root, pa.table({"id": [1, 2]}))
    first = state(root, "delta")
    delta.write_deltalake(root, pa.table({"id": [3]}), mode="append")
    second = state(root, "delta")
    table = delta.DeltaTable(root)
    table.create_checkpoint()
    assert second == state(root, "delta")
    table.delete("id = 3")
    third = state(root, "delta")
    assert len({first.digest, second.digest, third.digest}) == 3
    assert all(each.is_certain for each in (first, second, third))


def test_a_delta_table_whose_newest_commit_only_a_catalog_knows_is_not_certain(tmp_path: Path) -> None:
    log = tmp_path / "t" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / f"{4:020}.json").write_text("{}")
    assert state(tmp_path / "t", "delta").is_certain
    (log / "_staged_commits" / f"{5:020}.0f5a3c2e-1111-4222-8333-abcdefabcdef.json").write_text("{}")
    assert not state(tmp_path / "t", "delta").is_certain


def test_an_iceberg_table_is_another_state_after_rows_and_after_columns_were_added(tmp_path: Path) -> None:
    ids = pa.schema([("id", pa.int64())])
    with iceberg_catalog(tmp_path) as catalog:
        table = catalog.create_table("db.t", schema=ids)
        seen = [state(table.location(), "iceberg")]
        table.append(pa.table({"id": [1]}, schema=ids))
        seen += [state(table.location(), "iceberg")] * 2
        with table.update_schema() as update:
            update.add_column("x", __import__("pyiceberg.types", fromlist=["StringType"]).StringType())
        seen.append(state(table.location(), "iceberg"))
    assert [each.is_certain for each in seen] == [True] * 4
    assert len({each.digest for each in seen}) == 3
