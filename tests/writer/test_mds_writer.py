"""`MDSWriter` publishes on a clean exit and leaves nothing otherwise."""

import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from smalti.catalog import history, load_manifest, verify
from smalti.errors import CommitConflict, DatasetExists, SchemaError, StoreError
from smalti.format import Shard
from smalti.storage import open_store
from smalti.writer import MDSWriter

COLUMNS = {"id": "int", "text": "str"}


def rows(count):
    return [{"id": i, "text": f"é{i}" * 20} for i in range(count)]


def ids(folder, version=None):
    """Return the ids in a local, uncompressed set."""
    manifest = load_manifest(open_store(folder), version=version)
    shards = [Shard.open(folder / info.raw.basename, info) for info in manifest.shards]
    return [shard[i]["id"] for shard in shards for i in range(len(shard))]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_set_exists_after_a_clean_exit_and_not_before(tmp_path):
    with MDSWriter(out=tmp_path / "set", columns=COLUMNS, size_limit=500) as writer:
        for row in rows(30):
            writer.write(row)
        assert not (tmp_path / "set" / "index.json").exists()
    assert ids(tmp_path / "set") == list(range(30))
    assert writer.manifest is not None
    assert writer.manifest.rows == 30
    assert all(info.raw.num_bytes <= 500 for info in writer.manifest.shards)
    assert all("xxh3_64" in info.raw.hashes for info in writer.manifest.shards)


def fail(writer):
    with writer:
        for row in rows(30):
            writer.write(row)
        raise ZeroDivisionError


def test_an_exception_in_the_block_publishes_nothing_and_removes_the_shards(tmp_path):
    writer = MDSWriter(out=tmp_path / "set", columns=COLUMNS, size_limit=500)
    with pytest.raises(ZeroDivisionError):
        fail(writer)
    assert files(tmp_path) == []
    assert writer.manifest is None


def write_all(writer, samples):
    with writer:
        for row in samples:
            writer.write(row)


def test_refused_value_in_the_block_publishes_nothing(tmp_path):
    with pytest.raises(SchemaError, match="column 'id'"):
        write_all(MDSWriter(out=tmp_path, columns=COLUMNS), [{"id": 1, "text": "a"}, {"id": 2.5, "text": "a"}])
    assert files(tmp_path) == []


def test_finish_can_be_called_by_hand(tmp_path):
    writer = MDSWriter(out=tmp_path, columns=COLUMNS)
    writer.write_batch(pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"])], ["id", "text"]))
    manifest = writer.finish()
    assert (manifest.version, manifest.rows) == (1, 2)
    with pytest.raises(ValueError, match="finished"):
        writer.write({"id": 1, "text": "a"})
    with MDSWriter(out=tmp_path, columns=COLUMNS, exist_ok=True) as again:
        assert again.finish().version == 2
    assert load_manifest(open_store(tmp_path)).version == 2


def test_an_existing_set_is_refused_before_anything_is_written(tmp_path):
    with MDSWriter(out=tmp_path, columns=COLUMNS) as writer:
        writer.write(rows(1)[0])
    before = files(tmp_path)
    with pytest.raises(DatasetExists):
        MDSWriter(out=tmp_path, columns=COLUMNS)
    assert files(tmp_path) == before


def test_exist_ok_publishes_a_new_version_and_keeps_the_old_one(tmp_path):
    for count in (3, 5):
        with MDSWriter(out=tmp_path, columns=COLUMNS, exist_ok=True) as writer:
            for row in rows(count):
                writer.write(row)
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert ids(tmp_path, version=1) == [0, 1, 2]


def append(out, samples, **options):
    with MDSWriter(out=out, columns=COLUMNS, mode="append", **options) as writer:
        for row in samples:
            writer.write(row)
    return writer.manifest


def test_append_adds_to_a_set_or_creates_one(tmp_path):
    assert append(tmp_path, rows(2), row_hash=True).version == 1
    manifest = append(tmp_path, rows(5)[2:], row_hash=True)
    assert (manifest.version, manifest.rows) == (2, 5)
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert ids(tmp_path, version=1) == [0, 1]
    assert [info.operation for info in history(tmp_path)] == ["append", "append"]
    assert verify(tmp_path).ok


def test_overwrite_is_equivalent_to_exist_ok(tmp_path):
    for options in ({"mode": "overwrite"}, {"exist_ok": True}, {"mode": "overwrite", "exist_ok": True}):
        with MDSWriter(out=tmp_path, columns=COLUMNS, **options) as writer:
            writer.write(rows(1)[0])
    assert [info.operation for info in history(tmp_path)] == ["overwrite"] * 3
    assert ids(tmp_path) == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "add"}, "`mode` is 'add', expected one of create, overwrite, append"),
        ({"mode": "append", "exist_ok": True}, 'mode="append" beside it'),
        ({"mode": "create", "exist_ok": True}, 'mode="create" beside it'),
        ({"mode": "append", "keep_local": True, "out": ("local", "remote")}, "Append to the remote set alone"),
    ],
)
def test_an_invalid_mode_is_refused_before_anything_is_written(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        MDSWriter(**{"out": "set", "columns": COLUMNS, **options})
    assert files(tmp_path) == []


def test_the_advice_for_an_existing_set_can_be_followed(tmp_path):
    append(tmp_path, rows(1))
    with pytest.raises(DatasetExists, match='use mode="append" to add to it or mode="overwrite"') as caught:
        MDSWriter(out=tmp_path, columns=COLUMNS)
    for mode in re.findall(r'mode="(\w+)"', str(caught.value)):
        MDSWriter(out=tmp_path, columns=COLUMNS, mode=mode).finish()
    assert load_manifest(tmp_path).version == 3


@pytest.mark.parametrize("columns", [{"id": "int"}, {**COLUMNS, "more": "int"}, {"id": "int32", "text": "str"}])
def test_an_append_of_other_columns_is_refused_before_anything_is_written(tmp_path, columns):
    append(tmp_path, rows(1))
    before = files(tmp_path)
    with pytest.raises(SchemaError, match=r"cannot append to version 1 .*'id': 'int'.*mode='overwrite'"):
        MDSWriter(out=tmp_path, columns=columns, mode="append")
    assert files(tmp_path) == before


def test_any_columns_can_be_appended_to_a_set_without_samples(tmp_path):
    MDSWriter(out=tmp_path, columns={"other": "bytes"}).finish()
    assert append(tmp_path, rows(2)).rows == 2
    assert ids(tmp_path) == [0, 1]


def test_appends_of_several_writers_at_the_same_time_all_arrive(tmp_path):
    append(tmp_path, rows(1))
    writers = [MDSWriter(out=tmp_path, columns=COLUMNS, mode="append") for _ in range(4)]
    for writer in writers:
        writer.write(rows(1)[0])
    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(lambda writer: writer.finish().version, writers))
    assert sorted(versions) == [2, 3, 4, 5]
    assert load_manifest(tmp_path).rows == 5


