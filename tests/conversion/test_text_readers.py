"""CSV and JSON lines against Python's `csv` and `json`: equal values, or an error; any settings, and damaged files."""

import csv
import gzip
import io
import json
import math
import random

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smalti.conversion.registry import open_source
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources import json_lines, lines
from smalti.errors import SmaltiError
from tests.conversion.source_rows import rows_of
from tests.seeds import seed_of

_NAMES = ["a", "b", "c"]
_CELLS = st.one_of(
    st.text(st.sampled_from('x",;\t\n\r \\é0.e-'), max_size=6),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["", "007", "+1", "1.10", "1e-400", "1e400", "-0", "true", "2024-01-31", "2024-02-30", "NA", "null"]
    ),
)


def outcome(place, format=None, columns=None, **chosen):
    """Return the rows and None, or None and the message of an error of Smalti."""
    try:
        return rows_of(open_source(place, format, SourceOptions(columns, settings=chosen))), None
    except SmaltiError as error:
        return None, str(error)


def same(stored, text):
    """Return whether a stored value is what a text stands for."""
    if stored is None or isinstance(stored, str):
        return (stored or "") == text
    if isinstance(stored, bool):
        return str(stored).lower() == text.lower()
    if isinstance(stored, float):
        return float(text) == stored or (math.isnan(stored) and math.isnan(float(text)))
    return str(stored) == text


def read_by_csv(text, **dialect):
    """Return the rows, without empty lines if there are several columns; an empty line is one empty value."""
    rows = [row or [""] for row in csv.reader(io.StringIO(text, newline=""), strict=True, **dialect)]
    return [row for row in rows[1:] if len(rows[0]) == 1 or row != [""]]


@pytest.mark.slow
@given(
    rows=st.integers(1, 3).flatmap(
        lambda width: st.lists(st.lists(_CELLS, min_size=width, max_size=width), max_size=8)
    ),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    cut=st.booleans(),
    block=st.sampled_from([7, 64, 8 << 20]),
)
@example([["", ""], ["", ""]], ",", csv.QUOTE_MINIMAL, "\n", True, 8 << 20)
@example([[""], ["x"], [""]], ",", csv.QUOTE_MINIMAL, "\n", False, 8 << 20)
@example([["\ufeffx", "\ufeff"], ["\ufeff1", "y"]], ",", csv.QUOTE_MINIMAL, "\n", False, 7)
@settings(max_examples=60)
def test_rows_that_csv_writes_are_read_with_the_same_values(
    tmp_path_factory, rows, delimiter, quoting, line_end, cut, block
):
    text = io.StringIO(newline="")
    if quoting == csv.QUOTE_MINIMAL:  # `csv` does not quote the line ends of other systems
        other = "\n" if line_end == "\r" else "\r"
        rows = [[cell.replace(other, " ") for cell in row] for row in rows]
    names = _NAMES[: len(rows[0]) if rows else 2]
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=line_end).writerows([names, *rows])
    written = text.getvalue().removesuffix(line_end) if cut and rows and any(rows[-1]) else text.getvalue()
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_text(written, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        found = rows_of(open_source(path, "csv", SourceOptions(settings={"delimiter": delimiter})))
    assert [list(row) for row in found] == [names] * len(rows)
    expected = read_by_csv(written, delimiter=delimiter)
    assert len(found) == len(expected) == len(rows)
    for stored, texts in zip(found, expected, strict=True):
        assert all(same(value, text) for value, text in zip(stored.values(), texts, strict=True)), (stored, texts)


@pytest.mark.slow
@given(st.text(st.sampled_from('a,"\n\r\\ é'), max_size=40), st.sampled_from([5, 8 << 20]))
@example('a,b\n1,"x"y\n', 8 << 20)
@example('a,b\n1,x"y"\n"""",""""""\n', 8 << 20)
@example('a,b\n1,""x\n', 8 << 20)
@example('a\n"1""\n2"\n', 5)
@settings(max_examples=150)
def test_a_text_with_quotes_is_read_as_csv_reads_it_or_refused(tmp_path_factory, body, block):
    path = tmp_path_factory.getbasetemp() / "quotes.csv"
    path.write_text("h,i\n" + body, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        found, message = outcome(path, "csv", types={"h": "string", "i": "string"})
    if found is None:
        assert "quotes.csv" in message
    else:
        assert [list(row.values()) for row in found] == read_by_csv("h,i\n" + body)


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=5)
)
_VALUES = st.one_of(st.lists(st.integers(-5, 5), max_size=3), st.fixed_dictionaries({"x": st.integers(0, 9)}), _SCALARS)


