"""Rows of a version, read without whole shards where the format allows it; nothing is cached, and no data runs code.

From an uncompressed shard, the offsets of the rows are read and then the rows themselves, in ranges. From a compressed
shard, the beginning is read and unpacked up to the last row. The rows become a small shard in a temporary file, which
the usual reader opens. Where a shard has block hashes, or is a single block, all bytes that are read are verified.
Parts of other files cannot be compared with their checksums: offsets, lengths and values are checked, and `verify`
checks the rest.

Pickled values, raw images (`pil`) and lists of images are read as bytes.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from smalti.catalog.manifest import FOLDER, INDEX
from smalti.errors import FormatError, SchemaError, StoreError, StoreNotFound
from smalti.format import AnyShard, FileInfo, Schema, ShardInfo, decode_gathered, open_shard, parse_compression
from smalti.format.hashing import BlockHashes, is_one_block
from smalti.format.index import MAX_STORED_BYTES
from smalti.format.layout import OFFSET, head_bytes
from smalti.format.logical import LogicalTypes, masks_of, parse_logical
from smalti.inspection.values import IMAGE_LISTS
from smalti.storage import Place, Store, open_store
from smalti.stream import StreamOptions
from smalti.stream.shard_set import ShardSet, load_shard_set

Ids = npt.NDArray[np.int64]
AS_BYTES = ("pkl", "pil", *IMAGE_LISTS)
"""Encodings whose values are read as bytes."""
MAX_GAP_BYTES = 1 << 16
"""Ranges of a file that are closer to each other are read as one."""
_FIRST_READ_BYTES = 1 << 16  # of a compressed file; doubled with each read
_MAX_READ_BYTES = 4 << 20
_THREADS = 8
_DEADLINE_SECONDS = 3600.0  # for the rows of one shard; the store's own deadlines end earlier

_SPLITS = ("train", "val", "validation", "test")  # that are looked for where listing is not bounded
_LISTED = 200  # objects that are looked at where there is no set


class VersionRows:
    """The rows of a version, or of one split of it."""

    def __init__(self, place: Place, *, version: int | None, tag: str | None, split: str | None) -> None:
        """Read the manifest.

        Raises:
            SmaltiError: the classes that `find_shard_set` names.
        """
        store = open_store(place)
        options = StreamOptions(
            store.url, split=split, version=version, tag=tag, store=store, allow_unsafe_types=True, logical=True
        )
        try:
            self.set: ShardSet = load_shard_set(options)
        except StoreNotFound as error:
            raise explain_missing(store, error) from error
        self.store = self.set.store
        """The store that holds the shards."""
        self.num_rows = self.set.num_samples
        """Rows of all shards."""
        self.shard_ends: Ids = np.cumsum(self.set.shard_sizes)
        """End of the row numbers of each shard; int64, shape (shards,)."""
        types = self.set.logical
        self.logical: dict[str, Any] = {} if types is None else dict(types.types)
        """Logical types by column."""
        self._masks = masks_of(self.logical)
        masks = set(self._masks.values())
        self.encodings = {name: encoding for name, encoding in self.set.columns.items() if name not in masks}
        """Name to encoding of the columns as readers see them: without the masks of nulls."""

    def choose(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the chosen columns, all of them for None.

        Raises:
            SchemaError: there is no such column, or one is chosen twice, or none.
        """
        if columns is None:
            return tuple(self.encodings)
        for name in columns:
            if name not in self.encodings:
                near = get_close_matches(name, self.encodings, 1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                raise SchemaError(
                    f"{self.store.url} has no column {name!r}; its columns are {', '.join(self.encodings)}{meant}",
                    column=name,
                )
        if not columns:
            raise SchemaError(f"no column is chosen; those of {self.store.url} are {', '.join(self.encodings)}")
        if len(set(columns)) < len(columns):
            raise SchemaError(f"columns {', '.join(columns)}: one is chosen twice")
        return tuple(columns)

    def parts(self, columns: Sequence[str]) -> list[tuple[Sequence[ShardInfo], tuple[str, ...]]]:
        """Return the shards that hold these columns and the masks of their nulls, each with those in them.

        Beside the shards of the version there are those of columns that were added together, one for each of them.
        """
        needed = [*columns, *(self._masks[name] for name in columns if name in self._masks)]
        parts = [(part.shards, tuple(name for name in needed if name in part.columns)) for part in self.set.parts]
        return [(shards, names) for shards, names in parts if names]

    def restored(self, columns: Sequence[str]) -> LogicalTypes | None:
        """Return the conversion of stored values of these columns to their logical types; None if there is none."""
        return parse_logical({name: self.logical[name] for name in columns if name in self.logical}, self.set.columns)

    def by_shard(self, rows: Ids) -> list[tuple[int, Ids]]:
        """Return the shards of sorted row numbers, each with its rows, counted from its first."""
        if not len(rows):
            return []
        numbers = np.searchsorted(self.shard_ends, rows, side="right")
        shards, begins = np.unique(numbers, return_index=True)
        return [
            (int(shard), own - (self.shard_ends[shard] - self.set.shard_sizes[shard]))
            for shard, own in zip(shards, np.split(rows, begins[1:]), strict=True)
        ]

    def read(self, rows: Ids, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return rows, given by sorted row numbers, as column to value; shards are read at the same time.

        Raises:
            SmaltiError: a shard cannot be read, or is damaged.
        """
        jobs = self.by_shard(rows)
        with ThreadPoolExecutor(max(1, min(_THREADS, len(jobs))), thread_name_prefix="smalti-rows") as pool:
            futures = [pool.submit(self._read_shard, number, own, columns) for number, own in jobs]
            return [row for future in futures for row in future.result(timeout=_DEADLINE_SECONDS)]

    def _read_shard(self, number: int, rows: Ids, columns: Sequence[str]) -> list[dict[str, Any]]:
        stored: dict[str, Any] = {}
        for shards, names in self.parts(columns):
            with open_rows(self.store, shards[number], rows) as shard:
                gathered = shard.gather(np.arange(len(rows)), names)
                stored |= decode_gathered(shard.info.schema, gathered)
        restored = self.restored(columns)
        values = restored.batch(stored) if restored is not None else stored
        return [{name: one_of(values[name], row) for name in columns} for row in range(len(rows))]


def one_of(values: Any, row: int) -> Any:
    """Return one value of a column of a batch: a Python number, a numpy value or array, None for a null."""
    found = values[row]
    if found is np.ma.masked or (isinstance(found, np.ma.MaskedArray) and bool(np.all(found.mask)) and found.size):
        return None
    if isinstance(found, np.ma.MaskedArray):
        return np.asarray(found)
    return found.item() if isinstance(found, np.generic) and found.dtype.kind in "iufb" else found


def readable(shard: ShardInfo) -> ShardInfo:
    """Return the shard with encodings that run no code and open no image: such values are read as bytes."""
    schema = shard.schema
    if not set(AS_BYTES).intersection(schema.encodings):
        return shard
    encodings = tuple("bytes" if each in AS_BYTES else each for each in schema.encodings)
    return replace(shard, schema=Schema(schema.names, encodings, schema.sizes))


@contextmanager
def open_rows(store: Store, shard: ShardInfo, rows: Ids) -> Iterator[AnyShard]:
    """Read some rows of a shard, given by their sorted numbers in it, and yield a shard that has these rows alone.

    Raises:
        FormatError: the shard is damaged.
        StoreError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-rows-") as folder:
        if shard.zip is None:
            read = _range_reader(store, shard)
            begin, end = _table_range(rows)
            of_table = read if shard.meta is None else partial(store.get_range, shard.meta.basename)
            table = _offsets(of_table(begin, end), shard, rows)
            opened = _small_shard(shard, table, rows, read, Path(folder))
        else:
            with Path(folder, "start").open("w+b") as start:
                table = _unpack_start(store, shard, rows, start)

                def read_start(begin: int, end: int) -> bytes:
                    start.seek(begin)
                    return start.read(end - begin)

                opened = _small_shard(shard, table, rows, read_start, Path(folder))
        try:
            yield opened
        finally:
            opened.close()


def _table_range(rows: Ids) -> tuple[int, int]:
    """Return the range of the offsets of these rows in a shard's table."""
    return 4 + 4 * int(rows[0]), 12 + 4 * int(rows[-1])


def _offsets(data: bytes, shard: ShardInfo, rows: Ids) -> Ids:
    """Return the checked offsets from the first of the rows to the end of the last one."""
    begin, end = _table_range(rows)
    if len(data) != end - begin:
        raise _damaged(shard, "its table of offsets is cut short")
    found = np.frombuffer(data, OFFSET).astype(np.int64)
    lowest = 0 if shard.meta is not None else 8 + 4 * shard.samples
    if found[0] < lowest or found[-1] > shard.raw.num_bytes or (np.diff(found) < 0).any():
        raise _damaged(shard, "its table of offsets is damaged")
    return found


def _damaged(shard: ShardInfo, why: str) -> FormatError:
    name = shard.stored.basename
    return FormatError(f"{name}: {why}; `smalti verify` says what else is. Restore the file, or roll back.", key=name)


def _range_reader(store: Store, shard: ShardInfo) -> Callable[[int, int], bytes]:
    """Return the function that reads bytes of an uncompressed shard, verified where it has block hashes."""
    raw, what = shard.raw, store.locate(shard.raw.basename)
    hashes: BlockHashes | None = None
    if shard.blocks is not None:
        with suppress(StoreNotFound):  # the file of the hashes is gone
            data = store.get_range(shard.blocks.file, *shard.blocks.span(raw.num_bytes))
            hashes = BlockHashes(data, shard.blocks, raw.num_bytes, what=what)
    elif shard.meta is None and is_one_block(raw.num_bytes, raw.hashes):
        hashes = BlockHashes.of_small_file(next(iter(raw.hashes.values())), raw.num_bytes, what=what)
    if hashes is None:
        return partial(store.get_range, raw.basename)

    def read(begin: int, end: int) -> bytes:
        size = hashes.block_bytes
        first = begin // size
        data = store.get_range(raw.basename, first * size, min(-(-end // size) * size, raw.num_bytes))
        hashes.verify(data, first)
        return data[begin - first * size : end - first * size]

    return read


def _small_shard(shard: ShardInfo, table: Ids, rows: Ids, read: Callable[[int, int], bytes], folder: Path) -> AnyShard:
    """Write a shard of these rows to a folder, and open it.

    `table` has the offsets from the first of the rows to the end of the last one.
    """
    begins, ends = table[rows - rows[0]], table[rows - rows[0] + 1]
    lengths, layout = ends - begins, shard.layout
    front = head_bytes(b"", lengths) if layout is None else layout.header
    paths = [folder / "data"]
    with paths[0].open("wb") as file:
        file.write(front)
        for begin, end, own in _ranges(begins, ends):
            data = read(begin, end)
            if len(data) != end - begin:
                raise _damaged(shard, f"it ends before byte {end}")
            file.writelines(data[int(begins[row]) - begin : int(ends[row]) - begin] for row in own)
    info = replace(
        readable(shard), samples=len(rows), raw=FileInfo(shard.raw.basename, len(front) + int(lengths.sum())),
        zip=None, zip_meta=None, compression=None, hash_names=(),
    )  # fmt: skip
    if shard.meta is not None:
        meta = head_bytes(b"", lengths, len(front))
        paths.append(folder / "meta")
        paths[1].write_bytes(meta)
        info = replace(info, meta=FileInfo(shard.meta.basename, len(meta)))
    return open_shard(paths, info)


def _ranges(begins: Ids, ends: Ids) -> Iterator[tuple[int, int, range]]:
    """Yield ranges of a file that cover rows, each with the rows in it; at most a few MB, or one row, at a time."""
    first = 0
    for row in range(1, len(begins) + 1):
        is_last = row == len(begins)
        if is_last or begins[row] - ends[row - 1] > MAX_GAP_BYTES or ends[row] - begins[first] > _MAX_READ_BYTES:
            yield int(begins[first]), int(ends[row - 1]), range(first, row)
            first = row


class _EnoughError(Exception):
    """Raised to end the unpacking of a file."""


def _unpack_start(store: Store, shard: ShardInfo, rows: Ids, out: BinaryIO) -> Ids:
    """Unpack a compressed shard up to the last of the rows; return the offsets as `_offsets` does."""
    table: Ids | None = None
    algorithm = parse_compression(shard.compression)
    if algorithm is None:
        raise _damaged(shard, "it is compressed, and its manifest names no compression")
    if shard.meta is not None and shard.zip_meta is not None:
        meta = store.get_limited(shard.zip_meta.basename, shard.zip_meta.num_bytes)
        whole = algorithm.decompress(meta, shard.meta.num_bytes)
        table = _offsets(whole[slice(*_table_range(rows))], shard, rows)

    def write(data: Any) -> int:
        nonlocal table
        out.write(data)
        total, (begin, end) = out.tell(), _table_range(rows)
        if table is None and total >= end:
            out.seek(begin)
            table = _offsets(out.read(end - begin), shard, rows)
            out.seek(total)
        if table is not None and total >= table[-1]:
            raise _EnoughError
        return len(data)

    stored = shard.zip or shard.raw
    packed: Any = io.BufferedReader(_RemoteFile(store, stored), 1 << 13)
    start: Any = SimpleNamespace(write=write)
    with suppress(_EnoughError):
        algorithm.decompress_start(packed, start, shard.raw.num_bytes, name=store.locate(stored.basename))
    if table is None:
        raise _damaged(shard, "its content ends inside the table of offsets")
    return table


class _RemoteFile(io.RawIOBase):
    """An object of a store as a file that is read forwards; each read from the store is twice as long as the last."""

    def __init__(self, store: Store, info: FileInfo) -> None:
        self._store, self._info = store, info
        self._place, self._step = 0, _FIRST_READ_BYTES
        self._data, self._begin = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._place = offset + (0, self._place, min(self._info.num_bytes, MAX_STORED_BYTES))[whence]
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        at = self._place - self._begin
        if not 0 <= at < len(self._data):
            end = min(self._place + self._step, self._info.num_bytes)
            self._data = self._store.get_range(self._info.basename, self._place, max(end, self._place))
            self._begin, at, self._step = self._place, 0, min(2 * self._step, _MAX_READ_BYTES)
        piece = self._data[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)


def explain_missing(store: Store, error: StoreNotFound) -> StoreNotFound:
    """Return the error for a place without a set, with what is there instead."""
    try:  # some keys, which is cheap even where there are millions
        folder = store.local_path("index.json")
        if folder is not None:
            root = folder.parent
            paths = (Path(at, name).relative_to(root) for at, _, names in os.walk(root) for name in sorted(names))
            keys = sorted(path.as_posix() for path in islice(paths, _LISTED))
        elif type(store).list_page is not Store.list_page:  # a page is a bounded number of requests there
            keys = [listed.key for listed in store.list_page().objects[:_LISTED]]
        else:
            keys = [key for key in (f"{name}/index.json" for name in _SPLITS) if store.exists(key)]
    except (StoreError, OSError):
        return error
    if any(key == INDEX or key.startswith(f"{FOLDER}/") for key in keys):
        return error  # there is a set, which lacks something else, such as the split
    below = sorted({key.rpartition("/")[0] for key in keys if key.endswith("/index.json")})
    if below:
        names = ", ".join(map(repr, below[:5]))
        return StoreNotFound(
            f"{store.url} holds no shard set, but its folders {names} do: name one as the split, or give its address",
            url=store.url,
            splits=below,
        )
    if not keys:
        return StoreNotFound(f"{error.message}. The place is empty or does not exist", url=store.url)
    return StoreNotFound(
        f"{store.url} holds no shard set, but other files such as {keys[0]}: if they are data, `smalti convert` makes "
        "a version of them",
        url=store.url,
    )
