"""Entries of text shards in an index file: what is written is read again, and everything else is refused."""

import json

import pytest

from smalti.errors import IndexFileError
from smalti.format import ShardInfo, emit_index, parse_index

FILES = {
    "raw_data": {"basename": "shard.00000.xsv", "bytes": 120, "hashes": {"xxh3_64": "0" * 16}},
    "raw_meta": {"basename": "shard.00000.xsv.meta", "bytes": 220, "hashes": {"xxh3_64": "1" * 16}},
    "zip_data": {"basename": "shard.00000.xsv.zstd", "bytes": 80, "hashes": {"xxh3_64": "2" * 16}},
    "zip_meta": {"basename": "shard.00000.xsv.meta.zstd", "bytes": 90, "hashes": {"xxh3_64": "3" * 16}},
}
COMMON = {"compression": "zstd:7", "hashes": ["xxh3_64"], "newline": "\n", "samples": 5, "size_limit": 99, "version": 2}
XSV = {
    **FILES, **COMMON, "format": "xsv", "separator": "|", "column_names": ["b", "a"], "column_encodings": ["int", "str"]
}  # fmt: skip
JSON = {**FILES, **COMMON, "format": "json", "columns": {"b": "float", "a": "str"}}


def parse(entry):
    return parse_index(json.dumps({"shards": [entry], "version": 2}).encode(), where="index.json")[0][0]


def test_an_entry_is_read_as_it_stands():
    info = parse(XSV)
    assert (info.format, info.newline, info.separator, info.samples) == ("xsv", "\n", "|", 5)
    assert (info.schema.names, info.schema.encodings, info.schema.sizes) == (("b", "a"), ("int", "str"), (None, None))
    assert [file.basename for file in info.stored_files] == ["shard.00000.xsv.zstd", "shard.00000.xsv.meta.zstd"]
    assert [file.basename for file in info.raw_files] == ["shard.00000.xsv", "shard.00000.xsv.meta"]
    assert info.stored == info.stored_files[0]
    assert info.to_json() == XSV
    moved = info.with_prefix("train/1/")
    assert sorted(moved.file_names) == sorted(f"train/1/{file['basename']}" for file in FILES.values())


@pytest.mark.parametrize("entry", [XSV, JSON], ids=["xsv", "json"])
@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_written_is_read_again(entry, zipped):
    info = parse(entry if zipped else {**entry, "compression": None, "zip_data": None, "zip_meta": None})
    assert parse_index(emit_index([info]), where="index.json")[0] == [info]


def test_the_columns_of_json_have_one_order():
    assert parse(JSON).schema.names == ("a", "b")
    assert parse({**JSON, "columns": {"a": "str", "b": "float"}}) == parse(JSON)


def test_the_shards_of_a_set_share_what_they_have_in_common():
    entries = [json.loads(json.dumps(XSV).replace("00000", f"{i:05}")) for i in range(3)]
    shards, _ = parse_index(json.dumps({"shards": entries, "version": 2}).encode(), where="index.json")
    for name in ("schema", "layout", "hash_names", "compression"):
        assert len({id(getattr(shard, name)) for shard in shards}) == 1, name
    assert not hasattr(shards[0], "__dict__")
    assert not hasattr(shards[0].raw, "__dict__")


def file(part, **changes):
    return {part: {**FILES[part], **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "parquet"}, {"format": None}, {"format": ["xsv"]}, {"version": 1}, {"version": 3},
        {"newline": None}, {"newline": ""}, {"newline": 10}, {"newline": "\ud800"}, {"newline": "x" * 17},
        {"separator": None}, {"separator": ""}, {"separator": "\n"}, {"newline": "|\n"}, {"separator": ["|"]},
        {"column_names": ["a"]}, {"column_names": ["a", "a"]}, {"column_names": [], "column_encodings": []},
        {"column_names": "ab"}, {"column_names": ["a", "\ud800"]}, {"column_encodings": ["int", "int64"]},
        {"column_encodings": ["int", None]}, {"column_encodings": ["int", "pkl"]},
        {"samples": -1}, {"samples": 54}, {"samples": 1.0}, {"samples": True}, {"samples": None},
        {"compression": None}, {"zip_meta": None}, {"zip_data": None}, {"compression": "lzma"},
        {"raw_meta": None}, {"raw_meta": []}, {"hashes": ["xxh3_64", "sha1"]}, {"size_limit": -1},
        file("raw_meta", basename="../x"), file("raw_meta", basename="/x"), file("raw_meta", bytes=-1),
        file("raw_meta", bytes=1 << 32), file("raw_meta", hashes={"xxh3_64": "g" * 16}), file("raw_meta", hashes={}),
        file("zip_meta", hashes={}), file("raw_meta", basename="shard.00000.xsv"), file("raw_meta", bytes=27),
        file("zip_meta", basename="shard.00000.xsv.zstd"), file("zip_meta", basename="shard.00000.xsv"),
        file("raw_data", bytes=4),
    ],
)  # fmt: skip
def test_anything_else_is_refused(changes):
    with pytest.raises(IndexFileError, match=r"index\.json"):
        parse({**XSV, **changes})


@pytest.mark.parametrize(
    "columns", [None, [], {}, {"a": 1}, {"a": "int32"}, {"a": "pkl"}, {"\ud800": "int"}], ids=json.dumps
)
def test_the_columns_of_json_are_checked(columns):
    with pytest.raises(IndexFileError):
        parse({**JSON, "columns": columns})


@pytest.mark.parametrize("name", ["raw_meta", "zip_meta", "raw_data"])
def test_two_shards_may_not_share_a_file_name(name):
    other = json.loads(json.dumps(XSV).replace("00000", "00001"))
    other[name]["basename"] = FILES["raw_meta"]["basename"]
    with pytest.raises(IndexFileError, match="listed by"):
        parse_index(json.dumps({"shards": [XSV, other], "version": 2}).encode(), where="index.json")


def test_the_marks_of_csv_and_tsv_are_theirs():
    assert parse({**XSV, "format": "csv"}).separator == ","
    assert parse({**XSV, "format": "tsv"}).separator == "\t"
    assert ShardInfo.from_json(parse({**XSV, "format": "tsv"}).to_json(), where="x").separator == "\t"
    assert "separator" not in parse({**XSV, "format": "csv"}).to_json()
