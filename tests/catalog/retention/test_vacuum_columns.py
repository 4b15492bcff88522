"""Added columns are kept and removed together with their version."""

import hashlib
from dataclasses import replace

import pytest

from smalti.catalog import publish, rollback, verify
from smalti.catalog.digest import digest_of
from smalti.catalog.manifest import stored_bytes
from smalti.catalog.retention.vacuum import vacuum
from smalti.catalog.sidecars import ColumnsEntry
from smalti.catalog.table.arrow import emit_table
from smalti.format import Schema, ShardBuilder, ShardOptions
from tests.catalog.retention.test_vacuum import AgingStore, is_whole, publish_all


@pytest.fixture
def store():
    return AgingStore()


def publish_with_columns(store, make_draft):
    """Publish version 1 of write `aaaa`, and version 2 with the same shards and a column added by write `side`."""
    draft = make_draft(store, 30, write_id="aaaa")
    publish(store, draft)
    beside = []
    for shard in draft.shards:
        builder = ShardBuilder(Schema.from_columns({"score": "int32"}), ShardOptions())
        filled = [each for row in range(shard.samples) for each in builder.add({"score": row})] + builder.finish()
        built = filled[0].seal()
        beside.append(built.info.with_prefix(f"side/{len(beside):05}"))
        store.put(beside[-1].raw.basename, bytes(built.payloads[0]))
    table = emit_table(beside)
    store.put("side/columns.arrow", bytes(table))
    sha256 = hashlib.sha256(table).hexdigest()
    num_bytes = sum(map(stored_bytes, beside))
    entry = ColumnsEntry({"score": "int32"}, "side/columns.arrow", sha256, digest_of(beside), num_bytes)
    publish(store, replace(draft, write_id="side", sidecars=(entry.to_json(),)), mode="overwrite")
    return beside


def test_added_columns_are_kept_and_removed_with_their_version(store, make_draft):
    beside = publish_with_columns(store, make_draft)
    store.pass_days(20)
    assert vacuum(store, dry_run=False).removed == ()
    assert len(store.below("side/")) == len(beside) + 1
    assert is_whole(store, None)
    publish_all(store, make_draft, "bbbb")
    store.pass_days(20)
    assert 2 in vacuum(store, dry_run=False).expired
    assert store.below("side/") == store.below("aaaa/") == []
    assert is_whole(store, None)


def test_verification_checks_added_columns_too(store, make_draft):
    beside = publish_with_columns(store, make_draft)
    assert verify(store).num_shards == 2 * len(beside)
    store.objects[beside[1].raw.basename] = store.objects[beside[1].raw.basename][:-1] + b"!"
    report = verify(store)
    assert [(problem.key, problem.kind) for problem in report.problems] == [(beside[1].raw.basename, "checksum")]
    assert verify(store, version=1).ok


def test_a_tag_of_a_version_whose_columns_were_removed_stops_no_later_vacuum(store, make_draft):
    """The process that tagged version 2 was killed before its check; the version's shards are those of version 3."""
    publish_with_columns(store, make_draft)
    rollback(store, 1)
    store.pass_days(20)
    assert vacuum(store, dry_run=False).expired == (1, 2)
    assert store.below("side/") == []
    store.put("_versions/tags/best.json", b'{"smalti": 1, "tag": "best", "version": 2}')
    publish_all(store, make_draft, "bbbb", "cccc")
    store.pass_days(20)
    assert 3 in vacuum(store, dry_run=False).expired
    assert is_whole(store, None)
