"""Which write a call is: its id, and whether its version is there already."""

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest, history, load_manifest, new_write_id
from smalti.catalog.header import Header
from smalti.catalog.publishing import check_target
from smalti.spark.lineage import source_of, write_id_of
from smalti.spark.options import WriteOptions
from smalti.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WITHOUT = (
    "transform",
    "progress",
    "write_id",
    "storage_options",
)  # the first is checked apart, the others change no row
_REPLACING = ("create", "overwrite", "rollback")


@dataclasses.dataclass(frozen=True)
class Write:
    """One write, before it begins."""

    write_id: str
    parent: Header | None
    """The newest version."""
    lineage: dict[str, Any]
    """What Spark tells of the source, and what the caller does."""
    done: Manifest | None = None
    """The version that this write has already."""


def identify(df: "DataFrame", store: Store, options: WriteOptions) -> Write:
    """The write that this call is.

    A write id that the caller gives names it for good. Else equal calls over an equal source, as far as Spark tells
    that it is equal, are the same write as long as its rows are what the set shows.

    Raises:
        DatasetExists: the mode is `create`, the place holds a set, and this write is not what made it.
    """
    source = source_of(df)
    lineage = {**source, **dict(options.lineage or {})}
    derived = None if options.write_id is not None or options.transform is not None else _derived(source, options)
    write_id = options.write_id or derived or new_write_id()
    header = check_target(store, options.mode, write_id=write_id).header
    version = header.writes.get(write_id) if header is not None else None
    is_fenced = derived is not None and header is not None and write_id in header.fenced  # by a vacuum: used up
    if header is None or (version is None and not is_fenced):
        return Write(write_id, header, lineage)
    if version is not None and (derived is None or _is_shown(store, header, version, options)):
        return Write(write_id, header, lineage, load_manifest(store, version=version))
    fresh = f"{write_id}-{secrets.token_hex(4)}"
    return Write(fresh, check_target(store, options.mode, write_id=fresh).header, lineage)


def _derived(source: dict[str, Any], options: WriteOptions) -> str | None:
    facts = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name not in _WITHOUT
    }
    return write_id_of(source, {name: repr(value) for name, value in facts.items()})


def _is_shown(store: Store, newest: Header, version: int, options: WriteOptions) -> bool:
    """Whether the rows of this version are those of the newest, or, of an append, still among them."""
    later = [info for info in history(store) if info.version >= version]
    if options.mode != "append":
        return any(info.version == version and info.digest == newest.digest for info in later)
    return not any(info.version > version and info.operation in _REPLACING for info in later)
