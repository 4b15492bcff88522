"""A bound for the copies of a shard set where nobody has chosen one: a share of the disk that is free at the start."""

import shutil
from collections.abc import Callable
from pathlib import Path

from smalti.cache.cache import Source
from smalti.cache.files import NETWORK, filesystem_of, scan
from smalti.cache.inspect import folders_of
from smalti.cache.options import detect_cache_folder
from smalti.catalog.table.shard_table import bytes_of

SHARE = 0.5
"""Of what is free, what copies may take: the rest is for other jobs, and for what grows meanwhile."""


def default_cache_limit(
    source: Source,
    *,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    filesystem: Callable[[Path], str] = filesystem_of,
) -> int | None:
    """Return the bytes that copies of `source` may take on the disk of its cache folder.

    Half of what is free, copies of this very version that are there already counted as free, so that a job that is
    started again keeps its bound. At least the largest shard.

    Args:
        source: the shards, and the options that name the folder of the copies.
        free_bytes: returns the free bytes of the disk that a folder lies on.
        filesystem: returns the type of a folder's file system.

    Returns:
        None where nothing is copied, because shards are read where they lie, and where a bound cannot be kept, on a
        network file system.
    """
    sizes = bytes_of(source.shards)
    is_in_place = len(source.shards) > 0 and source.store.local_path(source.shards[0].raw.basename) is not None
    if not len(source.shards) or (is_in_place and not sizes.zipped.any()):
        return None
    folder = Path(source.options.local).expanduser() if source.options.local else detect_cache_folder()
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if filesystem(existing) in NETWORK:
        return None
    held = sum(scan(copies).kept for copies in folders_of(folder, source.digest))
    return max(int(SHARE * (free_bytes(existing) + held)), int(sizes.raw.max()))
