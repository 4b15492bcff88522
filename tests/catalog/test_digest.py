"""The digest of a version is of its content: spelled out by hand, with what changes it and what does not."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from smalti.catalog import Draft, diff, history, load_manifest, new_write_id, publish, rollback, tag, vacuum, verify
from smalti.catalog.digest import digest_of, digest_of_shards
from smalti.catalog.manifest import header_key, read_header
from smalti.catalog.publishing import replace_content
from smalti.catalog.table import segments as tables
from smalti.catalog.table.arrow import emit_table, table_of
from smalti.errors import IndexFileError
from smalti.exchange import copy_version
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.writer import compact
from tests.catalog.retention.test_vacuum import AgingStore
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"id": "int64", "text": "str"})


def shard(number, split="train", **changes):
    """Return a shard of 10 samples, without a file."""
    raw = FileInfo(f"{split}/w-12/shard.{number:05}.mds", 100 + number, {"xxh3_64": f"{number:016x}"})
    return replace(ShardInfo(SCHEMA, 10, raw, hash_names=("xxh3_64",), size_limit=400, partition=split), **changes)


SHARDS = [shard(1), shard(2), shard(3, "val")]
TYPES = {"text": {"type": "json"}}
LINES = """\
{"columns": [["id", "int64", 8], ["text", "str", null]], "format": "mds", "newline": null, "separator": null, "split": "train"}
[10, 101, {"xxh3_64": "0000000000000001"}]
[10, 102, {"xxh3_64": "0000000000000002"}]
{"columns": [["id", "int64", 8], ["text", "str", null]], "format": "mds", "newline": null, "separator": null, "split": "val"}
[10, 103, {"xxh3_64": "0000000000000003"}]
"""  # noqa: E501  the lines of the digest, as they are hashed


def hashed(text):
    return sha256(text.encode()).hexdigest()


def published(shards, logical=None, store=None):
    """Publish shards of which a store claims that they are there."""
    store = store or MemoryStore()
    for one in shards:
        for file in one.stored_files:
            store.put(file.basename, bytes(file.num_bytes))
    return publish(store, Draft(new_write_id(), shards[0].schema, shards, logical=logical or {}))


def test_the_digest_is_the_sha256_of_columns_splits_counts_sizes_and_hashes():
    first = '{"digest": "content", "logical": {"text": {"type": "json"}}}\n'
    made = published(SHARDS, TYPES)
    assert (made.digest, made.digest_scheme) == (hashed(f"{first}{hashed(LINES)}\n"), "content")


def test_the_digest_of_a_version_in_segments_is_over_those_of_the_segments(monkeypatch):
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 2)
    monkeypatch.setattr(tables, "SEGMENT_SHARDS", 2)
    lines = LINES.splitlines(keepends=True)
    first = '{"digest": "content-segments-2", "logical": {}}\n'
    parts = f"{hashed(''.join(lines[:3]))}\n{hashed(''.join(lines[3:]))}\n"
    made = published(SHARDS)
    assert (made.digest, made.digest_scheme) == (hashed(first + parts), "content-segments-2")


def test_a_text_shard_has_two_files_and_its_line_ends_in_the_digest():
    schema = Schema.from_columns({"t": "str"})
    files = [FileInfo(f"w-12/shard.00000.{kind}", size, {}) for kind, size in (("csv", 70), ("csv.meta", 40))]
    files[0] = replace(files[0], hashes={"xxh3_64": "ab" * 8, "sha1": "cd" * 20})
    one = ShardInfo(schema, 5, files[0], format="csv", meta=files[1], newline="\n", separator=",")
    assert digest_of_shards([one]) == hashed(
        '{"columns": [["t", "str", null]], "format": "csv", "newline": "\\n", "separator": ",", "split": null}\n'
        f'[5, 70, {{"sha1": "{"cd" * 20}", "xxh3_64": "{"ab" * 8}"}}, 40, "w-12/shard.00000.csv.meta"]\n'
    )


def renamed(one, name="other/name.mds", **changes):
    return replace(one, raw=replace(one.raw, basename=name), **changes)


@pytest.mark.parametrize(
    "changed",
    [
        renamed(SHARDS[0]),
        replace(SHARDS[0], zip=FileInfo("train/x.zstd", 50, {"xxh3_64": "f" * 16}), compression="zstd"),
        replace(SHARDS[0], size_limit=None),
    ],
    ids=["name", "compressed", "limit"],
)
def test_names_and_compressed_files_do_not_change_the_digest(changed):
    assert digest_of_shards([changed, *SHARDS[1:]]) == hashed(LINES)


@pytest.mark.parametrize(
    "changed",
    [
        [SHARDS[1], SHARDS[0], SHARDS[2]],
        SHARDS[:2],
        [replace(SHARDS[0], samples=11), *SHARDS[1:]],
        [replace(SHARDS[0], partition="val"), *SHARDS[1:]],
        [replace(SHARDS[0], raw=replace(SHARDS[0].raw, num_bytes=9)), *SHARDS[1:]],
        [replace(SHARDS[0], raw=replace(SHARDS[0].raw, hashes={"xxh3_64": "0" * 16})), *SHARDS[1:]],
        [replace(SHARDS[0], schema=Schema.from_columns({"id": "int64", "text": "bytes"})), *SHARDS[1:]],
        [replace(one, format="parquet") for one in SHARDS],
    ],
    ids=["order", "fewer", "samples", "split", "bytes", "hash", "encoding", "format"],
)
def test_any_other_change_of_the_shards_changes_the_digest(changed):
    assert digest_of_shards(changed) != hashed(LINES)


def test_other_logical_types_change_the_digest_of_a_version():
    assert published(SHARDS).digest != published(SHARDS, TYPES).digest


def test_of_shards_without_hashes_the_digest_names_the_files():
    bare = [replace(one, raw=replace(one.raw, hashes={}), hash_names=()) for one in SHARDS]
    assert f"[10, 101, {json.dumps(bare[0].raw.basename)}]" == '[10, 101, "train/w-12/shard.00001.mds"]'
    text = LINES
    for number, split in ((1, "train"), (2, "train"), (3, "val")):
        text = text.replace(f'{{"xxh3_64": "{number:016x}"}}', f'"{split}/w-12/shard.{number:05}.mds"')
    assert digest_of_shards(bare) == hashed(text)
    assert digest_of_shards([renamed(bare[0]), *bare[1:]]) != hashed(text)


def odd_shards(count=40):
    """Return shards of two splits in turn, some without hashes, with several, or of text."""
    text = {"format": "csv", "newline": "\r\n", "separator": ","}
    for number in range(count):
        one = shard(number, "train" if number % 3 else "val", schema=Schema.from_columns({"t": "str"}))
        name = f"{one.partition}/w-12/shard.{number:03}.mds"
        if number % 5 == 0:
            one = replace(one, raw=FileInfo(name, 1000 + number, {}), hash_names=())
        if number % 5 == 1:
            both = {"sha1": f"{number:040x}", **one.raw.hashes}
            one = replace(one, raw=replace(one.raw, hashes=both), hash_names=("sha1", "xxh3_64"))
        if number % 7 == 0:
            meta = FileInfo(f"{one.raw.basename}.meta", 900, one.raw.hashes)
            one = replace(one, **text, meta=meta)
        yield one


@pytest.mark.parametrize("shards", [SHARDS, list(odd_shards()), [shard(number) for number in range(30)], []], ids=len)
def test_the_digest_of_a_table_is_that_of_its_shards(shards):
    table = table_of(shards)
    assert digest_of_shards(table) == digest_of_shards(shards)
    assert digest_of_shards(table[3:]) == digest_of_shards(shards[3:])
    assert digest_of_shards(table[::2]) == digest_of_shards(shards[::2])


# ---------------------------------------------------------------------- versions


@pytest.fixture
def rebuilt(make_draft):
    """Return two stores with the same rows, each from a writer of its own."""
    one, two = MemoryStore(), MemoryStore()
    for store in (one, two):
        publish(store, make_draft(store, 50, splits=("train", "val")))
    return one, two


def test_the_same_rows_written_twice_have_one_digest_and_other_files(rebuilt):
    one, two = map(load_manifest, rebuilt)
    assert one.digest == two.digest
    assert {shard.raw.basename for shard in one.shards}.isdisjoint(shard.raw.basename for shard in two.shards)


def test_a_copy_and_a_copy_of_the_index_file_and_shards_alone_have_the_digest(make_draft):
    one, two = MemoryStore(), MemoryStore("memory-store://other")
    made = publish(one, make_draft(one, 50))
    copy_version(one, two)
    assert load_manifest(two).digest == made.digest
    for key in [key for key in two.objects if key.startswith("_versions/")]:
        del two.objects[key]
    assert (load_manifest(two).version, load_manifest(two).digest) == (0, made.digest)


def test_lineage_metadata_tags_and_a_vacuum_leave_the_digest(make_draft):
    store = AgingStore()
    made = publish(store, make_draft(store, 50))
    again = replace_content(store, made.redraft(new_write_id(), lineage={"a": 1}, metadata={"b": 2}), based_on=1)
    tag(store, "best", 2)
    store.pass_days(30)
    publish(store, make_draft(store, 60), mode="overwrite")
    store.pass_days(30)
    vacuum(store, dry_run=False)
    assert again.digest == load_manifest(store, version=2).digest == made.digest


def test_added_columns_leave_the_digest_and_rewritten_shards_change_it(make_draft):
    store = MemoryStore()
    made = publish(store, make_draft(store, 50))
    added = replace_content(
        store, made.redraft(new_write_id(), sidecars=({"kind": "sources", "key": "x"},)), based_on=1, operation="add"
    )
    assert added.digest == made.digest
    replace_content(store, made.redraft(new_write_id()), based_on=2)
    assert compact(store, size_limit=1 << 20).digest != made.digest


def test_a_rollback_to_equal_content_in_other_files_brings_the_files_back(make_draft):
    store = MemoryStore()
    first = publish(store, make_draft(store, 50))
    second = publish(store, make_draft(store, 50), mode="overwrite")
    assert first.digest == second.digest
    assert diff(store, 1, 2).is_equal
    back = rollback(store, 1)
    assert (back.version, back.shards) == (3, first.shards)
    assert rollback(store, 1).version == 3


def test_an_index_file_of_equal_content_in_other_files_is_not_taken_for_the_newest(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 50))
    old = store.get("index.json")
    second = publish(store, make_draft(store, 50), mode="overwrite")
    store.put("index.json", old)  # the publisher of the second version died before it replaced the file
    assert load_manifest(store).shards == second.shards


def test_names_changed_in_the_index_file_are_not_read(make_draft):
    store = MemoryStore()
    made = publish(store, make_draft(store, 50))
    store.put("index.json", store.get("index.json").replace(b"shard.00001", b"shard.00009"))
    assert load_manifest(store).shards == made.shards


# ---------------------------------------------------------------------- versions of earlier releases

_HEADER = """{
 "smalti": 1, "version": 1, "parent": null, "write_id": "20240607t101112-0123456789abcdef", "operation": "create",
 "digest": "%s", "rows": 30, "num_shards": 3, "num_bytes": 306, "partitions": ["train", "val"],
 "columns": {"id": "int64", "text": "str"}, "table_key": "_versions/%s.arrow", "table_sha256": "%s",
 "created": "2024-06-07T10:11:12Z", "lineage": {}, "metadata": {}, "logical": {"text": {"type": "json"}},
 "writes": {"20240607t101112-0123456789abcdef": 1}
}"""
_OLD_LINES = """smalti-manifest-1
[["id","text"],["int64","str"],[8,null]]["train",10,["train/w-12/shard.00001.mds",101,{"xxh3_64":"0000000000000001"}],null,null,["xxh3_64"],400]
[["id","text"],["int64","str"],[8,null]]["train",10,["train/w-12/shard.00002.mds",102,{"xxh3_64":"0000000000000002"}],null,null,["xxh3_64"],400]
[["id","text"],["int64","str"],[8,null]]["val",10,["val/w-12/shard.00003.mds",103,{"xxh3_64":"0000000000000003"}],null,null,["xxh3_64"],400]
"""


@pytest.fixture
def old():
    """Return a store with a version whose header an earlier release wrote."""
    store = MemoryStore()
    table = emit_table(SHARDS)
    store.put(f"_versions/{sha256(table).hexdigest()}.arrow", table)
    text = _HEADER % (hashed(_OLD_LINES), sha256(table).hexdigest(), sha256(table).hexdigest())
    store.put(header_key(1), text.encode())
    for one in SHARDS:
        store.put(one.raw.basename, bytes(one.raw.num_bytes))
    return store


def test_a_header_without_a_scheme_has_the_digest_over_names(old):
    opened = load_manifest(old)
    assert (opened.digest, opened.digest_scheme, list(opened.shards)) == (hashed(_OLD_LINES), "", SHARDS)
    assert hashed(_OLD_LINES) == digest_of(SHARDS)
    assert verify(old, deep=False).ok


def test_a_wrong_digest_of_an_earlier_release_is_found(old):
    old.put(header_key(1), old.get(header_key(1)).replace(hashed(_OLD_LINES).encode(), b"0" * 64))
    with pytest.raises(IndexFileError, match="its table has"):
        verify(old, deep=False)


def test_the_next_version_has_the_new_digest_and_a_rollback_the_old_one(old):
    draft = Draft("w-1234", SCHEMA, [shard(4)], logical=TYPES)
    old.put(draft.shards[0].raw.basename, bytes(104))
    made = publish(old, draft, mode="append")
    first = '{"digest": "content", "logical": {"text": {"type": "json"}}}\n'
    lines = f'{LINES}{LINES.splitlines()[0]}\n[10, 104, {{"xxh3_64": "0000000000000004"}}]\n'
    assert made.digest == hashed(f"{first}{hashed(lines)}\n")
    back = rollback(old, 1)
    assert (back.digest, back.digest_scheme) == (hashed(_OLD_LINES), "")
    assert [info.digest_scheme for info in history(old)] == ["", "content", ""]
    assert not diff(old, 1, 2).is_equal


def test_a_version_with_the_shards_of_an_earlier_release_keeps_its_digest(old):
    sidecars = ({"kind": "sources", "key": "x"},)
    added = replace_content(old, load_manifest(old).redraft(new_write_id(), sidecars=sidecars), based_on=1)
    assert (added.version, added.digest, added.digest_scheme) == (2, hashed(_OLD_LINES), "")


def test_a_copy_has_the_digest_of_an_earlier_release_too(make_draft):
    store, target = MemoryStore(), MemoryStore("memory-store://other")
    digest = digest_of(publish(store, make_draft(store, 50)).shards)
    store.put(header_key(1), replace(read_header(store, 1), digest=digest, digest_scheme="").emit())
    copy_version(store, target)
    assert (load_manifest(target).digest, read_header(target, 1).digest_scheme) == (digest, "")


def test_versions_of_both_digests_are_compared_by_content(old, make_draft):
    draft = Draft(
        "w-1234",
        SCHEMA,
        [renamed(one, f"{one.partition}/w-1234/{i}.mds") for i, one in enumerate(SHARDS)],
        logical=TYPES,
    )
    for one in draft.shards:
        old.put(one.raw.basename, bytes(one.raw.num_bytes))
    publish(old, draft, mode="overwrite")
    found = diff(old, 1, 2)
    assert (found.is_equal, found.num_kept) == (True, 0)


@pytest.mark.parametrize("scheme", ["segments-2", "content2", "content-segments-0"])
def test_a_scheme_that_is_not_known_is_refused(old, scheme):
    top = json.loads(old.get(header_key(1))) | {"digest_scheme": scheme, "smalti": 3}
    old.put(header_key(1), json.dumps(top).encode())
    with pytest.raises(IndexFileError, match="update smalti"):
        load_manifest(old, version=1)
