"""The header of the next version: the fields that come from the draft, and those carried over from the parent.

The fields of a header by operation:

             shards          row_hash  logical       sidecars  lineage, metadata  writes, fenced, expired
create       the draft's     draft's   draft's       draft's   draft's            the parent's, for all operations
overwrite    the draft's     draft's   draft's       draft's   draft's
append       parent + draft  sum       parent's (1)  (2)       draft's
rollback     the target's    target's  target's      target's  target's
vacuum       the parent's    parent's  parent's      parent's  parent's           and what it removes

(1) The draft's must be the same, or empty. (2) See `smalti.catalog.sidecars.sidecars_after`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from smalti.catalog.commit import PublishingClock, put_and_check
from smalti.catalog.header import FOLDER, MAX_REMEMBERED_WRITES, Header, read_manifest, table_key
from smalti.catalog.index import MANY_SHARDS
from smalti.catalog.manifest import Draft, Manifest, add_row_hashes, num_bytes_of, partitions_of, shared_fields
from smalti.catalog.sidecars import check_no_added_columns, sidecars_after
from smalti.catalog.table.arrow import emit_table, table_of
from smalti.catalog.table.shard_table import check_shards, digest_of, sizes_of
from smalti.errors import SchemaError
from smalti.format import Schema, ShardInfo
from smalti.storage import Store


@dataclass(frozen=True)
class VersionStep:
    """The step from one version to the next: its parent, the operation and the clock of the publisher."""

    parent: Header | None
    operation: str
    clock: PublishingClock


def header_of_draft(store: Store, draft: Draft, step: VersionStep) -> tuple[Header, Sequence[ShardInfo]]:
    """Return the header and the shards of the version that publishing the draft would create; store the shard table.

    Raises:
        SchemaError: `append`, and the draft does not fit the version that it is appended to.
    """
    before = read_manifest(store, step.parent) if step.operation == "append" and step.parent is not None else None
    shards = _shards(store, before, draft)
    rows = int(sizes_of(shards).sum())
    facts = shared_fields(draft, Header) | {
        "logical": _logical(store, before, draft),
        "row_hash": _row_hash(before, draft, rows),
        "sidecars": sidecars_after(step.parent, draft, step.operation),
    }
    content = Header(
        **facts,
        version=0,  # `next_header` sets it, with all that depends on the parent
        digest=digest_of(shards),
        rows=rows,
        num_shards=len(shards),
        num_bytes=num_bytes_of(shards),
        partitions=partitions_of(shards),
        columns=draft.schema.columns(),
        table_key="",
        table_sha256="",
    )
    return next_header(_with_table(store, content, emit_table(shards), step.parent), draft.write_id, step), shards


def check_append(store: Store, parent: Header, schema: Schema) -> None:
    """Check that a draft with these columns can be appended to the version as it is now.

    Raises:
        SchemaError: the version has other columns, or columns that were added beside its shards.
        IndexFileError: its shard table cannot be trusted.
    """
    _check_columns(store, read_manifest(store, parent), schema)
    check_no_added_columns(parent)


def next_header(content: Header, write_id: str, step: VersionStep) -> Header:
    """Return the header of the version after the step's parent that has the content of `content`."""
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
    """Put the table under its digest, or under another key if a vacuum removes that one, and name it in the header."""
    sha256 = hashlib.sha256(table).hexdigest()
    key = table_key(sha256)
    if parent is not None and sha256 in parent.fenced:
        key = f"{FOLDER}/{sha256}-{parent.version + 1}.arrow"
    put_and_check(partial(store.put, key, table), store, key, len(table))
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


def _row_hash(before: Manifest | None, draft: Draft, rows: int) -> str:
    if before is None:
        return draft.row_hash
    return add_row_hashes([(before.row_hash, before.rows), (draft.row_hash, rows - before.rows)])


def _logical(store: Store, before: Manifest | None, draft: Draft) -> Mapping[str, Any]:
    """Return the logical types of the new version; a draft without any appends values in their stored form."""
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
