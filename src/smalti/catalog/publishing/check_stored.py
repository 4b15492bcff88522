"""Whether every shard of a draft is in the store, with its size; in memory that does not grow with their names.

Shards of one write lie together: a listing of its folder tells all sizes in a few requests. Names are compared by a
64-bit hash, ten million of them in 160 MB; what the listing does not show as it should be is asked for one by one.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import CatalogError, StoreNotFound
from smalti.format import ShardInfo
from smalti.storage import ObjectInfo, Store

_AT_ONCE = 1 << 14


def check_stored(store: Store, shards: Sequence[ShardInfo], write_id: str) -> None:
    """Return only if every file of the shards is there, with its size.

    Raises:
        CatalogError: one is not.
    """
    folders: set[str] = set()
    marks, sizes = _expected(shards, write_id, folders)
    order = np.argsort(marks, kind="stable")
    marks, sizes = marks[order], sizes[order]
    shown = np.zeros(marks.size, bool)
    for folder in sorted(folder for folder in folders if folder):
        for part in _parts(store.list(folder)):
            _show(part, marks, sizes, shown)
    if shown.all():
        return
    is_shown = np.zeros(marks.size, bool)
    is_shown[order] = shown
    files = (file for shard in shards for file in shard.stored_files)
    for file, is_there in zip(files, is_shown.tolist(), strict=True):
        if not is_there:
            _check_one(store, file.basename, file.num_bytes)


def _expected(
    shards: Sequence[ShardInfo], write_id: str, folders: set[str]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash of the name and size of every file; adds the folders to list."""
    marks: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for part in stored_sizes_of(shards):
        marks.append(_marks([name for name, _ in part]))
        sizes.append(np.array([num_bytes for _, num_bytes in part], np.int64))
        folders |= {_folder(name, write_id) for name, _ in part}
    return np.concatenate(marks), np.concatenate(sizes)


def stored_sizes_of(shards: Sequence[ShardInfo]) -> Iterator[list[tuple[str, int]]]:
    """Name and bytes of every file, some thousand at a time."""
    if isinstance(shards, ShardTable):
        yield from shards.stored_sizes()
        return
    files = ((file.basename, file.num_bytes) for shard in shards for file in shard.stored_files)
    while part := list(islice(files, _AT_ONCE)):
        yield part


def _marks(names: list[str]) -> NDArray[np.uint64]:
    return np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)


def _parts(found: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while part := list(islice(found, _AT_ONCE)):
        yield part


def _show(
    found: list[ObjectInfo], marks: NDArray[np.uint64], sizes: NDArray[np.int64], shown: NDArray[np.bool_]
) -> None:
    """Note which of the expected files are among these objects, with their sizes."""
    names = _marks([info.key for info in found])
    num_bytes = np.array([info.num_bytes for info in found], np.int64)
    places = np.searchsorted(marks, names)
    inside = places < marks.size
    places, names, num_bytes = places[inside], names[inside], num_bytes[inside]
    shown[places[(marks[places] == names) & (sizes[places] == num_bytes)]] = True


def _check_one(store: Store, key: str, expected: int) -> None:
    try:
        found = store.size(key)
    except StoreNotFound as error:
        raise CatalogError(f"shard {store.locate(key)} is not in the store; nothing was published", key=key) from error
    if found != expected:
        raise CatalogError(
            f"shard {store.locate(key)} has {found} bytes, its writer says {expected}: the upload is incomplete; "
            "nothing was published",
            key=key,
        )


def _folder(basename: str, write_id: str) -> str:
    """The folder of the write in a shard's key, or the folder of the shard."""
    parts = basename.split("/")[:-1]
    return "/".join(parts[: parts.index(write_id) + 1] if write_id in parts else parts)
