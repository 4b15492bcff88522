"""One tar file of an export in the layout of WebDataset: a sample is a run of members with one key.

    000000017.image.jpg   000000017.label.cls   000000017.caption.txt

The key is the number of the sample in the version. A member is named by its column and an ending that says how it is
read: `cls` integers, `txt` text, `json`, `npy` arrays, `jpg` and `png` images, `bin` other bytes. A null has no member.
Members are written without times and owners, so the same samples give the same bytes.
"""

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.encodings.images import ImageList
from smalti.format.encodings.numbers import NdArray
from smalti.format.encodings.text import Json
from smalti.format.logical import number_type
from smalti.format.reading.arrow import STORED_AS, ArrowColumn, Stored
from smalti.format.reading.files import Ragged
from smalti.stream.arrow import ArrowReader, RowSpan

SUFFIX = ".tar"
BLOCK = tarfile.BLOCKSIZE
OVERHEAD = BLOCK + BLOCK // 2
"""Bytes that a member takes besides its content: its header, and padding on average."""
_MAX_NAME = 100  # bytes of a name in the header that every reader of tar files knows
_EXTENSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)
_IMAGES = {b"jpeg": "jpg", b"png": "png"}
Contents = Sequence[bytes | None]
"""The content of one member for each sample of a batch; None where there is none."""


@dataclass(frozen=True)
class MemberPlan:
    """The member of one column in each sample."""

    column: ArrowColumn
    extension: str
    """The name after the key and a dot, such as `image.jpg`."""
    contents: Callable[[Mapping[str, Stored]], Contents]


def member_plans(
    columns: Sequence[ArrowColumn], names: Mapping[str, str], logical: Mapping[str, Any]
) -> list[MemberPlan]:
    """Return how each column is written; `names` has endings by column that the caller chose.

    Raises:
        SchemaError: A column has no form in a tar file, or an ending cannot be used.
    """
    for name in names:
        if name not in {column.name for column in columns}:
            raise SchemaError(f"`names` has {name!r}, which is no exported column", column=name)
    plans: list[MemberPlan] = []
    seen: dict[str, str] = {}
    for column in columns:
        ending, contents = _form(column, logical.get(column.name) or {})
        extension = names.get(column.name, f"{column.name}.{ending}")
        if _EXTENSION.fullmatch(extension) is None or len(extension) > _MAX_NAME - 20:
            raise SchemaError(
                f"column {column.name!r}: {extension!r} cannot be the ending of a member's name; give one of A-Z a-z "
                "0-9 . _ - with `names`",
                column=column.name,
            )
        other = seen.setdefault(extension.lower(), column.name)  # WebDataset reads endings in lower case
        if other != column.name:
            raise SchemaError(f"columns {other!r} and {column.name!r} have the same ending {extension!r}; see `names`")
        plans.append(MemberPlan(column, extension, contents))
    return plans


def write_tar(path: Path, reader: ArrowReader, spans: Iterable[RowSpan], plans: Sequence[MemberPlan]) -> None:
    """Write the samples of these spans to a new file; memory holds one batch."""
    with path.open("wb", buffering=1 << 20) as out:
        for span in spans:
            for first_row, stored in reader.gathered(span):
                _write_batch(out, first_row, plans, [plan.contents(stored) for plan in plans])
        out.write(bytes(2 * BLOCK))
        out.write(bytes(-out.tell() % tarfile.RECORDSIZE))


def _write_batch(out: BinaryIO, first_row: int, plans: Sequence[MemberPlan], columns: Sequence[Contents]) -> None:
    endings = [f".{plan.extension}".encode("ascii") for plan in plans]
    for row, values in enumerate(zip(*columns, strict=True), first_row):
        key = b"%09d" % row
        is_empty = True
        for ending, content in zip(endings, values, strict=True):
            if content is not None:
                is_empty = False
                out.write(header(key + ending, len(content)))
                out.write(content)
                out.write(bytes(-len(content) % BLOCK))
        if is_empty:
            raise SchemaError(
                f"sample {row}: all exported columns are null, and a sample of a tar file has at least one member; "
                "export a further column, or to Parquet",
                row=row,
            )


