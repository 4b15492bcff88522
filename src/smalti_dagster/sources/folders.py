"""Folders of images that a declaration names: a folder, an archive that is unpacked, or a function that makes one."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smalti.spark import fetch_archive, is_archive
from smalti_dagster.declaration import Declaration
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import load_function

_UPLOADS = 16  # in flight; small files are bound by latency


def generated_folder(declared: Declaration, storage: StorageResource, function: str, options: Mapping[str, Any]) -> str:
    """Return the address of the folder that a function has filled; it is called unless the folder is there already.

    The folder appears as a whole or not at all.

    Raises:
        dg.Failure: there is no such function.
    """
    call = load_function(function)
    name = hashlib.sha256(json.dumps([function, options], sort_keys=True).encode()).hexdigest()[:16]

    def make(parent: Path) -> Path:
        folder = parent / name
        if not folder.is_dir():
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as work:
                made = Path(work) / "images"
                made.mkdir()
                call(made, **options)
                made.rename(folder)
        return folder

    return _placed(storage, declared.place("generated"), make)


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
