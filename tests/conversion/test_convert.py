"""`convert`: the rows of a source as a version, each once, with the types and null policies of every writer."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti import SmaltiError, convert, history, load_manifest
from smalti.conversion.conversion import group_parts
from smalti.errors import DatasetExists, FormatError, SchemaError, StoreError
from tests.conversion.rows import Numbers, NumberSource, ids_of, numbers, samples_of, table_source
from tests.stores import MemoryStore


@settings(max_examples=8)
@given(
    parts=st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=6),
    part_bytes=st.integers(1, 4),
    size_limit=st.sampled_from([100, 300, None]),
    num_bytes=st.integers(0, 2),
)
def test_every_row_arrives_exactly_once_and_in_order(parts, part_bytes, size_limit, num_bytes):
    total = sum(map(sum, parts))
    store = MemoryStore()
    source = numbers(*parts, num_bytes=num_bytes)
    options = {"processes": 1, "part_bytes": part_bytes, "size_limit": size_limit, "compression": None}
    if not total:
        with pytest.raises(SchemaError, match="the source has no rows; nothing was published"):
            convert(source, store, **options)
        return
    manifest = convert(source, store, **options)
    assert manifest.rows == total
    assert ids_of(store) == list(range(total))
    named = {file.basename for shard in manifest.shards for file in shard.stored_files}
    assert {key for key in store.objects if key.endswith(".mds")} == named


def test_processes_write_the_shards_that_one_process_writes_also_through_a_transform(tmp_path):
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:  # a local function is sent to the processes by value
        return batch.append_column("twice", pa.array([2 * each.as_py() for each in batch["id"]]))

    source = numbers((500, 500), (1000,), (10,), (900, 30))
    for count in (1, 2):
        convert(source, tmp_path / str(count), processes=count, size_limit=8192, part_bytes=1, transform=doubled)
    one, two = (sorted((tmp_path / str(count)).rglob("*.zstd")) for count in (1, 2))
    assert sorted(map(bytes_of, one)) == sorted(map(bytes_of, two))
    assert ids_of(tmp_path / "2") == list(range(2940))
    assert [row["twice"] for row in samples_of(tmp_path / "2")[:3]] == [0, 2, 4]


def bytes_of(path):
    return path.read_bytes()


def test_another_compression_is_another_write_but_no_second_append_of_the_same_rows():
    store, source = MemoryStore(), numbers((500,))
    assert convert(source, store, processes=1).version == 1
    for compression, version in (("zstd:9", 2), ("zstd", 3), ("zstd", 3), ("auto", 4), (None, 5)):
        manifest = convert(source, store, processes=1, mode="overwrite", compression=compression)
        assert manifest.version == version, compression
        assert manifest.shards[0].compression == ("zstd" if compression == "auto" else compression)
    for compression in ("zstd", "auto"):
        assert convert(source, store, processes=1, mode="append", compression=compression).rows == 1000


def test_parts_are_grouped_by_their_bytes_alone():
    def sizes(*num_bytes, part_bytes=None):
        parts = [Numbers(place, (), num_bytes=size) for place, size in enumerate(num_bytes)]
        return [[part.num_bytes for part in group.parts] for group in group_parts(parts, part_bytes)]

    mib = 1 << 20
    assert sizes(4, 4, 4, 9, 1, part_bytes=8) == [[4, 4], [4], [9], [1]]
    assert sizes(0, 0, 5, 5, part_bytes=100) == [[0], [0], [5, 5]]
    assert sizes(4 * mib, 4 * mib, mib) == [[4 * mib, 4 * mib], [mib]]
    assert sizes() == []


def test_types_keep_their_values(tmp_path):
    moment = dt.datetime(2026, 11, 23, 12, 30, 0, 5, tzinfo=dt.timezone.utc)
    table = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "u64": pa.array([2**64 - 1], pa.uint64()),
            "half": pa.array([np.float16(0.5)], pa.float16()),
            "word": pa.array(["a"]).dictionary_encode(),
            "view": pa.array(["b"], pa.string_view()),
            "fixed": pa.array([b"xy"], pa.binary(2)),
            "day": pa.array([dt.date(2026, 11, 23)], pa.date64()),
            "moment": pa.array([moment], pa.timestamp("us", "Europe/Paris")),
            "seconds": pa.array([np.datetime64("2026-01-01T00:00:00")], pa.timestamp("s")),
            "token": pa.array([[1, 2, 3]], pa.list_(pa.uint16(), 3)),
            "named": pa.array([{"a": 1, "b": ["x", None]}]),
            "price": pa.array([decimal("1.50")], pa.decimal128(5, 2)),
        }
    )
    convert(table_source(table), tmp_path / "out", processes=1)
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema.columns() == {
        "u8": "uint8", "u64": "uint64", "half": "float16", "word": "str", "view": "str", "fixed": "bytes",
        "day": "int32", "moment": "int64", "seconds": "int64", "token": "ndarray:uint16", "named": "json",
        "price": "str_decimal",
    }  # fmt: skip
    (sample,) = samples_of(tmp_path / "out")
    assert sample["u8"] == 255
    assert sample["u64"] == 2**64 - 1
    assert sample["half"] == 0.5
    assert (sample["word"], sample["view"], sample["fixed"]) == ("a", "b", b"xy")
    assert sample["day"] == np.datetime64("2026-11-23")
    assert sample["moment"] == np.datetime64("2026-11-23T12:30:00.000005")
    assert sample["seconds"] == np.datetime64("2026-01-01T00:00:00")
    assert sample["token"].tolist() == [1, 2, 3]
    assert sample["named"] == {"a": 1, "b": ["x", None]}
    assert sample["price"] == decimal("1.50")


def decimal(text):
    from decimal import Decimal

    return Decimal(text)


def test_a_moment_that_is_finer_than_microseconds_is_refused_with_its_part(tmp_path):
    table = pa.table({"t": pa.array([0, 1], pa.timestamp("ns"))})
    with pytest.raises(SchemaError, match=r"part 0 \(rows\): column 't', sample 1: a time of a finer unit"):
        convert(table_source(table), tmp_path, processes=1)


def test_nulls_are_refused_marked_or_replaced(tmp_path):
    source = table_source(pa.table({"id": pa.array([1, None, 3]), "name": ["a", "b", "c"]}))
    with pytest.raises(
        SchemaError, match=r"part 0 \(rows\): column 'id', sample 1: a null.* The row is .*name=b"
    ) as caught:
        convert(source, tmp_path / "refused", processes=1)
    assert (caught.value.column, caught.value.row) == ("id", 1)
    assert list((tmp_path / "refused").rglob("*.mds*")) == []
    convert(source, tmp_path / "marked", processes=1, nulls="mask")
    assert [row["id"] for row in samples_of(tmp_path / "marked")] == [1, None, 3]
    convert(source, tmp_path / "filled", processes=1, nulls={"id": {"default": -1}})
    assert [row["id"] for row in samples_of(tmp_path / "filled")] == [1, -1, 3]


def test_a_column_of_texts_makes_splits(tmp_path):
    source = table_source(pa.table({"id": [1, 2, 3], "part": ["train", "test", "train"]}))
    convert(source, tmp_path, processes=1, partition_by="part", columns={"id": "int32"})
    manifest = load_manifest(tmp_path)
    assert {info.partition: info.samples for info in manifest.shards} == {"train": 2, "test": 1}
    assert manifest.schema.columns() == {"id": "int32"}


def test_the_same_write_is_done_once(tmp_path):
    source = numbers((3,))
    first = convert(source, tmp_path, processes=1)
    assert convert(source, tmp_path, processes=1).version == first.version == 1
    other = NumberSource([Numbers(3, (2,))], mark="2")
    with pytest.raises(DatasetExists):
        convert(other, tmp_path, processes=1)
    assert convert(other, tmp_path, processes=1, mode="append").version == 2
    assert ids_of(tmp_path) == [0, 1, 2, 3, 4]
    assert [info.operation for info in history(tmp_path)] == ["create", "append"]


class Changing(NumberSource):
    """A source whose files are replaced while they are read."""

    def identity(self):
        self.mark += "x"
        return {"digest": self.mark}


def test_a_source_that_changes_while_it_is_read_publishes_nothing(tmp_path):
    with pytest.raises(SmaltiError, match="numbers changed while it was read; nothing was published"):
        convert(Changing([Numbers(0, (5,))]), tmp_path, processes=1)
    assert list(tmp_path.rglob("*.mds*")) == []


@dataclass(frozen=True)
class Enormous(Numbers):
    """A part that asks for more memory than any process may have, and takes an error of Arrow for damage."""

    allocate: Callable[[], object] = bytes

    def batches(self):
        yield from super().batches()
        try:
            self.allocate()
        except pa.ArrowException as error:
            raise FormatError("the file is damaged") from error


ALLOCATIONS = {
    "Arrow": partial(pa.allocate_buffer, 1 << 62),
    "NumPy": partial(np.empty, 1 << 62, np.uint8),
    "Python": partial(bytearray, 1 << 62),
}


@pytest.mark.parametrize(
    ("by", "processes"),
    [
        ("Arrow", 1),
        ("NumPy", 1),
        ("Python", 1),
        pytest.param("NumPy", 2, marks=pytest.mark.nightly),  # other errors of processes are in test_workers.py
    ],
)
def test_a_part_that_takes_more_memory_than_there_is_is_an_error_that_says_so(tmp_path, by, processes):
    source = NumberSource([Numbers(0, (5,)), Enormous(5, (5,), allocate=ALLOCATIONS[by])])
    message = r"^part 1 \(numbers from 5\): it takes more memory than this process may use.*Use fewer `processes`, or"
    with pytest.raises(SmaltiError, match=message):
        convert(source, tmp_path, processes=processes, part_bytes=1)
    assert list(tmp_path.rglob("*.mds*")) == []


@pytest.mark.parametrize("op", ["put", "put_if_absent"])
def test_a_store_that_fails_leaves_no_shards_and_a_second_call_publishes(op):
    store, source = MemoryStore(), numbers((50,), (50,))
    store.plant(op, at=1, times=20)
    options = {"processes": 1, "part_bytes": 1, "write_id": "work"}
    with pytest.raises(StoreError):
        convert(source, store, **options)
    store.heal()
    convert(source, store, **options)
    assert ids_of(store) == list(range(100))


def test_progress_ends_with_all_parts_and_rows(tmp_path):
    seen = []
    convert(numbers((5, 5), (5,), num_bytes=7), tmp_path, processes=1, part_bytes=7, on_progress=seen.append)
    last = seen[-1]
    assert (last.parts_done, last.parts, last.rows, last.num_bytes, last.total_bytes) == (2, 2, 15, 14, 14)
    assert [each.rows for each in seen] == sorted(each.rows for each in seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "`processes`: expected 1 or more, found 0"),
        ({"mode": "replace"}, "`mode`: expected"),
        ({"part_bytes": "many"}, "`part_bytes`"),
        ({"format": "excel"}, "`format`: expected one of parquet"),
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        convert(tmp_path, tmp_path / "out", **options)
