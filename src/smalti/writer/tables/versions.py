"""The steps of a write that makes a version of a table's rows, whatever runs its tasks.

    columns   decide columns and encodings from schema and options; no row is read (`plan`)
    identify  derive the write id; a write that is published already ends here
    begin     mark the write as begun, and make its plan, which travels to the tasks unchanged (`plan`)
    run       each task encodes Arrow batches into shards, uploads them below a prefix of its own, named by attempt,
              and answers with their entries once the store has acknowledged all of them (`task`)
    publish   take one answer per task, join small shards of neighbouring tasks (`packing`), make all shards durable,
              and commit the version

A task, the process that publishes, or a machine that dies leaves objects that no version names, and nothing else.
"""

import contextlib
import dataclasses
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smalti.catalog import Draft, Manifest, history, load_manifest, new_write_id, publish
from smalti.catalog.header import Header
from smalti.catalog.manifest import check_write_id
from smalti.catalog.publishing import check_target
from smalti.catalog.retention import markers
from smalti.format import ShardInfo
from smalti.format.writing.sealing import AUTOMATIC
from smalti.storage import Store
from smalti.storage.store import SyncWatch
from smalti.writer.tables.attempts import Answers
from smalti.writer.tables.packing import JoinMany, delete_all, make_durable, pack
from smalti.writer.tables.plan import WriteOptions, WritePlan, stored_columns

_ID_VERSION = 1  # increase it to make the same job write again instead of finding what it has published
_NOT_IN_ID = (
    "transform", "progress", "write_id", "storage_options", "unlisted_hashes", "joins_shards", "allow_unsafe_types",
)  # fmt: skip
"""Options that a derived write id leaves out: a write with a transform, or with one of the last three, has none; the
others change no row."""
_REPLACING = ("create", "overwrite", "rollback")
"""Operations after which rows of earlier versions are not shown any more."""


@dataclasses.dataclass(frozen=True)
class Write:
    """The identity of one write, before a row is read."""

    write_id: str
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Lineage for the manifest: what is known of the source, and the caller's additions."""
    parent: Header | None = None
    """The version that is appended to; None in other modes."""
    published: Manifest | None = None
    """The version that this write has published before."""


@dataclasses.dataclass(frozen=True)
class Published:
    """The outcome of a write."""

    manifest: Manifest
    """The version."""
    shards: Sequence[ShardInfo]
    """Those of its shards that this write made."""


def derive_write_id(source: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the id of the write of this source with these options: equal for equal ones, on every machine.

    `source` identifies the rows exactly (JSON).
    """
    facts = [_ID_VERSION, dict(source), dict(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def options_in_id(options: WriteOptions) -> dict[str, str] | None:
    """Return the options that a derived write id depends on; None if a function or the caller decides what it is."""
    if options.write_id is not None or options.transform is not None:
        return None
    names = [field.name for field in dataclasses.fields(options) if field.name not in _NOT_IN_ID]
    if options.compression == AUTOMATIC and options.mode == "append":
        # zstd was the default before: rows that were appended with it are not appended a second time.
        options = dataclasses.replace(options, compression="zstd")
    return {name: repr(getattr(options, name)) for name in names}


def identify(store: Store, options: WriteOptions, source: Mapping[str, Any], derived: str | None) -> Write:
    """Return which write this call is.

    A write id of the caller identifies it for good. Otherwise, equal calls over an equal source have the same derived
    id and are the same write, as long as the newest version shows its rows.

    Raises:
        DatasetExists: The mode is `create`, and the place holds a set that another write made.
        CatalogError: The write id of the caller cannot be one.
    """
    if options.write_id is not None:
        check_write_id(options.write_id)
    write_id = options.write_id or derived or new_write_id()
    header = check_target(store, options.mode, write_id=write_id).header
    version = header.writes.get(write_id) if header is not None else None
    is_fenced = derived is not None and header is not None and write_id in header.fenced  # a vacuum refuses it
    if header is not None and (version is not None or is_fenced):
        if version is not None and (derived is None or _is_shown(store, header, version, options)):
            return Write(write_id, published=load_manifest(store, version=version))
        write_id = f"{write_id}-{secrets.token_hex(4)}"
        header = check_target(store, options.mode, write_id=write_id).header
    lineage = {**source, **dict(options.lineage or {})}
    return Write(write_id, lineage, parent=header if options.mode == "append" else None)


def _is_shown(store: Store, newest: Header, version: int, options: WriteOptions) -> bool:
    """Return whether the newest version shows the rows of this version; of an append, still has them."""
    later = [info for info in history(store) if info.version >= version]
    if options.mode != "append":
        return any(info.version == version and info.digest == newest.digest and not info.is_expired for info in later)
    return not any(info.version > version and info.operation in _REPLACING for info in later)


@contextlib.contextmanager
def begun(store: Store, write: Write) -> Iterator[SyncWatch]:
    """Mark the write as begun, so that no vacuum removes its shards; yield how the process that publishes syncs them.

    Raises:
        StoreError: The store did not take the marker.
    """
    markers.begin(store, write.write_id)  # creates the root, if that is a folder
    with store.watched() as watch:
        yield watch


def publish_shards(
    plan: WritePlan, write: Write, options: WriteOptions, answers: Answers, join_many: JoinMany, watch: SyncWatch
) -> Published:
    """Publish the shards that the tasks of a plan wrote as a version; blocks until that is done.

    Args:
        plan: The plan.
        write: The write that it is for.
        options: Options of the caller.
        answers: One answer per task, in order; the list is emptied.
        join_many: Joins shards where they are too many for this process.
        watch: How to sync the shards that tasks on this machine left to this process; from `begun`.

    Raises:
        SchemaError: There are no rows, or tasks found different columns.
        CommitConflict: Another writer published first; this write published nothing.
        StoreError: The store failed for longer than its retries.
    """
    schema, logical = stored_columns(plan, answers, write.parent)
    packed = pack(plan, answers, options, join_many)
    make_durable(plan.store, watch, packed)
    draft = Draft(
        write.write_id,
        schema,
        packed.shards,
        lineage=dict(write.lineage),
        metadata=dict(options.metadata or {}),
        logical=logical,
        row_hash=packed.row_hash,
    )
    manifest = publish(plan.store, draft, mode=options.mode)
    delete_all(plan.store, packed.unused_keys())
    markers.end(plan.store, write.write_id)
    return Published(manifest, packed.shards)