@pytest.mark.slow
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["a", "b", 'c"', "d\\"]), _VALUES, max_size=3), min_size=1, max_size=6
    ),
    line_end=st.sampled_from(["\n", "\r\n", "\n\n", " \n"]),
    is_ascii=st.booleans(),
    block=st.sampled_from([16, 8 << 20]),
)
@settings(max_examples=60)
def test_objects_that_json_writes_are_read_with_the_same_values_or_refused(
    tmp_path_factory, rows, line_end, is_ascii, block
):
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    written = line_end.join(json.dumps(row, ensure_ascii=is_ascii) for row in rows)
    path.write_text(written, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        found, message = outcome(path, "jsonl")
    if found is None:
        assert "rows.jsonl" in message
        return
    assert found == [{key: row.get(key) for key in found[0]} for row in rows]
    assert set(found[0]) == set().union(*rows)


_NUMBERS = {
    "0": 0, "-0": 0, "-0.0": -0.0, "1.10": 1.1, "1e5": 100000.0, "1E-3": 0.001, "9223372036854775807": 2**63 - 1,
    "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "0e-999": 0.0, "0.1e-5": 1e-06, "5e-324": 5e-324,
    "9223372036854775808": 2.0**63,
}  # fmt: skip
_NO_NUMBERS = [
    "1e-400", "1E-400", "0." + "0" * 400 + "1", "1e400", "1.7976931348623159e308", "9223372036854775809", "1" * 400,
    "1" * 5000, "01", "+1", ".5", "1.", "0x10", "1_0", "nan",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [*_NUMBERS.items(), *((text, None) for text in _NO_NUMBERS)])
def test_a_number_is_the_one_that_json_reads_or_an_error_with_its_line(tmp_path, text, value):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 0.5}}\n{{"a": {text}}}\n' if "." in text or not text.isdigit() else f'{{"a": {text}}}\n')
    found, message = outcome(path)
    if value is None:
        assert "a.jsonl, line " in message
    else:
        assert found[-1]["a"] == value or math.isnan(value)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": "\\ud800"}',
        b'{"a": 1} {"a": 2}',
        b'{"a": 1} {"a": 2}\n',
        b'\n\t\r\n{"a": 1}{"a": 2}{"a": 3}',
        b'{"a": 1}null{"a": 2}',
        b"null",
        b'{"a":\n1}',
        b'{"a": 1}\n  null',
        b"[" * 100_000,
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": 1,}',
        b'{"a": 1}//',
        b"{'a': 1}",
        b'{"a": tru}',
    ],
)
def test_a_line_that_is_no_single_object_is_an_error_with_its_line(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + content + b'\n{"a": 3}\n')
    with pytest.raises(SmaltiError, match=r"a\.jsonl, line [234]: "):
        rows_of(open_source(path))
    with pytest.raises(SmaltiError, match=r"a\.jsonl, line [234]: "):
        rows_of(open_source(path, None, SourceOptions(("a",), settings={"types": {"a": "int64"}})))


def test_brackets_and_null_within_texts_are_no_nesting(tmp_path):
    texts = ["[" * 500, '{"x": "\\"' * 100, "} null", "}\tnull {", "\\" * 7 + '"' + "[" * 99]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"t": text, "deep": [[[1]] * 300]}) + "\n" for text in texts))
    assert [row["t"] for row in rows_of(open_source(tmp_path / "a.jsonl"))] == texts


