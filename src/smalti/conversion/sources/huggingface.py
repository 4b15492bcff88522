"""Datasets of Hugging Face: a folder of `save_to_disk`, read without their library, or a `datasets.Dataset`.

Images and audio become the bytes of their files; `ClassLabel` stays the number of the class, with the names in the
field's metadata; sequences, structs and arrays keep their Arrow types. The splits of a `DatasetDict` are chosen one at
a time.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.types as pt

from smalti.conversion.files import StoredFile, files_named, marks_of, read_object
from smalti.conversion.source import (
    CLASS_NAMES,
    OpenedPart,
    OpenedSource,
    SourceOptions,
    check_columns,
    image_encoding,
)
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound, VersionNotFound
from smalti.format import load_strict
from smalti.format.reading.arrow import STORED_AS
from smalti.regular_files import read_regular
from smalti.storage import Store, open_store
from smalti.storage.store import join_key
from smalti.writer.tables.values import cast_array, plain_array, plain_type

_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
_KEY = b"huggingface"
_CONTINUATION = b"\xff\xff\xff\xff"
"""First bytes of a message of an Arrow stream since Arrow 0.15; before, the length of its metadata came first."""
_FILES = frozenset({"Image", "Audio", "Video", "Pdf"})
_ROWS = 1000
_AGAIN = "load the dataset with `datasets`, and call `save_to_disk` again"
_PART_ROWS = 50_000
_SEARCHED_ROWS = 10_000
"""Rows in which the first image of a column is looked for."""
ReadPath = Callable[[str], bytes]
"""Returns the content of a file of which a data set has the path alone."""


def recognises(place: object, names: Sequence[str]) -> bool:
    """Return whether files of these names are a folder of `save_to_disk`."""
    if _is_dataset(place):
        return True
    return _DICT in names or (_STATE in names and _INFO in names)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the rows of a dataset: a folder that `save_to_disk` wrote, in any store, or a `datasets.Dataset`.

    Raises:
        StoreNotFound: There is no dataset.
        VersionNotFound: It is a `DatasetDict`, and the split is not given, or there is no such split.
        SchemaError: There is no such column.
        FormatError: The folder is damaged.
    """
    wanted_split = options.settings_of("Hugging Face datasets", "split").get("split")
    if isinstance(place, Mapping):
        split = _chosen_split("the DatasetDict", list(place), wanted_split)
        return _of_dataset(place[split], options.columns)
    if _is_dataset(place):
        return _of_dataset(place, options.columns)
    return _of_folder(open_store(place, options.storage_options), options.columns, wanted_split)


def _is_dataset(place: object) -> bool:
    """Return whether this is a `datasets.Dataset` or a `DatasetDict`."""
    return type(place).__module__.partition(".")[0] == "datasets" and hasattr(place, "with_format")


def _chosen_split(url: str, splits: Sequence[str], split: str | None) -> str:
    if split is not None and split in splits:
        return split
    if split is None and len(splits) == 1:
        return splits[0]
    what = "choose one with `split`" if split is None else f"there is no split {split!r}"
    raise VersionNotFound(f"{url} has the splits {', '.join(splits)}: {what}", split=split)


