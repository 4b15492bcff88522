"""Columns beside the shards of a version: the table of theirs, put into the store, and the entry that names it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from smalti.catalog.manifest import digest_of, stored_bytes
from smalti.catalog.sidecars import ColumnsEntry
from smalti.catalog.table import emit_table
from smalti.format import ShardInfo
from smalti.storage import Store


def store_columns(
    store: Store, key: str, shards: Sequence[ShardInfo], columns: Mapping[str, str], logical: Mapping[str, Any]
) -> ColumnsEntry:
    """The entry for a header's `sidecars`, after the table of these shards was put under `key`.

    Args:
        store: The root of the set.
        key: Below the folder of the write that made the shards.
        shards: One beside each of the version, with as many samples; in the store.
        columns: Name to encoding of what they hold.
        logical: What stored values stand for, by column.

    Raises:
        StoreError: The table could not be put.
    """
    table = emit_table(shards)
    store.put(key, table)
    return ColumnsEntry(
        columns=columns,
        table_key=key,
        table_sha256=hashlib.sha256(table).hexdigest(),
        digest=digest_of(shards),
        num_bytes=sum(map(stored_bytes, shards)),
        logical=logical,
    )
