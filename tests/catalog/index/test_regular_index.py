"""Index files that Arrow's JSON reader reads give the same as when they are parsed; all others are parsed."""

import json
from dataclasses import replace
from random import Random

import pytest

from smalti.catalog import load_manifest
from smalti.catalog.digest import digest_of
from smalti.catalog.index import read_regular
from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import IndexFileError
from smalti.format import Schema, emit_index, parse_index
from tests.catalog.table.tables import many_shards
from tests.hostile.mutations import mutate_bytes, mutate_json
from tests.hostile.seeds import MDS_INDEXES, TEXT_INDEXES, mds_entry
from tests.stores import MemoryStore


def regular_index(count, *, zipped=False, hashes=("sha1", "xxh64")):
    shards = [shard for shard in many_shards(3 * count) if (shard.zip is not None) == zipped][:count]
    return [
        replace(
            shard,
            partition=None,
            hash_names=hashes,
            raw=_with(shard.raw, hashes),
            zip=shard.zip and _with(shard.zip, hashes),
        )
        for shard in shards
    ]


def _with(file, hashes):
    return replace(file, hashes={name: file.hashes[name] for name in hashes})


def expected(data):
    shards, _ = parse_index(data, where="index.json")
    return tuple(shards), digest_of(shards)


@pytest.mark.parametrize(
    ("count", "zipped", "hashes"),
    [(2, False, ()), (300, True, ("sha1",)), (300, False, ("sha1", "xxh64")), (2, True, ("sha1", "xxh64"))],
    ids=str,
)
def test_a_regular_index_is_read_as_it_is_parsed(count, zipped, hashes):
    data = emit_index(regular_index(count, zipped=zipped, hashes=hashes))
    found = read_regular(data, where="index.json")
    assert found == expected(data)
    assert len(found[0]) == count


def test_an_index_of_columns_that_all_vary_in_size_is_read_as_it_is_parsed():
    """Arrow cannot join lists of nulls, which the first entry alone would make of its sizes."""
    data = emit_index([replace(shard, schema=Schema.from_columns({"t": "str"})) for shard in regular_index(5)])
    assert read_regular(data, where="index.json") == expected(data)


def test_a_line_end_after_the_index_is_ignored():
    data = emit_index(regular_index(5))
    assert read_regular(data + b"\r\n\t ", where="x")[0] == expected(data)[0]
    assert read_regular(data + b"\x0b", where="x") is None


def same_or_none(data):
    """Return whether an index file was read, which gives what the parser gives."""
    found = read_regular(data, where="index.json")
    if found is not None:
        assert found == expected(data)
    return found is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"samples": 4,', '"samples": 04,'), ('"samples": 4,', '"samples": 4.0,'),
        ('"samples": 4,', '"samples": 4000,'),
        ('"samples": 4,', '"samples": 4, "samples": 4,'), ('"samples": 4,', '"samples":  4,'),
        ("shard.4.mds", "../x"), ("shard.4.mds", "\\u0061"), ("w/4/shard.4.mds", "w/5/shard.5.mds"),
        ('"bytes": 4100,', '"bytes": 1,'), ('"xxh64": "0000000000000004"', '"xxh64": "000000000000000g"'),
        ('"xxh64": "0000000000000004"', '"xxh64": "004"'), ('"sha1": "000', '"sha2": "000'), ('"id"', '"raw_data"'),
        ("}, {", "},  {"), ("}, {", "} {"), ("}, {", "}, {}, {"), ('}], "version": 2}', '}, ], "version": 2}'),
        ('}], "version": 2}', '}], "other": 1, "version": 2}'),
        ('}], "version": 2}', '}], "shards": [], "version": 2}'),
        ('"version": 2}', '"version": 3}'), ('"format": "mds"', '"format": "csv"'),
        ('"mds"', '"mds", "x": {"samples": 3}'), ('{"shards"', '{ "shards"'), ("zip_data", "zip_date"),
    ],
)  # fmt: skip
def test_irregular_files_are_left_to_the_parser_unless_it_reads_the_same(old, new):
    text = emit_index(regular_index(9)).decode()
    assert old in text
    assert read_regular(text.encode(), where="index.json") is not None
    same_or_none(text.replace(old, new).encode())
    same_or_none(new.join(text.rsplit(old, 1)).encode())  # in the last entry that has it alone


