"""The check that every shard of a draft is in the store with its size, in memory that does not grow with their names.

The shards of one write have a common folder, and a few listing requests return all their sizes. Names are compared by
64-bit hashes, 160 MB for ten million. Files that the listing does not show with their size are looked up one by one.
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

_BATCH = 1 << 14  # files that are handled together


def check_stored(store: Store, shards: Sequence[ShardInfo], write_id: str) -> None:
    """Check that every file of the shards is in the store, with its size.

    Raises:
        CatalogError: one is not.
    """
    folders: set[str] = set()
    hashes, sizes = _expected(shards, write_id, folders)
    order = np.argsort(hashes, kind="stable")
    hashes, sizes = hashes[order], sizes[order]
    listed = np.zeros(hashes.size, bool)
    for folder in sorted(folder for folder in folders if folder):
        for batch in _batches(store.list(folder)):
            _mark_listed(batch, hashes, sizes, listed)
    if listed.all():
        return
    is_listed = np.zeros(hashes.size, bool)
    is_listed[order] = listed
    files = (file for shard in shards for file in shard.stored_files)
    for file, is_there in zip(files, is_listed.tolist(), strict=True):
        if not is_there:
            _check_file(store, file.basename, file.num_bytes)


def _expected(
    shards: Sequence[ShardInfo], write_id: str, folders: set[str]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of the name and the size of every file; add the folders to list to `folders`."""
    hashes: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for batch in stored_sizes_of(shards):
        hashes.append(_hash_names([name for name, _ in batch]))
        sizes.append(np.array([num_bytes for _, num_bytes in batch], np.int64))
        folders |= {_folder(name, write_id) for name, _ in batch}
    return np.concatenate(hashes), np.concatenate(sizes)


def stored_sizes_of(shards: Sequence[ShardInfo]) -> Iterator[list[tuple[str, int]]]:
    """Yield the name and size in bytes of every stored file, some thousands at a time."""
    if isinstance(shards, ShardTable):
        yield from shards.stored_sizes()
        return
    files = ((file.basename, file.num_bytes) for shard in shards for file in shard.stored_files)
    while batch := list(islice(files, _BATCH)):
        yield batch


def _hash_names(names: list[str]) -> NDArray[np.uint64]:
    return np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)


def _batches(found: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while batch := list(islice(found, _BATCH)):
        yield batch


def _mark_listed(
    found: list[ObjectInfo], hashes: NDArray[np.uint64], sizes: NDArray[np.int64], listed: NDArray[np.bool_]
) -> None:
    """Mark in `listed` the expected files that are among these objects, with their sizes."""
    names = _hash_names([info.key for info in found])
    num_bytes = np.array([info.num_bytes for info in found], np.int64)
    places = np.searchsorted(hashes, names)
    inside = places < hashes.size
    places, names, num_bytes = places[inside], names[inside], num_bytes[inside]
    listed[places[(hashes[places] == names) & (sizes[places] == num_bytes)]] = True


def _check_file(store: Store, key: str, expected: int) -> None:
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
    """Return the folder of the write in a shard's key, or else the folder of the shard."""
    parts = basename.split("/")[:-1]
    return "/".join(parts[: parts.index(write_id) + 1] if write_id in parts else parts)
