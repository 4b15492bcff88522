"""The header of the next version: the fields that come from the draft, and those carried over from the parent.

The fields of a header by operation:

             shards          row_hash  logical       sidecars  lineage, metadata  writes, fenced, expired, erased
create       the draft's     draft's   draft's       draft's   draft's            the parent's, for all operations
overwrite    the draft's     draft's   draft's       draft's   draft's
append       parent + draft  sum       parent's (1)  (2)       draft's
rollback     the target's    target's  target's      target's  target's
vacuum       the parent's    parent's  parent's      parent's  parent's           and what it removes
copy         the source's    source's  source's      source's  source's           and its writes and deletions
delete       the draft's     draft's   draft's       draft's   draft's            and the record of the deletion

(1) The draft's must be the same, or empty. (2) See `smalti.catalog.sidecars.sidecars_after`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from smalti.catalog.commit import PublishingClock, put_and_check
from smalti.catalog.digest import content_scheme, digest_of_shards, is_content
from smalti.catalog.index import MANY_SHARDS
from smalti.catalog.manifest import (
    FOLDER,
    MAX_REMEMBERED_WRITES,
    SEGMENT_LIST_SUFFIX,
    Draft,
    Header,
    Manifest,
    add_row_hashes,
    digest_by,
    read_manifest,
    shared_fields,
)
from smalti.catalog.sidecars import check_no_added_columns, joined_erasures, sidecars_after
from smalti.catalog.table import segments as tables
from smalti.catalog.table.arrow import created_bytes, emit_table, parse_table, table_of
from smalti.catalog.table.segments import emit_list, joined_table, segmented
from smalti.catalog.table.shard_table import (
    Segment,
    ShardTable,
    TableFile,
    TableFiles,
    check_shards,
    num_bytes_of,
    partitions_of,
    samples_of,
    segment_shards_of,
    segments_in,
)
from smalti.errors import CatalogError, IndexFileError, SchemaError
from smalti.format import Schema, ShardInfo
from smalti.storage import Store

_PARALLEL_PUTS = 8


@dataclass(frozen=True)
class VersionStep:
    """The step from one version to the next: its parent, the operation and the clock of the publisher."""

    parent: Header | None
    operation: str
    clock: PublishingClock
    owners: tuple[str, ...] = ()
    """Write ids of other versions whose objects a copy contains, so that a vacuum knows them."""
    expired: tuple[int, ...] = ()
    """Versions that lose objects, or earlier ones of a copy that stand for versions which the source has no longer."""
    erased: tuple[Mapping[str, Any], ...] = ()
    """Deletions that this step makes, or that a copied version records; the version's number is added to each."""
    digest_scheme: str | None = None
    """The scheme of the digest of a copy's source; None for that of new versions."""


def header_of_draft(store: Store, draft: Draft, step: VersionStep) -> tuple[Header, Sequence[ShardInfo]]:
    """Return the header and the shards of the version that publishing the draft would create; store the shard table.

    Raises:
        SchemaError: `append`, and the draft does not fit the version that it is appended to.
        CatalogError: there are so many splits that readers would refuse the list of segments.
    """
    before = read_manifest(store, step.parent) if step.operation == "append" and step.parent is not None else None
    shards = _in_form(_shards(store, before, draft), step.digest_scheme)
    rows, row_hash = samples_of(shards), draft.row_hash
    if before is not None:
        row_hash = add_row_hashes([(before.row_hash, before.rows), (draft.row_hash, rows - before.rows)])
    logical = _logical(store, before, draft)
    facts = {
        "logical": logical,
        "row_hash": row_hash,
        "sidecars": sidecars_after(step.parent, draft, step.operation),
    }
    segments, scheme = segments_in(shards), _scheme(shards, step)
    if segments is None:
        table = emit_table(shards)
        if created_bytes(shards) is None:  # else it was read when it was made
            _check_table(store, shards, table)
        key, sha256 = _put_table(store, table, step.parent)
    else:
        computes = is_content(scheme) and step.digest_scheme is None
        key, sha256, shards = _put_segments(store, segments, step.parent, draft.schema.columns(), computes=computes)
    content = Header(
        **(shared_fields(draft, Header) | facts),
        version=0,  # `next_header` sets it, with all that depends on the parent
        digest=digest_by(scheme, shards, logical),
        digest_scheme=scheme,
        rows=rows,
        num_shards=len(shards),
        num_bytes=num_bytes_of(shards),
        partitions=partitions_of(shards),
        columns=draft.schema.columns(),
        table_key=key,
        table_sha256=sha256,
    )
    return next_header(content, draft.write_id, step), shards


def _in_form(shards: Sequence[ShardInfo], scheme: str | None) -> Sequence[ShardInfo]:
    """Return the shards in the form of the digest scheme, by default that of their number: in segments or not."""
    found = segments_in(shards)
    if scheme is not None:
        size = segment_shards_of(scheme)
    elif len(shards) > tables.MAX_TABLE_SHARDS:
        size = tables.SEGMENT_SHARDS if found is None else found.segment_shards
    else:
        size = None
    if (None if found is None else found.segment_shards) == size:
        return shards
    return segmented([shards], size=size) if size else table_of(shards)


