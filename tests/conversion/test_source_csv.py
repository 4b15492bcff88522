"""CSV as a source: types of all rows, quoted line ends, compressed files, and malformed rows by file and line."""

import datetime as dt
import gzip

import pyarrow as pa
import pytest
import zstandard

from smalti.conversion import convert
from smalti.conversion.sources import delimited, lines
from smalti.errors import ArgumentError, FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.torch import LocalDataset
from tests.conversion.source_rows import read, rows_of, source_of

TABLE = b"""\xef\xbb\xbfid,zip,size,note,ok,day,at,zoned,nothing
1,007,1.5,"a
b ""q"", c",true,2024-01-02,2024-01-02 03:04:05,2024-01-02T03:04:05Z,
2,12,2,plain,False,2024-01-03,2024-01-02 03:04:05.25,2024-01-02T03:04:05+01:00,
,,,,,,,,
"""


def test_types_are_learned_and_values_kept(tmp_path):
    (tmp_path / "a.csv").write_bytes(TABLE)
    source = source_of(tmp_path / "a.csv")
    assert {field.name: (field.type, field.nullable) for field in source.schema()} == {
        "id": (pa.int64(), True),
        "zip": (pa.string(), False),
        "size": (pa.float64(), True),
        "note": (pa.string(), False),
        "ok": (pa.bool_(), True),
        "day": (pa.date32(), True),
        "at": (pa.timestamp("us"), True),
        "zoned": (pa.timestamp("us", "UTC"), True),
        "nothing": (pa.string(), False),
    }
    first, second, third = rows_of(source)
    assert (first["id"], first["zip"], first["size"], first["note"]) == (1, "007", 1.5, 'a\nb "q", c')
    assert (second["ok"], second["day"], second["size"]) == (False, dt.date(2024, 1, 3), 2.0)
    assert second["at"] == dt.datetime(2024, 1, 2, 3, 4, 5, 250000)  # noqa: DTZ001 -- a moment without a zone
    assert second["zoned"] == dt.datetime(2024, 1, 2, 2, 4, 5, tzinfo=dt.timezone.utc)
    assert third == {name: "" if name in ("zip", "note", "nothing") else None for name in third}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", "9223372036854775807"], pa.int64()),
        (["1", "9223372036854775808"], pa.string()),
        (["1", "01"], pa.string()),
        (["1", "+1"], pa.string()),
        (["1", "0.5", "1e3", "-.25", "nan", "-inf"], pa.float64()),
        (["0.5", "1234567890123456"], pa.string()),
        (["0.5", "1e999"], pa.string()),
        (["0.5", "1e-400"], pa.string()),
        (["0", "-0.0", "0e-400", "1.10"], pa.float64()),
        (["true", "1"], pa.string()),
        (["2024-02-30"], pa.string()),
        (["2024-02-28", "2024-02-28 10:00"], pa.string()),
        (["2024-02-28 10:00", "2024-02-28T10:00:00Z"], pa.string()),
        (["null", "NA"], pa.string()),
    ],
)
def test_a_type_is_taken_only_if_every_value_is_written_so(tmp_path, values, kind):
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{value},1\n" for value in values))
    source = source_of(tmp_path / "a.csv")
    assert source.schema().field("x").type == kind
    if kind == pa.string():
        assert [row["x"] for row in rows_of(source)] == values


