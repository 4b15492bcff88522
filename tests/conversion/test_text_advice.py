"""The advice of each error of CSV and JSON lines, applied: what was refused is read then."""

import ast
import lzma
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from smalti.conversion.registry import open_source
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources import delimited, json_lines, lines
from smalti.errors import SmaltiError
from tests.conversion.source_rows import rows_of

MODULES = (delimited, json_lines, lines)
ADVICE = re.compile(
    r"\b([Cc]lose|[Cc]onvert|[Cc]orrect|[Dd]eclare|[Dd]ecompress|[Dd]ivide|[Gg]ive|[Rr]emove|[Ss]tore|[Ww]rite|expected"
    r"|such as)\b"
)


@dataclass(frozen=True)
class Case:
    """Files and settings that are refused, the advice of the error, and what remains to be done if it is followed."""

    advice: str
    files: dict[str, bytes]
    remedy: dict[str, bytes | None] = field(default_factory=dict)
    """Files that are replaced, or removed."""
    settings: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] | None = None
    """Settings that are given then; None for the same."""
    place: tuple[str, str] = ("", "")
    """The place before and after, below the folder."""
    columns: tuple[tuple[str, ...] | None, tuple[str, ...] | None] = (None, None)
    format: str = "csv"
    rows: int = 1
    is_small: bool = False
    """True if the limits are low."""


def csv_case(advice, before, after=None, **options):
    return Case(advice, {"a.csv": before}, {"a.csv": after or before}, **options)


def json_case(advice, before, after=None, **options):
    return Case(advice, {"a.jsonl": before}, {"a.jsonl": after or before}, format="jsonl", **options)


