"""Re-sharding of prepared tables, without Spark: the newest version of the set is read once."""

import pyarrow as pa

from smalti.catalog import Draft, Manifest, load_manifest, publish, rollback
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.spark.prepared.rows import Sharding, Target, find_version, look_at
from smalti.spark.prepared.table import FILES, SCHEMA, PreparedTable
from smalti.storage import LocalStore
from smalti.writer import ShardUploader
from tests.stores import MemoryStore

SHARDING = Sharding({"path": "str"})
NOWHERE = "memory://gone/nothing-can-be-read-here"


def table(*digests):
    rows = [
        {"path": f"{number}.jpg", "fingerprint": "1 x", "label": 0, "class_name": "daisy", "split": "train",
         "digest": digest, "part": "aaaa/part-00000-0123abcd.parquet", "reason": None}
        for number, digest in enumerate(digests)
    ]  # fmt: skip
    manifest = Manifest(version=1, digest="0" * 64, rows=len(rows), schema=SCHEMA, shards=())
    return PreparedTable(MemoryStore(), manifest, pa.Table.from_pylist(rows, FILES))


def publish_rows(root, made_of, write_id):
    """Publish a version of one sample whose lineage is that of the rows of this table."""
    store, schema = LocalStore(root), Schema.from_columns({"path": "str"})
    uploader = ShardUploader(store, write_id, ShardBuilder(schema, ShardOptions()))
    uploader.write({"path": write_id})
    draft = Draft(write_id, schema, uploader.finish(), lineage=SHARDING.lineage(made_of))
    return publish(store, draft, mode="overwrite")


def test_without_a_set_no_version_is_found(tmp_path):
    target = look_at(tmp_path)
    assert (target.newest, target.version) == (None, 0)
    assert find_version(table("d0"), target, SHARDING) is None


def test_the_newest_version_is_taken_from_the_target_and_not_read_again(tmp_path):
    publish_rows(tmp_path, table("d0"), "aaaa")
    target = look_at(tmp_path)
    assert target.version == 1
    elsewhere = Target(NOWHERE, target.newest)
    assert find_version(table("d0"), elsewhere, SHARDING) is target.newest


def test_an_earlier_version_with_these_rows_is_rolled_back_to(tmp_path):
    publish_rows(tmp_path, table("d0"), "aaaa")
    publish_rows(tmp_path, table("d1"), "bbbb")
    found = find_version(table("d0"), look_at(tmp_path), SHARDING)
    assert (found.version, found.metadata["rolled_back_to"]) == (3, 1)
    assert load_manifest(tmp_path).lineage["rows"] == table("d0").digest
    rollback(tmp_path, 2)
    assert find_version(table("d2"), look_at(tmp_path), SHARDING) is None