def test_types_are_those_of_all_rows_not_of_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 5000 + "word,2\n")
    source = source_of(tmp_path / "a.csv")
    assert [field.type for field in source.schema()] == [pa.string(), pa.int64()]
    assert [row["x"] for row in rows_of(source)[-2:]] == ["1", "word"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_without_quotes_is_read_in_parts_with_every_row_once(tmp_path, monkeypatch, newline):
    monkeypatch.setattr(lines, "PART_BYTES", 1)
    monkeypatch.setattr(delimited, "line_ranges", lambda file: lines.line_ranges(file, 777))
    text = "i,w" + newline + "".join(f"{number},word{'s' * (number % 50)}{newline}" for number in range(500))
    (tmp_path / "a.csv").write_text(text, newline="")
    source = source_of(tmp_path / "a.csv")
    assert len(source.parts()) > 10
    assert [row["i"] for row in rows_of(source)] == list(range(500))
    (tmp_path / "a.csv").write_text(text + "7,8,9" + newline, newline="")
    with pytest.raises(FormatError, match=r"a\.csv, line 502: expected 2 fields, found 3"):
        source_of(tmp_path / "a.csv")


def test_compressed_files_and_tabs_are_read(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n"))
    (tmp_path / "b.csv.zst").write_bytes(zstandard.compress(b"a,b\n2,y\n"))
    assert read(tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    (tmp_path / "c.tsv").write_bytes(b"a\tb\n3\tz,\n")
    assert read(tmp_path / "c.tsv") == [{"a": 3, "b": "z,"}]
    (tmp_path / "d.txt.csv").write_bytes(b'1;"x\n2;y\n')
    assert read(tmp_path / "d.txt.csv", delimiter=";", quote="", names=["n", "t"]) == [
        {"n": 1, "t": '"x'}, {"n": 2, "t": "y"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n1,2\n3\n", "line 3: expected 2 fields, found 1"),
        (b'a,b\n1,"x\ny"\n3,4,5\n', "line 4: expected 2 fields, found 3"),
        (b"a,b\n1,\x002\n", "a NUL byte at about byte 6"),
        (b"a,b\n1,2\n\xff,3\n", "line 3: text that is not UTF-8"),
        (b"", "the file is empty"),
        (b"a,a\n1,2\n", "line 1: column 'a' is there more than once"),
        (b"a,\n1,2\n", "line 1: a column has no name"),
        (b'a,b\n1,"open\n', 'line 2: a quote \\("\\) is opened and not closed'),
    ],
)
def test_a_malformed_file_is_an_error_with_file_and_line(tmp_path, data, message):
    (tmp_path / "bad.csv").write_bytes(data)
    with pytest.raises((FormatError, SchemaError), match=rf"bad\.csv.*{message}"):
        read(tmp_path / "bad.csv")


def test_a_compressed_file_that_was_cut_is_an_error(tmp_path):
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-12])
    with pytest.raises(FormatError, match=r"cut\.csv\.gz"):
        read(tmp_path / "cut.csv.gz")


def test_a_value_that_is_not_of_the_declared_type_is_an_error_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n2,x\n")
    with pytest.raises(SchemaError, match=r"a\.csv, line 3: column 'b': invalid value 'x'"):
        read(tmp_path / "a.csv", types={"b": "int32"})
    assert read(tmp_path / "a.csv", types={"a": "string"})[0] == {"a": "1", "b": "2"}
    with pytest.raises(SchemaError, match="there is no column 'c'; the columns are a, b"):
        read(tmp_path / "a.csv", types={"c": "string"})
    with pytest.raises(SchemaError, match="no Arrow type"):
        read(tmp_path / "a.csv", types={"a": "number"})
    with pytest.raises(ArgumentError, match="remove it, or give one of types, delimiter"):
        read(tmp_path / "a.csv", sep=";")


def test_files_with_other_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"a,c\n1,2\n")
    with pytest.raises(SchemaError, match=r"b\.csv has the columns a, c, and .*a\.csv has a, b"):
        read(tmp_path)
    with pytest.raises(StoreNotFound):
        read(tmp_path / "none.csv", "csv")


def test_a_conversion_has_the_values_with_nulls_as_masks(tmp_path):
    (tmp_path / "a.csv").write_bytes(TABLE)
    convert(tmp_path / "a.csv", tmp_path / "set", nulls="mask", columns={"id": None, "note": None}, processes=1)
    assert list(LocalDataset(tmp_path / "set")) == [
        {"id": 1, "note": 'a\nb "q", c'},
        {"id": 2, "note": "plain"},
        {"id": None, "note": ""},
    ]


def test_a_row_longer_than_a_block_is_read_and_rows_before_it_come_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    rows_of_text = [f"{number},x" for number in range(40)] + [f'40,"{"y" * 300}"', "41,z"]
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *rows_of_text]))
    rows = read(tmp_path / "a.csv")
    assert [row["id"] for row in rows] == list(range(42))
    assert len(rows[40]["text"]) == 300


@pytest.mark.parametrize("setting", [{"delimiter": "||"}, {"quote": 3}, {"types": "int64"}])
def test_an_unusable_setting_is_refused(tmp_path, setting):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=f"`{next(iter(setting))}`: expected"):
        read(tmp_path / "a.csv", **setting)