LONG = b'{"a": "' + b"x" * 100 + b'"}\n'
MANY = b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}\n'
CASES = [
    # Any text
    csv_case("Convert the file to UTF-8, or remove the byte", "a,b\n1,é\n".encode("utf-16"), "a,b\n1,é\n".encode()),
    csv_case("Convert the file to UTF-8, or remove the byte", b"a,b\n1,\x00x\n", b"a,b\n1,x\n"),
    Case(
        "Decompress the file, or compress",
        {"a.csv.xz": lzma.compress(b"a\n1\n")},
        {"a.csv.xz": None, "a.csv": b"a\n1\n"},
    ),
    Case("read by a pattern, such as", {"a.txt": b"a\n1\n"}, place=("", "*.txt")),
    Case("read by a pattern, such as", {"a.txt": b'{"a":1}\n'}, place=("", "*.txt"), format="jsonl"),
    Case("convert each such folder by itself", {"x/k=1/a.csv": b"a\n1\n"}, place=("x", "x/k=1")),
    Case("Write the rows without", {"k=1/a.csv": b"a\n1\n"}, {"k=1/a.csv": None, "a.csv": b"a,k\n1,1\n"}),
    json_case("Divide it, or keep large", LONG, b'{"a": "' + b"x" * 40 + b'"}\n', is_small=True),
    csv_case("Divide it, or keep large", b'a\n"' + b"x\n" * 100 + b'"\n', b"a\nx\n", is_small=True),
    csv_case(
        "expected types by column such as", b"id\n1\n", settings={"types": "int64"}, changed={"types": {"id": "int64"}}
    ),
    csv_case(
        "is no Arrow type such as", b"a\n1\n", settings={"types": {"a": "number"}}, changed={"types": {"a": "int64"}}
    ),
    csv_case(
        "is no Arrow type such as",
        b"a\n1.5\n",
        settings={"types": {"a": "decimal"}},
        changed={"types": {"a": "decimal128(38, 2)"}},
    ),
    csv_case("; remove ", b"a\n1\n", settings={"sep": ","}, changed={}),
    json_case("; remove ", b'{"a":1}\n', settings={"delimiter": ","}, changed={}),
    Case("it was cut short. Write it again", {"a.csv.gz": b""}, {"a.csv.gz": None, "a.csv": b"a\n1\n"}),
    # CSV: quotes
    csv_case("is opened and not closed. Close it", b'a\n"1\n', b'a\n"1"\n'),
    csv_case("no quoted values, give settings={'quote': ''}", b'a,b\n"1,2\n', changed={"quote": ""}),
    csv_case("Write a quote within a value as", b'a\n"say \\"hi\\""\n', b'a\n"say ""hi"""\n'),
    csv_case("have no meaning in this file, give", b'a,b\n"x"y,2\n', changed={"quote": ""}),
    # CSV: settings
    csv_case(
        "expected True, or False together with",
        b"1\n",
        settings={"header": False},
        changed={"header": False, "names": ["a"]},
    ),
    csv_case(
        "expected a list of different names", b"1,2\n", settings={"names": ["a", "a"]}, changed={"names": ["a", "b"]}
    ),
    csv_case("expected one ASCII character", b"a\n1\n", settings={"delimiter": "||"}, changed={"delimiter": "|"}),
    csv_case("expected two characters", b"a\n1\n", settings={"quote": ","}, changed={"quote": "'"}),
    csv_case(
        "Declare 'string', and convert",
        b"a\n1\n",
        settings={"types": {"a": pa.list_(pa.int8())}},
        changed={"types": {"a": "string"}},
    ),
    csv_case("Correct the names in", b"a\n1\n", settings={"types": {"b": "int64"}}, changed={"types": {"a": "int64"}}),
    # CSV: the header
    Case("Remove the file, or give the", {"a.csv": b"a\n1\n", "b.csv": b""}, {"b.csv": None}),
    Case("Remove the file, or give the", {"a.csv": b"1\n", "b.csv": b""}, changed={"names": ["a"]}),
    csv_case("expected the columns' names. Remove the line", b"\na,b\n1,2\n", b"a,b\n1,2\n"),
    csv_case(
        "Store values that belong together as one", b"a,b,c,d,e,f\n1,2,3,4,5,6\n", b'a\n"1,2,3,4,5,6"\n', is_small=True
    ),
    csv_case("Convert the file to UTF-8", "é,b\n1,2\n".encode("latin-1"), "é,b\n1,2\n".encode()),
    csv_case(
        "Give names in place of those of the header", b",a\n0,1\n", changed={"header": True, "names": ["index", "a"]}
    ),
    csv_case(
        "Give names in place of those of the header", b"a,a\n0,1\n", changed={"header": True, "names": ["a", "b"]}
    ),
    csv_case("is left out by to_csv(index=False)", b",a\n0,1\n", b"a\n1\n"),
    csv_case(
        "is meant for Excel. Remove the line, and", b"sep=;\na;b\n1;2\n", b"a;b\n1;2\n", changed={"delimiter": ";"}
    ),
    csv_case("divides fields. Give settings", b"a\tb\n1\t2\n", changed={"delimiter": "\t"}),
    csv_case("if it is one column, settings", b"a;b\n1\n", changed={"delimiter": ","}),
    Case("Convert them one by one", {"a.csv": b"a\n1\n", "b.csv": b"b\n1\n"}, place=("", "b.csv")),
    Case("give the names of their columns", {"a.csv": b"1\n", "b.csv": b"2\n"}, changed={"names": ["a"]}, rows=2),
    # CSV: rows
    csv_case("Correct the line, or give", b"a,b\n1\n", b"a,b\n1,2\n"),
    csv_case("give the character that divides", b"a;b,c\n1;2\n", changed={"delimiter": ";"}),
    csv_case("Convert the file to UTF-8", "a,b\n1,é\n".encode("latin-1"), "a,b\n1,é\n".encode()),
    csv_case(
        "Declare a type in", b"a\n1\nx\n", settings={"types": {"a": "int8"}}, changed={"types": {"a": "string"}}, rows=2
    ),
    csv_case(
        "Declare a wider type in",
        b"a\n1e39\n",
        settings={"types": {"a": "float32"}},
        changed={"types": {"a": "string"}},
    ),
    # JSON lines
    json_case("Correct the names in", b'{"a":1}\n', columns=(("b",), ("a",))),
    json_case(
        "Declare the type that",
        b'{"a":"x"}\n',
        settings={"types": {"a": pa.map_(pa.string(), pa.int8())}},
        changed={"types": {"a": "string"}},
    ),
    json_case("there are no lines with keys. Each line", b"\n", b'{"id": 1}\n'),
    json_case("Each line is one object, such as", b"[1]\n", b'{"id": 1}\n'),
    json_case("Each line is one object, such as", b'{"a": 1} {"a": 2}\n', b'{"a": 1}\n{"a": 2}\n', rows=2),
    json_case("Each line is one object, such as", b'{"a":\n1}\n', b'{"a": 1}\n'),
    json_case(
        "Store the deep value as text",
        b'{"a":' + b"[" * 99 + b"]" * 99 + b"}",
        b'{"a":"' + b"[" * 99 + b"]" * 99 + b'"}',
    ),
    json_case("Store it as a value", b'{"' + b"k" * 300_000 + b'":1}\n', b'{"a":"' + b"k" * 300_000 + b'"}\n'),
    json_case("Store values that belong together as one", MANY, b'{"a":[1,1,1,1,1,1]}\n', is_small=True),
    json_case("rounds, settings=", b'{"a":1234567890123456789012}\n', changed={"types": {"a": "float64"}}),
    json_case("keeps whole numbers", b'{"a":1234567890123456789012}\n', changed={"types": {"a": "decimal128(38, 0)"}}),
    json_case(
        "nested values need an Arrow type", b'{"a":[1e-400]}\n', changed={"types": {"a": pa.list_(pa.float64())}}
    ),
    json_case("rounds, settings=", b'{"a":9007199254740993}\n{"a":0.5}\n', changed={"types": {"a": "float64"}}, rows=2),
    json_case(
        "Declare a wider type in",
        b'{"a":1e39}\n',
        settings={"types": {"a": "float32"}},
        changed={"types": {"a": "float64"}},
    ),
    json_case("Write null in its place", b'{"a":1e400}\n', b'{"a":null}\n'),
    json_case("Write null in its place", b'{"a":[{"b":-1e400}]}\n', b'{"a":[{"b":null}]}\n'),
    json_case("Write null in its place", b'{"a":1%s}\n' % (b"0" * 400), b'{"a":null}\n'),
    json_case(
        "or write all numbers of the key as texts", b'{"a":1}\n{"a":1e400}\n', b'{"a":"1"}\n{"a":"1e400"}\n', rows=2
    ),
    *(
        json_case(
            "as texts, of type 'string'",
            b'{"a":%s}\n' % number,
            b'{"a":"%s"}\n' % number,
            settings={"types": {"a": declared}},
            changed={"types": {"a": "string"}},
        )
        for number in (b"1e400", b"1.7976931348623159e308", b"9" * 400)
        for declared in ("float32", "float64", "decimal128(38, 0)", "string")
    ),
    json_case(
        "such as 'float64' for numbers",
        b'{"a":1.5}\n',
        settings={"types": {"a": "int8"}},
        changed={"types": {"a": "float64"}},
    ),
    json_case(
        "Correct the value, or declare", b'{"a":"x"}\n', b'{"a":"2024-01-31"}\n', settings={"types": {"a": "date"}}
    ),
    json_case("Remove the type of the column", b'{"a":1}\n', settings={"types": {"a": "string"}}, changed={}),
    json_case(
        "declare the one that its values have",
        b'{"a":1}\n',
        settings={"types": {"a": "string"}},
        changed={"types": {"a": "int8"}},
    ),
    json_case("Write all values of a key with one type", b'{"a":1}\n{"a":"x"}\n', b'{"a":"1"}\n{"a":"x"}\n', rows=2),
]


