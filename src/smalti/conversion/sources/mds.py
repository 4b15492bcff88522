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

from smalti.conversion.source import CLASS_NAMES, OpenedSource, SourceOptions, check_columns
from smalti.format.logical import masks_of
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


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the samples of the newest version of the set at a place, or that of `settings`.

    Raises:
        StoreNotFound: There is no set.
        VersionNotFound: There is no such version, tag or split.
        SchemaError: There is no such column, or one is pickled.
    """
    given = options.settings_of("shard sets", "version", "tag", "split")
    store = open_store(place, options.storage_options)
    found = find_shard_set(
        StreamOptions(store.url, given.get("split"), given.get("version"), given.get("tag"), store=store)
    )
    reader = ArrowReader.of(found, as_stored=True)
    if (names := options.columns) is not None:  # with the masks of their nulls
        check_columns(store.url, names, reader.encodings)
        masks = masks_of(reader.logical)
        wanted = {*names, *(masks[name] for name in names if name in masks)}
        encodings = {name: encoding for name, encoding in reader.encodings.items() if name in wanted}
        logical = {name: kind for name, kind in reader.logical.items() if name in wanted}
        reader = ArrowReader(reader.store, encodings, logical, as_stored=True)
    schema, classes = reader.schema, found.manifest.metadata.get("classes")
    place = schema.get_field_index(_LABEL)
    if isinstance(classes, list) and classes and place >= 0:
        label = schema.field(place)
        notes = {**(label.metadata or {}), CLASS_NAMES: json.dumps(list(map(str, classes))).encode()}
        schema = schema.set(place, label.with_metadata(notes))
    groups: list[list[RowSpan]] = []
    free = 0
    for span in spans_of(found):
        if span.num_bytes > free:
            groups.append([])
            free = _PIECE_BYTES
        groups[-1].append(span)
        free -= span.num_bytes
    identity = [found.manifest.digest, sorted(reader.encodings)]
    parts = [MdsPart(reader, tuple(group)) for group in groups]
    return OpenedSource(store.url, schema, parts, lambda: identity)


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
