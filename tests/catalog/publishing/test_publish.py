"""Publishing, opening, history, rollback on a store without faults."""

import json

import pytest

from smalti.catalog import Draft, history, load_manifest, new_write_id, publish, rollback, verify
from smalti.errors import (
    CatalogError,
    CommitConflict,
    DatasetExists,
    IndexFileError,
    SchemaError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import parse_index
from smalti.storage import LocalStore
from tests.stores import MemoryStore


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


def ids(store, manifest):
    """Return the id of every sample, decoded by hand from the shards."""
    import struct

    found = []
    for shard in manifest.shards:
        data = store.get(shard.raw.basename)
        count = struct.unpack_from("<I", data)[0]
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        found += [struct.unpack_from("<q", data, begin + 4)[0] for begin in offsets[:-1]]
    return found


def test_a_published_set_opens_with_its_rows_columns_and_lineage(store, make_draft):
    draft = make_draft(store, 10, lineage={"source": "a table"}, metadata={"note": "x"})
    made = publish(store, draft)
    assert (made.version, made.parent, made.rows, made.write_id) == (1, None, 10, draft.write_id)
    opened = load_manifest(store)
    assert opened == made
    assert opened.lineage == {"source": "a table"}
    assert opened.metadata == {"note": "x"}
    assert opened.schema.columns() == {"id": "int64", "text": "str"}
    assert ids(store, opened) == list(range(10))
    assert opened.num_bytes == sum(len(store.get(shard.raw.basename)) for shard in opened.shards)


def test_the_index_file_is_plain_mds_with_one_more_key(store, make_draft):
    made = publish(store, make_draft(store, 10))
    index = json.loads(store.get("index.json"))
    assert sorted(index) == ["shards", "smalti", "version"]
    assert index["version"] == 2
    assert [entry["samples"] for entry in index["shards"]] == [shard.samples for shard in made.shards]
    assert index["smalti"]["digest"] == made.digest
    assert index["smalti"]["version"] == 1


def test_create_refuses_a_place_that_holds_a_set_and_names_the_other_modes(store, make_draft):
    publish(store, make_draft(store))
    with pytest.raises(DatasetExists, match=r'mode="append".*mode="overwrite"'):
        publish(store, make_draft(store))
    assert load_manifest(store).version == 1


def test_append_adds_after_what_is_there(store, make_draft):
    first = publish(store, make_draft(store, 10))
    second = publish(store, make_draft(store, 5, first=10), mode="append")
    assert (second.version, second.parent, second.rows) == (2, 1, 15)
    assert second.shards[: len(first.shards)] == first.shards
    assert ids(store, second) == list(range(15))
    assert load_manifest(store, version=1) == first


def test_append_to_nothing_creates(store, make_draft):
    assert publish(store, make_draft(store), mode="append").version == 1


def test_append_refuses_other_columns(store, make_draft):
    publish(store, make_draft(store))
    with pytest.raises(SchemaError, match="columns"):
        publish(store, make_draft(store, columns={"id": "int64", "text": "str", "more": "str"}), mode="append")
    assert load_manifest(store).version == 1


def test_overwrite_is_a_new_version_and_the_old_one_stays(store, make_draft):
    first = publish(store, make_draft(store, 10))
    second = publish(store, make_draft(store, 3, first=100), mode="overwrite")
    assert second.version == 2
    assert ids(store, load_manifest(store)) == [100, 101, 102]
    assert ids(store, load_manifest(store, version=1)) == list(range(10))
    assert first.digest != second.digest


def test_publishing_the_same_write_again_returns_the_same_version(store, make_draft):
    draft = make_draft(store)
    first = publish(store, draft)
    publish(store, make_draft(store), mode="append")
    assert publish(store, draft) == first
    assert publish(store, draft, mode="append") == first
    assert [info.version for info in history(store)] == [1, 2]


def test_history_lists_every_version_oldest_first(store, make_draft):
    drafts = [make_draft(store, rows) for rows in (3, 4, 5)]
    for draft, mode in zip(drafts, ("create", "append", "overwrite"), strict=True):
        publish(store, draft, mode=mode)
    lines = history(store)
    assert [(line.version, line.parent, line.rows, line.operation) for line in lines] == [
        (1, None, 3, "create"),
        (2, 1, 7, "append"),
        (3, 2, 5, "overwrite"),
    ]
    assert [line.write_id for line in lines] == [draft.write_id for draft in drafts]


def test_rollback_is_a_new_version_with_the_old_digest(store, make_draft):
    first = publish(store, make_draft(store, 10))
    publish(store, make_draft(store, 3), mode="overwrite")
    back = rollback(store, 1)
    assert (back.version, back.digest, back.shards) == (3, first.digest, first.shards)
    assert load_manifest(store) == back
    assert history(store)[-1].operation == "rollback"
    assert rollback(store, 1).version == 3, "already there: no further version"


def test_rollback_to_an_unknown_version_names_the_known_ones(store, make_draft):
    publish(store, make_draft(store))
    with pytest.raises(VersionNotFound, match="has no version 7: the newest is 1"):
        rollback(store, 7)


def test_an_empty_place_is_not_found(store):
    for read in (load_manifest, history):
        with pytest.raises(StoreNotFound, match="no shard set"):
            read(store)


def test_an_unknown_version_names_the_newest(store, make_draft):
    publish(store, make_draft(store))
    with pytest.raises(VersionNotFound, match="newest is 1"):
        load_manifest(store, version=9)


def test_splits_have_their_own_index_files(store, make_draft):
    made = publish(store, make_draft(store, 6, splits=("train", "test")))
    assert made.partitions == ("test", "train")
    assert {shard.partition for shard in made.select("train")} == {"train"}
    assert made.select(None) == made.shards
    shards, _ = parse_index(store.get("train/index.json"), where="x")
    for shard in shards:
        assert store.exists(f"train/{shard.raw.basename}")
    assert sum(shard.samples for shard in shards) == 6
    with pytest.raises(CatalogError, match="'test', 'train'"):
        made.select("validation")


def test_the_folder_of_a_split_opens_like_a_plain_set(store, make_draft):
    publish(store, make_draft(store, 6, splits=("train", "test")))
    inner = load_manifest(store.child("train"))
    assert (inner.rows, inner.version) == (6, 1)
    with pytest.raises(DatasetExists, match="split"):
        publish(store.child("train"), make_draft(store.child("train")), mode="overwrite")


def test_the_index_of_a_removed_split_is_removed(store, make_draft):
    publish(store, make_draft(store, 6, splits=("train", "test")))
    publish(store, make_draft(store, 6, splits=("train", "dev")), mode="overwrite")
    assert store.exists("train/index.json")
    assert store.exists("dev/index.json")
    assert not store.exists("test/index.json")


def test_a_set_of_another_writer_is_never_replaced(store, make_draft):
    publish(store, make_draft(store))
    index = json.loads(store.get("index.json"))
    del index["smalti"]
    foreign = LocalStore(store.root / "f") if isinstance(store, LocalStore) else MemoryStore()
    foreign.put("index.json", json.dumps(index).encode())
    for mode in ("create", "overwrite", "append"):
        with pytest.raises(DatasetExists, match="did not write"):
            publish(foreign, make_draft(foreign), mode=mode)
    assert json.loads(foreign.get("index.json")) == index


def test_plain_mds_sets_of_mosaicml_open_as_version_0(shared):
    for name in ("scalars", "text", "images", "comp_zstd_3"):
        expected = json.loads((shared / "golden" / name / "index.json").read_text())
        manifest = load_manifest(LocalStore(shared / "golden" / name))
        assert manifest.version == 0
        assert [shard.samples for shard in manifest.shards] == [entry["samples"] for entry in expected["shards"]]
        assert manifest.digest == load_manifest(LocalStore(shared / "golden" / name)).digest
        assert history(LocalStore(shared / "golden" / name)) == []


def test_the_digest_is_of_content_only(make_draft):
    one, two = MemoryStore(), MemoryStore()
    first = publish(one, make_draft(one, write_id="same-id"), mode="create")
    second = publish(two, make_draft(two, write_id="same-id", lineage={"other": 1}), mode="append")
    assert first.digest == second.digest
    other = MemoryStore()
    assert publish(other, make_draft(other, 11, write_id="same-id")).digest != first.digest


def test_shards_that_are_not_there_are_not_published(store, make_draft):
    draft = make_draft(store)
    store.delete(draft.shards[0].stored.basename)
    with pytest.raises(CatalogError, match="not in the store"):
        publish(store, draft)
    store.put(draft.shards[0].stored.basename, b"")
    with pytest.raises(CatalogError, match="0 bytes"):
        publish(store, draft)
    assert not store.exists("index.json")


def test_a_draft_refuses_doubled_shards_foreign_schemas_and_wild_names(store, make_draft):
    draft = make_draft(store)
    with pytest.raises(CatalogError, match="times"):
        Draft(draft.write_id, draft.schema, [*draft.shards, draft.shards[0]])
    with pytest.raises(CatalogError, match="write id"):
        Draft("../x", draft.schema, draft.shards)
    with pytest.raises(SchemaError, match="JSON"):
        Draft(draft.write_id, draft.schema, draft.shards, lineage={"x": float("nan")})
    from dataclasses import replace

    with pytest.raises(CatalogError, match="below the folder"):
        Draft(draft.write_id, draft.schema, [replace(draft.shards[0], partition="train")])


def test_a_tampered_header_or_table_is_refused(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    table = next(key for key in store.objects if key.endswith(".arrow"))
    good = dict(store.objects)
    for key, change in {
        table: lambda data: data[:-9] + b"X" + data[-8:],
        "_versions/00000001.json": lambda data: data.replace(b'"rows": 10', b'"rows": 11'),
    }.items():
        store.objects.update(good)
        store.objects[key] = change(store.objects[key])
        assert store.objects[key] != good[key]
        for read in (lambda: load_manifest(store, version=1), lambda: verify(store)):
            with pytest.raises(IndexFileError):
                read()
    with pytest.raises(IndexFileError):
        load_manifest(store)
    for junk in (b"", b"[]", b"{", b"[" * 200_000, b'{"smalti": 2}', good["_versions/00000001.json"][:50]):
        store.objects.update(good)
        store.objects["_versions/00000001.json"] = junk
        with pytest.raises(IndexFileError):
            load_manifest(store)


@pytest.mark.parametrize("splits", [(None,), ("train", "val")])
def test_a_small_set_opens_by_its_index_file_only_where_that_shows_exactly_the_version(make_draft, splits):
    store = MemoryStore()
    wanted = publish(store, make_draft(store, splits=splits))
    before = len(store.calls)
    assert load_manifest(store) == wanted
    assert not [call for call in store.calls[before:] if call.key.endswith(".arrow")]
    good = store.objects["index.json"]
    for wrong in (b'"samples": 1', b'"samples": -'):
        bad = good.replace(b'"samples": ', wrong, 1)
        assert bad != good
        store.objects["index.json"] = bad
        assert load_manifest(store) == wanted, "the version counts, not the copy of it"


def test_a_copy_without_versions_opens_as_a_plain_set_and_is_never_published_to(make_draft):
    store = MemoryStore()
    digest = publish(store, make_draft(store)).digest
    for key in [key for key in store.objects if key.startswith("_versions/")]:
        del store.objects[key]
    found = load_manifest(store)
    assert (found.version, found.digest) == (0, digest)
    with pytest.raises(DatasetExists, match="copied without its _versions folder"):
        publish(store, make_draft(store), mode="overwrite")


def test_a_set_that_lost_the_header_of_its_newest_version_says_what_to_do(make_draft):
    store = MemoryStore()
    for mode in ("create", "append"):
        publish(store, make_draft(store), mode=mode)
    del store.objects["_versions/00000002.json"]
    with pytest.raises(CatalogError, match="open an older one, such as version=1"):
        load_manifest(store)
    assert load_manifest(store, version=1).version == 1


def test_a_long_index_is_neither_fetched_nor_parsed_to_find_the_newest_version(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    index = store.objects["index.json"]
    entry = index[index.index(b'{"column') : index.index(b"}], ") + 1]
    store.objects["index.json"] = index.replace(b"[{", b"[" + (entry + b", ") * 4000 + b"{", 1)
    assert len(store.objects["index.json"]) > 1 << 20
    before = len(store.calls)
    assert load_manifest(store).version == 1
    assert "get index.json" not in [f"{call.op} {call.key}" for call in store.calls[before:]]
    nested = json.dumps({"other": json.loads(store.objects["index.json"])}, sort_keys=True)
    store.objects["index.json"] = nested.encode()
    with pytest.raises(IndexFileError):
        load_manifest(store)


def test_write_ids_are_unique():
    assert len({new_write_id() for _ in range(1000)}) == 1000


def test_conflict_is_a_catalog_error():
    assert issubclass(CommitConflict, CatalogError)
