"""Versions and snapshots read from table logs, compared with those of the libraries that wrote the tables."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from smalti.spark.lineage import delta_version, iceberg_snapshot, source_of, table_above
from smalti.storage import open_store
from tests.spark.lineage.lakes import data_files, iceberg_catalog, lake
from tests.spark.photos import put

IDS = pa.schema([("id", pa.int64())])
pytestmark = pytest.mark.slow


def ids(*values):
    return pa.table({"id": list(values)}, schema=IDS)


def source_on_connect(files):
    """Return the source of these files in the manifest of a job on Spark Connect."""
    (source,) = source_of(type("Frame", (), {"inputFiles": lambda _: list(files)})())["sources"]
    return source


@pytest.fixture
def catalog(tmp_path):
    with iceberg_catalog(tmp_path) as made:
        yield made


def snapshot_in(table):
    return iceberg_snapshot(open_store(table.location()))


def test_the_version_of_a_delta_table_is_what_delta_says_after_every_kind_of_commit(tmp_path):
    delta = lake("deltalake")
    root = str(tmp_path / "my table")

    def change(step):
        table = delta.DeltaTable(root)
        before = table.version()
        step(table)
        now = delta.DeltaTable(root)
        assert now.version() == before + 1, "the step is a commit"
        source = source_on_connect(now.file_uris())
        assert (source["delta_version"], source["paths"]) == (now.version(), [root])
        assert "iceberg" not in source

    delta.write_deltalake(root, pa.table({"id": [1, 2], "day": ["a", "b"]}), partition_by="day")
    assert delta_version(open_store(root)) == 0
    more = pa.table({"id": [3, 4], "day": ["a", "c"]})
    wider = more.append_column("x", pa.array(["p", "q"]))
    change(lambda _: delta.write_deltalake(root, more, mode="append"))
    change(lambda table: table.delete("id = 3"))
    change(lambda _: delta.write_deltalake(root, wider, mode="append", schema_mode="merge"))
    change(lambda table: table.update({"x": "'r'"}, predicate="id = 1"))
    change(lambda table: table.optimize.compact())
    change(lambda _: delta.write_deltalake(root, more, mode="overwrite", schema_mode="overwrite"))
    change(lambda table: table.restore(1))


def test_checkpoints_compacted_logs_and_a_cleaned_log_have_the_same_version(tmp_path):
    delta = lake("deltalake")
    root = tmp_path / "t"
    always = {"delta.logRetentionDuration": "interval 0 seconds", "delta.enableExpiredLogCleanup": "true"}
    for number in range(13):
        delta.write_deltalake(root, ids(number), mode="append", configuration=None if number else always)
    table = delta.DeltaTable(root)
    assert table.version() == 12
    table.compact_logs(0, 11)
    assert delta_version(open_store(root)) == 12
    table.create_checkpoint()
    table.cleanup_metadata()
    left = sorted(path.name for path in (root / "_delta_log").iterdir())
    assert f"{12:020}.checkpoint.parquet" in left
    assert f"{3:020}.json" not in left
    assert delta_version(open_store(root)) == 12
    (root / "_delta_log" / f"{12:020}.json").unlink()
    assert delta_version(open_store(root)) == 12, "the checkpoint alone says it"


def test_a_delta_log_whose_newest_commit_only_a_catalog_knows_has_no_version(tmp_path):
    name = "0f5a3c2e-1111-4222-8333-abcdefabcdef"
    log = tmp_path / "t" / "_delta_log"
    put(log / f"{4:020}.json", b"{}")
    put(log / "_staged_commits" / f"{4:020}.{name}.json", b"{}")
    assert delta_version(open_store(tmp_path / "t")) == 4
    put(log / "_staged_commits" / f"{5:020}.{name}.json", b"{}")
    assert delta_version(open_store(tmp_path / "t")) is None
    put(log / f"{6:020}.checkpoint.{name}.parquet", b"")
    assert delta_version(open_store(tmp_path / "t")) == 6


def test_the_snapshot_of_an_iceberg_table_is_what_iceberg_says_after_every_kind_of_commit(catalog):
    table = catalog.create_table("db.t", schema=IDS)
    assert snapshot_in(table) is None, "no row was ever in it"
    table.append(ids(1, 2))
    first = table.current_snapshot().snapshot_id

    def change(step):
        step()
        table.refresh()
        assert snapshot_in(table) == str(table.current_snapshot().snapshot_id)
        source = source_on_connect(data_files(table))
        assert source["iceberg"] == snapshot_in(table)
        assert source["paths"] == [table.location().removeprefix("file://")]
        assert "delta_version" not in source

    change(lambda: table.append(ids(3)))
    change(lambda: table.overwrite(ids(8, 9)))
    change(lambda: table.delete("id = 9"))
    change(lambda: table.manage_snapshots().rollback_to_snapshot(first).commit())
    assert snapshot_in(table) == str(first)
    change(lambda: catalog.load_table("db.t").append(ids(4)))
    with table.update_schema() as update:
        update.add_column("x", import_type("StringType"))
    change(lambda: None)
    catalog.rename_table("db.t", "db.renamed")
    table = catalog.load_table("db.renamed")
    change(lambda: table.append(pa.table({"id": [5], "x": ["a"]})))


def import_type(name):
    return getattr(__import__("pyiceberg.types", fromlist=[name]), name)()


def test_data_below_folders_of_hashes_belongs_to_its_table(catalog):
    spread = {"write.object-storage.enabled": "true"}
    table = catalog.create_table("db.t", schema=IDS, properties=spread)
    table.append(ids(1, 2))
    (file,) = data_files(table)
    assert len(Path(file).relative_to(Path(table.location())).parts) == 6
    assert source_on_connect([file])["iceberg"] == str(table.current_snapshot().snapshot_id)


def test_two_tables_in_one_folder_have_no_snapshot(catalog):
    """A new table with the former name of a renamed one shares its folder; the higher number is the other table's."""
    table = catalog.create_table("db.t", schema=IDS)
    for number in range(3):
        table.append(ids(number))
    catalog.rename_table("db.t", "db.renamed")
    other = catalog.create_table("db.t", schema=IDS)
    assert other.location() == table.location()
    other.append(ids(7))
    assert snapshot_in(other) is None
    assert "iceberg" not in source_on_connect(data_files(other))