def _of_folder(store: Store, wanted: Sequence[str] | None, split: str | None) -> OpenedSource:
    folder = ""
    try:
        splits = read_object(store, _DICT).get("splits")
        if not isinstance(splits, list) or not splits:
            raise FormatError(f"{store.locate(_DICT)}: expected a list of `splits`", key=_DICT)
        folder = _chosen_split(store.url, list(map(str, splits)), split)
    except StoreNotFound:
        if split is not None:
            raise VersionNotFound(f"{store.url} is one dataset without splits; leave `split` out") from None
    index = join_key(folder, _STATE)
    state = read_object(store, index)
    features = read_object(store, join_key(folder, _INFO)).get("features")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise FormatError(f"{store.locate(index)} names no files of rows", key=_STATE)
    if state.get("_indices_data_files"):
        raise FormatError(f"{store.url} has a separate file of indices; save it again with a newer `datasets`")
    files = files_named(store, index, [each.get("filename") for each in entries])
    with files[0].open_stored() as stream:
        schema = _reader(stream, files[0].url, files[0].num_bytes).schema
    known = features if isinstance(features, dict) else {}
    stored = (batch for file in files for batch in _stored_batches(file))
    columns = dataset_columns(store.url, schema, known, wanted, lambda _: stored, partial(_read_below, store))
    parts = [
        OpenedPart(file.key, file.num_bytes, partial(_rows_of_file, file, columns, schema.names)) for file in files
    ]
    rows = pa.schema([column.field for column in columns])
    return OpenedSource(store.locate(folder), rows, parts, partial(marks_of, files))