def test_keys_are_counted_by_place_and_not_within_each_object_of_a_list(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "MAX_COLUMNS", 20)  # a line of 40 bytes and more is counted
    many = {"list": [{"a": [{"b": number}], "c": number} for number in range(50)], "text": '"x": {' * 50}
    (tmp_path / "a.jsonl").write_text(json.dumps(many) + "\n" + json.dumps({"last": 1}) + "\n")
    assert rows_of(open_source(tmp_path / "a.jsonl"))[0]["list"] == many["list"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"a": {"b": 1}}) * 50 + "\n")
    assert "a.jsonl, line 1: no JSON: Extra data" in outcome(tmp_path / "a.jsonl")[1]
    product = {f"k{outer}": {f"n{inner}": 1 for inner in range(5)} for outer in range(5)}
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": 1}) + "\n" + json.dumps(product) + "\n")
    assert "a.jsonl, line 2: there are more than 20 different keys" in outcome(tmp_path / "a.jsonl")[1]


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=2), st.binary(max_size=2), st.just(object()), st.just([1])
)
_TYPES = [
    "int64", "string", "date", "decimal128(99, 2)", "decimal128(38, 2)", "timestamp[us, tz=Nowhere/X]", "list", "null",
    pa.int8(), pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.int8(), pa.string()),
    pa.float16(), pa.struct([("x", pa.date32())]), pa.string_view(), pa.month_day_nano_interval(), pa.binary(1),
    pa.decimal256(76, 1),
]  # fmt: skip
_NAME_LISTS = [["a", "b"], ("x", "y"), [], ["a"], ["a", "a"], ["", "b"], "ab", {"a": 1}]
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "types": st.dictionaries(st.sampled_from(["a", "b", "zz", 1]), st.sampled_from(_TYPES) | _JUNK, max_size=2)
        | _JUNK,
        "delimiter": st.sampled_from([",", "\t", '"', "\n", "\0", "é"]) | _JUNK,
        "quote": st.sampled_from(['"', "'", "", ",", "\r"]) | _JUNK,
        "names": st.sampled_from(_NAME_LISTS) | _JUNK,
        "header": st.booleans() | _JUNK,
        "batch": _JUNK,
    },
)


@pytest.mark.slow
@given(_SETTINGS, st.sampled_from(["csv", "jsonl"]))
@settings(max_examples=150)
def test_any_settings_are_used_or_refused_by_an_error_of_smalti(tmp_path_factory, chosen, format):
    path = tmp_path_factory.getbasetemp() / f"settings.{format}"
    path.write_text({"csv": 'a,b\n1,"x"\n', "jsonl": '{"a": 1, "b": "x"}\n'}[format])
    found, message = outcome(path, format, **chosen)
    assert found is not None or len(message) < 1000


_SEEDS = {
    "csv": [b'id,t,f\n1,"a\nb ""q""",1.5\n2,,\n', b"x\n\n1\n2", b"a,b\r\n1,2\r\n", b"\xef\xbb\xbfa\tb\n1\t2\n"],
    "jsonl": [b'{"a":1,"b":[1.5,null],"c":{"d":"x"}}\n{"a":2}\n', b'{"t":"\\ud83d\\ude00 \\"q\\""}\r\n\n{"t":null}'],
}
_PIECES = [
    b"\0",
    b'"',
    b",",
    b"\n",
    b"\r",
    b"\xff",
    b"[",
    b"{",
    b"}",
    b"null",
    b"1e999",
    b"\\",
    b"",
    b"\xef\xbb\xbf",
    b":",
]


def damaged(data, draw):
    """Return the bytes with up to three pieces replaced."""
    for _ in range(draw.randint(1, 3)):
        begin = draw.randint(0, len(data))
        data = data[:begin] + draw.choice(_PIECES) + data[begin + draw.randint(0, 3) :]
    return data


@pytest.mark.slow
@pytest.mark.search
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_damaged_file_is_read_or_refused_by_an_error_that_names_it(tmp_path, format):
    draw = random.Random(seed_of(31))
    for number in range(300):
        data = damaged(draw.choice(_SEEDS[format]), draw)
        if number % 4 == 0:
            data = gzip.compress(data)[: draw.choice([None, -1, -9])]
        path = tmp_path / (f"damaged.{format}.gz" if number % 4 == 0 else f"damaged.{format}")
        path.write_bytes(data)
        found, message = outcome(path)
        assert found is not None or "damaged." in message, data