def test_metadata_missing_from_the_log_is_still_of_the_same_table(catalog):
    """The newest metadata lists only the last two files; all are still in the folder."""
    table = catalog.create_table("db.t", schema=IDS, properties={"write.metadata.previous-versions-max": "2"})
    for number in range(4):
        table.append(ids(number))
    assert len(table.metadata.metadata_log) == 2
    assert snapshot_in(table) == str(table.current_snapshot().snapshot_id)


def test_two_metadata_files_of_one_number_have_no_snapshot(catalog):
    """One of two writers lost, which the catalog knows, but the folder does not show."""
    table = catalog.create_table("db.t", schema=IDS)
    table.append(ids(1))
    newest = Path(table.metadata_location.removeprefix("file://"))
    loser = newest.with_name("00001-99999999-aaaa-bbbb-cccc-0123456789ab.metadata.json")
    put(loser, newest.read_bytes().replace(str(table.current_snapshot().snapshot_id).encode(), b"4711"))
    assert snapshot_in(table) is None
    table.append(ids(2))
    assert snapshot_in(table) == str(table.current_snapshot().snapshot_id), "the other metadata lost"


@pytest.mark.parametrize("name", ["00002-{}.gz.metadata.json", "00002-{}.metadata.json.gz"], ids=["new", "old"])
def test_compressed_metadata_is_read(catalog, name):
    table = catalog.create_table("db.t", schema=IDS)
    table.append(ids(1))
    table.append(ids(2))
    newest = Path(table.metadata_location.removeprefix("file://"))
    put(newest.with_name(name.format("4ac2d5b0-aaaa-bbbb-cccc-0123456789ab")), gzip.compress(newest.read_bytes()))
    newest.unlink()
    assert snapshot_in(table) == str(table.current_snapshot().snapshot_id)


@pytest.mark.parametrize(
    "damage", [b"", b'{"current-snapshot-id": 5', b"[5]", b"\xff"], ids=["empty", "cut", "list", "text"]
)
def test_damaged_metadata_has_no_snapshot_and_fails_no_job(tmp_path, damage):
    put(tmp_path / "t" / "metadata" / "v1.metadata.json", json.dumps({"current-snapshot-id": 5}).encode())
    put(tmp_path / "t" / "metadata" / "v2.metadata.json", damage)
    put(tmp_path / "t" / "metadata" / "v3.gz.metadata.json", damage)
    put(tmp_path / "t" / "data" / "x.parquet", b"")
    assert iceberg_snapshot(open_store(tmp_path / "t")) is None
    assert "iceberg" not in source_on_connect([f"file://{tmp_path}/t/data/x.parquet"])


def test_a_hint_that_lags_does_not_hide_what_was_committed_since(tmp_path):
    """Iceberg renames the metadata into place, then replaces the hint; a writer may die in between."""

    def metadata(version, snapshot):
        text = json.dumps({"table-uuid": "u", "current-snapshot-id": snapshot})
        put(tmp_path / "t" / "metadata" / f"v{version}.metadata.json", text.encode())

    put(tmp_path / "t" / "data" / "x.parquet", b"")
    for version in (1, 2, 3):
        metadata(version, version * 10)
    table = table_above([f"file://{tmp_path}/t/data/x.parquet"])
    assert iceberg_snapshot(table) == "30"
    put(tmp_path / "t" / "metadata" / "version-hint.text", b"2")
    assert iceberg_snapshot(table) == "30"
    metadata(5, 50)
    assert iceberg_snapshot(table) == "30", "without version 4, version 5 is not a successor"
    put(tmp_path / "t" / "metadata" / "version-hint.text", b"5")
    assert iceberg_snapshot(table) == "50"
