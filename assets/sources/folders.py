"""Folders of images made from what was declared: a folder, an archive that is unpacked, or flowers that are drawn."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from assets.declaration import Declaration
from assets.flowers import draw_flowers
from resources.storage import StorageResource
from smalti.spark import fetch_archive, is_archive

_UPLOADS = 16  # in flight; small files are bound by latency


def drawn_flowers(declared: Declaration, storage: StorageResource, *, per_class: int, seed: int) -> str:
    """Return the address of a folder of drawn flowers; they are drawn now unless they are there already."""

    def draw(parent: Path) -> Path:
        folder = parent / f"{per_class}-of-each-seed-{seed}"
        draw_flowers(folder, per_class=per_class, seed=seed)
        return folder

    return _placed(storage, declared.place("drawn"), draw)


def image_folder(declared: Declaration, storage: StorageResource, source: str) -> str:
    """Return the address of the folder that `source` names; an archive is unpacked below the storage root first."""
    if not is_archive(source):
        return address_of(source)
    return _placed(storage, declared.place("archives"), lambda parent: fetch_archive(source, parent))


def address_of(source: str) -> str:
    """Return a URL as it is, and a local path as an absolute one."""
    return source if "://" in source or source.startswith("dbfs:") else str(Path(source).expanduser().absolute())


def _placed(storage: StorageResource, place: str, make: Callable[[Path], Path]) -> str:
    """Make a folder directly below the root if that is a local one, else in a temporary folder, and upload it."""
    store = storage.store(place)
    local = store.local_path("any")
    if local is not None:
        return str(make(local.parent))
    with tempfile.TemporaryDirectory(prefix="smalti-") as scratch:
        folder = make(Path(scratch))
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        present = {item.key: item.num_bytes for item in store.list(folder.name)}
        wanted = {f"{folder.name}/{path.relative_to(folder).as_posix()}": path for path in files}
        missing = {key: path for key, path in wanted.items() if present.get(key) != path.stat().st_size}
        with ThreadPoolExecutor(_UPLOADS) as pool:
            list(pool.map(store.put_file, missing.keys(), missing.values()))
        return storage.url(place, folder.name)
