"""Shard sets of Smalti and of other MDS writers: samples as stored, with their encodings and logical types.

Nothing is decoded: jpeg stays the same file, and the samples of the new version have the same row hash. JSON and CSV
sets are read, too. The splits of a set are chosen one at a time.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from smalti.conversion.source import CLASS_NAMES, OpenedPart, OpenedSource, SourceOptions, check_columns
from smalti.format.logical import masks_of
from smalti.storage import open_store
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, spans_of
from smalti.stream.shard_set import find_shard_set

_SHARD = re.compile(r".*\.mds(?:\.[a-z0-9]+)?", re.DOTALL)
"""Name of a shard, which may be compressed."""
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
    identity = [found.manifest.digest, sorted(reader.encodings)]
    parts = [
        OpenedPart(span.shards[0].raw.basename, span.num_bytes, partial(reader.batches, span))
        for span in spans_of(found)
    ]
    return OpenedSource(store.url, schema, parts, lambda: identity)
