"""Index files are accepted only if every detail is valid (faults D1-D10, D12, D13, D16, S2, S13)."""

import copy
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo, check_basename, emit_index, parse_index
from smalti.format.index import load_strict
from tests.format.shards import build

ENTRY = {
    "column_encodings": ["int", "str", "ndarray:int32"],
    "column_names": ["id", "text", "tokens"],
    "column_sizes": [8, None, None],
    "compression": "zstd:7",
    "format": "mds",
    "hashes": ["sha1"],
    "raw_data": {"basename": "shard.00000.mds", "bytes": 352, "hashes": {"sha1": "2e" * 20}},
    "samples": 3,
    "size_limit": 67108864,
    "version": 2,
    "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": 99, "hashes": {"sha1": "ab" * 20}},
}
INDEX = {"shards": [ENTRY], "version": 2}


def parse(obj):
    return parse_index(json.dumps(obj).encode(), where="index.json")


def changed(path, value):
    """Return the index with the value at `path` replaced; the value `...` removes it."""
    obj = copy.deepcopy(INDEX)
    at = obj
    for part in path[:-1]:
        at = at[part]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return obj


def test_index_comes_back_unchanged_and_other_keys_are_returned():
    shards, extra = parse({**INDEX, "smalti": {"version": 3}})
    assert extra == {"smalti": {"version": 3}}
    (shard,) = shards
    assert shard.to_json() == ENTRY
    assert shard.stored.basename == "shard.00000.mds.zstd"
    assert json.loads(emit_index(shards)) == INDEX
    assert emit_index(shards, extra) == json.dumps({**INDEX, **extra}, sort_keys=True).encode()


def test_entries_made_by_the_builder_are_valid():
    for compression in (None, "zstd"):
        built = build({"a": "int", "b": "jpeg", "é": "str"}, [], compression=compression)
        built += build({"a": "int", "é": "str"}, [{"a": 1, "é": "x"}], compression=compression)
        infos = [shard.info for shard in built]
        assert parse_index(emit_index(infos), where="x")[0] == infos


def test_optional_keys_may_be_absent_and_unknown_ones_are_ignored():
    entry = {key: value for key, value in ENTRY.items() if key not in {"compression", "zip_data", "size_limit"}}
    (shard,), _ = parse({"shards": [{**entry, "future": [1]}], "version": 2})
    assert (shard.zip, shard.compression, shard.size_limit) == (None, None, None)


def test_empty_set_is_read():
    assert parse({"shards": [], "version": 2}) == ([], {})


def test_shards_of_one_set_share_their_schema():
    obj = {"shards": [], "version": 2}
    for i in range(3):
        entry = copy.deepcopy(ENTRY)
        entry["raw_data"]["basename"], entry["zip_data"]["basename"] = f"s{i}.mds", f"s{i}.mds.zstd"
        obj["shards"].append(entry)
    shards, _ = parse(obj)
    assert shards[0].schema is shards[2].schema


