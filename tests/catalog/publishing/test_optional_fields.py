"""The optional fields of a header, which are left out when empty: older readers and older sets do not have them."""

import json
from dataclasses import replace

import pytest

from smalti.catalog import load_manifest, publish
from smalti.catalog.manifest import add_row_hashes, parse_header, read_header
from smalti.errors import CatalogError, IndexFileError, SchemaError
from tests.stores import MemoryStore

NAMES = ("logical", "row_hash", "sidecars", "fenced", "expired")


def test_empty_optional_fields_are_left_out_of_a_header(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    found = json.loads(store.get("_versions/00000001.json"))
    assert [name for name in NAMES if name in found] == []
    assert "row_hash" not in json.loads(store.get("index.json"))["smalti"]
    manifest = load_manifest(store)
    assert (manifest.logical, manifest.row_hash, manifest.sidecars) == ({}, "", ())


def test_optional_fields_of_a_header_are_read_back(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    header = replace(
        read_header(store, 1),
        logical={"when": "date"},
        row_hash="0123456789abcdef" * 2,
        sidecars=({"kind": "sources"},),
        fenced=("write",),
        expired=(3, 4),
    )
    assert parse_header(header.emit(), where="there") == header


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logical", ["x"]),
        ("row_hash", 7),
        ("row_hash", "ABCDEF" * 5 + "AB"),
        ("row_hash", "0" * 31),
        ("sidecars", {"kind": "columns"}),
        ("sidecars", ["x"]),
        ("fenced", "write"),
        ("fenced", [1]),
        ("expired", [True]),
        ("expired", ["1"]),
        ("expired", None),
    ],
)
def test_a_malformed_field_is_refused_and_named(make_draft, name, value):
    store = MemoryStore()
    publish(store, make_draft(store))
    found = json.loads(store.get("_versions/00000001.json")) | {name: value}
    with pytest.raises(IndexFileError, match=f"field '{name}' is of the wrong type"):
        parse_header(json.dumps(found).encode(), where="there")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"row_hash": "xyz"}, CatalogError),
        ({"row_hash": "A" * 32}, CatalogError),
        ({"logical": {"x": float("nan")}}, SchemaError),
        ({"sidecars": [{"x": object()}]}, SchemaError),
    ],
)
def test_a_draft_with_values_that_no_header_can_contain_is_refused(make_draft, fields, error):
    store = MemoryStore()
    draft = make_draft(store)
    with pytest.raises(error):
        replace(draft, **fields)


def test_row_hashes_add_up_and_parts_without_samples_count_for_nothing():
    last = "f" * 32
    assert add_row_hashes([(last, 5), ("0" * 31 + "3", 1)]) == "0" * 31 + "2", "modulo 2^128"
    assert add_row_hashes([(last, 5), ("", 0)]) == last
    assert add_row_hashes([(last, 5), ("", 1)]) == ""
    assert add_row_hashes([]) == "0" * 32
