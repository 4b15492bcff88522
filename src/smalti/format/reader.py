"""Reading one uncompressed shard file through a memory map: samples, and batches by column."""

import mmap
import operator
import sys
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format.arrays import NdArray
from smalti.format.encoding import Encoding
from smalti.format.gather import Bytes, Cells, gather, locate
from smalti.format.info import ShardInfo
from smalti.format.layout import Offsets, read_offsets
from smalti.format.scalars import Scalar


class Shard:
    """The samples of one shard file; read-only and thread-safe.

    Nothing that it returns refers to the file afterwards: the file may be unlinked, and the shard closed, at any time.
    """

    def __init__(self, data: mmap.mmap, offsets: Offsets, info: ShardInfo, codecs: tuple[Encoding, ...]) -> None:
        """Use `Shard.open`."""
        self.info = info
        self._data: mmap.mmap | None = data
        self._offsets = offsets
        self._codecs = codecs
        self._len = info.samples

    @classmethod
    def open(cls, path: Path, info: ShardInfo, *, allow_unsafe_types: bool = False) -> "Shard":
        """Map the uncompressed file and check its header and its table of offsets against the index.

        Args:
            path: The file as `info.raw` describes it.
            info: The shard's entry in the index.
            allow_unsafe_types: Whether columns that run code when read are wanted.

        Raises:
            ChecksumMismatch: The size is not the declared one.
            FormatError: The header or the offsets are damaged or contradict the index.
            SchemaError: A column whose encoding is refused.
            OSError: The file cannot be opened.
        """
        codecs = info.schema.codecs(allow_unsafe_types=allow_unsafe_types)
        with path.open("rb") as file:
            found = file.seek(0, 2)
            if found != info.raw.num_bytes or found < 8:
                raise ChecksumMismatch(
                    f"{path}: expected {max(info.raw.num_bytes, 8)} bytes, found {found}; it is incomplete or belongs "
                    "to another index. Fetch it again, or run the writer again.",
                    expected=info.raw.num_bytes,
                    found=found,
                    hash="size",
                )
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offsets = read_offsets(memoryview(data), samples=info.samples, what=str(path))
        # A copy, and aligned: the map is freed when the last reader lets go of it.
        return cls(data, offsets.copy(), info, codecs)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Sample `index` as column to value; negative numbers count from the end.

        Raises:
            IndexError: No such sample.
            FormatError: Its bytes are damaged.
            ValueError: The shard is closed.
        """
        number = operator.index(index)
        if number < 0:
            number += self._len
        if not 0 <= number < self._len:
            raise IndexError(f"sample {index} of {self._len} in shard {self.info.raw.basename}")
        data = self._mapped()
        begin, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return self._decode(data[begin:end], number)

    def batch(self, indices: "np.ndarray[Any, Any]") -> dict[str, Any]:
        """The samples at `indices`, by column, in that order.

        Args:
            indices: Integers, shape (n,), each in [0, len); repeats are allowed.

        Returns:
            Column to values: a fresh array of shape (n,) for numbers (`int` is int64), of shape (n, *shape) for
            `ndarray:DTYPE:SHAPE`, else a list of n decoded values; for `jpeg` and `png` a list of undecoded bytes.

        Raises:
            IndexError: A number outside the shard.
            FormatError: Bytes of one of the samples are damaged.
            ValueError: The shard is closed.
        """
        wanted = np.asarray(indices)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise IndexError(f"expected a row of sample numbers, found {wanted.dtype} of shape {wanted.shape}")
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self._len):
            raise IndexError(f"samples {wanted.min()} to {wanted.max()} of {self._len} in {self.info.raw.basename}")
        mapped, rows = self._mapped(), wanted.astype(np.int64)
        data: Bytes = np.frombuffer(mapped, np.uint8)
        places = locate(data, self._offsets, rows, self.info.schema.sizes, what=self.info.raw.basename)
        columns = zip(self.info.schema.names, self._codecs, places, strict=True)
        return {name: self._column(mapped, data, (name, codec), cells, rows) for name, codec, cells in columns}

    def close(self) -> None:
        """Let go of the file; reads that are under way finish."""
        self._data = None

    def _mapped(self) -> mmap.mmap:
        data = self._data
        if data is None:
            raise ValueError(f"shard {self.info.raw.basename} is closed")
        return data

    def _decode(self, data: bytes, number: int) -> dict[str, Any]:
        schema = self.info.schema
        place = 4 * sum(size is None for size in schema.sizes)
        heads = iter([int.from_bytes(data[at : at + 4], "little") for at in range(0, place, 4)])
        ends = []
        for size in schema.sizes:
            place += next(heads) if size is None else size
            ends.append(place)
        if place > len(data):
            raise FormatError(
                f"{self.info.raw.basename}, sample {number}: its columns need {place} bytes and it has {len(data)}; "
                "the shard is damaged. Fetch it again, or run the writer again.",
                sample=number,
            )
        begin, sample = 4 * sum(size is None for size in schema.sizes), {}
        for name, codec, end in zip(schema.names, self._codecs, ends, strict=True):
            sample[name] = self._value((name, codec), data[begin:end], number)
            begin = end
        return sample

    def _column(
        self, mapped: mmap.mmap, data: Bytes, column: tuple[str, Encoding], cells: Cells, rows: "np.ndarray[Any, Any]"
    ) -> Any:
        codec = column[1]
        if isinstance(codec, Scalar):
            return _native(gather(data, cells.begin, codec.dtype))
        if isinstance(codec, NdArray) and codec.dtype is not None and codec.shape is not None:
            blocks = gather(data, cells.begin, np.dtype((np.void, codec.size or 0)))
            return _native(blocks.view(codec.dtype).reshape(len(rows), *codec.shape))
        values = [mapped[begin:end] for begin, end in zip(cells.begin.tolist(), cells.end.tolist(), strict=True)]
        if codec.is_image:
            return values
        return [self._value(column, value, row) for value, row in zip(values, rows, strict=True)]

    def _value(self, column: tuple[str, Encoding], data: bytes, number: int) -> Any:
        name, codec = column
        try:
            return codec.decode(data)
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise FormatError(
                f"{self.info.raw.basename}, sample {number}, column {name!r}: not a value of {codec.name} ({error}); "
                "the shard is damaged. Fetch it again, or run the writer again.",
                sample=int(number),
                column=name,
            ) from error


def _native(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if sys.byteorder == "little":
        return values
    return values.astype(values.dtype.newbyteorder("="))
