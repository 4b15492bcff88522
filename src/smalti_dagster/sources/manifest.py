"""An image set that is described by a file: CSV or Parquet with a row for each image, its path and its label."""

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from smalti.errors import SmaltiError
from smalti.redaction import redact
from smalti.sources.listing import list_source
from smalti.spark import ImageFile, ImageFolder
from smalti.storage import open_store

_MAX_NAMED = 5


def list_manifest(
    source: str, *, path_column: str, label_column: str, storage_options: Mapping[str, Any] | None = None
) -> ImageFolder:
    """Return the inventory of the images that a manifest names, with their sizes and marks as the store lists them.

    Args:
        source: address of the file; its paths are relative to the folder that it lies in.
        path_column: column with the paths.
        label_column: column with the labels: texts or numbers; the classes are their distinct values as texts.
        storage_options: credentials and endpoint of the store.

    Raises:
        StoreNotFound: there is no such file.
        SmaltiError: it is no table, a column is missing, a path stands in it twice or leads to no file.
    """
    folder, _, name = source.rpartition("/")
    store = open_store(folder, storage_options)
    table = _read(store.get(name), name)
    for column in (path_column, label_column):
        if column not in table.column_names:
            raise SmaltiError(
                f"{redact(source)} has no column {column!r}; it has {', '.join(table.column_names)}: declare "
                "`path_column` and `label_column`"
            )
    paths = [_path(value, source) for value in table.column(path_column).to_pylist()]
    labels = table.column(label_column).to_pylist()
    empty = [path for path, label in zip(paths, labels, strict=True) if label is None]
    if not paths or empty or len(set(paths)) != len(paths):
        found = f"no label for {_named(empty)}" if empty else "no rows" if not paths else "a path more than once"
        raise SmaltiError(f"{redact(source)} must have one row with a label for each image, found {found}")
    there = {item.key: item for item in list_source(store, lambda _: False)[0]}  # links are followed
    if missing := [path for path in paths if path not in there]:
        raise SmaltiError(f"{redact(source)} names {len(missing)} files that are not there: {_named(missing)}")
    classes = tuple(sorted({str(label) for label in labels}))
    numbers = {name: number for number, name in enumerate(classes)}
    files = tuple(
        ImageFile(path, numbers[str(label)], there[path].num_bytes, there[path].modified)
        for path, label in sorted(zip(paths, labels, strict=True))
    )
    address = store.url if store.local_path("any") is not None else folder
    return ImageFolder(address, files, classes, digest_of(files, classes), storage_options)


def _read(data: bytes, name: str) -> pa.Table:
    try:
        if name.endswith(".parquet"):
            return pyarrow.parquet.read_table(io.BytesIO(data))
        return pyarrow.csv.read_csv(io.BytesIO(data))
    except pa.ArrowException as error:
        raise SmaltiError(f"{name} is no table: expected Parquet (.parquet) or CSV with a header: {error}") from error


def _path(value: object, source: str) -> str:
    path = str(value).removeprefix("./")
    if value is None or path.startswith("/") or ".." in path.split("/"):
        raise SmaltiError(f"{redact(source)}: paths must be relative to its folder and stay in it, found {value!r}")
    return path


def digest_of(files: tuple[ImageFile, ...], classes: tuple[str, ...]) -> str:
    """Return a digest of files and of the class of each."""
    digest = hashlib.sha256()
    for file in files:
        line = f"{file.path}\0{file.num_bytes}\0{file.modified}\0{classes[file.label]}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return ", ".join(paths[:_MAX_NAMED]) + more
