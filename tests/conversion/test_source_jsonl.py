"""JSON lines as a source: types of all lines, texts that stay texts, and malformed lines by file and line."""

import datetime as dt
import gzip
import json

import pyarrow as pa
import pytest

from smalti.conversion import convert
from smalti.conversion.sources import json_lines, lines
from smalti.errors import FormatError, SchemaError
from smalti.torch import LocalDataset
from tests.conversion.source_rows import read, rows_of, source_of


def test_types_are_learned_and_texts_stay_texts(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'{"a":1,"day":"2024-01-01","n":{"x":[1,2],"y":null}}\n\n{"a":2,"day":"hello","late":true,"f":1}\n{"f":0.5}'
    )
    source = source_of(tmp_path / "a.jsonl")
    assert {field.name: (str(field.type), field.nullable) for field in source.schema()} == {
        "a": ("int64", True),
        "day": ("string", True),
        "n": ("struct<x: list<item: int64>, y: string>", True),
        "late": ("bool", True),
        "f": ("double", True),
    }
    assert rows_of(source) == [
        {"a": 1, "day": "2024-01-01", "n": {"x": [1, 2], "y": None}, "late": None, "f": None},
        {"a": 2, "day": "hello", "n": None, "late": True, "f": 1.0},
        {"a": None, "day": None, "n": None, "late": None, "f": 0.5},
    ]


@pytest.mark.parametrize("block", [40, 8 << 20])
def test_lines_are_read_in_blocks_and_parts_with_every_line_once(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    monkeypatch.setattr(json_lines, "line_ranges", lambda file: lines.line_ranges(file, 300))
    values = [{"i": number, "t": "x" * (number % 90)} for number in range(100)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    source = source_of(tmp_path / "a.jsonl")
    assert len(source.parts()) > 10
    assert rows_of(source) == values
    assert not any(field.nullable for field in source.schema())
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read(tmp_path / "b.jsonl.gz") == values
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"i": "word", "t": ""}\n')
    with pytest.raises(
        SchemaError, match=r"a\.jsonl, line 101: (.*changed from number to string|the values of 'i' are string)"
    ):
        source_of(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a":1}\n{"a":\n', "line 2: no JSON"),
        (b'{"a":1}\n\n[1]\n', "line 3: the line is no object, but a list"),
        (b'{"a":1}\n{"a":"x"}\n', "line 2: .* changed from number to string"),
        (b'{"a":"\xff"}\n', "line 1: text that is not UTF-8"),
        (b'{"a":1}\n\0\0', "a NUL byte"),
        (b"", "no lines with keys"),
        (b'{"a":12345678901234567890}\n', "beyond 64 bits"),
        (b'{"a":9007199254740993}\n{"a":0.5}\n', "does not hold"),
    ],
)
def test_a_malformed_line_is_an_error_with_file_and_line(tmp_path, data, message):
    (tmp_path / "bad.jsonl").write_bytes(data)
    with pytest.raises((FormatError, SchemaError), match=rf"bad\.jsonl.*{message}"):
        read(tmp_path / "bad.jsonl")


def test_types_can_be_declared(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1,"b":"2024-01-01"}\n{"a":2}\n')
    source = source_of(tmp_path / "a.jsonl", types={"a": "float32", "b": "timestamp"})
    assert [field.type for field in source.schema()] == [pa.float32(), pa.timestamp("us")]
    assert rows_of(source)[1] == {"a": 2.0, "b": None}
    with pytest.raises(SchemaError, match="there is no column 'c'"):
        read(tmp_path / "a.jsonl", columns=("c",))


