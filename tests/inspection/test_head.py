"""`head`: the rows are those that a dataset reads, and little else is read."""

import json
import pickle
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from smalti import head
from smalti.catalog import tag
from smalti.errors import CatalogError, FormatError, SchemaError, StoreNotFound, VersionNotFound
from smalti.inspection.values import value_json, value_text
from smalti.writer import MDSWriter
from tests.inspection.counted_store import CountedStore
from tests.shard_sets import sample, write_set
from tests.text_writers import CSVWriter, JSONWriter
from tests.typed_sets import plain, wanted, write_typed_set


def picture(width: int, height: int) -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br", "bz2", "snappy"])
def test_rows_from_a_place_on_are_those_that_were_written(tmp_path, compression):
    """Rows 33 to 47 lie in three shards of about ten."""
    write_set(tmp_path / "set", 100, compression=compression)
    found = head(tmp_path / "set", 15, offset=33)
    assert found.numbers == tuple(range(33, 48))
    assert [plain(row) for row in found.rows] == [plain(sample(number)) for number in range(33, 48)]


@pytest.mark.parametrize("writer", [JSONWriter, CSVWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_rows_of_text_shards_are_read_in_ranges_too(tmp_path, writer, compression):
    columns = {"n": "int", "text": "str", "x": "float"}
    with writer(out=str(tmp_path), columns=columns, size_limit=400, compression=compression) as out:
        for number in range(50):
            out.write({"n": number, "text": f"line {number}", "x": number / 2})
    assert head(tmp_path, 2, offset=31).rows == (
        {"n": 31, "text": "line 31", "x": 15.5},
        {"n": 32, "text": "line 32", "x": 16.0},
    )


def test_random_rows_are_the_same_for_a_seed_and_stand_in_their_order(tmp_path):
    write_set(tmp_path, 100)
    one, again = (head(tmp_path, 10, sample=True, seed=3) for _ in range(2))
    assert one.numbers == again.numbers == tuple(sorted(set(one.numbers)))
    assert len(one.numbers) == 10
    assert [row["id"] for row in one.rows] == list(one.numbers)
    assert head(tmp_path, 10, sample=True, seed=4).numbers != one.numbers


def test_logical_types_and_nulls_are_restored_and_masks_are_no_columns(tmp_path):
    write_typed_set(tmp_path)
    found = head(tmp_path, 5, offset=8)
    assert [plain(row) for row in found.rows] == [wanted(number) for number in range(8, 13)]
    assert list(head(tmp_path, 4, columns=["age"]).rows) == [{"age": age} for age in (None, 1, 2, None)]


def test_of_an_uncompressed_remote_set_little_more_than_the_rows_is_read(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"data": "bytes"}, size_limit="64mb") as out:
        for number in range(2000):
            out.write({"data": bytes([number % 256]) * 5000})  # one shard of 10 MB
    store = CountedStore(tmp_path / "set", tmp_path / "log")
    found = head(store, 3, offset=1000)
    assert [row["data"][0] for row in found.rows] == [232, 233, 234]
    # The block of 64 KiB with their offsets, and that of the samples: whole blocks can be verified.
    assert store.shard_bytes == 2 << 16


def test_of_a_set_without_hashes_the_rows_alone_are_read(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"data": "bytes"}, size_limit="64mb", hashes=[]) as out:
        for number in range(200):
            out.write({"data": bytes([number]) * 5000})
    store = CountedStore(tmp_path / "set", tmp_path / "log")
    assert [row["data"][0] for row in head(store, 3, offset=100).rows] == [100, 101, 102]
    # Four offsets of four bytes; three samples of four bytes of length and 5,000 of data.
    assert store.shard_bytes == 16 + 3 * 5004


def test_of_a_compressed_remote_shard_the_beginning_is_read(tmp_path):
    noise = np.random.default_rng(0)
    with MDSWriter(out=str(tmp_path / "set"), columns={"data": "bytes"}, compression="zstd") as out:
        for _ in range(1000):
            out.write({"data": noise.bytes(5000)})  # 5 MB that zstd cannot make smaller
    store = CountedStore(tmp_path / "set", tmp_path / "log")
    assert len(head(store, 3).rows) == 3
    assert store.shard_bytes < 1_000_000