def test_an_empty_line_of_one_column_is_an_empty_value(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'x\n1\n\n""\n2\n\n')
    assert read(tmp_path / "a.csv") == [{"x": value} for value in (1, None, None, 2, None)]
    (tmp_path / "b.csv").write_bytes(b"x,y\n\n1,2\n\n")
    assert read(tmp_path / "b.csv") == [{"x": 1, "y": 2}]


def test_a_header_alone_with_or_without_a_line_end_has_no_rows(tmp_path):
    for text in (b"x,y", b"x,y\n", b'"x","y"\r\n', b"x,y\n\n"):
        (tmp_path / "a.csv").write_bytes(text)
        source = source_of(tmp_path / "a.csv")
        assert (source.schema().names, rows_of(source)) == (["x", "y"], [])
    (tmp_path / "a.csv").write_bytes(b"")
    assert read(tmp_path / "a.csv", names=["x"]) == []


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("block", [16, 8 << 20])
def test_an_error_names_the_line_after_values_of_several_lines_and_empty_lines(tmp_path, monkeypatch, line_end, block):
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    rows_of_text = [b"a,b", b'1,"x', b'y"', b"", b'2,"""q"""', b"", b"3,4,5", b"6,7", b""]
    (tmp_path / "a.csv").write_bytes(line_end.join(rows_of_text))
    with pytest.raises(FormatError, match=r"a\.csv, line 7: expected 2 fields, found 3"):
        read(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(line_end.join(rows_of_text).replace(b"3,4,5", b"z,4"))
    with pytest.raises(SchemaError, match=r"a\.csv, line 7: column 'a': invalid value 'z'"):
        read(tmp_path / "a.csv", types={"a": "int32"}, columns=("a",))


def test_folders_that_spark_writes_are_read_with_and_without_headers(tmp_path):
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".part-00000-1-c000.csv.crc").write_bytes(b"crc")
    (tmp_path / "part-00000-1-c000.csv").write_bytes(b'id,t\n1,"a ""b"""\n')
    (tmp_path / "part-00001-1-c000.csv.gz").write_bytes(gzip.compress(b'id,t\n2,""\n'))
    assert read(tmp_path) == [{"id": 1, "t": 'a "b"'}, {"id": 2, "t": ""}]
    (tmp_path / "part-00000-1-c000.csv").write_bytes(b"")
    (tmp_path / "part-00001-1-c000.csv.gz").write_bytes(gzip.compress(b"1,a\n2,b\n"))
    assert read(tmp_path, names=["id", "t"]) == [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]


@pytest.mark.slow
def test_a_row_of_50_000_columns_is_read_and_one_more_is_refused(tmp_path):
    header = ",".join(f"c{place}" for place in range(50_000))
    (tmp_path / "a.csv").write_text(header + "\n" + "1," * 49_999 + "x\n")
    source = source_of(tmp_path / "a.csv", columns=("c0", "c49999"))
    assert rows_of(source) == [{"c0": 1, "c49999": "x"}]
    (tmp_path / "a.csv").write_text(header + ",more\n")
    with pytest.raises(FormatError, match=r"a\.csv, line 1: there are more than 50000 columns"):
        source_of(tmp_path / "a.csv")


def test_arrow_types_are_recorded_by_name_and_a_repeated_call_is_the_same_write(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x\n1.25\n")
    chosen = {"types": {"x": pa.decimal128(38, 2)}, "names": ("x",), "header": True}
    first = convert(tmp_path / "a.csv", tmp_path / "set", settings=chosen, nulls="mask", processes=1)
    again = convert(
        tmp_path / "a.csv", tmp_path / "set", nulls="mask", processes=1,
        settings={"types": {"x": "decimal128(38, 2)"}, "names": ["x"], "header": True},
    )  # fmt: skip
    assert (first.rows, again.version) == (1, first.version)
    assert first.lineage["sources"][0]["settings"]["types"] == {"x": "decimal128(38, 2)"}
    with pytest.raises(ValueError, match="`settings`: expected a mapping"):
        convert(tmp_path / "a.csv", tmp_path / "set", settings=5)


def test_a_folder_of_two_formats_needs_a_name_and_a_table_beside_images_does_not(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(
        SmaltiError,
        match="would be left out; name one: format='csv' or 'jsonl'",
    ):
        source_of(tmp_path)
    assert read(tmp_path, "jsonl") == [{"a": 1}]
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "cats").mkdir()
    for name in "12":
        (tmp_path / "cats" / f"{name}.jpg").write_bytes(b"no image")
    assert source_of(tmp_path).schema().names[0] == "image"
