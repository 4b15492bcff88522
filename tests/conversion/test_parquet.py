"""Parquet as a source of `convert`: files, folders, patterns, partition columns, projection, remote stores."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import SmaltiError, convert, load_manifest, open_store
from smalti.conversion.registry import open_source
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources import parquet
from smalti.errors import FormatError, SchemaError, SourceWarning, StoreError, StoreNotFound
from tests.conversion.rows import ids_of, samples_of


def write(path, group_rows=100, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def test_row_groups_are_parts_and_keep_their_order(tmp_path):
    write(tmp_path / "in" / "b.parquet", 3, id=[7, 8, 9])
    write(tmp_path / "in" / "a.parquet", 3, id=list(range(7)))
    source = open_source(tmp_path / "in")
    assert [part.name for part in source.parts()] == [
        "a.parquet, row group 0", "a.parquet, row group 1", "a.parquet, row group 2", "b.parquet, row group 0",
    ]  # fmt: skip
    convert(tmp_path / "in", tmp_path / "out", processes=1, part_bytes=1)
    assert ids_of(tmp_path / "out") == list(range(10))


@pytest.mark.parametrize(
    ("place", "ids"),
    [
        ("x/1.parquet", [1]),
        ("x", [1, 2, 3]),
        ("x/*.parquet", [1, 2]),
        ("x/**/*.parquet", [1, 2, 3]),
        ("x/?.parquet", [1, 2]),
    ],
)
def test_a_place_is_a_file_a_folder_or_a_pattern(tmp_path, place, ids):
    write(tmp_path / "x" / "1.parquet", id=[1])
    write(tmp_path / "x" / "2.parquet", id=[2])
    write(tmp_path / "x" / "y" / "3.parquet", id=[3])
    write(tmp_path / "x" / "_temporary" / "4.parquet", id=[4])
    (tmp_path / "x" / "_SUCCESS").touch()
    convert(str(tmp_path / place), tmp_path / "out", processes=1)
    assert ids_of(tmp_path / "out") == ids


def test_folders_of_partitions_are_columns_as_spark_reads_them(tmp_path):
    for day, shop, id_ in (("2026-11-22", "1", 1), ("2026-11-23", "2", 2)):
        write(tmp_path / "in" / f"day={day}" / f"shop={shop}" / "name=a%20b" / "0.parquet", id=[id_])
    schema = open_source(tmp_path / "in").schema()
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "id": pa.int64(), "day": pa.date32(), "shop": pa.int32(), "name": pa.string(),
    }  # fmt: skip
    convert(tmp_path / "in", tmp_path / "out", processes=1)
    first, second = samples_of(tmp_path / "out")
    assert (first["id"], first["shop"], first["name"]) == (1, 1, "a b")
    assert str(second["day"]) == "2026-11-23"


@pytest.mark.parametrize("name", ["k=%FF", "k%FF=1", "k=%ED%A0%80", "k=a%C3"])
def test_a_folder_whose_name_is_no_utf_8_is_refused_by_its_name(tmp_path, name):
    write(tmp_path / "in" / name / "0.parquet", id=[1])
    with pytest.raises(FormatError, match=f"/in/{name}/0.parquet: the folder '{name}' is no UTF-8"):
        convert(tmp_path / "in", tmp_path / "out", processes=1)


def test_a_column_that_is_in_two_folder_names_is_refused(tmp_path):
    write(tmp_path / "in" / "k=1" / "k=2" / "0.parquet", id=[1])
    with pytest.raises(FormatError, match=r"/in/k=1/k=2/0.parquet: two folders have one column; rename one of them"):
        convert(tmp_path / "in", tmp_path / "out", processes=1)


def test_a_null_partition_follows_the_policy_for_nulls(tmp_path):
    write(tmp_path / "in" / "shop=__HIVE_DEFAULT_PARTITION__" / "0.parquet", id=[1])
    write(tmp_path / "in" / "shop=x" / "0.parquet", id=[2])
    with pytest.raises(SchemaError, match="column 'shop', sample 0: a null"):
        convert(tmp_path / "in", tmp_path / "out", processes=1)
    convert(tmp_path / "in", tmp_path / "out", processes=1, nulls={"shop": "mask"})
    assert [row["shop"] for row in samples_of(tmp_path / "out")] == [None, "x"]


def test_files_with_other_columns_and_wider_numbers_are_joined_by_name(tmp_path):
    write(tmp_path / "in" / "a.parquet", id=pa.array([1], pa.int32()), x=["a"])
    write(tmp_path / "in" / "b.parquet", id=pa.array([2**40], pa.int64()))
    convert(tmp_path / "in", tmp_path / "out", processes=1, nulls={"x": {"default": "none"}})
    assert [(row["id"], row["x"]) for row in samples_of(tmp_path / "out")] == [(1, "a"), (2**40, "none")]
    write(tmp_path / "in" / "c.parquet", id=["text"])
    with pytest.raises(SmaltiError, match=r"c\.parquet has other columns than a\.parquet"):
        convert(tmp_path / "in", tmp_path / "out", processes=1)


def test_only_the_columns_that_are_stored_are_read(tmp_path):
    write(tmp_path / "a.parquet", id=[1], large=["x" * 100], split=["train"])
    source = open_source(tmp_path, options=SourceOptions(columns=("id",)))
    assert [batch.schema.names for part in source.parts() for batch in part.batches()] == [["id"]]
    convert(tmp_path / "a.parquet", tmp_path / "out", processes=1, columns={"id": "int32"}, partition_by="split")
    (info,) = load_manifest(tmp_path / "out").shards
    assert (dict(zip(info.schema.names, info.schema.encodings, strict=True)), info.partition) == (
        {"id": "int32"},
        "train",
    )
    with pytest.raises(SchemaError, match="there is no column 'idd'; the columns are id, large, split"):
        convert(tmp_path / "a.parquet", tmp_path / "other", columns={"idd": None})


def test_moments_that_spark_wrote_as_int96_are_moments(tmp_path):
    moment = dt.datetime(2026, 11, 23, 12, tzinfo=dt.timezone.utc)
    table = pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    convert(tmp_path / "a.parquet", tmp_path / "out", processes=1)
    assert load_manifest(tmp_path / "out").logical == {"t": {"type": "timestamp", "unit": "us", "zone": "UTC"}}
    assert str(samples_of(tmp_path / "out")[0]["t"]) == "2026-11-23T12:00:00.000000"


def test_what_is_no_parquet_is_named(tmp_path):
    with pytest.raises(StoreNotFound, match="there are no files; expected a file, a folder of files or a pattern"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(SmaltiError, match=r"a\.parquet cannot be read as Parquet"):
        convert(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "a.parquet").rename(tmp_path / "in" / "a.xyz")
    with pytest.raises(
        SmaltiError, match=r"such as a\.xyz are of no format that is recognised; name it: format='mds' or"
    ):
        convert(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        ("metadata/v1.metadata.json", "Iceberg"),
        (".hoodie/a", "Hudi"),
    ],
)
def test_a_table_with_a_log_is_refused_since_its_deleted_rows_are_in_files_too(tmp_path, log, kind):
    for name in ("a", "b"):
        write(tmp_path / "in" / "data" / f"{name}.parquet", n=[1, 2])
    (tmp_path / "in" / log).parent.mkdir()
    (tmp_path / "in" / log).write_text("{}")
    with pytest.raises(FormatError, match=f"is a {kind} table: files of deleted and replaced rows"):
        convert(tmp_path / "in", tmp_path / "out")
    assert convert(str(tmp_path / "in" / "**" / "*.parquet"), tmp_path / "out").rows == 4


def test_a_folder_named_metadata_without_a_log_is_no_table(tmp_path):
    write(tmp_path / "in" / "metadata" / "a.parquet", n=[1, 2])
    assert convert(tmp_path / "in", tmp_path / "out").rows == 2


def test_from_a_remote_store_to_a_remote_store(tmp_path):
    path = write(tmp_path / "a.parquet", 50, id=list(range(200)))
    store = open_store("memory://conversion-parquet/in")
    store.put("rows/a.parquet", path.read_bytes())
    manifest = convert("memory://conversion-parquet/in/rows/a.parquet", tmp_path / "out", processes=1)
    assert ids_of(tmp_path / "out") == list(range(200))
    assert manifest.lineage["sources"][0]["url"] == "memory://conversion-parquet/in/rows/a.parquet"
    convert("memory://conversion-parquet/in", "memory://conversion-parquet/out", processes=1)
    assert ids_of("memory://conversion-parquet/out") == list(range(200))


def test_a_set_inside_its_own_source_is_refused(tmp_path):
    write(tmp_path / "a.parquet", id=[1])
    with pytest.raises(SmaltiError, match=r"lies inside its source .*; nothing was written"):
        convert(tmp_path, tmp_path / "set", processes=1)
    with pytest.raises(SmaltiError, match=r"lies inside its source"):
        convert(tmp_path / "**", tmp_path / "set", processes=1, format="parquet")
    convert(tmp_path / "*.parquet", tmp_path / "set", processes=1)
    assert ids_of(tmp_path / "set") == [1]


def test_a_large_row_group_is_not_held_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_MAX_WHOLE_BYTES", 1 << 20)
    rows = pa.table({"id": range(64), "data": [bytes([number]) * (1 << 19) for number in range(64)]})
    pq.write_table(rows, tmp_path / "a.parquet", compression="none", use_dictionary=False, write_batch_size=1)
    source = open_source(str(tmp_path / "a.parquet"))
    before, most = pa.total_allocated_bytes(), 0
    seen = []
    for batch in source.parts()[0].batches():
        most = max(most, pa.total_allocated_bytes() - before)
        seen += batch["id"].to_pylist()
    assert seen == list(range(64))
    assert most < 24 << 20  # of 32


def test_a_chosen_column_that_is_there_twice_is_refused(tmp_path):
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="'a' more than once"):
        open_source(str(tmp_path / "a.parquet"), None, SourceOptions(columns=("a",)))


def test_only_stars_and_question_marks_are_special_in_a_pattern(tmp_path):
    for folder in ("run[1]", "run1", "{a,b}"):
        write(tmp_path / folder / "a.parquet", id=[len(folder)])
    (tmp_path / "a[1].parquet").mkdir()
    write(tmp_path / "a[1].parquet" / "x.parquet", id=[9])
    for number, (place, ids) in enumerate(
        [("run[1]/*.parquet", [6]), ("run[1]", [6]), ("run?1?/*.parquet", [6]), ("{a,b}/*", [5]), ("a[1].parquet", [9])]
    ):
        convert(tmp_path / place, tmp_path / "sets" / str(number), processes=1)
        assert ids_of(tmp_path / "sets" / str(number)) == ids
    convert(f"{tmp_path.as_uri()}/run%5B1%5D/*.parquet", tmp_path / "sets" / "uri", processes=1)
    assert ids_of(tmp_path / "sets" / "uri") == [6]


def test_what_spark_leaves_beside_its_files_is_counted_in_the_result(tmp_path):
    write(tmp_path / "in" / "a.parquet", id=[1])
    for name in ("_SUCCESS", ".a.parquet.crc", "notes.txt"):
        (tmp_path / "in" / name).write_bytes(b"")
    (tmp_path / "in" / "b.parquet").symlink_to("nowhere")
    with pytest.warns(SourceWarning, match=r"left out: 1 links that lead nowhere \(b.parquet\)$"):
        manifest = convert(tmp_path / "in", tmp_path / "out", processes=1)
    assert {reason: facts["files"] for reason, facts in manifest.lineage["sources"][0]["left_out"].items()} == {
        "hidden or of the system": 2, "links that lead nowhere": 1, "of another kind": 1,
    }  # fmt: skip


def test_a_file_that_is_added_while_others_are_read_is_noticed(tmp_path):
    write(tmp_path / "in" / "a.parquet", id=[1])

    def add(state):
        write(tmp_path / "in" / "b.parquet", id=[2])

    with pytest.raises(SmaltiError, match="changed while it was read; nothing was published"):
        convert(tmp_path / "in", tmp_path / "out", processes=1, on_progress=add)


@pytest.mark.parametrize("place", ["", "a\0b"])
def test_a_place_that_cannot_be_one_is_refused(place, tmp_path):
    with pytest.raises(StoreError, match="expected a path, a URL or a pattern"):
        convert(place, tmp_path / "out")
