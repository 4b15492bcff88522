"""Segments of a shard table: the same shards as one table, the same digest however they came together."""

import json
import pickle
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.catalog.digest import digest_of
from smalti.catalog.table import segments as tables
from smalti.catalog.table.arrow import emit_table, table_of
from smalti.catalog.table.segments import (
    digest_of_list,
    emit_list,
    joined_table,
    parse_list,
    segmented,
    shards_only_in,
    tables_in,
)
from smalti.catalog.table.shard_table import (
    ShardTable,
    TableFile,
    TableFiles,
    bytes_of,
    kinds_of,
    num_bytes_of,
    partitions_of,
    samples_of,
    segments_in,
    sizes_of,
    stored_sizes_of,
    without_hash,
)
from smalti.errors import CatalogError, IndexFileError, SchemaError
from smalti.format import BlockList, Schema
from tests import seeds
from tests.catalog.table.tables import shard
from tests.catalog.test_text_sets import draft as text_draft
from tests.format.text_sets import KINDS
from tests.stores import MemoryStore

SIZE = 4


def shards_in_two_splits(count):
    return [shard(n, "train" if n % 5 else "val", zipped=n % 3 == 0) for n in range(count)]


def in_segments(shards, size=SIZE):
    return segmented([shards], size=size)


@given(st.integers(0, 30), st.lists(st.integers(1, 9), max_size=8), st.integers(1, 7))
@settings(max_examples=seeds.sized(40), deadline=None)
def test_the_segments_and_their_digest_depend_on_the_shards_alone(count, cuts, size):
    shards = shards_in_two_splits(count)
    parts, rest = [], shards
    for cut in cuts:
        parts, rest = [*parts, rest[:cut]], rest[cut:]
    parts = [part for part in (*parts, rest) if part]
    at_once = segmented([shards], size=size)
    appended = segmented([], size=size)
    for number, part in enumerate(parts):
        appended = segmented([table_of(part) if number % 2 else part], after=segments_in(appended))
    assert list(appended) == shards
    assert segments_in(appended).facts == segments_in(at_once).facts
    assert [each.shards for each in segments_in(at_once).facts] == [
        len(shards[begin : begin + size]) for begin in range(0, count, size)
    ]


def test_a_table_in_segments_is_the_sequence_of_its_shards():
    shards = shards_in_two_splits(11)
    table, plain = in_segments(shards), table_of(shards)
    assert list(table) == shards == [table[place] for place in range(11)]
    assert list(table[3:10:2]) == shards[3:10:2]
    assert list(table[2:9]) == shards[2:9]
    assert table[-1] == shards[-1]
    assert sizes_of(table).tolist() == sizes_of(plain).tolist()
    for name in ("raw", "stored", "zipped"):
        assert getattr(bytes_of(table), name).tolist() == getattr(bytes_of(plain), name).tolist()
    assert (samples_of(table), num_bytes_of(table)) == (samples_of(plain), num_bytes_of(plain))
    assert partitions_of(table) == ("train", "val")
    assert kinds_of(table) == kinds_of(plain), "the first shard of each kind"
    assert list(table.of_partition("val")) == [each for each in shards if each.partition == "val"]
    assert [pair for part in stored_sizes_of(table) for pair in part] == [
        (each.stored.basename, each.stored.num_bytes) for each in shards
    ]
    assert table.content_hashes().tolist() == plain.content_hashes().tolist()
    assert [table.named(each.raw.basename) for each in shards] == [[place] for place in range(11)]
    assert without_hash(table, "sha1") is None
    assert without_hash(table, "xxh64") == without_hash(plain, "xxh64")
    assert [list(part) for _, part in tables_in(table)] == [shards[0:4], shards[4:8], shards[8:11]]


def test_a_pickled_table_in_segments_has_the_same_shards():
    table = in_segments(shards_in_two_splits(11))
    again = pickle.loads(pickle.dumps(table))
    assert again == table
    assert list(again[5:7]) == list(table[5:7])


def with_blocks(info, number):
    return replace(info, blocks=BlockList("w/0/blocks.0.bin", 8 * number, 1 << 16, number))


@pytest.mark.parametrize("change", [lambda info, _: info, with_blocks])
@pytest.mark.parametrize("zipped", [False, True])
def test_joined_columns_are_the_file_that_the_shards_would_become(change, zipped):
    shards = [change(shard(n, zipped=zipped), n) for n in range(40)]
    assert emit_table(table_of(shards[:7])[2:], table_of(shards[7:30]), shards[30:]) == emit_table(shards[2:])
    plain = [shard(n, zipped=zipped) for n in range(40, 50)]
    assert emit_table(table_of(plain), table_of(shards)) == emit_table([*plain, *shards])


def test_a_digest_of_a_table_is_that_of_the_shards():
    shards = shards_in_two_splits(50)
    shards[3] = replace(shards[3], raw=replace(shards[3].raw, hashes={}), hash_names=(), size_limit=None)
    assert digest_of(table_of(shards)) == digest_of(shards)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [None, "train"])
def test_a_digest_of_a_table_is_that_of_text_shards(kind, split):
    infos = text_draft(MemoryStore(), kind, split).shards
    assert digest_of(table_of(infos)) == digest_of(infos)


