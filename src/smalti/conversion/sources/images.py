"""A folder of images as a source: one sub-folder per class, or one per split with the classes below it.

The bytes of files pass through undecoded; only headers are parsed, for width and height. `spark.prepare_images` crops
and resizes. Files are mixed as it mixes them, so that a shard has images of all classes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from smalti.conversion.source import CLASS_NAMES, ENCODING, SourceOptions
from smalti.errors import BadImageError, SchemaError
from smalti.images.header import probe_image
from smalti.sources.contents import read_contents
from smalti.sources.image_folder import (
    TEST,
    TRAIN,
    VALIDATION,
    ImageFolder,
    list_images,
    place_key,
    split_files,
)
from smalti.storage import Store, open_store
from smalti.storage.redact import redact_address

_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
_SPLITS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION, "test": TEST,
}  # fmt: skip
"""Names of folders that are splits, if the source has no others."""
_FILES_PER_PART = 512
_PART_BYTES = 8 << 20
_SETTINGS = {"validation_fraction": 0.0, "test_fraction": 0.0, "fixed_splits": False, "seed": 0}
_SCHEMA = [
    pa.field("image", pa.binary(), nullable=False),
    pa.field("label", pa.int32(), nullable=False),
    pa.field("class_name", pa.string(), nullable=False),
    pa.field("width", pa.int32(), nullable=False),
    pa.field("height", pa.int32(), nullable=False),
    pa.field("split", pa.string(), nullable=False),
    pa.field("path", pa.string(), nullable=False),
]


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001  the interface of formats
    """Return whether most files are images by their names."""
    return sum(name.lower().endswith(_SUFFIXES) for name in names) * 2 > len(names)


def open_source(place: Any, options: SourceOptions) -> "ImageSource":
    """Return the images below class folders as a source; reads no image.

    Settings: `validation_fraction`, `test_fraction`, `fixed_splits` and `seed`, as `PrepareOptions` of Spark has them;
    where the folders are splits already, they say which split a file is in.

    Raises:
        SmaltiError: There are no class folders.
        ValueError: There is no such setting.
    """
    if not isinstance(place, str) and not hasattr(place, "__fspath__"):
        raise TypeError(f"images: expected a path or URL of a folder, found {type(place).__name__}")
    unknown = sorted(set(options.settings) - set(_SETTINGS))
    if unknown:
        raise ValueError(f"images have no setting {unknown[0]!r}; there are {', '.join(_SETTINGS)}")
    return ImageSource(str(place), options)


class ImageSource:
    """The images of a folder, one row each."""

    def __init__(self, place: str, options: SourceOptions) -> None:
        self._options = options
        self._folder = list_images(place, storage_options=options.storage_options)
        self._settings = {**_SETTINGS, **options.settings}
        self._classes = _classes_of(self._folder)
        self._schema = _chosen(self._folder.encoding, self._classes, options.columns)

    @property
    def url(self) -> str:
        """Address of the folder."""
        return redact_address(self._folder.source)

    def schema(self) -> pa.Schema:
        """Return the columns: image, label, class_name, width, height, split and path."""
        return self._schema

    def identity(self) -> Any:
        """Return a digest of the files as they are now."""
        now = list_images(self._folder.source, storage_options=self._options.storage_options)
        return {"files": len(now.files), "num_bytes": now.num_bytes, "digest": now.digest}

    def parts(self) -> Sequence["ImagePart"]:
        """Return the images in a mixed order that their names decide, some hundreds in each part."""
        seed = int(self._settings["seed"])
        rows = sorted(self._rows(), key=lambda row: place_key(row.path, seed + 1))
        store = open_store(self._folder.source, self._folder.storage_options)
        parts: list[ImagePart] = []
        begin = num_bytes = 0
        for end, row in enumerate(rows, start=1):
            num_bytes += row.num_bytes
            if end == len(rows) or num_bytes >= _PART_BYTES or end - begin >= _FILES_PER_PART:
                parts.append(ImagePart(store, begin, tuple(rows[begin:end]), self._schema))
                begin, num_bytes = end, 0
        return parts

    def _rows(self) -> list["_Row"]:
        files, classes = self._folder.files, self._classes
        if not _are_splits(self._folder):
            splits = split_files(
                self._folder,
                validation=float(self._settings["validation_fraction"]),
                test=float(self._settings["test_fraction"]),
                fixed=bool(self._settings["fixed_splits"]),
                seed=int(self._settings["seed"]),
            )
            return [
                _Row(file.path, file.num_bytes, file.label, classes[file.label], splits[file.path]) for file in files
            ]
        folders = [file.path.split("/")[:2] for file in files]
        labels = {name: label for label, name in enumerate(classes)}
        return [
            _Row(file.path, file.num_bytes, labels[name], name, _SPLITS[split])
            for file, (split, name) in zip(files, folders, strict=True)
        ]


def _classes_of(folder: ImageFolder) -> tuple[str, ...]:
    """Return the names of the classes in the order of their numbers."""
    if not _are_splits(folder):
        return tuple(folder.classes)
    return tuple(sorted({file.path.split("/")[1] for file in folder.files}))


def _are_splits(folder: ImageFolder) -> bool:
    """Return whether the first folders are splits, with a folder for each class below."""
    return set(folder.classes) <= set(_SPLITS) and all(file.path.count("/") > 1 for file in folder.files)


def _chosen(encoding: str, classes: tuple[str, ...], names: tuple[str, ...] | None) -> pa.Schema:
    """Return the columns that are read, with the encoding of the image and the names of the classes.

    Raises:
        SchemaError: There is no such column.
    """
    fields = {field.name: field for field in _SCHEMA}
    fields["image"] = fields["image"].with_metadata({ENCODING: encoding})
    fields["label"] = fields["label"].with_metadata({CLASS_NAMES: json.dumps(classes)})
    for name in names or ():
        if name not in fields:
            raise SchemaError(f"`columns` names {name!r}, images have {', '.join(fields)}", column=name)
    return pa.schema([fields[name] for name in names or fields])


@dataclass(frozen=True)
class _Row:
    """One image, before it is read."""

    path: str
    num_bytes: int
    label: int
    class_name: str
    split: str


@dataclass(frozen=True)
class ImagePart:
    """Some images of a folder."""

    store: Store
    place: int
    """Number of images before these."""
    rows: tuple[_Row, ...]
    columns: pa.Schema

    @property
    def name(self) -> str:
        """The numbers of the images, in their mixed order, and the first path."""
        return f"images {self.place} to {self.place + len(self.rows) - 1} ({self.rows[0].path}, ...)"

    @property
    def num_bytes(self) -> int:
        """Bytes of the files."""
        return sum(row.num_bytes for row in self.rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the images with their labels.

        Raises:
            BadImageError: A file is no image.
        """
        rows = iter(self.rows)
        for contents in read_contents(self.store, [row.path for row in self.rows]):
            read = zip(islice(rows, len(contents)), contents.to_pylist(), strict=True)
            values = [_values_of(row, data) for row, data in read]
            yield pa.RecordBatch.from_pylist(values, self.columns)


def _values_of(row: _Row, data: bytes) -> dict[str, Any]:
    try:
        header = probe_image(data)
    except BadImageError as error:
        raise BadImageError(
            f"{row.path} is not a usable image: {error}. Remove or replace the file", path=row.path
        ) from error
    return {
        "image": data,
        "label": row.label,
        "class_name": row.class_name,
        "width": header.width,
        "height": header.height,
        "split": row.split,
        "path": row.path,
    }
