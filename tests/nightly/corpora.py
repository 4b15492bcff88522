"""Files that packages ship, converted one by one, and what other libraries read from them."""

import csv
import datetime as dt
import functools
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from smalti import convert, open_dataset

COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4", ".xz", ".br")
MOST_ROWS = 10_000
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}


@dataclass(frozen=True)
class Shipped:
    """A file within a source distribution."""

    path: str
    data: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """Its file name."""
        return PurePosixPath(self.path).name

    @functools.cached_property
    def content(self) -> bytes:
        """Its data, decompressed."""
        ending = PurePosixPath(self.name.lower()).suffix
        if ending == ".xz":
            return lzma.decompress(self.data)
        if ending not in CODECS or not self.data:
            return self.data
        return pa.CompressedInputStream(pa.BufferReader(self.data), CODECS[ending]).read()


def without_compression(name: str) -> str:
    name = name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSIONS if name.endswith(ending)), name)


def shipped(archive: Path) -> Iterator[Shipped]:
    """Yield the files of a source distribution; equal ones once."""
    known = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            file = Shipped(member.name, content.read())
            if (file.name, file.data) not in known:
                known.add((file.name, file.data))
                yield file


@dataclass(frozen=True)
class Rows:
    """The rows of a version, as a reader gets them."""

    count: int
    step: int
    """Every row of so many is read."""
    rows: list[dict[str, Any]]

    def beside(self, expected: list[Any]) -> Iterator[tuple[int, dict[str, Any], Any]]:
        """Yield number, row and expected row of those that were read; as many rows must be expected as there are."""
        assert self.count == len(expected) > 0
        yield from zip(range(0, self.count, self.step), self.rows, expected[:: self.step], strict=True)


def converted(file: Shipped, folder: Path, format: str, settings: Any = None, columns: Any = None) -> Rows:
    """Convert a file by itself, and read its rows; images lie in a class folder. Of many rows, some are read."""
    source = folder / "class" if format == "images" else folder
    source.mkdir(parents=True, exist_ok=True)
    (source / file.name).write_bytes(file.data)
    target = folder.with_name(f"{folder.name}-set")
    convert(folder if format == "images" else source / file.name, target, format=format, nulls="mask", processes=1,
            compression=None, hashes=(), columns=columns, settings=settings)  # fmt: skip
    dataset = open_dataset(str(target))
    step = 1 + len(dataset) // MOST_ROWS
    return Rows(len(dataset), step, [dataset[row] for row in range(0, len(dataset), step)])


def plain(value: Any) -> Any:
    """Return a value in one form for all libraries: an absent key is null, and times are numbers of nanoseconds."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return ("bool", bool(value))
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _nanoseconds(value)
    if isinstance(value, dt.datetime):
        zone = value.tzinfo and value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return _nanoseconds(np.datetime64(zone or value, "us"))
    if isinstance(value, dt.date):
        return _nanoseconds(np.datetime64(value, "D"))
    if isinstance(value, dt.timedelta):
        return _nanoseconds(np.timedelta64(value, "us"))
    if isinstance(value, np.generic):
        value = value.item()
    return "nan" if value != value else value


def _nanoseconds(value: np.datetime64 | np.timedelta64) -> tuple[str, int]:
    unit, count = np.datetime_data(value.dtype)
    factor = {"D": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit] * count
    return (type(value).__name__, int(value.astype(np.int64)) * factor)


def csv_rows(text: str, delimiter: str) -> list[list[str]]:
    """Return the rows as Python's reader has them, without empty lines; one of a single column is an empty value."""
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    return [row or [""] for row in rows if row or len(rows[0]) == 1]


def is_written(value: Any, text: str) -> bool:
    """Return whether a CSV file has this text for a value."""
    if value is None:
        return text == ""
    if isinstance(value, str):
        return value == text
    if isinstance(value, np.bool_):
        return text.lower() == str(value).lower()
    if isinstance(value, np.datetime64):
        if np.datetime_data(value.dtype)[0] == "D":
            return str(value) == text
        return plain(value) == plain(dt.datetime.fromisoformat(text.replace("Z", "+00:00")))
    if isinstance(value, np.integer):
        return str(value) == text
    return plain(float(text)) == plain(value)


def json_rows(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of lines as Python's reader has them."""
    return [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]


def parquet_rows(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file as pyarrow has them; far timestamps of INT96 do not fit its nanoseconds."""
    table = pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us").read()
    return table.to_pylist(maps_as_pydicts="strict")


def tar_rows(data: bytes) -> dict[str, dict[str, bytes]]:
    """Return the contents of a tar file by key and ending, as `webdataset` divides names."""
    rows: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            folder, slash, name = member.name.rpartition("/")
            key, dot, ending = name.partition(".")
            if member.isreg() and key and dot:
                rows.setdefault(f"{folder}{slash}{key}", {})[ending.lower()] = tar.extractfile(member).read()
    return rows
