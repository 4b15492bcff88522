"""The difference between two versions."""

import pytest

from smalti.catalog import publish, rollback
from smalti.catalog.diff import SourceChanges, diff, source_changes
from smalti.catalog.manifest import Annotations
from smalti.catalog.sidecars import SourceRecord, SourceTable, store_sources
from smalti.catalog.tags import tag
from smalti.errors import VersionNotFound
from tests.stores import MemoryStore


@pytest.fixture
def store(make_draft):
    """Publish 1: a of 10 rows; 2: a and b of 5; 3: c of 4 alone, with another column; 4: 1 again."""
    store = MemoryStore()
    publish(store, make_draft(store, 10, write_id="aaaa", lineage={"source": "a"}, row_hash="0" * 31 + "a"))
    publish(store, make_draft(store, 5, write_id="bbbb", row_hash="0" * 31 + "b"), mode="append")
    columns = {"id": "int", "text": "str", "extra": "str"}
    publish(store, make_draft(store, 4, write_id="cccc", columns=columns), mode="overwrite")
    rollback(store, 1)
    return store


def test_an_append_adds_and_keeps(store):
    found = diff(store, 1, 2)
    assert {shard.raw.basename.split("/")[0] for shard in found.added} == {"bbbb"}
    assert (found.removed, found.rows, found.rows_added, found.rows_removed) == ((), (10, 15), 5, 0)
    assert found.num_kept == len({key for key in store.objects if key.startswith("aaaa/")})
    assert found.bytes_added == sum(len(data) for key, data in store.objects.items() if key.startswith("bbbb/"))
    assert found.lineage == ({"source": "a"}, {})
    assert found.same_rows is False


def test_in_reverse_the_added_shards_are_removed_ones(store):
    there, back = diff(store, 1, 2), diff(store, 2, 1)
    assert (back.removed, back.added, back.num_kept) == (there.added, (), there.num_kept)


def test_an_overwrite_with_other_columns_names_them(store):
    found = diff(store, 2, 3)
    assert found.num_kept == 0
    assert found.columns_added == {"extra": "str"}
    assert found.columns_removed == {}
    assert found.columns_changed == {"id": ("int64", "int")}


def test_without_a_second_version_the_newest_is_meant_and_a_tag_can_stand_for_either(store):
    tag(store, "first", 1)
    found = diff(store, "first")
    assert (found.a, found.b, found.added, found.removed, found.same_rows) == (1, 4, (), (), True)
    assert "0 shards (0 samples) added" in found.summary()
    assert "the same samples" in found.summary()
    with pytest.raises(VersionNotFound, match="no tag 'last'"):
        diff(store, "first", "last")


def test_a_shard_of_the_same_name_with_other_content_is_another_one(store, make_draft):
    from dataclasses import replace

    draft = make_draft(store, 3, write_id="dddd")
    publish(store, draft, mode="overwrite")
    other = replace(draft.shards[0], raw=replace(draft.shards[0].raw, hashes={"xxh3_64": "0" * 16}))
    publish(store, replace(draft, write_id="eeee", shards=[other, *draft.shards[1:]]), mode="overwrite")
    found = diff(store, 5, 6)
    assert (found.added, found.removed) == ((other,), (draft.shards[0],))


def listing(store, write_id, **marks):
    """Return a version that says of which source files its rows are."""
    record = SourceRecord(SourceTable(marks, {}), "recipe", None)
    return Annotations(sidecars=(store_sources(store, record, write_id),))


def test_source_files_that_came_went_and_changed_are_counted():
    store = MemoryStore()
    before, after = listing(store, "aaaa", a="1", b="1", c="1"), listing(store, "bbbb", b="1", c="2", d="1", e="1")
    assert source_changes(store, before, after) == SourceChanges(added=2, removed=1, changed=1)
    assert source_changes(store, before, before) == SourceChanges(0, 0, 0)
    assert source_changes(store, before, Annotations()) is None
