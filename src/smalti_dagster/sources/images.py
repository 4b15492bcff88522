"""Sources of images: what a run may choose about them, and how their inventory is made.

Also here: folders of images that a declaration names, which are a folder, an archive that is unpacked, or a function
that makes one.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.redaction import redact
from smalti.spark import ImageFolder, describe_archive, fetch_archive, is_archive, list_images
from smalti_dagster.declaration import MANIFESTS, Declaration
from smalti_dagster.declaration.configuration import with_defaults
from smalti_dagster.places import expand
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import load_function
from smalti_dagster.sources.manifest import list_manifest


class ImagesConfig(dg.Config):
    """The source of the images."""

    source: str = Field(
        default="",
        description="Folder (path, s3://, gs://, abfs://, dbfs:/Volumes/…) with one sub-folder per class, an archive "
        "of one (path or URL of a .tgz, .tar or .zip), or a manifest (.csv, .parquet). Empty: the declared "
        "function generates images.",
    )
    generate_options: dict[str, Any] = Field(
        default={}, description="Arguments of the function that generates images, by name."
    )

    @property
    def address(self) -> str:
        """Return the address of the source, with variables of the environment filled in; it may hold a secret."""
        return address_of(expand(self.source)).rstrip("/")

    @property
    def described(self) -> str:
        """Return the source as a text without secrets; equal for configurations that read the same place."""
        if not self.source:
            options = ", ".join(f"{name}={value!r}" for name, value in sorted(self.generate_options.items()))
            return f"generated images ({options})" if options else "generated images"
        address = self.address
        return describe_archive(address) if is_archive(address) else redact(address)


def images_config(declared: Declaration) -> type[ImagesConfig]:
    """Return the configuration with the values of a declaration."""
    source = declared.source
    return with_defaults(ImagesConfig, source=source.text, generate_options=dict(source.generate_options))


def is_manifest(address: str) -> bool:
    """Return whether an address names a manifest."""
    return address.endswith(MANIFESTS)


def find_images(declared: Declaration, config: ImagesConfig, storage: StorageResource) -> ImageFolder:
    """Return the inventory of the source; an archive is fetched, or images are generated first, unless they are there.

    Raises:
        dg.Failure: no source is given, and the declaration has no function that generates one.
        SmaltiError: the source is not there, or not what was expected.
    """
    if not config.source:
        if declared.source.generate is None:
            raise dg.Failure(
                f"{declared.name} has no source: the declared address is empty, and no `generate` stands beside it",
                allow_retries=False,
            )
        folder = generated_folder(declared, storage, declared.source.generate, config.generate_options)
    elif is_manifest(config.address):
        return list_again(declared, config.address, storage)
    else:
        folder = image_folder(declared, storage, config.address)
    return list_again(declared, folder, storage)


def list_again(declared: Declaration, address: str, storage: StorageResource) -> ImageFolder:
    """Return the inventory of a folder or of a manifest's images as they are now."""
    options = storage.options_for(address)
    if not is_manifest(address):
        return list_images(address, storage_options=options)
    columns = {"path_column": declared.source.path_column, "label_column": declared.source.label_column}
    return list_manifest(address, storage_options=options, **columns)


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