def read(folder, place, case, chosen, columns):
    source = open_source(folder / place, case.format, SourceOptions(columns, settings=chosen))
    return rows_of(source)


def put(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("case", CASES, ids=[f"{place} {case.advice[:30]}" for place, case in enumerate(CASES)])
def test_advice_that_is_followed_helps(tmp_path, monkeypatch, case):
    if case.is_small:
        monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
        for module, name, limit in (
            (lines, "MAX_LINE_BYTES", 80), (delimited, "MAX_LINE_BYTES", 80), (delimited, "MAX_COLUMNS", 5),
            (json_lines, "MAX_COLUMNS", 5),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, limit)
    put(tmp_path, case.files)
    with pytest.raises(SmaltiError) as caught:
        read(tmp_path, case.place[0], case, case.settings, case.columns[0])
    assert case.advice in caught.value.message
    put(tmp_path, case.remedy)
    chosen = case.settings if case.changed is None else case.changed
    assert len(read(tmp_path, case.place[1], case, chosen, case.columns[1])) == case.rows


def test_every_message_that_advises_has_a_case():
    advising = [text for module in MODULES for text in texts_of(module) if ADVICE.search(text)]
    assert len(advising) > 30
    assert [text for text in advising if not any(case.advice in text for case in CASES)] == []


def texts_of(module):
    """Return the texts of a module, in which values are left out; no docstrings."""
    tree = ast.parse(Path(module.__file__).read_text())
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within | described:
            yield node.value
