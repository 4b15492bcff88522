"""Reading one uncompressed text shard (JSONL, CSV, TSV, XSV): the data file mapped, the meta file in memory.

The meta file: uint32 N | uint32 offset, into the data file, of each line, and of the end | config as JSON
"""

import mmap
import operator
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import ClosedError, FormatError, SampleIndexError
from smalti.format.encodings.encoding import Array
from smalti.format.index import ShardInfo
from smalti.format.layout import compare_config, read_offsets
from smalti.format.reading.batch import DEFAULTS, OpenOptions, check_column_names, check_rows
from smalti.format.reading.files import Ragged, StoredSamples, check_size
from smalti.format.text import decode_lines
from smalti.regular_files import open_regular

_DAMAGED = "the shard is damaged. Fetch it again, or run the writer again."


class TextShard:
    """The samples of one text shard; read-only and thread-safe, with the same methods as `Shard`.

    Results never refer to the files: they may be unlinked, and the shard closed, at any time.
    """

    def __init__(
        self, data: "mmap.mmap | bytes", meta: bytes, info: ShardInfo, options: OpenOptions, *, where: tuple[str, str]
    ) -> None:
        """Check the contents of two files against each other and against the index; `where` names them."""
        layout = info.layout
        if layout is None:
            raise FormatError(f"{where[0]}: its index entry is that of an {info.format} shard, not of a text shard.")
        check_column_names(options.names or (), layout.schema.names)
        offsets = read_offsets(
            memoryview(meta),
            samples=info.samples,
            what=where[1],
            first=0,  # the header in front of the first line is compared below
            num_bytes=info.raw.num_bytes,
        )
        if options.check_config:
            compare_config(meta[8 + 4 * info.samples :], info.to_json(), what=where[1])
        content, header = np.frombuffer(data, np.uint8), layout.header
        if offsets[0] != len(header) or content[: len(header)].tobytes() != header:
            raise FormatError(
                f"{where[0]}: expected a first line with the {len(layout.schema.names)} names of the columns, as the "
                f"index says, found another; {_DAMAGED}"
            )
        newline = np.frombuffer(layout.newline.encode("utf-8"), np.uint8)
        ends = offsets[1:].astype(np.int64) - len(newline)
        if (np.diff(offsets) < len(newline)).any() or any(
            (content[ends + place] != char).any() for place, char in enumerate(newline)
        ):
            raise FormatError(
                f"{where[0]}: a sample does not end where the meta file says, with a line end; {_DAMAGED}"
            )
        self.info = info
        self.names = options.names
        """Columns that are returned, in this order; None for all. A line is parsed as a whole."""
        self._data: mmap.mmap | bytes | None = data
        self._offsets = offsets
        self._layout = layout
        self._newline = layout.newline.encode("utf-8")
        self._len = info.samples

    @classmethod
    def open(cls, data_path: Path, meta_path: Path, info: ShardInfo, options: OpenOptions = DEFAULTS) -> "TextShard":
        """Map the data file, read the meta file, and check them against each other and against the index.

        Raises:
            ChecksumMismatch: The size of a file is not the declared one.
            FormatError: Header, offsets or line ends are damaged or contradict the index.
            SchemaError: There is no such column.
            OSError: A file cannot be opened.
        """
        meta_info = info.meta
        if meta_info is None:
            raise FormatError(f"{data_path}: its index entry is that of an {info.format} shard, not of a text shard.")
        with open_regular(meta_path) as file:
            check_size(file.seek(0, 2), meta_info.num_bytes, what=str(meta_path))
            file.seek(0)
            meta = file.read(meta_info.num_bytes)
        with open_regular(data_path) as file:
            check_size(file.seek(0, 2), info.raw.num_bytes, what=str(data_path))
            # A shard without samples may be an empty file, which cannot be mapped.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if info.raw.num_bytes else b""
        return cls(data, meta, info, options, where=(str(data_path), str(meta_path)))

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return sample `index` as column to value (str, int or float); negative numbers count from the end.

        Raises:
            IndexError: No such sample.
            FormatError: Its bytes are damaged.
            ValueError: The shard is closed.
        """
        number = operator.index(index)
        if number < 0:
            number += self._len
        if not 0 <= number < self._len:
            raise SampleIndexError(f"sample {index} of {self._len} in shard {self.info.raw.basename}")
        columns = self._columns([number])
        return {name: values[0] for name, values in columns.items()}

    def batch(self, indices: Array) -> dict[str, Any]:
        """Return the samples at `indices`, by column, in that order.

        Args:
            indices: Integers, shape (n,), each in [0, len); repeats are allowed.

        Returns:
            Column to values: float64 or int64 of shape (n,), else a list of n values: text, or integers if one of them
                does not fit 64 bits.

        Raises:
            IndexError: A number outside the shard.
            FormatError: Bytes of one of the samples are damaged.
            ValueError: The shard is closed.
        """
        batch: dict[str, Any] = self._columns(check_rows(indices, self._len, self.info.raw.basename).tolist())
        encodings = self.info.schema.columns()
        for name, values in batch.items():
            if encodings[name] != "str":
                # Python integers beyond 64 bits are allowed by the format: such a column stays a list.
                with suppress(OverflowError):
                    batch[name] = np.array(values, np.float64 if encodings[name] == "float" else np.int64)
        return batch

    def gather(self, indices: Array, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the same as `batch`, with text as UTF-8 bytes in a `Ragged` where possible, to send to a process.

        `indices` are as in `batch`; None stands for all columns.

        Raises:
            SchemaError: There is no such column.
        """
        encodings = self.info.schema.columns()
        known = encodings if self.names is None else self.names
        chosen = known if columns is None else columns
        check_column_names(chosen, known)
        batch = self.batch(indices)
        for name in chosen:
            if encodings[name] == "str":
                with suppress(UnicodeEncodeError):  # JSON can hold unpaired surrogates, UTF-8 cannot
                    batch[name] = Ragged.from_values([value.encode("utf-8") for value in batch[name]])
        return {name: batch[name] for name in chosen}

    def stored_samples(self) -> StoredSamples:
        """Return the lines of the samples with their ends, as stored.

        Raises:
            ValueError: The shard is closed.
        """
        if self._data is None:
            raise ClosedError(f"shard {self.info.raw.basename} is closed")
        return StoredSamples(memoryview(self._data), self._offsets.astype(np.int64))

    def close(self) -> None:
        """Release the file; concurrent reads finish."""
        self._data = None

    def _columns(self, rows: list[int]) -> dict[str, list[Any]]:
        data = self._data
        if data is None:
            raise ClosedError(f"shard {self.info.raw.basename} is closed")
        begins, ends = self._offsets[rows].tolist(), (self._offsets[1:][rows] - len(self._newline)).tolist()
        pieces = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
        try:
            values = decode_lines(self._layout, [piece.decode("utf-8") for piece in pieces])
        except FormatError as error:
            raise self._fault(rows[int(error.facts["line"])], error.message, error.facts.get("column")) from error
        except UnicodeDecodeError as error:
            row = next(row for row, piece in zip(rows, pieces, strict=True) if piece == error.object)
            raise self._fault(row, "not UTF-8", None) from error
        found = dict(zip(self._layout.schema.names, values, strict=True))
        return found if self.names is None else {name: found[name] for name in self.names}

    def _fault(self, row: int, reason: str, column: Any) -> FormatError:
        return FormatError(f"{self.info.raw.basename}, sample {row}: {reason}; {_DAMAGED}", sample=row, column=column)


def check_written_text(data: bytes, meta: bytes, info: ShardInfo) -> None:
    """Check that a reader of two uncompressed files, which were just written, can read them: all ends, the last line.

    Raises:
        FormatError: A reader would refuse a file or the line.
    """
    where = (info.raw.basename, f"{info.raw.basename}.meta")
    shard = TextShard(data, meta, info, DEFAULTS, where=where)
    if len(shard):
        shard.batch(np.array([len(shard) - 1]))