def test_damaged_files_are_never_read_differently_by_arrow_and_the_parser():
    dice = Random(11)
    regular = [emit_index(regular_index(4, zipped=zipped)).decode() for zipped in (False, True)]
    several = [json.dumps({"shards": [mds_entry("a"), mds_entry("b"), mds_entry("c")], "version": 2}, sort_keys=True)]
    seeds = regular + several + MDS_INDEXES + TEXT_INDEXES
    read = 0
    for _ in range(4000):
        text = dice.choice(seeds)
        data = mutate_json(text, dice) if dice.random() < 0.5 else text
        data = data.encode() if isinstance(data, str) else data
        data = mutate_bytes(data, dice) if dice.random() < 0.7 else data
        read += same_or_none(data)
    assert read > 100


CHANGES = b'0f"}, x\\'


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, pytest.param(len(CHANGES), marks=pytest.mark.nightly)])
def test_a_single_changed_digit_is_read_unchanged(each):
    """Each byte of an index is replaced by one or each of a few others: Arrow gives the same as the parser, or None."""
    data = emit_index(regular_index(3))
    read = 0
    for place in range(len(data)):
        for number in range(each):
            byte = CHANGES[(place + number) % len(CHANGES)]
            changed = data[:place] + bytes([byte]) + data[place + 1 :]
            read += same_or_none(changed)
    assert read > 30 * each


def large_index(change=lambda text: text):
    """The file is larger than the part that is read to find the version."""
    store = MemoryStore()
    store.put("index.json", change(emit_index(regular_index(3000)).decode()).encode())
    assert store.size("index.json") > 1 << 20
    return store


@pytest.mark.slow
def test_a_large_set_of_another_writer_opens_by_arrow_as_by_the_parser():
    by_arrow = load_manifest(large_index())
    by_parser = load_manifest(large_index(lambda text: json.dumps(json.loads(text))))
    spaced = load_manifest(large_index(lambda text: json.dumps(json.loads(text), indent=1)))
    assert by_arrow == by_parser == spaced
    assert (by_arrow.version, len(by_arrow.shards), by_arrow.rows) == (0, 3000, sum(sizes_of(by_arrow.shards)))
    assert type(spaced.shards) is tuple


def test_a_large_damaged_set_of_another_writer_is_refused_with_the_place():
    store = large_index(lambda text: text.replace("shard.2000.mds", "shard.1999.mds").replace("w/9/", "w/8/"))
    with pytest.raises(IndexFileError, match=r"\$\.shards\[\d+\].*listed by"):
        load_manifest(store)


def test_a_decoy_next_to_a_key_with_an_escape_is_not_used():
    text = emit_index(regular_index(9)).decode()
    one = json.loads(text)["shards"][1]
    real = f'"\\u0072aw_data": {json.dumps(one["raw_data"])}, "\\u0073amples": {one["samples"]}, "x": {{"a": 0, '
    decoy = text.replace('"raw_data": ', real + '"raw_data": ').replace(', "size_limit"', ', "b": 0}, "size_limit"')
    first = decoy.index("}, {") + 1
    decoy = decoy[:12] + decoy[first + 2 :]  # the first entry is the one whose decoy has the right values
    assert len(json.loads(decoy)["shards"]) == 8
    assert read_regular(decoy.encode(), where="index.json") is None
    with pytest.raises(IndexFileError, match="listed by"):
        parse_index(decoy.encode(), where="index.json")
