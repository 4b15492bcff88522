"""Shards of a store, opened after every byte of them was compared with the manifest."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smalti.errors import FormatError, StoreNotFound
from smalti.format import AnyShard, ShardInfo, open_shard, parse_compression, verify_file
from smalti.storage import Store


@contextmanager
def open_checked(store: Store, shard: ShardInfo) -> Iterator[AnyShard]:
    """The open shard: fetched unless it is a file of this machine, verified, unpacked; copies are gone at the end.

    Raises:
        ChecksumMismatch: bytes differ from what the manifest says.
        FormatError: the shard is damaged or contradicts the manifest.
        StoreNotFound: a file of it is gone.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-shard-") as folder:
        opened = open_shard(_raw_files(store, shard, Path(folder)), shard, allow_unsafe_types=True)
        try:
            yield opened
        finally:
            opened.close()


def _raw_files(store: Store, shard: ShardInfo, folder: Path) -> list[Path]:
    """The uncompressed files of a shard, verified."""
    compression = parse_compression(shard.compression)
    paths = []
    for place, (stored, raw) in enumerate(zip(shard.stored_files, shard.raw_files, strict=True)):
        where = store.locate(stored.basename)
        path = store.local_path(stored.basename)
        if path is None:
            path = folder / f"stored-{place}"
            with path.open("wb") as out:
                store.fetch(stored.basename, out)
        try:
            verify_file(path, stored, what=where)
        except FileNotFoundError as error:
            raise StoreNotFound(f"{where} does not exist", key=stored.basename, url=store.url) from error
        if shard.zip is not None:
            if compression is None:
                raise FormatError(f"{where} is compressed, but its manifest names no compression", key=stored.basename)
            unpacked = folder / f"raw-{place}"
            with unpacked.open("wb") as out:
                compression.decompress_file(path, out, raw.num_bytes)
            verify_file(unpacked, raw, what=f"{where}, unpacked")
            path = unpacked
        paths.append(path)
    return paths