def test_a_pickled_value_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    with MDSWriter(out=str(tmp_path), columns={"p": "bytes"}) as out:
        out.write({"p": pickle.dumps(Trap())})
    index = tmp_path / "index.json"
    shard = json.loads(index.read_text())
    shard["shards"][0]["column_encodings"] = ["pkl"]
    index.write_text(json.dumps({"shards": shard["shards"], "version": 2}))  # as MosaicML's writer leaves it
    value = head(tmp_path).to_dict()["rows"][0]["values"]["p"]
    assert value == {"type": "pickle", "num_bytes": len(pickle.dumps(Trap()))}


def test_json_has_texts_whole_and_images_by_their_header(tmp_path):
    columns = {"image": "jpeg", "raw": "pil", "text": "str", "data": "bytes", "array": "ndarray", "x": "float64"}
    with MDSWriter(out=str(tmp_path), columns=columns) as out:
        out.write(
            {
                "image": picture(32, 24),
                "raw": Image.new("L", (3, 2)),
                "text": "x" * 5000,
                "data": b"hello",
                "array": np.zeros((9, 9), np.uint8),
                "x": float("nan"),
            }
        )
    values = json.loads(json.dumps(head(tmp_path).to_dict()))["rows"][0]["values"]
    assert values == {
        "image": {"type": "image", "format": "JPEG", "width": 32, "height": 24, "num_bytes": len(picture(32, 24))},
        "raw": {"type": "image", "format": "raw L", "width": 3, "height": 2, "num_bytes": 19},
        "text": "x" * 5000,
        "data": {"type": "bytes", "num_bytes": 5, "base64": "aGVsbG8="},
        "array": {"type": "array", "dtype": "uint8", "shape": [9, 9]},
        "x": "nan",
    }


def test_a_version_a_tag_and_a_split_choose_the_rows(tmp_path):
    write_set(tmp_path, 20)
    tag(tmp_path, "first", 1)
    write_set(tmp_path, 30, mode="overwrite")
    assert (head(tmp_path).num_rows, head(tmp_path, version=1).num_rows, head(tmp_path, tag="first").num_rows) == (
        30,
        20,
        20,
    )
    with pytest.raises(VersionNotFound):
        head(tmp_path, version=7)
    with pytest.raises((CatalogError, StoreNotFound)):
        head(tmp_path, split="train")


def test_what_is_not_there_is_an_error_that_names_it(tmp_path):
    write_set(tmp_path, 20)
    with pytest.raises(SchemaError, match="no column 'colour'; its columns are id, text, vector"):
        head(tmp_path, columns=["colour"])
    with pytest.raises(ValueError, match="rows"):
        head(tmp_path, 10_001)
    assert head(tmp_path, offset=20).rows == ()


def test_a_damaged_table_of_offsets_is_an_error_that_names_the_shard(tmp_path):
    for hashes, message in (
        (["xxh3_64"], "block 0, .* expected the checksum"),
        ([], "its table of offsets is damaged"),
    ):
        root = tmp_path / str(len(hashes))
        with MDSWriter(out=str(root), columns={"number": "int"}, hashes=hashes) as out:
            out.write({"number": 1})
        shard = next(root.rglob("shard.00000.mds"))
        data = bytearray(shard.read_bytes())
        data[4:8] = b"\xff\xff\xff\x7f"
        shard.write_bytes(data)
        with pytest.raises(FormatError, match=rf"shard.00000.mds: {message}"):
            head(root)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_have_as_few_digits_as_their_type_needs(kind):
    assert value_json(kind(0.1), "float") == 0.1
    assert value_text(kind(0.1), "float") == "0.1"
    assert value_json(np.array([[0.1, np.nan]], kind), "ndarray")["values"] == [[0.1, "nan"]]
    assert value_text(np.array([0.1, -np.inf], kind), "ndarray") == f"{kind.__name__}[2] [0.1, -inf]"


def test_a_nested_value_is_shown_as_json_whatever_its_characters():
    value = {"wide\u00a0": "\x1b\x9b\u202e\u2066\ud800", "tag": "\U000e0001 é"}
    shown = value_text(value, "json")
    assert json.loads(shown) == value
    assert shown.isprintable()