@pytest.mark.parametrize("place", [0, 5, 9])
def test_a_file_that_two_segments_list_is_refused(place):
    shards = shards_in_two_splits(10)
    with pytest.raises((CatalogError, IndexFileError), match="is listed 2 times"):
        segmented([shards, [shards[place]]], size=SIZE)
    with pytest.raises((CatalogError, IndexFileError), match="is listed 2 times"):
        segmented([[shards[place]]], after=segments_in(in_segments(shards)))


def test_a_compressed_file_with_the_name_of_another_shard_is_refused():
    shards = [shard(n, zipped=True) for n in range(10)]
    odd = replace(shard(10), raw=replace(shard(10).raw, basename=shards[0].stored.basename))
    with pytest.raises(CatalogError, match="is listed 2 times"):
        segmented([[odd]], after=segments_in(in_segments(shards)))


def test_a_shard_of_another_schema_is_refused():
    odd = replace(shard(10), schema=Schema.from_columns({"other": "int"}))
    with pytest.raises(SchemaError, match="one data set has one schema"):
        segmented([[odd]], after=segments_in(in_segments(shards_in_two_splits(8))), schema=shard(0).schema)


def test_only_the_last_segment_is_built_again_when_shards_are_added():
    first = segments_in(in_segments(shards_in_two_splits(10)))
    names = [shard(n, "train") for n in range(900, 903)]
    second = segments_in(segmented([names], after=first))
    assert [each.shards for each in second.facts] == [4, 4, 4, 1]
    assert second.files[:2] == first.files[:2]
    assert second.files[2].facts != first.files[2].facts


def test_shards_in_one_table_only_are_found_without_loading_what_both_share():
    shards = shards_in_two_splits(11)
    before = in_segments(shards[:9])
    after = segmented([shards[9:]], after=segments_in(before))
    for file in segments_in(after).files[:2]:
        file.loaded = None  # loading it would be an error: it has no store
    assert shards_only_in(after, before) == tuple(shards[9:])
    assert shards_only_in(before, after) == ()
    changed = in_segments([shards[0], replace(shards[1], samples=7), *shards[2:]])
    assert shards_only_in(changed, in_segments(shards)) == (replace(shards[1], samples=7),)
    assert shards_only_in(in_segments(shards), table_of(shards[3:])) == tuple(shards[:3])


def test_a_small_number_of_shards_is_one_table_and_a_large_one_is_not(monkeypatch):
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 10)
    monkeypatch.setattr(tables, "SEGMENT_SHARDS", SIZE)
    shards = shards_in_two_splits(11)
    assert segments_in(joined_table([shards[:10]], 10)) is None
    assert [file.facts.shards for file in segments_in(joined_table([shards], 11)).files] == [4, 4, 3]
    assert list(joined_table([shards[:10]], 10)) == shards[:10]


# ---------------------------------------------------------------------- lists


def listed():
    segments = segments_in(in_segments(shards_in_two_splits(10)))
    facts = [replace(each, key=f"k/{each.sha256}", digest=each.sha256) for each in segments.facts]
    return list_of(segments.segment_shards, facts)


def list_of(size, facts):
    return TableFiles(tuple(map(TableFile, facts)), size)


def test_a_list_is_read_as_it_was_written():
    parsed = parse_list(emit_list(listed()), where="list")
    assert (parsed.segment_shards, parsed.facts) == (SIZE, listed().facts)


def test_a_digest_changes_with_any_segment_their_order_and_their_size():
    one = listed()
    other = replace(one.facts[0], digest="0" * 64)
    changed = [
        list_of(SIZE, (other, *one.facts[1:])),
        list_of(SIZE, (one.facts[1], one.facts[0], one.facts[2])),
        list_of(SIZE, one.facts[:2]),
        list_of(SIZE + 1, one.facts),
    ]
    assert len(set(map(digest_of_list, (one, *changed)))) == 5


def test_the_digest_of_an_earlier_version_is_the_sha256_of_the_digests_of_the_segments():
    one = listed()
    text = "smalti-manifest-2 4\n" + "".join(f"{each.digest}\n" for each in one.facts)
    assert digest_of_list(one) == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": 3},
        {"shards": -1},
        {"rows": "5"},
        {"num_bytes": None},
        {"sha256": "abc"},
        {"digest": "X" * 64},
        {"key": "../outside"},
        {"splits": {"train": [1, 1, "a", "b"]}},
        {"splits": []},
    ],
)
def test_a_list_with_an_invalid_entry_is_refused(changes):
    top = json.loads(emit_list(listed()))
    top["segments"][1] |= changes
    with pytest.raises(IndexFileError):
        parse_list(json.dumps(top).encode(), where="list")


@pytest.mark.parametrize("changes", [{"smalti": 2}, {"segment_shards": 0}, {"segment_shards": 3}, {"segments": {}}])
def test_a_list_of_another_form_is_refused(changes):
    top = json.loads(emit_list(listed())) | changes
    with pytest.raises(IndexFileError):
        parse_list(json.dumps(top).encode(), where="list")


def test_selected_rows_keep_their_places():
    shards = shards_in_two_splits(11)
    chosen = ShardTable(in_segments(shards).content, np.array([9, 0, 5]))
    assert list(chosen) == [shards[9], shards[0], shards[5]]
    assert partitions_of(chosen) == ("train", "val")
    assert sizes_of(chosen).tolist() == [shards[place].samples for place in (9, 0, 5)]
