"""JSONL, CSV, TSV and XSV shards: every value comes back with its type; damage is an error."""

import math
from dataclasses import replace

import numpy as np
import pytest

from smalti.errors import ChecksumMismatch, FormatError, SchemaError
from smalti.format import open_shard, text_schema
from smalti.format.reading.files import Ragged
from smalti.format.reading.joining import batch_of
from smalti.format.reading.text import TextShard
from smalti.format.text import decode_lines, layout_of
from tests.format.text_sets import COLUMNS, KINDS, builder, one_shard, paths, rewritten

SAMPLES = [
    {"id": 0, "name": "ann", "x": 0.5},
    {"id": -(10**30), "name": "", "x": -1e-300},
    {"id": 7, "name": "日本\r'\"", "x": -0.0},
]


def read_lines(kind, lines):
    return decode_lines(layout_of(kind, text_schema(COLUMNS), "\n", KINDS[kind]), lines)


# ------------------------------------------------------------------ bytes


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("json", '{"id": 3, "name": "\\u00e9,", "x": 1e-07}\n'),
        ("csv", "id,name,x\n3,é|,1e-07\n"),
        ("tsv", "id\tname\tx\n3\té|\t1e-07\n"),
        ("xsv", "id||name||x\n3||é,||1e-07\n"),
    ],
)
def test_the_bytes_of_a_shard(kind, data, tmp_path):
    name = {"json": "é,", "csv": "é|", "tsv": "é|", "xsv": "é,"}[kind]
    info = one_shard(tmp_path, kind, [{"x": 1e-07, "id": 3, "name": name}], hashes=())
    assert (tmp_path / f"shard.00000.{kind}").read_bytes() == data.encode()
    meta = (tmp_path / f"shard.00000.{kind}.meta").read_bytes()
    header = len(data.encode()) - len(data.encode().splitlines(keepends=True)[-1])
    assert np.frombuffer(meta, "<u4", 3).tolist() == [1, header, len(data.encode())]
    own = {
        "json": '{"columns": {"id": "int", "name": "str", "x": "float"}, "compression": null, "format": "json", '
        '"hashes": [], "newline": "\\n", "size_limit": null, "version": 2}',
        "xsv": '{"column_encodings": ["int", "str", "float"], "column_names": ["id", "name", "x"], "compression": '
        'null, "format": "xsv", "hashes": [], "newline": "\\n", "separator": "||", "size_limit": null, "version": 2}',
    }
    if kind in own:
        assert meta[12:].decode() == own[kind]
    assert [file.basename for file in info.stored_files] == [f"shard.00000.{kind}", f"shard.00000.{kind}.meta"]


def test_shards_are_cut_by_the_size_of_their_lines_alone():
    made = builder("csv", {"a": "str"}, size_limit=10)
    filled = [shard for text in ["1234", "5678", "x" * 30, "9"] for shard in made.add({"a": text})] + made.finish()
    # Two lines of five bytes fill ten; the long one has a shard to itself. The header "a\n" does not count.
    assert [bytes(shard.seal().payloads[0]) for shard in filled] == [
        b"a\n1234\n5678\n", b"a\n" + b"x" * 30 + b"\n", b"a\n9\n",
    ]  # fmt: skip


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_batches_come_back(kind, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES)
    shard = open_shard(paths(tmp_path, info), info)
    assert isinstance(shard, TextShard)
    assert [shard[i] for i in range(len(shard))] == SAMPLES
    assert math.copysign(1, shard[-1]["x"]) == -1
    columns = shard.batch(np.array([2, 0, 2]))
    assert columns["name"] == ["日本\r'\"", "ann", "日本\r'\""]
    assert columns["id"].tolist() == [7, 0, 7]
    assert columns["id"].dtype == np.int64
    assert columns["x"].tolist() == [-0.0, 0.5, -0.0]
    assert columns["x"].dtype == np.float64
    assert shard.batch(np.array([1]))["id"] == [-(10**30)], "an integer of more than 64 bits stays one"
    assert {name: len(column) for name, column in shard.batch(np.array([], int)).items()} == dict.fromkeys(COLUMNS, 0)
    for wrong in ([3], [-1]):
        with pytest.raises(IndexError):
            shard.batch(np.array(wrong))
    with pytest.raises(IndexError):
        shard[3]
    shard.close()
    with pytest.raises(ValueError, match="closed"):
        shard[0]


