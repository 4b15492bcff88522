"""The table of prepared images: the Parquet part of each file's row, so that an update prepares only changed files.

<path>/_tables/<name>.arrow       all files: fingerprint, label, split, digest and part of the row; stored once, last
<path>/_newest/<recipe>.json      names the newest table of a recipe and the one before it
<path>/_writes/<write id>.json    marker of a write, stored before its first part; stays as long as its parts
<path>/<write id>/part-….parquet  immutable; rows that the table does not name are skipped

Label and split are kept in the table and not in the part: no image is decoded again when a class is added or the share
that is held out changes. Tables are made and replaced in `update`; rows are read in `rows`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog.sidecars import ipc_file
from smalti.errors import FormatError, StoreNotFound
from smalti.spark.reshard import SourceFile
from smalti.storage import Store, open_store

FILES = pa.schema(
    [
        ("path", pa.string()),
        ("fingerprint", pa.string()),  # of the file when it was read: size and mark
        ("label", pa.int32()),
        ("class_name", pa.string()),
        ("split", pa.string()),
        ("digest", pa.string()),  # sha256 of the prepared image; null for a bad image
        ("part", pa.string()),  # key of the Parquet file with its row; null for a bad image
        ("reason", pa.string()),  # why it is a bad image; null for a good one
    ]
)
_FACTS = b"smalti"


@dataclass(frozen=True)
class PreparedPart:
    """One Parquet file."""

    rows: int
    """Number of all rows in it, including those that the table does not name."""
    num_bytes: int


@dataclass(frozen=True)
class PreparedTable:
    """All images of a folder at one moment, and the parts with their rows."""

    url: str
    """Address of the data set."""
    name: str
    """Name of this state of the data set."""
    files: pa.Table
    """One row per file, in order of path, with the columns of `FILES`."""
    parts: Mapping[str, PreparedPart]
    """Parts by key below `url`."""

    @cached_property
    def good(self) -> pa.Table:
        """The files that are usable images."""
        return self.files.filter(pc.is_valid(self.files.column("part")))

    @property
    def rows(self) -> int:
        """Number of usable images."""
        return int(self.good.num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of the Parquet files."""
        return sum(part.num_bytes for part in self.parts.values())

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Split to class to number of images."""
        groups = self.good.group_by(["split", "class_name"]).aggregate([([], "count_all")]).to_pylist()
        counts: dict[str, dict[str, int]] = {}
        for row in sorted(groups, key=lambda row: (row["split"], row["class_name"])):
            counts.setdefault(row["split"], {})[row["class_name"]] = row["count_all"]
        return counts

    @property
    def bad(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of every file that was left out."""
        refused = self.files.filter(pc.is_null(self.files.column("part")))
        return tuple(zip(refused.column("path").to_pylist(), refused.column("reason").to_pylist(), strict=True))

    @cached_property
    def digest(self) -> str:
        """sha256 of all rows, independent of their order and parts; hex."""
        digest = hashlib.sha256()
        for file in self.source_files():
            digest.update(f"{file.path}\0{file.fingerprint}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def source_files(self) -> list[SourceFile]:
        """Return the usable images for `reshard_files`; a new file with the same row counts as unchanged."""
        columns = [self.good.column(name).to_pylist() for name in ("path", "digest", "label", "split")]
        return [SourceFile(path, f"{row} {label} {split}") for path, row, label, split in zip(*columns, strict=True)]

    def emit(self) -> bytes:
        """Return the table as an Arrow file."""
        facts = {"name": self.name, "parts": {key: [part.rows, part.num_bytes] for key, part in self.parts.items()}}
        return ipc_file(self.files.replace_schema_metadata({_FACTS: json.dumps(facts)}))


def find_table(
    path: str | Path, name: str, *, storage_options: Mapping[str, Any] | None = None
) -> PreparedTable | None:
    """Return the table of this name; None if there is none.

    Raises:
        FormatError: The object of this name is no table of prepared images.
    """
    return load_table(open_store(path, storage_options), name)


def load_table(store: Store, name: str) -> PreparedTable | None:
    """Return the table of this name in a store, as `find_table` does."""
    key = table_key(name)
    try:
        data = store.get(key)
    except StoreNotFound:
        return None
    try:
        files = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        facts = json.loads((files.schema.metadata or {})[_FACTS])
        files.validate(full=True)
        is_named = files.schema.equals(FILES) and facts["name"] == name
        parts = {part: PreparedPart(rows, num_bytes) for part, (rows, num_bytes) in facts["parts"].items()}
    except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise FormatError(
            f"{store.locate(key)} is no table of prepared images; delete it, and they are prepared again"
        ) from error
    if not is_named:
        raise FormatError(f"{store.locate(key)} is not the table {name}; delete it, and the images are prepared again")
    unknown = set(pc.unique(files.column("part").drop_null()).to_pylist()) - parts.keys()
    if unknown:
        raise FormatError(f"{store.locate(key)} names rows in {min(unknown)}, which is none of its parts")
    return PreparedTable(store.url, name, files.replace_schema_metadata(None), parts)


def table_key(name: str) -> str:
    """Return the key of a table."""
    return f"_tables/{name}.arrow"