def test_a_conversion_has_the_values(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1,"n":{"x":[1,2]}}\n{"a":2,"n":{"x":[]}}\n')
    convert(tmp_path / "a.jsonl", tmp_path / "set", processes=1)
    assert list(LocalDataset(tmp_path / "set")) == [{"a": 1, "n": {"x": [1, 2]}}, {"a": 2, "n": {"x": []}}]


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": {"x": 12345678901234567890}}',
        b'{"a": [9007199254740993, 0.5]}',
        b'{"a": [{"x": 9007199254740993}]}\n' + b" " * 300 + b'\n{"a": [{"x": 0.5}]}',
    ],
)
def test_digits_within_nested_values_are_not_lost(tmp_path, content, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(SchemaError, match=r"column 'a' has .*2\^53"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "values",
    [
        [[None, None]], [[None, 1]], [[None, None, 1.5], [2.5]], [[None, "x"], [None, None]], [[], [None, None]],
        [[None, {"x": 1}]], [[{"x": None}, {"x": None}]], [[{"x": None, "y": 1}, {"x": None}], [{"x": 3, "y": 4}]],
        [[[None, None], [True]]], [[{"x": [None, None]}, None]], [{"x": [None, None], "y": {"z": None}}],
        [[None, "2024-01-31"]], [[None, None, [None, None]], None],
    ],
)  # fmt: skip
def test_nulls_may_be_anywhere_in_lists_and_objects(tmp_path, values):
    """The parser of pyarrow loses nulls at the begin of lists, and its cast of lists those of the type null."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"a": value}) + "\n" for value in values))
    assert [plain(row["a"]) for row in read(tmp_path / "a.jsonl")] == [plain(value) for value in values]
    convert(tmp_path / "a.jsonl", tmp_path / "set", processes=1, columns={"a": "json"}, nulls="mask")


def plain(value):
    """Return a value without the fields of objects that are null, which an object has if another one has them."""
    if isinstance(value, dict):
        return {name: plain(child) for name, child in value.items() if child is not None}
    return [plain(child) for child in value] if isinstance(value, list) else value


def test_values_nested_too_deeply_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"a": {"[" * 2000}{"]" * 2000}}}')
    with pytest.raises(FormatError, match="line 1: values are nested more than 64 levels deep"):
        read(tmp_path / "a.jsonl")


def test_folders_that_spark_writes_are_read(tmp_path):
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".part-00000-1-c000.json.crc").write_bytes(b"crc")
    (tmp_path / "part-00000-1-c000.json").write_bytes(b"")
    (tmp_path / "part-00001-1-c000.json").write_bytes(b'{"x":1}\n')
    (tmp_path / "part-00002-1-c000.json.gz").write_bytes(gzip.compress(b'{"x":2}\n'))
    assert read(tmp_path) == [{"x": 1}, {"x": 2}]


def test_a_folder_of_json_files_is_read_if_the_format_is_named(tmp_path):
    (tmp_path / "rows.json").write_bytes(b'{"x":1}\n')
    assert read(tmp_path, "jsonl") == [{"x": 1}]
    (tmp_path / "rows.jsonl").write_bytes(b'{"x":2}\n')
    assert read(tmp_path, "jsonl") == [{"x": 2}]


def test_dates_within_values_can_be_declared(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"d":"2024-01-31","l":["2024-01-31",null]}\n')
    types = {"d": "date", "l": pa.list_(pa.date32())}
    day = dt.date(2024, 1, 31)
    assert read(tmp_path / "a.jsonl", types=types) == [{"d": day, "l": [day, None]}]


def test_keys_that_each_line_has_alone_are_read_in_bounded_blocks_and_refused_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_MAX_CELLS", 20_000)
    monkeypatch.setattr(json_lines, "MAX_COLUMNS", 1001)
    sizes = []
    parse = json_lines._parsed
    monkeypatch.setattr(json_lines, "_parsed", lambda *options: sizes.append(parse(*options)) or sizes[-1])
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id":{number},"k{number % 1000}":1}}\n' for number in range(2000)))
    assert len(source_of(tmp_path / "a.jsonl").schema()) == 1001
    assert len(sizes) > 1
    assert all(table.num_rows * table.num_columns <= 20_000 for table in sizes)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"one": 1}\n')
    with pytest.raises(FormatError, match=r"a\.jsonl, line \d+: there are more than .* different keys"):
        source_of(tmp_path / "a.jsonl")


def test_an_error_in_a_later_part_names_the_line_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    monkeypatch.setattr(json_lines, "line_ranges", lambda file: lines.line_ranges(file, 300))
    rows = [f'{{"i": {number}}}\n' for number in range(200)]
    rows[150] = '{"i": }\n'
    (tmp_path / "a.jsonl").write_text("".join(rows))
    for options in ({}, {"types": {"i": "int64"}, "columns": ("i",)}):
        with pytest.raises(FormatError, match=r"a\.jsonl, line 151: no JSON"):
            read(tmp_path / "a.jsonl", **options)