def test_an_append_to_a_set_whose_columns_changed_since_leaves_nothing(tmp_path):
    append(tmp_path, rows(1))
    writer = MDSWriter(out=tmp_path, columns=COLUMNS, mode="append", size_limit=100)
    for row in rows(5):
        writer.write(row)
    with MDSWriter(out=tmp_path, columns={"other": "int"}, mode="overwrite") as other:
        other.write({"other": 1})
    with pytest.raises(SchemaError, match="cannot append to version 2"):
        writer.finish()
    assert [name for name in files(tmp_path) if writer.write_id in name] == []
    assert load_manifest(tmp_path).version == 2


def test_writer_that_lost_the_race_leaves_nothing(tmp_path):
    first = MDSWriter(out=tmp_path, columns=COLUMNS)
    second = MDSWriter(out=tmp_path, columns=COLUMNS)
    for writer in (first, second):
        writer.write(rows(1)[0])
    first.finish()
    before = [name for name in files(tmp_path) if name != f"_versions/writes/{second.write_id}.json"]
    with pytest.raises((CommitConflict, DatasetExists)):
        second.finish()
    assert files(tmp_path) == before


def test_set_of_another_writer_is_never_touched(tmp_path, shared):
    for name in ("index.json", "shard.00000.mds"):
        (tmp_path / name).write_bytes((shared / "golden" / "scalars" / name).read_bytes())
    before = files(tmp_path)
    for exist_ok in (True, False):
        with pytest.raises(DatasetExists):
            MDSWriter(out=tmp_path, columns=COLUMNS, exist_ok=exist_ok)
    assert files(tmp_path) == before


def test_local_and_remote_get_the_same_set_when_local_is_kept(tmp_path):
    places = (tmp_path / "local", tmp_path / "remote")
    with MDSWriter(out=places, columns=COLUMNS, keep_local=True, size_limit=500) as writer:
        for row in rows(9):
            writer.write(row)
    assert ids(places[0]) == ids(places[1]) == list(range(9))
    assert load_manifest(open_store(places[0])).digest == load_manifest(open_store(places[1])).digest


def test_local_stays_empty_when_it_is_not_kept(tmp_path):
    with MDSWriter(out=(tmp_path / "local", tmp_path / "remote"), columns=COLUMNS) as writer:
        writer.write(rows(1)[0])
    assert not (tmp_path / "local").exists()
    assert ids(tmp_path / "remote") == [0]