def header(name: bytes, num_bytes: int) -> bytes:
    """Return the header of a member: that of `tarfile` for a file without time and owner, ten times as fast."""
    template, checksum = _template()
    size = b"%011o" % num_bytes
    total = checksum + sum(name) + sum(size)
    return b"".join((name, template[len(name) : 124], size, template[135:148], b"%06o\0 " % total, template[156:]))


@lru_cache(maxsize=1)
def _template() -> tuple[bytes, int]:
    """Return a header without name, size and checksum, and the sum of its bytes, with spaces for the checksum."""
    made = bytearray(tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT))
    made[124:135] = bytes(11)
    made[148:156] = b" " * 8
    return bytes(made), sum(made)


def _form(column: ArrowColumn, logical: Mapping[str, Any]) -> tuple[str, Callable[[Mapping[str, Stored]], Contents]]:
    """Return the ending of a column's members, and the function that makes their contents."""
    kind, stored_as = column.field.type, (column.field.metadata or {}).get(STORED_AS)
    codec = None if column.encoding == "float" else parse_encoding(column.encoding, allow_unsafe_types=True)
    if pt.is_binary(kind):
        return _IMAGES.get(stored_as or b"", "bin"), lambda stored: _bytes(column.array(stored))
    if isinstance(codec, NdArray):
        return "npy", lambda stored: _arrays(column, codec, logical, stored)
    if isinstance(codec, Json):
        return "json", lambda stored: _json_texts(column, stored)
    if isinstance(codec, ImageList):
        raise SchemaError(
            f"column {column.name!r} has a list of images in each sample, which has no form in a tar file of "
            "WebDataset; leave it out with `columns`, or export to Parquet",
            column=column.name,
        )
    if pt.is_boolean(kind) or pt.is_floating(kind) or pt.is_duration(kind):
        return "json", lambda stored: _texts(column.array(stored), json.dumps)
    if pt.is_integer(kind):
        return "cls", lambda stored: _texts(column.array(stored), str)
    return "txt", lambda stored: _bytes(column.array(stored).cast(pa.string()))


def _bytes(array: pa.Array) -> Contents:
    found: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return found


def _texts(array: pa.Array, write: Callable[[Any], str]) -> Contents:
    if pt.is_duration(array.type):
        array = array.cast(pa.int64())
    return [None if value is None else write(value).encode("ascii") for value in array.to_pylist()]


def _json_texts(column: ArrowColumn, stored: Mapping[str, Stored]) -> Contents:
    values = stored[column.name]
    if not isinstance(values, Ragged):
        raise SchemaError(f"column {column.name!r}: expected stored JSON", column=column.name)
    return _without_nulls(values.tolist(), column, stored)


def _without_nulls(values: Sequence[bytes], column: ArrowColumn, stored: Mapping[str, Stored]) -> Contents:
    if column.mask is None:
        return values
    is_null = np.asarray(stored[column.mask]).tolist()
    return [None if null else value for value, null in zip(values, is_null, strict=True)]


def _arrays(column: ArrowColumn, codec: NdArray, logical: Mapping[str, Any], stored: Mapping[str, Stored]) -> Contents:
    values: Any = stored[column.name]
    if isinstance(values, Ragged):
        values = codec.decode_many(values.data, values.offsets)
    convert = number_type(logical["of"]).restore if logical.get("type") == "array" else None
    arrays = (array if convert is None else np.asarray(convert(array)) for array in values)
    files = [_npy_header(array.dtype, array.shape) + array.tobytes() for array in arrays]
    return _without_nulls(files, column, stored)


@lru_cache(maxsize=1024)
def _npy_header(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()
