"""`stats`: figures of small sets, computed by hand."""

import json
import weakref
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from smalti import stats
from smalti.errors import ChecksumMismatch
from smalti.format.reading.shard import Shard
from smalti.inspection.stats import MAX_BATCH_BYTES, batches
from smalti.writer import MDSWriter
from tests.inspection.counted_store import CountedStore
from tests.shard_sets import write_set
from tests.text_writers import JSONWriter
from tests.typed_sets import write_typed_set


def picture(width: int, height: int, kind: str = "JPEG") -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, height), (width, height, 0)).save(out, kind)
    return out.getvalue()


def columns_of(found):
    return {column.name: column for column in found.columns}


def test_numbers_texts_and_arrays_of_a_whole_set(tmp_path):
    """Ids 0 to 99; texts of 9 characters for id 0 to 16; vectors of (id, 0.5, -id)."""
    write_set(tmp_path, 100, compression="zstd")
    seen = []
    found = stats(tmp_path, on_rows=lambda done, total: seen.append((done, total)))
    columns = columns_of(found)
    number = columns["id"].values
    assert (number.min, number.max, number.mean, number.quantiles["0.5"]) == (0, 99, 49.5, 50)
    assert (columns["id"].distinct, columns["id"].classes) == (100, None)
    assert (columns["text"].kind, columns["text"].lengths.min, columns["text"].lengths.max) == ("text", 9, 16)
    assert columns["vector"].kind == "array"
    assert (columns["vector"].values.min, columns["vector"].values.max) == (-99.0, 99.0)
    assert columns["vector"].shapes == {"float32[3]": 100}
    assert (found.looked_at, found.num_rows, found.is_sampled) == (100, 100, False)
    assert seen[-1] == (100, 100)
    assert found.shard_rows.count == len(list(tmp_path.rglob("*.zstd")))
    assert json.loads(json.dumps(found.to_dict()))["looked_at"] == 100


def test_classes_of_integers_are_counted_also_if_a_later_one_has_more_than_64_bits(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"n": "str_int"}, size_limit=400) as writer:
        for value in [7] * 60 + [1 << 70, 7, 7]:
            writer.write({"n": value})
    assert columns_of(stats(tmp_path))["n"].classes == {"7": 62, "1180591620717411303424": 1}


def test_classes_are_counted_until_they_are_too_many(tmp_path):
    """Each of 1000 and of 1001 numbers occurs three times or more."""
    with MDSWriter(out=str(tmp_path), columns={"few": "int", "many": "int"}) as writer:
        for number in range(3003):
            writer.write({"few": number % 1000, "many": number % 1001})
    columns = columns_of(stats(tmp_path))
    assert columns["few"].classes == {str(n): 4 for n in (0, 1, 2)} | {str(n): 3 for n in range(3, 1000)}
    assert columns["many"].classes is None


def test_a_long_text_is_no_class(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"long": "str", "short": "str"}) as writer:
        for _ in range(3):
            writer.write({"long": "x" * 201, "short": "x" * 200})
    columns = columns_of(stats(tmp_path))
    assert columns["long"].classes is None
    assert columns["short"].classes == {"x" * 200: 3}


def test_nulls_are_counted_and_are_in_no_figure(tmp_path):
    """Every third of 40 rows has no age, name and box: 0, 3, ..., 39."""
    write_typed_set(tmp_path)
    columns = columns_of(stats(tmp_path))
    assert [columns[name].nulls for name in ("age", "name", "box", "id")] == [14, 14, 14, 0]
    assert (columns["age"].values.min, columns["age"].values.max) == (1, 38)
    assert (columns["name"].distinct, columns["name"].lengths.count) == (26, 26)
    assert (columns["day"].values.min, columns["day"].values.max) == ("1970-01-01", "1970-02-09")
    assert columns["ok"].classes == {"false": 20, "true": 20}
    assert (columns["price"].values.min, columns["price"].values.max) == (0.0, 0.39)
    assert columns["info"].kind == "json"
    assert "age__is_null" not in columns


