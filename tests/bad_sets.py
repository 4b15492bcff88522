"""A shard set in which some samples cannot be decoded, with correct sizes; nothing else about it is wrong."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from smalti.writer import MDSWriter

PER_SHARD = 6


def write_bad_set(root: Path, count: int, bad: Collection[int]) -> str:
    """`count` samples with the columns `id` and `meta`; the JSON in `meta` of the samples `bad` is invalid."""
    with MDSWriter(out=str(root), columns={"id": "int", "meta": "bytes"}, size_limit=400) as writer:
        for number in range(count):
            writer.write(
                {"id": number, "meta": b"{broken      " if number in bad else b'{"number":%2d}' % (number % 100)}
            )
    shutil.rmtree(root / "_versions")
    index = json.loads((root / "index.json").read_text())
    del index["smalti"]
    for shard in index["shards"]:
        shard["column_encodings"] = [{"bytes": "json"}.get(name, name) for name in shard["column_encodings"]]
        shard["hashes"], shard["raw_data"]["hashes"] = [], {}
        file = root / shard["raw_data"]["basename"]
        file.write_bytes(file.read_bytes().replace(b'"bytes"', b'"json" ', 1))
    (root / "index.json").write_text(json.dumps(index))
    return str(root)
