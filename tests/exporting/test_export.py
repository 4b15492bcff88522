"""Exports: values equal in Parquet and in tar files, splits, sizes, resuming, and conversions back to the same rows."""

import datetime as dt
import io
import json
import tarfile
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from smalti.catalog import load_manifest, verify
from smalti.conversion import convert
from smalti.errors import CatalogError, ChecksumMismatch, FormatError, SchemaError, StoreError, StoreNotFound
from smalti.exporting import export, steps
from smalti.exporting.webdataset import header
from smalti.writer import MDSWriter
from tests.shard_sets import write_set
from tests.typed_sets import write_typed_set

SIZE_LIMITS = {"webdataset": 40_000, "parquet": 1000}
MASKED = {"age": "mask", "name": "mask", "box": "mask"}


def jpeg():
    """Return the bytes of an image file."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(file, "JPEG")
    return file.getvalue()


JPEG = jpeg()


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    return write_typed_set(tmp_path_factory.mktemp("typed") / "set")


def members(folder):
    """Return name and content of every member of all tar files, in order."""
    found = {}
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    return found


def test_parquet_has_the_values_with_nulls_and_logical_types(typed, tmp_path):
    report = export(typed, tmp_path / "out", format="parquet")
    table = pq.read_table(tmp_path / "out")
    assert (report.num_samples, report.num_files, report.num_reused) == (40, 1, 0)
    assert table.to_pylist()[2] == {
        "id": 2,
        "when": dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.timezone.utc),
        "day": dt.date(1970, 1, 3),
        "ok": False,
        "age": 2,
        "name": "n2",
        "box": [2.0, 0.5],
        "price": Decimal("0.02"),
        "info": [(1, dt.date(1970, 1, 3)), (2, None)],
        "marks": [True, False, False],
    }
    third = table.to_pylist()[3]
    assert (third["age"], third["name"], third["box"], third["id"]) == (None, None, None, 3)
    fields = {field.name: (field.type, field.nullable) for field in table.schema}
    assert fields["age"] == (pa.int16(), True)
    assert fields["price"] == (pa.decimal128(5, 2), False)
    assert fields["when"] == (pa.timestamp("us", "UTC"), False)
    assert "age__is_null" not in fields


def test_tar_members_have_the_values_and_a_null_has_none(typed, tmp_path):
    export(typed, tmp_path / "out", format="webdataset", names={"id": "cls"})
    found = members(tmp_path / "out")
    assert len(found) == 40 * 10 - 3 * 14
    sample = {name.partition(".")[2]: found[name] for name in found if name.startswith("000000002.")}
    arrays = {name: np.load(io.BytesIO(sample.pop(name))).tolist() for name in ("box.npy", "marks.npy")}
    assert arrays == {"box.npy": [2.0, 0.5], "marks.npy": [True, False, False]}
    assert sample == {
        "cls": b"2",
        "when.txt": b"1970-01-01 00:00:02.000000Z",
        "day.txt": b"1970-01-03",
        "ok.json": b"false",
        "age.cls": b"2",
        "name.txt": b"n2",
        "price.txt": b"0.02",
        "info.json": b"[[1, 2], [2, null]]",
    }
    assert {name for name in found if name.startswith("000000003.")}.isdisjoint({"000000003.age.cls"})


@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_a_set_that_is_exported_and_converted_again_has_the_same_rows(typed, tmp_path, format):
    export(typed, tmp_path / "out", format=format, size_limit=4000)
    back = convert(tmp_path / "out", tmp_path / "back", nulls=MASKED, processes=1)
    assert back.row_hash == verify(typed).row_hash
    assert back.logical == load_manifest(typed).logical


def test_images_arrays_and_json_keep_their_encodings(tmp_path):
    columns = {
        "image": "jpeg", "label": "int", "data": "bytes", "meta": "json", "grid": "ndarray:int16:2,3",
        "path": "ndarray:float32", "any": "ndarray", "price": "str_decimal", "count": "str_int", "score": "float32",
    }  # fmt: skip
    with MDSWriter(out=str(tmp_path / "set"), columns=columns, size_limit=3000) as writer:
        for number in range(6):
            writer.write(
                {
                    "image": JPEG,
                    "label": number,
                    "data": bytes([0, number]),
                    "meta": {"a": [number, None]},
                    "grid": np.full((2, 3), number, np.int16),
                    "path": np.arange(number, dtype=np.float32),
                    "any": np.full((2, number % 2), 7, np.uint8),
                    "price": Decimal("1.50"),
                    "count": number * 10**17,
                    "score": np.array([0.5, np.nan, np.inf, -0.0, 0.1, 3.0], np.float32)[number],
                }
            )
    expected = verify(tmp_path / "set").row_hash
    for format in ("parquet", "webdataset"):
        export(tmp_path / "set", tmp_path / format, format=format, size_limit=5000)
        assert convert(tmp_path / format, tmp_path / f"{format}-back", processes=1).row_hash == expected
    row = pq.read_table(tmp_path / "parquet").to_pylist()[3]
    assert row["image"] == JPEG
    assert (row["label"], row["meta"], row["grid"]) == (3, '{"a": [3, null]}', [[3, 3, 3], [3, 3, 3]])
    assert (row["path"], row["any"], row["price"], row["count"]) == ([0.0, 1.0, 2.0], [[7], [7]], "1.50", 3 * 10**17)
    found = members(tmp_path / "webdataset")
    assert (found["000000003.image.jpg"], found["000000003.label.cls"], found["000000001.score.json"]) == (
        JPEG, b"3", b"NaN",
    )  # fmt: skip


def test_splits_are_folders_and_one_can_be_chosen(tmp_path):
    rows = pa.table({"id": [1, 2, 3], "split": ["train", "test", "train"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    convert(tmp_path / "rows.parquet", tmp_path / "split", partition_by="split", processes=1)
    export(tmp_path / "split", tmp_path / "all", format="parquet", columns=["id"])
    found = {str(path.relative_to(tmp_path / "all")) for path in (tmp_path / "all").rglob("*.parquet")}
    assert found == {"train/part-00000-of-00001.parquet", "test/part-00000-of-00001.parquet"}
    assert pq.read_table(tmp_path / "all" / "train")["id"].to_pylist() == [1, 3]
    report = export(tmp_path / "split", tmp_path / "one", format="webdataset", split="test", columns=["id"])
    assert (report.split, report.num_samples) == ("test", 1)
    assert members(tmp_path / "one") == {"000000000.id.cls": b"2"}


def test_a_large_export_is_split_by_size_and_keeps_the_order(tmp_path):
    write_set(tmp_path / "set", 100)
    report = export(tmp_path / "set", tmp_path / "out", format="parquet", size_limit=700, columns=["id"])
    assert report.num_files > 5
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    assert [path.name for path in paths][-1] == f"part-{len(paths) - 1:05d}-of-{len(paths):05d}.parquet"
    assert [value for path in paths for value in pq.read_table(path)["id"].to_pylist()] == list(range(100))
    small = export(tmp_path / "set", tmp_path / "tiny", format="webdataset", size_limit=1, columns=["id"])
    assert small.num_files == 100


class Interrupted(Exception):  # noqa: N818 -- no fault
    pass


def test_an_export_that_was_interrupted_is_not_taken_for_whole_and_continues(tmp_path):
    write_set(tmp_path / "set", 100)
    out = tmp_path / "out"

    def stop(done, total):
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        export(tmp_path / "set", out, format="webdataset", size_limit=20_000, workers=1, on_file=stop)
    assert json.loads((out / "_smalti_export.json").read_text())["complete"] is False
    assert not (out / "_SUCCESS").exists()
    with pytest.raises(FormatError, match=r"not complete; call `smalti export` again"):
        convert(out, tmp_path / "back", processes=1)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    missing = max(before).replace("00002", "00003", 1)
    (out / f".{missing}.0123456789abcdef.smalti-tmp").write_bytes(b"half")
    calls = []
    report = export(
        tmp_path / "set", out, format="webdataset", size_limit=20_000, on_file=lambda *call: calls.append(call)
    )
    assert report.num_reused == len(before) == 3
    assert calls[-1] == (report.num_files, report.num_files)
    assert all((out / name).stat().st_mtime_ns == time for name, time in before.items())
    assert (out / "_SUCCESS").exists()
    assert not [path for path in out.iterdir() if path.name.endswith(".smalti-tmp")]
    again = export(tmp_path / "set", out, format="webdataset", size_limit=20_000)
    assert (again.num_reused, again.num_bytes) == (report.num_files, report.num_bytes)
    assert len(members(out)) == 300


def exported(tmp_path, format):
    """Export 100 samples to five files or more, and return the folder and its files."""
    write_set(tmp_path / "set", 100)
    out = tmp_path / "out"
    export(tmp_path / "set", out, format=format, size_limit=SIZE_LIMITS[format])
    paths = sorted(out.glob("part-*"))
    assert len(paths) > 4
    return out, paths


@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_an_export_that_lacks_a_file_is_not_converted_and_the_advice_reads_the_rest(tmp_path, format):
    out, paths = exported(tmp_path, format)
    paths[1].unlink()
    with pytest.raises(
        StoreNotFound, match=rf"1 of the {len(paths)} files of this export are missing, such as part-00001-"
    ):
        convert(out, tmp_path / "back", processes=1)
    for name in ("_smalti_export.json", "_SUCCESS"):  # a copy without them, and the folder of a split, have the numbers
        (out / name).unlink()
    with pytest.raises(StoreNotFound, match=rf"part-00001-of-.*: 1 of {len(paths)} files with such names are missing"):
        convert(out, tmp_path / "back", processes=1)
    assert 0 < convert(out / "part-*", tmp_path / "back", processes=1).rows < 100


@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_a_file_of_another_size_than_the_record_says_is_not_converted_and_is_written_again(tmp_path, format):
    out, paths = exported(tmp_path, format)
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole + bytes(512))
    for place in (out, out / "part-*", paths[2]):
        with pytest.raises(ChecksumMismatch, match=rf"{paths[2].name}: expected {len(whole)} bytes"):
            convert(place, tmp_path / "back", processes=1)
    (out / "_SUCCESS").unlink()  # as if the export had been killed before
    report = export(tmp_path / "set", out, format=format, size_limit=SIZE_LIMITS[format])
    assert (report.num_reused, report.num_files) == (len(paths) - 1, len(paths))
    assert paths[2].read_bytes() == whole
    assert (out / "_SUCCESS").exists()
    assert convert(out, tmp_path / "back", processes=1).rows == 100


@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_other_files_in_the_folder_of_an_export_are_left_out_and_named(tmp_path, format, caplog):
    out, paths = exported(tmp_path, format)
    other = out / f"aaa{paths[0].suffix}"
    other.write_bytes(paths[0].read_bytes())
    assert convert(out, tmp_path / "back", processes=1).rows == 100
    assert (
        f"1 files are not of this export by its _smalti_export.json and were left out, such as {other.name}"
        in caplog.text
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"files": None}, {"files": [1]}, {"files": [{"name": "a"}]}, {"complete": None}, {"members": None},
        {"members": {}}, {"members": {"id": 1}}, {"schema": "x"}, {"schema": None}, {"stored": []},
        {"stored": {"id": 1}}, {"files": []}, {"files": [{"name": "../a", "bytes": 1}]}, {"schema": ""},
    ],
)  # fmt: skip
def test_a_damaged_record_of_an_export_is_an_error_of_the_tree(tmp_path, damage):
    write_set(tmp_path / "set", 3)
    export(tmp_path / "set", tmp_path / "out", format="webdataset")
    path = tmp_path / "out" / "_smalti_export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(FormatError, match=r"out/_smalti_export\.json: expected the record of an export.*copy it again"):
        convert(tmp_path / "out", tmp_path / "back", processes=1)


def set_of_two_schemas(folder, first, second):
    """Write a set whose index was put together of two sets with these columns."""
    (folder / "both").mkdir(parents=True)
    shards = []
    for number, columns in enumerate((first, second)):
        with MDSWriter(out=str(folder / f"{number}"), columns=columns, hashes=[]) as writer:
            writer.write(dict.fromkeys(columns, 1))
        (shard,) = json.loads((folder / f"{number}" / "index.json").read_text())["shards"]
        (folder / "both" / f"{number}.mds").write_bytes(
            (folder / f"{number}" / shard["raw_data"]["basename"]).read_bytes()
        )
        shard["raw_data"]["basename"] = f"{number}.mds"
        shards.append(shard)
    (folder / "both" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder / "both"


@pytest.mark.parametrize(
    "second", [{"a": "int", "c": "int"}, {"a": "int"}, {"a": "int", "b": "int", "c": "int"}, {"a": "int", "b": "int32"}]
)
@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_shards_of_other_columns_are_refused_and_common_columns_can_be_exported(tmp_path, second, format):
    both = set_of_two_schemas(tmp_path, {"a": "int", "b": "int"}, second)
    with pytest.raises(SchemaError, match=r"1\.mds has the columns a \(int\).* and the set a \(int\), b \(int\)"):
        export(both, tmp_path / "out", format=format)
    with pytest.raises(SchemaError, match=r"1\.mds has the columns"):
        convert(both, tmp_path / "converted", processes=1)
    assert export(both, tmp_path / "out", format=format, columns=["a"]).num_samples == 2


def test_an_incomplete_export_of_parquet_is_not_converted(tmp_path):
    write_set(tmp_path / "set", 30)

    def stop(done, total):
        raise Interrupted

    with pytest.raises(Interrupted):
        export(tmp_path / "set", tmp_path / "out", format="parquet", size_limit=600, workers=1, on_file=stop)
    with pytest.raises(FormatError, match="not complete"):
        convert(tmp_path / "out", tmp_path / "back", processes=1)


def test_a_folder_with_something_else_is_refused(tmp_path):
    write_set(tmp_path / "set", 10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(CatalogError, match=r"not empty: it has 'mine.txt'"):
        export(tmp_path / "set", tmp_path / "full", format="parquet")
    export(tmp_path / "set", tmp_path / "out", format="parquet")
    with pytest.raises(CatalogError, match="holds another export"):
        export(tmp_path / "set", tmp_path / "out", format="parquet", columns=["id"])
    with pytest.raises(CatalogError, match="holds another export"):
        export(tmp_path / "set", tmp_path / "out", format="webdataset")


def test_a_damaged_shard_stops_the_export_and_leaves_no_half_file(tmp_path):
    write_set(tmp_path / "set", 10)
    shard = next((tmp_path / "set").rglob("*.mds"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError):
        export(tmp_path / "set", tmp_path / "out", format="parquet")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"_smalti_export.json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "zip"}, "expected one of webdataset, parquet"),
        ({"format": "parquet", "names": {"id": "cls"}}, "members of tar files"),
        ({"format": "webdataset", "compression": "zstd"}, "not compressed"),
        ({"format": "parquet", "compression": "best"}, "expected one of zstd"),
        ({"format": "parquet", "workers": 0}, "at least 1"),
        ({"format": "parquet", "columns": ["idd"]}, "there is no column 'idd'; the columns are id, text, vector"),
        ({"format": "parquet", "columns": []}, "no columns"),
        ({"format": "webdataset", "names": {"x": "cls"}}, "no exported column"),
        ({"format": "webdataset", "names": {"id": "a/b"}}, "cannot be the ending"),
        ({"format": "webdataset", "names": {"id": "X", "text": "x"}}, "the same ending"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, options, message):
    write_set(tmp_path / "set", 10)
    with pytest.raises((ValueError, SchemaError), match=message):
        export(tmp_path / "set", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_column_without_a_form_elsewhere_is_refused_with_advice(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "shots": "list[jpeg]"}) as writer:
        writer.write({"id": 1, "shots": [JPEG, JPEG]})
    with pytest.raises(SchemaError, match=r"column 'shots' has a list of images.*export to Parquet"):
        export(tmp_path / "set", tmp_path / "out", format="webdataset")
    export(tmp_path / "set", tmp_path / "out", format="parquet")
    assert pq.read_table(tmp_path / "out").to_pylist() == [{"id": 1, "shots": [JPEG, JPEG]}]


def test_a_target_that_cannot_be_written_is_a_fault_of_the_store(tmp_path):
    write_set(tmp_path / "set", 10)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError):
        export(tmp_path / "set", tmp_path / "file" / "out", format="parquet")


def test_headers_of_members_are_those_of_tarfile():
    for name, size in [("000000000.a.jpg", 0), ("000000017.image.jpg", 123456), ("x" * 100, (1 << 32) - 1)]:
        info = tarfile.TarInfo(name)
        info.size = size
        assert header(name.encode(), size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_memory_holds_one_row_group_of_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "_ROW_GROUP_BYTES", 1 << 21)
    before, held = pa.total_allocated_bytes(), []

    class Reader:
        schema = pa.schema([("number", pa.int64())])

        def batches(self, count):
            for _ in range(count):
                held.append(pa.total_allocated_bytes() - before)
                yield pa.record_batch([pa.repeat(pa.scalar(1), 1 << 17)], schema=self.schema)

    steps._write_parquet(tmp_path / "a.parquet", Reader(), [3, 3], "none")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
    assert max(held) < 1 << 21  # one batch of the two of a group, and nothing of the group before