def test_images_that_do_not_decode_are_counted_with_examples(tmp_path):
    whole = picture(64, 48)
    with MDSWriter(out=str(tmp_path), columns={"image": "jpeg", "other": "bytes"}) as out:
        for number in range(10):
            cut = Image.effect_noise((64, 48), 90).convert("RGB")
            noisy = BytesIO()
            cut.save(noisy, "JPEG")
            broken = noisy.getvalue()[:-400] + b"\xff\xd9"  # header and end are there, pixels are missing
            out.write({"image": broken if number == 7 else whole, "other": picture(number + 1, 5, "PNG")})
    columns = columns_of(stats(tmp_path))
    images = columns["image"].images
    assert (images.undecodable, images.undecodable_rows, images.formats) == (1, (7,), {"JPEG": 9})
    assert (images.widths.min, images.heights.max) == (64, 48)
    assert (columns["image"].distinct, columns["image"].repeats) == (2, 8)
    assert columns["other"].images.formats == {"PNG": 10}
    assert (columns["other"].images.widths.min, columns["other"].images.widths.max) == (1, 10)
    assert columns_of(stats(tmp_path, decode=False))["image"].images.undecodable == 0


def test_classes_and_equal_samples_are_found_across_shards(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"label": "int32", "name": "str"}, size_limit=200) as out:
        for number in range(30):
            out.write({"label": number % 3, "name": f"class {number % 3}"})
    found = stats(tmp_path)
    assert columns_of(found)["label"].classes == {"0": 10, "1": 10, "2": 10}
    assert columns_of(found)["name"].classes == {"class 0": 10, "class 1": 10, "class 2": 10}
    assert (found.equal_samples.count, found.equal_samples.is_exact) == (27, True)
    assert found.equal_samples.examples[0] == (0, 3)


def test_a_sample_of_rows_has_its_number_of_rows(tmp_path):
    write_set(tmp_path, 100)
    found = stats(tmp_path, samples=30, columns=["id"])
    assert (found.looked_at, found.is_sampled, [column.count for column in found.columns]) == (30, True, [30])
    assert columns_of(found)["id"].distinct == 30


def test_text_shards_and_sets_without_rows_have_statistics(tmp_path):
    with JSONWriter(out=str(tmp_path / "lines"), columns={"n": "int", "t": "str"}) as out:
        for number in (3, 1, 2**70):
            out.write({"n": number, "t": "ab"})
    columns = columns_of(stats(tmp_path / "lines"))
    assert (columns["n"].values.max, columns["t"].classes) == (float(2**70), {"ab": 3})
    with MDSWriter(out=str(tmp_path / "empty"), columns={"n": "int", "t": "str"}):
        pass
    found = stats(tmp_path / "empty")
    assert [(column.name, column.count, column.values) for column in found.columns] == [("n", 0, None), ("t", 0, None)]


def test_a_whole_set_is_compared_with_its_checksums_and_an_error_leaves_no_files(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    write_set(tmp_path / "set", 200)
    shard = sorted((tmp_path / "set").rglob("*.mds"))[3]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ChecksumMismatch, match=shard.name):
        stats(CountedStore(tmp_path / "set", tmp_path / "log"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_shard_that_was_looked_at_is_not_mapped_when_the_next_one_is(tmp_path, monkeypatch):
    """Its temporary file would take space on the disk for as long."""
    write_set(tmp_path, 100, compression="zstd")
    maps, still_mapped, stored_samples = [], [], Shard.stored_samples

    def watched(shard):
        still_mapped.append(sum(each() is not None for each in maps))
        maps.append(weakref.ref(shard.mapped().map))
        return stored_samples(shard)

    monkeypatch.setattr(Shard, "stored_samples", watched)
    stats(tmp_path)
    assert len(still_mapped) > 2
    assert set(still_mapped) == {0}


def test_batches_have_bounded_bytes_and_all_rows():
    lengths = np.array([1, MAX_BATCH_BYTES * 2, 5, MAX_BATCH_BYTES - 6, 2, 9000], np.int64)
    assert list(batches(lengths)) == [(0, 1), (1, 2), (2, 4), (4, 6)]
    assert list(batches(np.ones(5000, np.int64))) == [(0, 4096), (4096, 5000)]