BAD = [
    *[(("shards", 0, "samples"), value) for value in (-5, 10**9, 1.5, "7", None, True, 2**64, ...)],
    *[(("shards", 0, "raw_data", "bytes"), value) for value in (-1, 2**62, 2**32, "352", 1.0, None, 7, ...)],
    *[(("shards", 0, "zip_data", "bytes"), value) for value in (-1, 2**62, None)],
    *[(("shards", 0, "column_sizes", 0), value) for value in (-8, 0, 4, None, "8", 8.0, True)],
    (("shards", 0, "column_sizes", 1), 0),
    *[(("shards", 0, "column_encodings", 0), value) for value in ("pkl", "nope", "", 3, None, "list[jpeg]", "int32")],
    *[(("shards", 0, "column_names"), value) for value in (["a"], ["a", "b", "b"], [], "abc", [1, 2, 3], ...)],
    *[(("shards", 0, "column_sizes"), value) for value in ([8], None, {})],
    *[(("shards", 0, "format"), value) for value in ("json", "csv", "", None, 3, ...)],
    *[(("shards", 0, "version"), value) for value in (1, 3, "2", 2.0, None, True, ...)],
    *[(("version",), value) for value in (1, 3, "2", None, ...)],
    *[(("shards",), value) for value in (None, {}, "x", [None], [[]], [3], ...)],
    *[(("shards", 0, "compression"), value) for value in ("br:12", "gz:10", "zip", "", 3, None, "zstd:99", ...)],
    *[(("shards", 0, "zip_data"), value) for value in (None, [], "x", {}, ...)],
    *[(("shards", 0, "raw_data"), value) for value in (None, [], {}, ...)],
    *[(("shards", 0, "hashes"), value) for value in (["sha1", "xxh64"], "sha1", [3], None, {})],
    *[(("shards", 0, "raw_data", "hashes"), value) for value in ({}, {"sha1": 3}, {"sha1": "2E" * 20}, [], 3)],
    *[(("shards", 0, "raw_data", "hashes"), {"sha1": "2e" * 20, name: digest}) for name, digest in
      (("crc32", "00000000"), ("xxh64", "zz" * 8), ("xxh64", ""))],
    *[(("shards", 0, "size_limit"), value) for value in (-1, 2**32, "many", 1.5, [])],
    *[(("shards", 0, "raw_data", "basename"), value) for value in (
        "../shard.mds", "/etc/passwd", "", ".", "..", "a/../b", "a//b", "a/", "./a", "a\x00b", "a\\b", "C:\\x", "~/x",
        "a b", "é.mds", "a" * 2000, "s3://b/k", "a\n", 3, None, ...)],
    (("shards", 0, "zip_data", "basename"), "../../x.zstd"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD, ids=map(str, range(len(BAD))))
def test_every_fault_is_refused_and_the_place_is_named(path, value):
    with pytest.raises(IndexFileError, match=r"^index\.json"):
        parse(changed(path, value))


def test_newer_version_says_that_the_reader_is_too_old():
    for path in (("version",), ("shards", 0, "version")):
        with pytest.raises(IndexFileError, match="too old"):
            parse(changed(path, 3))


def test_message_has_the_json_path_and_the_facts():
    with pytest.raises(IndexFileError, match=r"index\.json: \$\.shards\[0\]\.samples: expected .* found -5"):
        parse(changed(("shards", 0, "samples"), -5))


def test_same_file_listed_twice_is_refused():
    with pytest.raises(IndexFileError, match=r"listed by shards\[0\] already"):
        parse({"shards": [ENTRY, ENTRY], "version": 2})
    other = copy.deepcopy(ENTRY)
    other["raw_data"]["basename"] = "other.mds"
    with pytest.raises(IndexFileError, match="already"):
        parse({"shards": [ENTRY, other], "version": 2})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b"{",
        b"\xff",
        b'{"shards": [], "version": 2} x',
        b'{"shards": [], "version": 2, "version": 2}',
        b'{"shards": [], "version": 2, "x": NaN}',
        b'{"shards": [], "version": 2, "x": ' + b"9" * 5000 + b"}",
        b'{"shards": [], "version": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"shards": [], "version": 2, "x": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=map(str, range(13)),
)
def test_malformed_json_is_refused(data):
    with pytest.raises(IndexFileError):
        parse_index(data, where="index.json")


def test_every_truncation_is_refused():
    data = emit_index(parse(INDEX)[0])
    for length in range(len(data)):
        with pytest.raises(IndexFileError):
            parse_index(data[:length], where="x")


def test_size_is_capped():
    with pytest.raises(IndexFileError, match="more than"):
        load_strict(b"[" + b" " * 100 + b"]", where="x", max_bytes=100)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(json.dumps(INDEX)) - 1), st.integers(0, 255))
def test_changed_byte_is_refused_or_gives_checked_values(place, byte):
    data = bytearray(json.dumps(INDEX).encode())
    data[place] = byte
    try:
        shards, _ = parse_index(bytes(data), where="x")
    except IndexFileError:
        return
    for shard in shards:
        assert 0 <= shard.samples <= (shard.raw.num_bytes - 8) // 4
        assert check_basename(shard.raw.basename, where="x") == shard.raw.basename


def test_prefix_moves_every_file():
    (shard,), _ = parse(INDEX)
    moved = shard.with_prefix("train/a1/")
    assert moved.raw.basename == "train/a1/shard.00000.mds"
    assert moved.stored.basename == "train/a1/shard.00000.mds.zstd"
    assert shard.with_prefix("") is shard
    for prefix in ("..", "a/../b", "a b"):
        with pytest.raises(IndexFileError):
            shard.with_prefix(prefix)


def test_emit_refuses_keys_of_its_own_and_what_json_cannot_hold():
    for extra in ({"shards": []}, {"version": 3}, {"x": float("nan")}, {"x": object()}):
        with pytest.raises(IndexFileError):
            emit_index([], extra)


@pytest.mark.parametrize("samples", [np.int64(3), float("nan")])
def test_a_shard_that_json_cannot_hold_is_refused_and_not_blamed_on_the_extra_keys(samples):
    info = ShardInfo(Schema.from_columns({"x": "int"}), samples, FileInfo("a", 9))
    with pytest.raises(IndexFileError, match="a shard's entry cannot be written as strict JSON"):
        emit_index([info])


def test_schema_and_files_are_small_values():
    info = ShardInfo(Schema.from_columns({"x": "int"}), 1, FileInfo("a", 9))
    assert info.stored is info.raw
    assert info.partition is None
    assert sys.getsizeof(info) < 500