@pytest.mark.parametrize("kind", KINDS)
def test_gathered_columns_are_bytes_and_numbers(kind, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES)
    found = open_shard(paths(tmp_path, info), info).gather(np.array([2, 0]), ["x", "name"])
    assert list(found) == ["x", "name"]
    assert isinstance(found["name"], Ragged)
    assert found["name"].tolist() == ["日本\r'\"".encode(), b"ann"]
    assert found["x"].tolist() == [0.0, 0.5]
    with pytest.raises(SchemaError, match="no column 'y'"):
        open_shard(paths(tmp_path, info), info).gather(np.array([2, 0]), ["y"])


def test_numbers_are_written_into_the_arrays_of_out(tmp_path):
    info = one_shard(tmp_path, "csv", [{"id": i, "name": "", "x": i / 2} for i in range(4)])
    shard = open_shard(paths(tmp_path, info), info)
    out = {"id": np.zeros(2, np.int64), "x": np.zeros(2)}
    found = batch_of([shard], np.zeros(2, np.int64), np.array([3, 1]), out)
    assert found["id"] is out["id"]
    assert (out["id"].tolist(), out["x"].tolist()) == ([3, 1], [1.5, 0.5])
    with pytest.raises(SchemaError, match="`out` for column 'id'"):
        batch_of([shard], np.zeros(2, np.int64), np.array([3, 1]), {"id": np.zeros(2, np.int32)})


@pytest.mark.parametrize(
    "columns", [{"a": "int64"}, {"a": "pkl"}, {"a": "float64"}, {"": "int"}, {"a": "int", "A": "int"}]
)
def test_columns_of_other_types_or_with_unusable_names_are_refused(columns):
    with pytest.raises(SchemaError):
        text_schema(columns)


def test_one_shard_for_everything_is_limited_by_its_offsets():
    def push(made, *lengths):
        return made.add_strips(np.array(lengths), lambda *_: [])

    nearly_all = (1 << 32) - 100
    made = builder("csv", {"a": "str"}, size_limit=None)
    assert push(made, nearly_all, 2) == []
    with pytest.raises(SchemaError, match="32 bit offsets"):
        push(made, 100)
    with pytest.raises(SchemaError, match="does not fit a shard"):
        push(builder("csv", {"a" * 200: "str"}), nearly_all)
    assert len(push(builder("csv", {"a": "str"}, size_limit=(1 << 32) - 1), nearly_all, 100)) == 1


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("csv", "1_0,ann,0.5"), ("csv", " 1,ann,0.5"), ("csv", "1,ann,0.5,"), ("csv", "1,ann"), ("csv", "x,ann,0.5"),
        ("csv", "1,ann,1_0"), ("csv", "1,ann,"), ("csv", "1,ann,1e999"), ("csv", "True,ann,0.5"),
        ("csv", "\u0661,ann,1.0"),
        ("csv", "1,ann,infinity"), ("csv", "1,ann,0x1"),
        ("json", '{"id": 1, "name": "ann"}'), ("json", '{"id": 1, "name": "ann", "x": 0.5, "y": 1}'),
        ("json", '{"id": 1, "id": 1, "name": "ann"}'), ("json", '{"id": "1", "name": "ann", "x": 0.5}'),
        ("json", '{"id": 1, "name": "NaN", "x": 1e999}'), ("json", '[["id", 1], ["name", "a"], ["x", 0.5]]'),
        ("json", '{"id": 1.0, "name": "ann", "x": 0.5}'), ("json", '{"id": 1, "name": null, "x": 0.5}'),
        ("json", "[" * 100000), ("json", ""), ("json", '{"id": 1, "name": "a", "x": 0.5} {}'),
        ("json", '{"id": 1, "name": "a", "x": 9007199254740993}'), ("json", '{"id": 1, "name": "a", "z": 0.5}'),
    ],
)  # fmt: skip
def test_malformed_lines_are_errors_with_their_sample(kind, line, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES[:1])
    found = (tmp_path / info.raw.basename).read_bytes().splitlines(keepends=True)
    first, second = found if kind == "csv" else (b"", *found)
    lines = [second, f"{line}\n".encode()]
    offsets = np.cumsum([len(first), *map(len, lines)]).astype("<u4")
    info = rewritten(tmp_path, info, data=first + b"".join(lines), meta=b"\2\0\0\0" + offsets.tobytes() + b"{}")
    shard = open_shard(paths(tmp_path, info), replace(info, samples=2))
    assert shard[0] == SAMPLES[0]
    for read in (lambda: shard[1], lambda: shard.batch(np.array([0, 1])), lambda: shard.gather(np.array([1]))):
        with pytest.raises(FormatError, match="sample 1") as caught:
            read()
        assert caught.value.sample == 1


