"""A folder of images as a source: one sub-folder per class, or one per split with the classes below it.

The bytes of files pass through undecoded; only headers are parsed, for width and height. `spark.prepare_images` crops
and resizes. Files are mixed as it mixes them, so that a shard has images of all classes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from smalti.attributes import check_flags, whole_number
from smalti.conversion.source import (
    CLASS_NAMES,
    ENCODING,
    OpenedPart,
    OpenedSource,
    SourceOptions,
    changed,
    check_columns,
)
from smalti.errors import ArgumentError, ArgumentTypeError, BadImageError, SmaltiError
from smalti.format.encodings.images import check_image_file
from smalti.images.header import probe_image
from smalti.redaction import redact_address
from smalti.sources.contents import read_contents
from smalti.sources.image_folder import (
    IMAGE_ENDINGS,
    ImageFolder,
    inventory_of,
    place_key,
    split_files,
    split_named,
)
from smalti.storage import Store, open_store
from smalti.texts import printable

MAX_IMAGE_BYTES = 1 << 28
"""Largest file of one image: as many bytes as the most pixels take that may be in a file."""
_FILES_PER_PART = 512
_PART_BYTES = 8 << 20
_SETTINGS = {"folders": "auto", "validation_fraction": 0.0, "test_fraction": 0.0, "fixed_splits": False, "seed": 0}
_MEANINGS = ("auto", "classes", "splits")
_MAX_NAMED = 3
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
    return sum(name.lower().endswith(IMAGE_ENDINGS) for name in names) * 2 > len(names)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the images below class folders as a source; reads no image.

    Its columns are image, label, class_name, width, height, split and path.

    Settings: `folders` says what the first folders are, `classes` or `splits`; by default, their names decide.
    `validation_fraction`, `test_fraction`, `fixed_splits` and `seed` are those of `PrepareOptions` of Spark; where the
    folders are splits already, they say which split a file is in.

    Raises:
        SmaltiError: There are no class folders, or it is not clear whether the folders are classes or splits.
        BadImageError: Files are empty, or too large.
        SchemaError: There is no such column.
        ValueError: There is no such setting.
    """
    if not isinstance(place, str) and not hasattr(place, "__fspath__"):
        raise ArgumentTypeError(f"images: expected a path or URL of a folder, found {type(place).__name__}")
    settings = {**_SETTINGS, **options.settings_of("images", *_SETTINGS)}
    _check_settings(settings)
    folder = inventory_of(str(place), options.storage_options)
    _check_sizes(folder)
    splits = _splits_of(folder, settings["folders"])
    classes = sorted({file.path.split("/")[1] for file in folder.files}) if splits else folder.classes
    url = printable(redact_address(folder.source))
    fields = {field.name: field for field in _SCHEMA}
    fields["image"] = fields["image"].with_metadata({ENCODING: folder.encoding})
    fields["label"] = fields["label"].with_metadata({CLASS_NAMES: json.dumps(classes)})
    check_columns(url, options.columns, fields)
    schema = pa.schema([fields[name] for name in options.columns or fields])
    parts = _parts(folder, _rows_of(folder, classes, splits, settings), schema, int(settings["seed"]))
    return OpenedSource(url, schema, parts, partial(_identity, folder, url), folder.left_out)


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings.

    Raises:
        ArgumentError: One has a value that cannot be used.
    """
    if settings["folders"] not in _MEANINGS:
        expected = f"one of {', '.join(_MEANINGS)}, found {settings['folders']!r}"
        raise ArgumentError(f"setting `folders` of images: expected {expected}")
    whole_number("seed", settings["seed"], 0, (1 << 63) - 2)
    check_flags(fixed_splits=settings["fixed_splits"])
    names = ("validation_fraction", "test_fraction")
    for name in names:
        share = settings[name]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ArgumentError(f"setting `{name}` of images: expected a share from 0, below 1, found {share!r:.80}")
    if sum(settings[name] for name in names) >= 1:
        raise ArgumentError("settings of images: `validation_fraction` and `test_fraction` leave no images to train on")


def _identity(folder: ImageFolder, url: str) -> dict[str, Any]:
    """Return a digest of the files, which are listed again.

    Raises:
        SmaltiError: Files were added, removed or changed since they were listed.
    """
    now = inventory_of(folder.source, folder.storage_options)
    if now.digest != folder.digest:
        raise changed(url)
    return {"files": len(now.files), "num_bytes": now.num_bytes, "digest": now.digest}


def _parts(folder: ImageFolder, images: Iterable["_Row"], schema: pa.Schema, seed: int) -> list[OpenedPart]:
    """Return the images in a mixed order that their names decide, some hundreds in each part."""
    rows = sorted(images, key=lambda row: place_key(row.path, seed + 1))
    store = open_store(folder.source, folder.storage_options)
    parts: list[OpenedPart] = []
    begin = num_bytes = 0
    for end, row in enumerate(rows, start=1):
        num_bytes += row.num_bytes
        if end == len(rows) or num_bytes >= _PART_BYTES or end - begin >= _FILES_PER_PART:
            some = rows[begin:end]
            name = f"images {begin} to {end - 1} ({some[0].path}, ...)"
            paths = [row.path for row in some]
            read = partial(_read_images, store, some, schema, folder.encoding)
            parts.append(OpenedPart(name, num_bytes, read, paths.__getitem__))
            begin, num_bytes = end, 0
    return parts


def _rows_of(
    folder: ImageFolder, classes: Sequence[str], splits: Mapping[str, str], settings: Mapping[str, Any]
) -> Iterator["_Row"]:
    """Yield the images; `splits` has the split of each of the first folders, if the classes are below them."""
    if splits:
        labels = {name: label for label, name in enumerate(classes)}
        for file in folder.files:
            first, name = file.path.split("/")[:2]
            yield _Row(file.path, file.num_bytes, labels[name], name, splits[first])
        return
    chosen = split_files(
        folder,
        validation=float(settings["validation_fraction"]),
        test=float(settings["test_fraction"]),
        fixed=bool(settings["fixed_splits"]),
        seed=int(settings["seed"]),
    )
    for file in folder.files:
        yield _Row(file.path, file.num_bytes, file.label, classes[file.label], chosen[file.path])


def _check_sizes(folder: ImageFolder) -> None:
    """Refuse a folder with empty files, whose content is lost, or with files larger than an image can be."""
    large = next((file for file in folder.files if file.num_bytes > MAX_IMAGE_BYTES), None)
    if large is not None:
        raise BadImageError(
            f"{printable(large.path)} has {large.num_bytes:,} bytes; an image has at most {MAX_IMAGE_BYTES:,}: remove "
            "it from the class folder, or reduce it",
            path=large.path,
        )
    empty = [printable(file.path) for file in folder.files if not file.num_bytes]
    if empty:
        more = ", ..." if len(empty) > _MAX_NAMED else ""
        raise BadImageError(
            f"{redact_address(folder.source)}: {len(empty):,} of {len(folder.files):,} images are empty files "
            f"({', '.join(empty[:_MAX_NAMED])}{more}); their download or copy was cut off: fetch them again, or remove "
            "them",
            path=empty[0],
        )


def _splits_of(folder: ImageFolder, meaning: str) -> dict[str, str]:
    """Return the split that each of the first folders is; empty if they are the classes.

    Raises:
        SmaltiError: Names and files do not decide it, or the folders cannot be what the setting says.
    """
    if meaning == "classes":
        return {}
    is_deep = all(file.path.count("/") > 1 for file in folder.files)
    named = {name: split for name in folder.classes if (split := split_named(name)) is not None}
    if meaning == "splits" and is_deep:
        return {name: named.get(name, name) for name in folder.classes}
    if meaning == "splits":
        reason = "folders=splits needs class folders in each of them, found images"
    else:
        is_each = len(named) == len(folder.classes)
        if not named or (is_each and is_deep):
            return named
        if not is_each and not is_deep and len(set(named.values())) < 2:
            return {}
        reason = f"{', '.join(named)} may be splits or classes"
    shown = ", ".join(printable(name) for name in folder.classes[:_MAX_NAMED])
    more = ", ..." if len(folder.classes) > _MAX_NAMED else ""
    raise SmaltiError(
        f"{redact_address(folder.source)}: the first folders are {shown}{more}: {reason}. If they are classes, give "
        'the setting folders=classes (settings={"folders": "classes"}); if they are splits with class folders in them, '
        "folders=splits"
    )


@dataclass(frozen=True)
class _Row:
    """One image, before it is read."""

    path: str
    num_bytes: int
    label: int
    class_name: str
    split: str


def _read_images(store: Store, rows: Sequence[_Row], schema: pa.Schema, encoding: str) -> Iterator[pa.RecordBatch]:
    """Yield images with their labels; `encoding` is that of the column `image` unless the caller names another one.

    Raises:
        BadImageError: A file is no image.
    """
    remaining = iter(rows)
    for contents in read_contents(store, [row.path for row in rows], [row.num_bytes for row in rows]):
        values = []
        for row, data in zip(islice(remaining, len(contents)), contents.to_pylist(), strict=True):
            try:
                header = probe_image(data)
                # All other encodings check the file.
                if encoding == "bytes" and (fault := check_image_file(header.format, data)) is not None:
                    raise BadImageError(f"{header.format} file of {len(data)} bytes: {fault}")
            except BadImageError as error:
                raise BadImageError(
                    f"{printable(row.path)} is not a usable image: {error}. Remove or replace the file",
                    path=row.path,
                ) from error
            values.append({**vars(row), "image": data, "width": header.width, "height": header.height})
        yield pa.RecordBatch.from_pylist(values, schema)
