"""Columns that were added to a version later are columns like the others, to all of `info`, `head`, `stats`."""

from smalti import head, info, stats
from smalti.catalog import load_manifest, new_write_id, publish
from smalti.catalog.sidecars import store_columns
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.storage import open_store
from smalti.writer import ShardUploader
from tests.shard_sets import write_set


def add_lengths(root) -> None:
    """Add the column `length`, of twice the id, to each shard of the newest version."""
    store, manifest, write_id = open_store(root), load_manifest(root), new_write_id()
    columns, first = {"length": "int32"}, 0
    shards: list[ShardInfo] = []
    for number, main in enumerate(manifest.shards):
        schema = Schema.from_columns(columns)
        uploader = ShardUploader(store, f"{write_id}/{number}", ShardBuilder(schema, ShardOptions()))
        for place in range(first, first + main.samples):
            uploader.write({"length": 2 * place})
        shards += uploader.finish()
        first += main.samples
    entry = store_columns(store, f"{write_id}/columns.arrow", shards, columns, {})
    publish(store, manifest.redraft(write_id, sidecars=[entry.to_json()]), mode="overwrite")


def test_added_columns_are_shown_read_and_measured(tmp_path):
    write_set(tmp_path, 50)
    alone = info(tmp_path)
    add_lengths(tmp_path)
    found = info(tmp_path)
    assert [(each.name, each.is_added) for each in found.columns][-1] == ("length", True)
    assert found.num_bytes > alone.num_bytes
    rows = head(tmp_path, 3, offset=30).rows
    assert [(row["id"], row["length"]) for row in rows] == [(30, 60), (31, 62), (32, 64)]
    assert head(tmp_path, 2, columns=["length"]).rows == ({"length": 0}, {"length": 2})
    measured = {each.name: each for each in stats(tmp_path).columns}["length"].values
    assert (measured.min, measured.max, measured.mean) == (0, 98, 49.0)
