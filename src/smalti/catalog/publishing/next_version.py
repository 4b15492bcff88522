"""The header of the version that comes after another: what a draft adds to it, and what is carried on.

What each operation makes of a header's fields:

             shards          row_hash  logical       sidecars  lineage, metadata  writes, fenced, expired
create       the draft's     draft's   draft's       draft's   draft's            carried on, as by all
overwrite    the draft's     draft's   draft's       draft's   draft's
append       parent + draft  sum       parent's (1)  (2)       draft's
rollback     the target's    target's  target's      target's  target's
vacuum       the parent's    parent's  parent's      parent's  parent's           and what it removes

(1) that of a draft must be the same, or empty. (2) `smalti.catalog.additions.columns.carried`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from smalti.catalog.additions.columns import carried, check_no_added_columns
from smalti.catalog.checked_put import put_checked
from smalti.catalog.header import FOLDER, MAX_REMEMBERED_WRITES, Header, read_manifest, table_key
from smalti.catalog.index.refresh import MANY_SHARDS
from smalti.catalog.manifest import Draft, Manifest, add_row_hashes, stored_bytes
from smalti.catalog.publishing.commit import Clock
from smalti.catalog.table.arrow import emit_table, table_of
from smalti.catalog.table.digest import check_shards, digest_of
from smalti.catalog.table.shard_table import ShardTable, sizes_of
from smalti.errors import SchemaError
from smalti.format import Schema, ShardInfo
from smalti.storage import Store


@dataclass(frozen=True)
class Step:
    """From which version to the next, by which operation, by whose clock."""

    parent: Header | None
    operation: str
    clock: Clock

    @property
    def appends(self) -> bool:
        """Whether what the parent shows stays."""
        return self.operation == "append" and self.parent is not None


def drafted(store: Store, draft: Draft, step: Step) -> tuple[Header, Sequence[ShardInfo]]:
    """The header that would make the draft a version, and its shards; their table is in the store.

    Raises:
        SchemaError: `append`, and the draft does not fit what there is.
    """
    before = read_manifest(store, step.parent) if step.appends and step.parent is not None else None
    shards = _shards(store, before, draft)
    rows = int(sizes_of(shards).sum())
    content = Header(
        version=0,
        parent=None,
        write_id=draft.write_id,
        operation=step.operation,
        digest=digest_of(shards),
        rows=rows,
        num_shards=len(shards),
        num_bytes=_num_bytes(shards),
        partitions=_partitions(shards),
        columns=draft.schema.columns(),
        table_key="",
        table_sha256="",
        created="",
        lineage=dict(draft.lineage),
        metadata=dict(draft.metadata),
        logical=_logical(store, before, draft),
        row_hash=_row_hash(before, draft, rows),
        sidecars=carried(step.parent, draft, step.operation),
    )
    return following(_with_table(store, content, emit_table(shards), step.parent), draft.write_id, step), shards


def check_append(store: Store, parent: Header, schema: Schema) -> None:
    """Return only if a draft with these columns can be appended to the version as it is now.

    Raises:
        SchemaError: the version has other columns, or columns that were added beside its shards.
        IndexFileError: its shard table cannot be trusted.
    """
    _check_columns(store, read_manifest(store, parent), schema)
    check_no_added_columns(parent)


def following(content: Header, write_id: str, step: Step) -> Header:
    """The header of the version after the step's parent that shows the content of `content`."""
    parent = step.parent
    version = 1 if parent is None else parent.version + 1
    writes = {} if parent is None else dict(parent.writes)
    writes[write_id] = version
    recent = sorted(writes.items(), key=lambda item: item[1])[-MAX_REMEMBERED_WRITES:]
    return replace(
        content,
        version=version,
        parent=None if parent is None else parent.version,
        write_id=write_id,
        operation=step.operation,
        created=f"{step.clock.now():%Y-%m-%dT%H:%M:%SZ}",
        writes=dict(recent),
        fenced=() if parent is None else parent.fenced,
        expired=() if parent is None else parent.expired,
    )


def _with_table(store: Store, content: Header, table: bytes, parent: Header | None) -> Header:
    """The content with its table in the store, under its digest; under another name if a vacuum removes that one."""
    sha256 = hashlib.sha256(table).hexdigest()
    key = table_key(sha256)
    if parent is not None and sha256 in parent.fenced:
        key = f"{FOLDER}/{sha256}-{parent.version + 1}.arrow"
    put_checked(store, key, table)
    return replace(content, table_key=key, table_sha256=sha256)


def _shards(store: Store, before: Manifest | None, draft: Draft) -> Sequence[ShardInfo]:
    if before is None:
        return draft.shards
    _check_columns(store, before, draft.schema)
    both = chain(before.shards, draft.shards)
    shards = table_of(both) if len(before.shards) + len(draft.shards) >= MANY_SHARDS else tuple(both)
    check_shards(shards, draft.schema)
    return shards


def _check_columns(store: Store, before: Manifest, schema: Schema) -> None:
    if not before.shards or before.schema == schema:
        return
    expected, found = before.schema.columns(), schema.columns()
    if expected == found:
        raise SchemaError(
            f"cannot append to version {before.version} of {store.url}: the set and the new shards store the columns "
            f"{', '.join(map(repr, found))} differently, one of them in MDS and the other as text; use a writer of the "
            "set's format",
        )
    raise SchemaError(
        f"cannot append to version {before.version} of {store.url}: it has columns {expected}, these shards have "
        f"{found}; write the columns of the set, or give mode='overwrite' for a version with other ones",
        expected=expected,
        found=found,
    )


def _num_bytes(shards: Sequence[ShardInfo]) -> int:
    return shards.num_bytes if isinstance(shards, ShardTable) else sum(map(stored_bytes, shards))


def _partitions(shards: Sequence[ShardInfo]) -> tuple[str, ...]:
    if isinstance(shards, ShardTable):
        return shards.partitions
    return tuple(sorted({shard.partition for shard in shards if shard.partition is not None}))


def _row_hash(before: Manifest | None, draft: Draft, rows: int) -> str:
    if before is None:
        return draft.row_hash
    return add_row_hashes([(before.row_hash, before.rows), (draft.row_hash, rows - before.rows)])


def _logical(store: Store, before: Manifest | None, draft: Draft) -> Mapping[str, Any]:
    """What stored values stand for; a draft that says nothing of it appends values as they are stored."""
    if before is None or not before.rows:
        return dict(draft.logical)
    if not draft.logical:
        return before.logical
    names = [*before.logical, *(name for name in draft.logical if name not in before.logical)]
    others = [name for name in names if _text(before.logical.get(name)) != _text(draft.logical.get(name))]
    if others:
        raise SchemaError(
            f"cannot append to version {before.version} of {store.url}: values of column {others[0]!r} stand for "
            f"{_text(before.logical.get(others[0]))} there, and for {_text(draft.logical.get(others[0]))} in these "
            "shards (null: for themselves); convert the column to what it is in the set, or write the whole set anew",
            column=others[0],
            expected=before.logical.get(others[0]),
            found=draft.logical.get(others[0]),
        )
    return before.logical


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