def _scheme(shards: Sequence[ShardInfo], step: VersionStep) -> str:
    """Return the scheme of the version's digest: that of its content, unless it keeps the digest of an earlier version.

    A copy keeps that of its source; a version with the shards of its parent, such as one with added columns, that of
    the parent.
    """
    if step.digest_scheme is not None:
        return step.digest_scheme
    found, parent = segments_in(shards), step.parent
    scheme = content_scheme(None if found is None else found.segment_shards)
    if parent is None or is_content(parent.digest_scheme) or len(shards) != parent.num_shards:
        return scheme
    has_form_of_parent = segment_shards_of(parent.digest_scheme) == segment_shards_of(scheme)
    is_kept = has_form_of_parent and digest_by(parent.digest_scheme, shards, {}) == parent.digest
    return parent.digest_scheme if is_kept else scheme


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
    writes = dict.fromkeys(step.owners, version) | ({} if parent is None else dict(parent.writes))
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
        expired=tuple(sorted({*(() if parent is None else parent.expired), *step.expired})),
        erased=joined_erasures(
            () if parent is None else parent.erased, step.erased, version=version, write_id=write_id
        ),
    )


def _check_table(store: Store, shards: Sequence[ShardInfo], table: bytes) -> None:
    """Check that readers get the same shards from the file of the table, before it is put.

    Raises:
        CatalogError: they would not.
    """
    try:
        found = parse_table(table, sha256=hashlib.sha256(table).hexdigest(), where=f"of the new version of {store.url}")
    except IndexFileError as error:
        raise CatalogError(f"the shards could not be read back, so nothing was published: {error.message}") from error
    if found != tuple(shards):
        raise CatalogError(
            f"{store.url}: the table of the {len(shards)} shards is read back as another one, so nothing was "
            "published; report this, with the names of the columns and splits"
        )


def _put_table(store: Store, data: bytes, parent: Header | None, suffix: str = ".arrow") -> tuple[str, str]:
    """Put a file of a shard table, and return its key and its SHA-256.

    Its key is its SHA-256, or another one if a vacuum removes that.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"{FOLDER}/{sha256}{suffix}"
    if parent is not None and sha256 in parent.fenced:
        key = f"{FOLDER}/{sha256}-{parent.version + 1}{suffix}"
    put_and_check(partial(store.put, key, data), store, key, len(data))
    return key, sha256


def _put_segments(
    store: Store, segments: TableFiles, parent: Header | None, columns: Mapping[str, str], *, computes: bool
) -> tuple[str, str, ShardTable]:
    """Put the segments that the parent does not have, and their list; return its key and SHA-256, and the shards.

    With `computes`, the digests in the list are computed of the content of the segments, unless the parent has them;
    without it, they stay as they are.

    Raises:
        CatalogError: there are so many splits that readers would refuse the list.
    """
    known: dict[str, Segment] = {}
    has_digests = parent is not None and is_content(parent.digest_scheme)
    if parent is not None and parent.is_segmented:
        with suppress(IndexFileError):  # an append has read the list; what replaces a damaged version needs none of it
            before = segments_in(read_manifest(store, parent, recount=False).shards)
            known = {} if before is None else {facts.sha256: facts for facts in before.facts}

    def stored(file: TableFile, facts: Segment) -> TableFile:
        same = known.get(facts.sha256)
        if same is not None and (has_digests or not computes):
            digest = same.digest if computes else facts.digest
            return TableFile(replace(facts, key=same.key, digest=digest), store, file.loaded)
        content = file.load()
        shards = ShardTable.of(content)
        if computes:
            facts = replace(facts, digest=digest_of_shards(shards))
        if same is not None:
            return TableFile(replace(facts, key=same.key), store, file.loaded)
        data = emit_table(shards)
        content.release()
        key, sha256 = _put_table(store, data, parent)
        return TableFile(replace(facts, key=key, sha256=sha256, file_bytes=len(data)), store, file.loaded)

    facts = segments.facts
    if sum(each.sha256 not in known for each in facts) <= _PARALLEL_PUTS:  # an append, mostly
        files = tuple(map(stored, segments.files, facts))
    else:
        with ThreadPoolExecutor(_PARALLEL_PUTS, thread_name_prefix="smalti-segment") as pool:
            files = tuple(pool.map(stored, segments.files, facts))
    found = ShardTable(TableFiles(files, segments.segment_shards, columns))
    data = emit_list(found.content)
    if len(data) > tables.MAX_LIST_BYTES:
        raise CatalogError(
            f"{store.url}: the list of the {len(files)} segments of the shard table would have {len(data)} bytes, of "
            f"which readers accept {tables.MAX_LIST_BYTES}; {len(partitions_of(found))} splits are too many for "
            f"{len(found)} shards. Nothing was published",
        )
    return *_put_table(store, data, parent, SEGMENT_LIST_SUFFIX), found


def _shards(store: Store, before: Manifest | None, draft: Draft) -> Sequence[ShardInfo]:
    if before is None:
        return draft.shards
    _check_columns(store, before, draft.schema)
    if len(before.shards) + len(draft.shards) > tables.MAX_TABLE_SHARDS:
        after = segments_in(before.shards)
        parts = [draft.shards] if after is not None else [before.shards, draft.shards]
        return segmented(parts, after=after, schema=draft.schema)
    both, count = (before.shards, draft.shards), len(before.shards) + len(draft.shards)
    shards = joined_table(both, count) if count >= MANY_SHARDS else tuple(chain.from_iterable(both))
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
