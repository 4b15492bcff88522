"""Names that no index may give a file, in every place where a name can stand (faults D2, D3, S2)."""

import json
import os
import string
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.catalog.table.arrow import emit_table, parse_table
from smalti.errors import IndexFileError
from smalti.format import check_basename, parse_index
from tests.golden.malformed.make import index, jsonl, zipped

NAMES = json.loads((Path(__file__).resolve().parents[1] / "golden" / "malformed" / "names.json").read_bytes())
PARTS = ("raw_data", "zip_data", "raw_meta", "zip_meta")
WHOLE = jsonl(
    compression="zstd",
    zip_data=zipped()["zip_data"],
    zip_meta={**zipped()["zip_data"], "basename": "shard.00000.json.meta.zstd"},
)
IDS = [f"{number}-{why}" for number, (_, why) in enumerate(NAMES)]


def test_there_are_two_hundred_names_and_each_once():
    assert len({json.dumps(name) for name, _ in NAMES}) == len(NAMES) >= 200


@pytest.mark.parametrize(("name", "why"), NAMES, ids=IDS)
def test_name_is_refused_in_every_place(name, why):
    with pytest.raises(IndexFileError, match=r"^`name`"):
        check_basename(name, where="`name`")
    for part in PARTS:
        entry = {**WHOLE, part: {**WHOLE[part], "basename": name}}
        with pytest.raises(IndexFileError) as refusal:
            parse_index(index(entry), where="index.json")
        assert f"$.shards[0].{part}" in refusal.value.message, why
        assert len(refusal.value.message) < 1000


@pytest.mark.parametrize(("name", "why"), [row for row in NAMES if isinstance(row[0], str)])
def test_name_is_refused_in_the_table_of_a_version(name, why):
    import hashlib

    (shard,), _ = parse_index(index(WHOLE), where="index.json")
    try:
        name.encode()
    except UnicodeEncodeError:
        return  # Arrow's text is UTF-8: no table can hold it
    data = emit_table([replace(shard, raw=replace(shard.raw, basename=name))])
    with pytest.raises(IndexFileError):
        parse_table(data, sha256=hashlib.sha256(data).hexdigest(), where=why)


@pytest.mark.parametrize(
    "name",
    [
        "shard.00000.mds",
        "29/shard.00000.mds.zstd",
        "a.b/c-d/e_f=g/h",
        "...",
        "..a",
        "a..",
        ".hidden",
        "a" * 1024,
        "-rf",
        "0",
        "=",
    ],
)
def test_valid_name_is_accepted(name):
    assert check_basename(name, where="x") == name


def test_only_letters_digits_and_five_other_characters_of_unicode_are_accepted():
    # All of the planes' beginnings, where marks and letters are, and every 997th character of the rest.
    codes = [*range(0x3400), *range(0xD7F0, 0xE010), *range(0xF900, 0x10000), *range(0x3400, 0x110000, 997)]
    taken = {chr(code) for code in codes if _is_taken(f"a{chr(code)}b")}
    assert taken == set(string.ascii_letters + string.digits + "._-=/")


def test_every_accepted_name_of_dots_and_slashes_stays_below_the_root():
    names = [""]
    for _ in range(7):
        names += [name + char for name in names if len(name) == max(map(len, names)) for char in "./a"]
    assert len(names) == sum(3**n for n in range(8))
    for name in names:
        if _is_taken(name):
            assert os.path.normpath(f"/root/{name}") == f"/root/{name}"
            assert ".." not in name.split("/")


def _is_taken(name):
    try:
        return check_basename(name, where="x") == name
    except IndexFileError:
        return False
