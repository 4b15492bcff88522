"""The facts of a version, the draft of a new one, and row hashes. Values only; this module does no I/O.

A new field belongs in `VersionFacts` if the history shows it (and in `Draft` too if writers fill it in), else in
`Annotations`. Headers, manifests and drafts inherit from them, and `shared_fields` copies the values between these
classes by name. The other place to change is the table of the JSON codec in `smalti.catalog.header`; a value that the
publisher itself sets, such as `created`, is also set in `next_header` (`next_version.py`).
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from difflib import get_close_matches
from typing import Any

from smalti.catalog.table.shard_table import check_shards, num_bytes_of, of_split, partitions_of
from smalti.errors import CatalogError, IndexFileError, SchemaError
from smalti.format import Schema, ShardInfo, load_strict
from smalti.format.hashing import MODULUS
from smalti.format.index import MAX_DEPTH

MAX_VALUE_DEPTH = MAX_DEPTH - 4
"""Levels of nesting of a writer's own JSON: a header or index file that contains it has up to four levels above it."""
_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{3,127}\Z")
_NEW_WRITE_ID = re.compile(r"(?:\A|/)[0-9]{8}t[0-9]{6}-[0-9a-f]{16}/")
ROW_HASH = re.compile("[0-9a-f]{32}|", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """The facts that the header, the manifest and the history entry of a version share."""

    version: int
    """1, 2, ...; 0 for a plain MDS set, which has no versions."""
    parent: int | None = None
    """The version that this one was built on; None for the first."""
    write_id: str = ""
    """Name of the write that published the version; empty for a plain MDS set."""
    digest: str
    """SHA-256, hex, of the content (`smalti.catalog.digest`): equal content, equal digest."""
    digest_scheme: str = ""
    """Scheme of the digest: `content`, or `content-segments-8192` for a version in segments; of earlier versions, whose
    digests cover the names of files, empty or `segments-8192`."""
    rows: int
    """Samples in all shards."""
    operation: str = ""
    """create, overwrite, append, rollback, compact, vacuum or another one; empty for a plain MDS set."""
    created: str = ""
    """Time of publication by the writer's clock, ISO 8601 in UTC. For display; nothing is ordered by it."""


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The statements of a writer about the samples of a version."""

    lineage: Mapping[str, Any] = field(default_factory=dict)
    """The origin of the data, as JSON."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Any other data of the writer, as JSON."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types of columns by name (docs/types.md); empty where the stored values are the values."""
    row_hash: str = ""
    """Multiset hash of the stored samples, independent of their order and shards (`smalti.format.hashing`): 32 hex
    digits, or empty where it is not known."""
    sidecars: Sequence[Mapping[str, Any]] = ()
    """Entries for added columns and other data stored next to the shards (docs/resharding.md), as JSON."""


@dataclass(frozen=True, kw_only=True)
class VersionInfo(VersionFacts):
    """One entry of the history."""

    num_shards: int
    num_bytes: int
    """Bytes of all shards as stored."""
    is_expired: bool = False
    """True if a vacuum has removed the shards, so that the version cannot be opened."""
    problem: str = ""
    """Why the header cannot be read; empty if it can. The other facts of such a version are unknown: 0 or empty."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Annotations, VersionFacts):
    """One version of a shard set, complete: every shard that it lists was in the store when it was published."""

    schema: Schema
    shards: Sequence[ShardInfo]
    """In order of sample ids. Immutable: a tuple, or a table that creates shards on access."""

    def select(self, split: str | None) -> Sequence[ShardInfo]:
        """Return the shards of one split, or all shards for None.

        Raises:
            CatalogError: there is no such split; the message lists the splits.
        """
        if split is None:
            return self.shards
        chosen = of_split(self.shards, split)
        if not chosen:
            names = ", ".join(map(repr, self.partitions)) or "none (open it without `split`)"
            near = get_close_matches(split, self.partitions, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CatalogError(
                f"version {self.version} has no split {split!r}; its splits are: {names}{hint}",
                split=split,
                version=self.version,
            )
        return chosen

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted; empty when the set has none."""
        return partitions_of(self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return num_bytes_of(self.shards)

    def redraft(self, write_id: str, **changes: Any) -> "Draft":
        """Return a draft of this version's content under another write id, with some fields of `Draft` changed."""
        return Draft(**{**shared_fields(self, Draft), "write_id": write_id, **changes})


@dataclass(frozen=True)
class Draft(Annotations):
    """A version to be published, whose shards are in the store already."""

    write_id: str
    """From `new_write_id`; publishing the same one again returns the same version."""
    schema: Schema
    shards: Sequence[ShardInfo]
    """Keys below the root: `[<split>/]<write id>/<task>/shard.00000.mds[.zstd]`, or of another format."""

    def __post_init__(self) -> None:
        check_write_id(self.write_id)
        if not ROW_HASH.fullmatch(self.row_hash):
            raise CatalogError(f"row hash {self.row_hash!r:.80} is not usable: expected 32 lower-case hex digits")
        for name, value in (("lineage", self.lineage), ("metadata", self.metadata), ("logical", self.logical)):
            check_json(name, value)
        for sidecar in self.sidecars:
            check_json("sidecars", sidecar)
        check_shards(self.shards, self.schema)


def shared_fields(source: Any, target: type) -> dict[str, Any]:
    """Return the fields of the dataclass instance `source` that the dataclass `target` has too, by name.

    Mappings are copied, so that later changes by their owner have no effect.
    """
    names = {each.name for each in fields(target)}
    values = {each.name: getattr(source, each.name) for each in fields(source) if each.name in names}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def has_write_id(name: str) -> bool:
    """Return whether the file name of a shard contains a write id, which only Smalti's writers put there."""
    return _NEW_WRITE_ID.search(name) is not None


def new_write_id() -> str:
    """Return a unique name for a write: the time in UTC, for readability, and 64 random bits."""
    return f"{datetime.now(timezone.utc):%Y%m%dt%H%M%S}-{secrets.token_hex(8)}"


def check_write_id(write_id: str) -> None:
    """Check that a write id can name a folder.

    Raises:
        CatalogError: it cannot.
    """
    if not _WRITE_ID.match(write_id):
        raise CatalogError(
            f"write id {write_id!r} is not usable: expected 4 to 128 letters, digits, '.' and '-'; see new_write_id()"
        )


def check_json(name: str, value: Mapping[str, Any]) -> None:
    """Check that a header can contain the value and its readers accept it there: strict JSON, not nested too deeply.

    Raises:
        SchemaError: they would not; the message contains `name`.
    """
    try:
        text = json.dumps(dict(value), allow_nan=False)
        load_strict(text.encode("ascii"), where=name, max_depth=MAX_VALUE_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            f"`{name}` must be JSON (strings, finite numbers, booleans, lists, objects): {error}"
        ) from error
    except IndexFileError as error:
        raise SchemaError(
            f"`{name}` could not be read back ({error.message}); expected strict JSON of at most {MAX_VALUE_DEPTH} "
            "levels, each key once in its object. Make it simpler"
        ) from error


def stored_bytes(shard: ShardInfo) -> int:
    """Return the bytes of all files of a shard as stored."""
    return sum(file.num_bytes for file in shard.stored_files)


def row_hash_text(total: int) -> str:
    """Return a sum of sample hashes as headers contain it: 32 hex digits."""
    return f"{total % MODULUS:032x}"


def add_row_hashes(parts: Iterable[tuple[str, int]]) -> str:
    """Return the row hash of all parts together, each given as (row hash, number of samples).

    It is empty if the row hash of a part with samples is not known.
    """
    known = [(text, rows) for text, rows in parts if rows]
    return "" if any(not text for text, _ in known) else row_hash_text(sum(int(text, 16) for text, _ in known))
