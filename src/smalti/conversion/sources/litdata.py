"""Chunks of LitData (`litdata.optimize`), read by their own format: neither litdata nor torch is needed.

    index.json    chunks, and config: form of the samples, compression
    a chunk       samples leaf by leaf (`litdata_items`), or as the rows of an Arrow table (`litdata_rows`)

A sample that is a dict gives a column for each key, `a.b` for a nested one that is stored leaf by leaf; of a list or
tuple the columns are named by number, and a single leaf is `value`. Pickles are refused: to read them runs code. Chunks
that are encrypted, of tokens (`TokensLoader`) or compressed in frames are refused with advice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from smalti.conversion.source import SourceOptions
from smalti.conversion.sources.litdata_chunk import ADVICE, Chunk
from smalti.conversion.sources.litdata_items import Items, item_columns
from smalti.conversion.sources.litdata_rows import Rows, row_columns
from smalti.conversion.sources.source_file import SourceFile, is_file_name
from smalti.errors import ArgumentError, FormatError, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.storage import Store, open_store

_INDEX = "index.json"


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are chunks of LitData."""
    return _INDEX in names and any(name.startswith("chunk-") and name.endswith(".bin") for name in names)


def open_source(place: Any, options: SourceOptions) -> "LitDataSource":
    """Return the samples of the chunks at a place.

    Raises:
        StoreNotFound: There is no index file, or a chunk is missing.
        FormatError: The index cannot be read, or the chunks have a form that is not.
        SchemaError: A column is pickled or cannot be stored; or there is no such column.
    """
    if options.settings:
        raise ArgumentError(f"LitData has no settings, found {sorted(options.settings)}")
    store = open_store(place, options.storage_options)
    index = _read_index(store)
    config = index["config"]
    _check_config(store, config)
    compression = None if config.get("compression") is None else str(config["compression"]).partition(":")[0]
    chunks = tuple(_chunks(store, index["chunks"], compression))
    first = chunks[0].read() if chunks else None
    samples: Items | Rows
    if first is not None and first.table() is not None:
        samples = Rows(row_columns(store.url, config.get("types"), options.columns))
    else:
        samples = item_columns(store.url, config, first, options.columns)
    return LitDataSource(store.url, chunks, samples)


def _read_index(store: Store) -> dict[str, Any]:
    found = load_strict(store.get_limited(_INDEX, MAX_INDEX_BYTES), where=store.locate(_INDEX))
    if not isinstance(found, dict) or not isinstance(found.get("chunks"), list):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with `chunks` and `config`")
    if not isinstance(found.get("config"), dict):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with a `config`")
    return found


def _check_config(store: Store, config: Mapping[str, Any]) -> None:
    if config.get("encryption"):
        raise FormatError(f"{store.url}: the chunks are encrypted; {ADVICE}")
    if config.get("item_loader") not in (None, "PyTreeLoader"):
        raise FormatError(f"{store.url}: the chunks are made for {config['item_loader']}, which is not read; {ADVICE}")
    compression = str(config.get("compression") or "zstd").partition(":")[0]
    is_framed = config.get("compression_batch_size") or config.get("compression_level") not in (None, "chunk")
    if compression != "zstd" or is_framed:
        raise FormatError(f"{store.url}: compression {config.get('compression')!r} in frames is not read; {ADVICE}")


def _chunks(store: Store, entries: Sequence[Any], compression: str | None) -> Iterator[Chunk]:
    names = set()
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not is_file_name(name):
            raise FormatError(f"{store.locate(_INDEX)}: {name!r:.100} is no name of a chunk")
        if name in names:
            raise FormatError(f"{store.locate(_INDEX)} names chunk {name} twice; write the index again")
        names.add(name)
        count = entry.get("chunk_size")
        try:
            file = SourceFile(store, name, store.size(name))
        except StoreNotFound as error:
            raise StoreNotFound(
                f"{store.locate(name)}: the index names this chunk, which is missing", key=name
            ) from error
        yield Chunk(file, compression, count if type(count) is int else None)


@dataclass(frozen=True)
class LitDataSource:
    """The samples of a set of chunks."""

    url: str
    chunks: tuple[Chunk, ...]
    samples: Items | Rows

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self.samples.schema

    def parts(self) -> list["ChunkPart"]:
        """Return one part for each chunk."""
        return [ChunkPart(chunk, self.samples) for chunk in self.chunks]

    def identity(self) -> Any:
        """Return names, sizes and marks of the chunks."""
        infos = [chunk.file.store.info(chunk.file.key) for chunk in self.chunks]
        return [[info.key, info.num_bytes, info.modified] for info in infos]


@dataclass(frozen=True)
class ChunkPart:
    """The samples of one chunk."""

    chunk: Chunk
    samples: Items | Rows = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.chunk.file.key

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.chunk.file.num_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples in order; memory holds one chunk.

        Raises:
            FormatError: The chunk is damaged.
        """
        yield from self.samples.batches(self.chunk)
