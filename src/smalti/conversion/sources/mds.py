"""Shard sets of Smalti and of other MDS writers: samples as stored, with their encodings and logical types.

Nothing is decoded: jpeg stays the same file, and the samples of the new version have the same row hash. JSON and CSV
sets are read, too. The splits of a set are chosen one at a time.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from smalti.conversion.source import CLASS_NAMES, SourceOptions
from smalti.errors import ArgumentError, SchemaError
from smalti.format.logical import MASK_SUFFIX
from smalti.storage import open_store
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, RowSpan, spans_of
from smalti.stream.shard_set import find_shard_set

_SHARD = re.compile(r".*\.mds(?:\.[a-z0-9]+)?", re.DOTALL)
"""Name of a shard, which may be compressed."""
_PIECE_BYTES = 64 << 20
_LABEL = "label"


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are a shard set."""
    is_set = any(name == "index.json" or name.endswith("/index.json") for name in names)
    return is_set and any(map(_SHARD.fullmatch, names))


def open_source(place: Any, options: SourceOptions) -> "MdsSource":
    """Return the samples of the newest version of the set at a place, or that of `settings`.

    Raises:
        StoreNotFound: There is no set.
        VersionNotFound: There is no such version, tag or split.
        SchemaError: There is no such column, or one is pickled.
    """
    given = dict(options.settings)
    version, tag = given.pop("version", None), given.pop("tag", None)
    split = given.pop("split", None)
    if given:
        raise ArgumentError(f"the `settings` of a shard set are version, tag and split, found {sorted(given)}")
    store = open_store(place, options.storage_options)
    found = find_shard_set(StreamOptions(store.url, split, version, tag, store=store))
    reader = ArrowReader.of(found, as_stored=True)
    if options.columns is not None:
        reader = _with_columns(reader, options.columns)
    classes = found.manifest.metadata.get("classes")
    names = tuple(map(str, classes)) if isinstance(classes, list) else ()
    return MdsSource(store.url, reader, tuple(spans_of(found)), found.manifest.digest, names)


def _with_columns(reader: ArrowReader, names: Sequence[str]) -> ArrowReader:
    """Return the reader of some columns, with the masks of their nulls."""
    unknown = [name for name in names if name not in reader.encodings]
    if unknown:
        raise SchemaError(f"there are no columns {unknown}; the columns are {', '.join(reader.encodings)}")
    wanted = {*names, *(name + MASK_SUFFIX for name in names if reader.logical.get(name, {}).get("mask"))}
    encodings = {name: encoding for name, encoding in reader.encodings.items() if name in wanted}
    logical = {name: kind for name, kind in reader.logical.items() if name in wanted}
    return ArrowReader(reader.store, encodings, logical, as_stored=True)


@dataclass(frozen=True)
class MdsSource:
    """The samples of one version of a set."""

    url: str
    reader: ArrowReader
    spans: tuple[RowSpan, ...]
    digest: str
    classes: tuple[str, ...] = ()
    """Names of the classes whose numbers the column `label` holds; empty if the version has none."""

    def schema(self) -> pa.Schema:
        """Return the stored columns."""
        schema = self.reader.schema
        place = schema.get_field_index(_LABEL)
        if not self.classes or place < 0:
            return schema
        field = schema.field(place)
        notes = {**(field.metadata or {}), CLASS_NAMES: json.dumps(self.classes).encode()}
        return schema.set(place, field.with_metadata(notes))

    def parts(self) -> list["MdsPart"]:
        """Return parts of neighbouring shards."""
        groups: list[list[RowSpan]] = []
        free = 0
        for span in self.spans:
            if span.num_bytes > free:
                groups.append([])
                free = _PIECE_BYTES
            groups[-1].append(span)
            free -= span.num_bytes
        return [MdsPart(self.reader, tuple(group)) for group in groups]

    def identity(self) -> Any:
        """Return the digest of the version, or of the index file of a set without versions."""
        return [self.digest, sorted(self.reader.encodings)]


@dataclass(frozen=True)
class MdsPart:
    """The samples of some shards."""

    reader: ArrowReader = field(repr=False)
    spans: tuple[RowSpan, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """Names of the shards."""
        first, last = (self.spans[place].shards[0].raw.basename for place in (0, -1))
        return first if len(self.spans) == 1 else f"{first} to {last}"

    @property
    def num_bytes(self) -> int:
        """Uncompressed bytes."""
        return sum(span.num_bytes for span in self.spans)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples in order; each shard is verified first."""
        for span in self.spans:
            yield from self.reader.batches(span)