def test_writing_nothing_publishes_an_empty_version(tmp_path):
    with MDSWriter(out=tmp_path, columns=COLUMNS) as writer:
        pass
    assert writer.manifest is not None
    assert (writer.manifest.rows, writer.manifest.shards) == (0, ())


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": {"x": "pkl"}},
        {"columns": {"x": "nope"}},
        {"columns": {}},
        {"columns": {"a": "int", "A": "int"}},
        {"compression": "lz4"},
        {"hashes": ["nope"]},
        {"size_limit": "4gb"},
        {"retry": 0},
        {"max_workers": 0},
        {"out": "nowhere://x/y"},
        {"out": ""},
        {"out": None},
        {"out": ("local", "")},
        {"out": ("", "remote"), "keep_local": True},
    ],
)
def test_bad_arguments_are_refused_at_once(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SchemaError, ValueError, StoreError, TypeError)):
        MDSWriter(**{"out": tmp_path / "set", "columns": COLUMNS, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_unknown_argument_is_named(tmp_path):
    with pytest.raises(TypeError, match="colums"):
        MDSWriter(out=tmp_path, colums=COLUMNS)


def test_unsafe_columns_are_written_only_where_they_are_allowed(tmp_path):
    with pytest.raises(SchemaError, match="column 'x'"):
        MDSWriter(out=tmp_path, columns={"x": "pkl"})
    with MDSWriter(out=tmp_path, columns={"x": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"x": {1, 2}})
    assert load_manifest(open_store(tmp_path)).shards[0].samples == 1


def test_progress_is_shown_on_the_error_stream_when_asked_for(tmp_path, capsys):
    for asked in (False, True):
        with MDSWriter(out=tmp_path / str(asked), columns=COLUMNS, size_limit=500, progress_bar=asked) as writer:
            for row in rows(9):
                writer.write(row)
        assert writer.manifest is not None
        shown = capsys.readouterr()
        assert shown.out == ""
        assert (f"{len(writer.manifest.shards)} shards" in shown.err) == asked


def test_tables_and_large_batches_are_added_in_parts_with_the_same_bytes(tmp_path):
    texts = [f"{i}" * 1000 for i in range(300)]
    table = pa.table({"id": range(300), "text": pa.chunked_array([texts[:100], texts[100:]])})
    hashes = []
    for name, batches in {"table": [table], "batches": table.to_batches(max_chunksize=7)}.items():
        with MDSWriter(out=tmp_path / name, columns=COLUMNS, size_limit="100kb") as writer:
            for batch in batches:
                writer.write_batch(batch)
        hashes.append([info.raw.hashes for info in writer.manifest.shards])
    assert hashes[0] == hashes[1]
    assert ids(tmp_path / "table") == list(range(300))


def test_an_object_that_is_no_arrow_batch_is_refused_with_advice(tmp_path):
    writer = MDSWriter(out=tmp_path, columns=COLUMNS)
    with pytest.raises(SchemaError, match=r"found dict; `pyarrow\.table"):
        writer.write_batch({"id": [1], "text": ["a"]})


def test_hashes_and_metadata_are_kept(tmp_path):
    for hashes, names in ((["xxh64", "sha1"], ("sha1", "xxh64")), ([], ())):
        out = tmp_path / str(len(hashes))
        with MDSWriter(out=out, columns=COLUMNS, hashes=hashes, metadata={"who": "me"}) as writer:
            writer.write(rows(1)[0])
        manifest = load_manifest(open_store(out))
        assert manifest.shards[0].hash_names == names
        assert manifest.metadata["who"] == "me"


def test_upload_that_fails_at_the_end_publishes_nothing(tmp_path):
    writer = MDSWriter(out=tmp_path, columns=COLUMNS, retry=1)
    writer.write(rows(1)[0])
    (tmp_path / writer.write_id).write_text("a file where the folder of the write belongs")
    with pytest.raises(StoreError):
        writer.finish()
    assert files(tmp_path) == [writer.write_id]
    with pytest.raises(ValueError, match="finished or aborted"):
        writer.finish()


class CountingWriter(MDSWriter):
    """A user's writer with a `write` of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = 0

    def write(self, sample):
        self.calls += 1
        super().write(sample)


def test_write_of_a_subclass_is_called(tmp_path):
    with CountingWriter(out=tmp_path, columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    assert (writer.calls, writer.manifest.rows) == (1, 1)


def test_write_that_was_taken_before_the_end_is_refused_after_it(tmp_path):
    with MDSWriter(out=tmp_path, columns={"x": "int"}) as writer:
        write = writer.write
        write({"x": 1})
    with pytest.raises(ValueError, match="finished or aborted"):
        write({"x": 2})
    assert load_manifest(tmp_path).rows == 1