def _of_dataset(dataset: Any, wanted: Sequence[str] | None) -> OpenedSource:
    """Return the rows of a `datasets.Dataset`, with its selections and without its transforms.

    Raises:
        SchemaError: It is an `IterableDataset`, which has no table of rows.
    """
    if not hasattr(dataset, "data"):
        raise SchemaError(
            f"expected a datasets.Dataset, found a {type(dataset).__name__}, whose rows can be read only in turn: "
            "load it without `streaming=True`, or write its rows with MDSWriter"
        )
    plain = dataset.with_format("arrow")
    # As `dataset_info.json` describes them, as far as it matters.
    features = {
        name: {"_type": type(each).__name__, "names": list(getattr(each, "names", None) or ())}
        for name, each in dataset.features.items()
    }
    url = f"datasets.Dataset {dataset._fingerprint}"  # theirs: changes with every operation
    size, count = int(dataset.data.nbytes), len(plain)
    rows = _batches_of(plain, 0, count)
    columns = dataset_columns(url, dataset.data.schema, features, wanted, lambda _: rows, read_regular)
    parts = []
    for begin in range(0, count, _PART_ROWS):
        end = min(begin + _PART_ROWS, count)
        # The data set is pickled by its files' names where it lies on a disk.
        name, read = f"rows {begin} to {end - 1}", partial(_rows_of_dataset, plain, begin, end, columns)
        parts.append(OpenedPart(name, size * (end - begin) // count, read))
    identity = [dataset._fingerprint, [column.field.name for column in columns]]
    return OpenedSource(url, pa.schema([column.field for column in columns]), parts, lambda: identity)


def _batches_of(dataset: Any, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of a dataset that returns Arrow tables."""
    for first in range(begin, end, _ROWS):
        yield from dataset[first : min(first + _ROWS, end)].combine_chunks().to_batches()


@dataclass(frozen=True)
class HuggingFaceColumn:
    """A column of a dataset, and how its values are taken from the Arrow table."""

    field: pa.Field
    is_file: bool
    """True for images and audio: a struct of the file's bytes and its path."""
    read_path: ReadPath | None = field(default=None, repr=False)
    """Reads a file of which the dataset has the path alone; None if such files are not read."""

    def array(self, column: pa.Array, where: str) -> pa.Array:
        """Return the values of a batch."""
        column = plain_array(column)
        if not self.is_file:
            return cast_array(column, self.field.type)
        if pt.is_struct(column.type):
            names = [each.name for each in column.type]
            contents = column.flatten()[names.index("bytes")].to_pylist()
            paths = column.flatten()[names.index("path")].to_pylist() if "path" in names else [None] * len(contents)
        else:
            contents, paths = [None] * len(column), column.to_pylist()
        valid = column.is_valid().to_pylist()
        found = [
            None if not ok else content if content is not None else self._content(path, where)
            for ok, content, path in zip(valid, contents, paths, strict=True)
        ]
        return pa.array(found, self.field.type)

    def _content(self, path: str | None, where: str) -> bytes | None:
        """Return the content of a file of which the dataset has the path alone."""
        if path is None:
            return None
        reason = "the files of other programs are not read"
        if self.read_path is not None:
            try:
                return self.read_path(path)
            except (SmaltiError, OSError, ValueError) as error:
                reason = error.message if isinstance(error, SmaltiError) else str(error)
        raise StoreNotFound(
            f"{where}: column {self.field.name!r} has no content but names the file {path!r:.200}, which is not read "
            f"({reason}); load the dataset with `datasets` on the machine that has the files, and `save_to_disk` there",
            column=self.field.name,
        )


def _read_below(store: Store, path: str) -> bytes:
    """Return the content of a file in the folder of a data set, which names it: other files are none of its business.

    Raises:
        ValueError: The path leads elsewhere.
        OSError: It cannot be read.
    """
    inside = store.local_path("any")
    if inside is None:
        return store.get(path)
    folder = os.path.realpath(inside.parent)
    place = os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 -- `path` may be absolute
    if not place.startswith(f"{folder}/"):
        raise ValueError("it is not in the folder of the data set")
    return read_regular(place)


def features_in(schema: pa.Schema, where: str) -> Mapping[str, Any]:
    """Return the features that `datasets` describes in the metadata of a Parquet file; none if it did not write it.

    Raises:
        FormatError: They cannot be read.
    """
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        return {}
    found = load_strict(text, where=f"{where}, metadata of the schema")
    for name in ("info", "features"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def dataset_columns(
    url: str,
    schema: pa.Schema,
    features: Mapping[str, Any],
    wanted: Sequence[str] | None,
    first_rows: Callable[[Sequence[str]], Iterable[pa.RecordBatch]],
    read_path: ReadPath | None = None,
) -> tuple[HuggingFaceColumn, ...]:
    """Return how the columns of a dataset are taken from its table.

    `first_rows` returns the first rows of the columns of images, perhaps with others: the first image of a column
    decides what its images are stored as.

    Raises:
        SchemaError: There is no such column, or two of one name.
    """
    check_columns(url, wanted, schema.names)
    found: dict[str, HuggingFaceColumn] = {}
    images = []
    for name in wanted or schema.names:
        feature = features.get(name)
        kind = str(feature.get("_type")) if isinstance(feature, Mapping) else None
        stored = plain_type(schema.field(name).type)
        is_file = kind in _FILES and _holds_files(stored)
        notes: dict[bytes, bytes] = {}
        if kind == "ClassLabel" and isinstance(feature, Mapping) and isinstance(feature.get("names"), list):
            notes[CLASS_NAMES] = json.dumps(feature["names"]).encode()
        arrow = pa.field(name, pa.binary() if is_file else stored, metadata=notes or None)
        found[name] = HuggingFaceColumn(arrow, is_file, read_path)
        if kind == "Image" and is_file:
            images.append(found[name])
    for name, content in _first_contents(images, first_rows).items():
        if (encoding := image_encoding(content)) is not None:
            found[name] = replace(found[name], field=found[name].field.with_metadata({STORED_AS: encoding.encode()}))
    return tuple(found.values())


def _holds_files(kind: pa.DataType) -> bool:
    """Return whether a column holds files as `datasets` stores them: contents and paths, or paths alone."""
    if not pt.is_struct(kind):
        return _is_text(kind)
    types = {each.name: each.type for each in kind}
    contents = types.get("bytes", pa.bool_())
    return bool(pt.is_binary(contents) or pt.is_null(contents)) and _is_text(types.get("path", pa.null()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_null(kind))


def _first_contents(
    columns: Sequence[HuggingFaceColumn], first_rows: Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
) -> dict[str, bytes]:
    """Return the first file of each column, of those that have one in the first rows."""
    found: dict[str, bytes] = {}
    num_rows = 0
    by_name = {column.field.name: column for column in columns}
    for batch in first_rows(list(by_name)) if columns else ():
        for name, column in by_name.items():
            if name not in found and name in batch.schema.names:
                values = batch.column(name)
                rows = (column.array(values.slice(row, 1), "the first rows")[0] for row in range(len(values)))
                first = next((content for content in rows if content.is_valid), None)
                if first is not None:
                    found[name] = first.as_py()
        num_rows += batch.num_rows
        if len(found) == len(columns) or num_rows >= _SEARCHED_ROWS:
            break
    return found


def _rows_of_file(
    file: StoredFile, columns: Sequence[HuggingFaceColumn], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one Arrow file of a folder in order; `names` are the columns of the first file.

    Raises:
        FormatError: The file is damaged.
        SchemaError: It has other columns than the first one.
    """
    for batch in _stored_batches(file):
        if sorted(batch.schema.names) != sorted(names):
            raise SchemaError(
                f"{file.url} has the columns {', '.join(batch.schema.names):.1000}, and the first file "
                f"{', '.join(names):.1000}; {_AGAIN}",
                key=file.key,
            )
        yield _batch(columns, batch, file.url)


def _stored_batches(file: StoredFile) -> Iterator[pa.RecordBatch]:
    with file.open_stored() as stream:
        try:
            for batch in _reader(stream, file.url, file.num_bytes):
                batch.validate(full=True)  # Arrow trusts the offsets in a file
                yield batch
            if stream.tell() != file.num_bytes or not _has_end(stream):
                raise OSError("its rows do not end where the file ends; it was cut short or changed")
        except SmaltiError:
            raise
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise FormatError(f"{file.url}: the file is damaged: {str(error)[:200]}", key=file.key) from error


def _has_end(stream: BinaryIO) -> bool:
    """Return whether a file ends with the mark of the end of an Arrow stream, which a file that was cut lacks.

    Messages begin with ff ff ff ff since Arrow 0.15, and so does the mark; before, it was a length of zero alone.
    """
    stream.seek(0)
    is_old = stream.read(4) != _CONTINUATION
    stream.seek(-8, io.SEEK_END)
    end = stream.read(8)
    return end[4:] == bytes(4) and (is_old or end[:4] == _CONTINUATION)


def _reader(stream: Any, url: str, num_bytes: int) -> pa.RecordBatchReader:
    head = stream.read(8)
    stream.seek(0)
    length = int.from_bytes(head[4:] if head[:4] == _CONTINUATION else head[:4], "little")
    try:
        if length > num_bytes:
            found = "an Arrow file" if head[:6] == b"ARROW1" else "other bytes"
            raise pa.ArrowInvalid(f"found {found}")
        reader = pa.ipc.open_stream(pa.PythonFile(stream, mode="r"), options=pa.ipc.IpcReadOptions(use_threads=False))
        _ = reader.schema.names  # raises an error for names that are not UTF-8
        return reader
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{url}: expected an Arrow stream, as `save_to_disk` of `datasets` writes it: {str(error)[:200]}"
        ) from error


def _batch(columns: Sequence[HuggingFaceColumn], batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Return the rows of a batch with the types of the first file.

    Raises:
        SchemaError: A value does not fit the type of its column.
    """
    arrays = []
    for column in columns:
        values = batch.column(column.field.name)
        try:
            arrays.append(column.array(values, where))
        except pa.ArrowException as error:
            raise SchemaError(
                f"{where}: column {column.field.name!r} is {values.type} there, and {column.field.type} in the first "
                f"file, and a value does not fit: {str(error)[:200]}; {_AGAIN}",
                column=column.field.name,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field for column in columns]))


def _rows_of_dataset(
    dataset: Any, begin: int, end: int, columns: Sequence[HuggingFaceColumn]
) -> Iterator[pa.RecordBatch]:
    for batch in _batches_of(dataset, begin, end):
        yield _batch(columns, batch, f"rows {begin} to {end - 1}")