def test_a_malformed_number_after_one_that_no_float_can_hold_is_an_error_with_its_line():
    with pytest.raises(FormatError, match="column 'id': not a value of int") as caught:
        read_lines("csv", [f"{'9' * 400},ann,0.5", "x,ann,0.5"])
    assert caught.value.line == 1
    with pytest.raises(FormatError, match="column 'x': not a value of float") as caught:
        read_lines("csv", ["1,ann,inf", "2,ann,-1e999"])
    assert caught.value.line == 1


def test_floats_that_are_not_finite_are_read_from_json_of_others(tmp_path):
    found = read_lines("json", ['{"id": true, "name": "", "x": NaN}', '{"id": 2, "name": "", "x": -Infinity}'])
    assert repr(found) == "[[1, 2], ['', ''], [nan, -inf]]"
    assert repr(read_lines("json", ['{"id": 1, "name": "", "x": 3}'])[2]) == "[3.0]"


def test_invalid_utf8_is_an_error_that_names_the_sample(tmp_path):
    info = one_shard(tmp_path, "csv", SAMPLES)
    data = (tmp_path / info.raw.basename).read_bytes().replace("日".encode(), b"\xff\xfe\xfd")
    info = rewritten(tmp_path, info, data=data)
    shard = open_shard(paths(tmp_path, info), info)
    assert shard[1] == SAMPLES[1]
    with pytest.raises(FormatError, match="sample 2: not UTF-8"):
        shard.batch(np.array([0, 2]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_the_table_of_offsets_is_detected(kind, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES)
    meta = (tmp_path / info.meta.basename).read_bytes()
    for place in range(4 * (1 + len(SAMPLES) + 1)):
        for change in (1, 0x80, 0xFF):
            bad = meta[:place] + bytes([meta[place] ^ change]) + meta[place + 1 :]
            with pytest.raises(FormatError):
                open_shard(paths(tmp_path, info), rewritten(tmp_path, info, meta=bad))


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncated_meta_file_is_refused(kind, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES)
    meta = (tmp_path / info.meta.basename).read_bytes()
    for length in range(4 * (1 + len(SAMPLES) + 1)):
        (tmp_path / info.meta.basename).write_bytes(meta[:length])
        with pytest.raises(ChecksumMismatch):
            open_shard(paths(tmp_path, info), info)
        with pytest.raises(FormatError):
            open_shard(paths(tmp_path, info), rewritten(tmp_path, info, meta=meta[:length]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncated_data_file_is_refused(kind, tmp_path):
    info = one_shard(tmp_path, kind, SAMPLES)
    data = (tmp_path / info.raw.basename).read_bytes()
    for length in range(len(data)):
        (tmp_path / info.raw.basename).write_bytes(data[:length])
        with pytest.raises(ChecksumMismatch):
            open_shard(paths(tmp_path, info), info)
        with pytest.raises(FormatError):
            open_shard(paths(tmp_path, info), rewritten(tmp_path, info, data=data[:length]))


def test_a_header_line_of_other_columns_is_refused(tmp_path):
    info = one_shard(tmp_path, "csv", SAMPLES)
    data = (tmp_path / info.raw.basename).read_bytes()
    info = rewritten(tmp_path, info, data=data.replace(b"id,name,x", b"id,x,name"))
    with pytest.raises(FormatError, match="first line"):
        open_shard(paths(tmp_path, info), info)


def test_a_shard_without_samples_can_be_opened(tmp_path):
    info = one_shard(tmp_path, "json", SAMPLES)
    info = rewritten(tmp_path, info, data=b"", meta=bytes(8) + b"{}")
    shard = open_shard(paths(tmp_path, info), replace(info, samples=0))
    assert len(shard) == 0
    assert shard.batch(np.array([], int)) == {"id": pytest.approx([]), "name": [], "x": pytest.approx([])}
