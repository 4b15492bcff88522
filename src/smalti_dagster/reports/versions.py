"""The shards of a version, and the history of a shard set with the difference of each version to the one before."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import dagster as dg

from smalti.catalog import Manifest
from smalti.catalog.diff import source_changes
from smalti.catalog.manifest import Header, read_header
from smalti.catalog.opening import headers_before
from smalti.errors import SmaltiError
from smalti.format import ShardInfo
from smalti.storage import Store
from smalti_dagster.reports.tables import MAX_TABLE_ROWS, Value, named, table

HISTORY = "version_history"
"""Key of the table of versions."""

MAX_VERSIONS = 12
"""Versions in that table."""

_MAX_CLASSES = 5  # that are named


def show_shards(manifest: Manifest, added: Sequence[ShardInfo]) -> dg.TableMetadataValue:
    """Return the shards of a version as a table: first those that the version before does not have."""
    shown = [*islice(added, MAX_TABLE_ROWS)]
    names = {shard.raw.basename for shard in added} if len(shown) < MAX_TABLE_ROWS else set()
    kept = islice((shard for shard in manifest.shards if shard.raw.basename not in names), MAX_TABLE_ROWS - len(shown))
    rows = [*(_shard(shard, "new") for shard in shown), *(_shard(shard, "kept") for shard in kept)]
    return table(rows, total=len(manifest.shards))


def _shard(info: ShardInfo, state: str) -> dict[str, Value]:
    stored = info.stored
    checksum = next((f"{name} {value[:16]}" for name, value in sorted(stored.hashes.items())), "")
    return {  # the last columns are out of sight in a narrow window
        "state": state,
        "split": str(info.partition or ""),
        "samples": info.samples,
        "bytes": stored.num_bytes,
        "shard": "/".join(stored.basename.split("/")[-2:]),  # below the split and the write id
        "checksum": checksum,
    }


def show_history(store: Store, manifest: Manifest, last: Mapping[str, Any]) -> dg.TableMetadataValue:
    """Return the newest versions as a table, newest first.

    Counts of added, removed and changed rows need the lists of files of two versions: they are made for the newest
    version alone, and taken over for those that the materialisation before has shown.

    Args:
        store: Of the set.
        manifest: The newest version.
        last: Facts of the materialisation before.
    """
    shown = last.get(HISTORY)
    known = {str(each.data["version"]): each.data for each in shown.records} if shown is not None else {}
    newest = read_header(store, manifest.version)
    headers = [newest, *islice(headers_before(store, newest), MAX_VERSIONS)]
    rows: list[Mapping[str, Value]] = []
    for at, header in enumerate(headers[:MAX_VERSIONS]):
        before = headers[at + 1] if at + 1 < len(headers) else None
        if at and str(header.version) in known:
            rows.append(known[str(header.version)])
        else:
            rows.append(_version(header, before, _changes(store, manifest, before) if not at else {}))
    return table(rows)


def _version(header: Header, before: Header | None, changes: Mapping[str, Value]) -> dict[str, Value]:
    net = header.rows - (before.rows if before is not None else 0)
    known = f"+{changes['added']} -{changes['removed']} ~{changes['changed']}" if changes else f"{net:+} in all"
    notes = [class_difference(before, header), option_difference(before, header)]
    return {
        "version": str(header.version),
        "rows": str(header.rows),
        "difference": known,
        "published": header.created[:16].replace("T", " "),
        "run": str(header.lineage.get("run", ""))[:8] or header.operation,
        "classes and options": "; ".join(filter(None, notes)),
    }


def _changes(store: Store, manifest: Manifest, before: Header | None) -> Mapping[str, Value]:
    """Return the numbers of images, or partitions, that differ from the version before; empty if they are not known."""
    if before is None:
        return {"added": manifest.rows, "removed": 0, "changed": 0}
    with suppress(SmaltiError):  # a vacuum has removed the list of files of the version before
        if (found := source_changes(store, before, manifest)) is not None:
            return vars(found)
    return {}


def class_difference(before: Header | None, now: Header | Manifest) -> str:
    """Say which classes came and went; empty if none did, or if the rows have no classes."""
    old = set(before.metadata.get("classes") or []) if before is not None else set()
    new = set(now.metadata.get("classes") or [])
    if before is None:
        return f"{len(new)} classes" if new else ""
    changes = (("+", new - old), ("-", old - new))
    return " ".join(f"{sign}{named(sorted(names), _MAX_CLASSES)}" for sign, names in changes if names)


def option_difference(before: Header | None, now: Header | Manifest) -> str:
    """Say which options of the shards differ, and whether the declaration does; empty if none does."""
    if before is None:
        return ""
    old, new = before.lineage.get("sharding") or {}, now.lineage.get("sharding") or {}
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    changed = [f"{name}: {old.get(name)} to {new.get(name)}" for name in names]
    sizes = [version.metadata.get("image_size") for version in (before, now)]
    if sizes[0] != sizes[1]:
        changed.append(f"image_size: {sizes[0]} to {sizes[1]}")
    if not changed and before.lineage.get("declaration") != now.lineage.get("declaration"):
        changed.append("declaration")
    return "; ".join(changed)
