"""Base classes of the readers of all formats; beside them those of the writers, and the places at which sets appear.

A reader is one shard of a set on this machine, as MosaicML Streaming presents it in `dataset.shards`. It knows the
files of its shard from the index, and opens them anew for every sample, so that they may be evicted and fetched again
at any time. Datasets read through the engine, which maps shards into memory and verifies them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from smalti.compat.paths import serve
from smalti.compat.streaming.base.array import Array
from smalti.compat.streaming.errors import EntryError
from smalti.format import Schema, ShardInfo, check_basename, parse_byte_count
from smalti.format.sizes import VERSION
from smalti.format.text import decode_lines, layout_of
from smalti.regular_files import open_regular

__all__ = ["FileInfo", "Reader"]

_FILES = ("raw_data", "raw_meta", "zip_data", "zip_meta")


@dataclass
class FileInfo:
    """One file of a shard: its name below the set's folder, its size in bytes, and its checksums by hash name."""

    basename: str
    bytes: int
    hashes: dict[str, str]


FilePair = tuple[FileInfo, FileInfo | None]
"""A file, uncompressed and, if the shard is compressed, compressed."""


class Reader(Array, ABC):
    """The samples of one shard, by number.

    The arguments follow from the fields of the shard's entry in the index, in alphabetical order, as in MosaicML's
    readers; each is an attribute.

    Args:
        dirname: folder of the set.
        split: folder of the split below it, if any.
        compression: compression of its files, if any, such as `zstd:3`.
        hashes: names of the hashes that the index has for its files.
        samples: samples of the shard.
        size_limit: the writer's limit on the size of a shard, in bytes or as text such as "64mb".
    """

    _format: ClassVar[str]
    """Name of the format in index files."""
    _kinds: ClassVar[tuple[str, ...]] = ()
    """The files of a shard: `data`, `meta`."""
    _fields: ClassVar[frozenset[str]] = frozenset({"compression", "hashes", "samples", "size_limit"})
    """The fields of an entry, apart from its version and format."""
    _own_signature: ClassVar[Signature]
    """The arguments of this class, without those of a user's subclass."""
    __signature__: ClassVar[Signature]
    dirname: str
    split: str
    compression: str | None
    hashes: list[str]
    samples: int
    size_limit: int | str | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_signature = _signature_of(cls)
        cls.__signature__ = cls._own_signature
        if cls.__init__ is not Reader.__init__:  # of a user's class
            _, *parameters = signature(cls.__init__).parameters.values()
            cls.__signature__ = Signature(parameters)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        named = self._own_signature
        is_complete = not args and kwargs.keys() == named.parameters.keys()  # as from an index; binding takes longer
        vars(self).update(kwargs if is_complete else named.bind(*args, **kwargs).arguments)
        self.split = self.split or ""
        if self.size_limit:
            self.size_limit = parse_byte_count(self.size_limit, what="`size_limit`")
        self.file_pairs: list[FilePair] = [
            (getattr(self, f"raw_{kind}"), getattr(self, f"zip_{kind}")) for kind in self._kinds
        ]

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> Self:
        """Return the reader of a shard.

        Args:
            dirname: folder of the set.
            split: folder of the split below it, if any.
            obj: the shard's entry in the index.

        Raises:
            EntryError: the entry is of another version or format.
            ValueError: a file's name is unsafe.
        """
        arguments = dict(obj)
        version, kind = arguments.pop("version"), arguments.pop("format")
        if version != VERSION:
            raise EntryError(f"Unsupported streaming data version: {version}. Expected version {VERSION}.")
        if kind != cls._format:
            raise EntryError(f"Unsupported data format: {kind}. Expected to be `{cls._format}`.")
        for name in _FILES:
            if arguments.get(name):
                arguments[name] = FileInfo(**arguments[name])
                check_basename(arguments[name].basename, where=name)
        return cls(dirname=dirname, split=split, **arguments)

    def to_smalti(self) -> ShardInfo:
        """Return the engine's entry of this shard.

        Raises:
            IndexFileError: a value is out of range, or values contradict each other.
        """
        names = self.__signature__.parameters.keys() - {"dirname", "split"}
        values = {name: getattr(self, name) for name in names}
        entry = {name: asdict(value) if isinstance(value, FileInfo) else value for name, value in values.items()}
        where = f"{type(self).__name__} in {self.dirname}"
        return ShardInfo.from_json({"format": self._format, "version": VERSION, **entry}, where=where)

    def validate(self, allow_unsafe_types: bool) -> None:  # noqa: FBT001 - MosaicML's signature
        """Return only if the shard may be read: `pkl` columns run code when they are read.

        Raises:
            ValueError: it has such a column, and `allow_unsafe_types` is False.
        """

    @property
    def size(self) -> int:
        """Samples of the shard."""
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all samples."""
        for number in range(len(self)):
            yield self[number]

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return the sample at `idx`, column to value.

        Raises:
            IndexError: there is no such sample.
            FileNotFoundError: the shard is not on this machine.
        """
        return self.decode_sample(self.get_sample_data(idx))

    @abstractmethod
    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample that these stored bytes are, column to value."""

    @abstractmethod
    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of the sample at `idx`.

        Raises:
            IndexError: there is no such sample.
            FileNotFoundError: the shard is not on this machine.
        """

    def evict(self) -> int:
        """Remove all files of the shard from this machine, and return the bytes that they took."""
        return self._evict_raw() + self._evict_zip()

    def set_up_local(self, listing: set[str], safe_keep_zip: bool) -> int:  # noqa: FBT001 - MosaicML's signature
        """Remove files that are of no use without others that are missing, and return the bytes of the rest.

        Args:
            listing: paths of all files in the folder of the set.
            safe_keep_zip: keep compressed files. The uncompressed files of a compressed shard are then of no use
                alone.

        Raises:
            ValueError: a shard that is not compressed has compressed files.
        """
        raw = [self._path(file) in listing for file, _ in self.file_pairs]
        zipped = [file is not None and self._path(file) in listing for _, file in self.file_pairs]
        has_raw, has_zip = all(raw), all(zipped)
        if any(zipped) and not self.compression:
            raise ValueError("Shard is invalid: compression was not used, but has a compressed form.")
        if self.compression and has_raw and has_zip != safe_keep_zip:
            has_raw, has_zip = not safe_keep_zip, False
        if any(raw) and not has_raw:
            self._evict_raw()
        if any(zipped) and not has_zip:
            self._evict_zip()
        return (self.get_raw_size() if has_raw else 0) + ((self.get_zip_size() or 0) if has_zip else 0)

    def get_raw_size(self) -> int:
        """Return the bytes of the uncompressed files."""
        return sum(file.bytes for file, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Return the bytes of the compressed files; None without compression."""
        sizes = [file.bytes for _, file in self.file_pairs if file is not None]
        return sum(sizes) if len(sizes) == len(self.file_pairs) else None

    def get_max_size(self) -> int:
        """Return the bytes of all files, compressed and not: what the shard takes while it is unpacked."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:  # noqa: FBT001 - MosaicML's signature
        """Return the bytes that the shard takes when it is unpacked, with its compressed files if they are kept."""
        return self.get_max_size() if self.compression and keep_zip else self.get_raw_size()

    def _evict_raw(self) -> int:
        return self._remove([file for file, _ in self.file_pairs])

    def _evict_zip(self) -> int:
        return self._remove([file for _, file in self.file_pairs if file is not None])

    def _remove(self, files: list[FileInfo]) -> int:
        num_bytes = 0
        for file in files:
            path = Path(self._path(file))
            if path.exists():
                path.unlink()
                num_bytes += file.bytes
        return num_bytes

    def _path(self, file: FileInfo) -> str:
        # As text, and not made normal: `set_up_local` compares it with a caller's listing.
        return os.path.join(self.dirname, self.split, file.basename)  # noqa: PTH118

    def _read(self, offsets: FileInfo, data: FileInfo, idx: int) -> bytes:
        """Return the bytes in file `data` between the two offsets of sample `idx` in the table of file `offsets`."""
        if not 0 <= idx < self.samples:
            raise IndexError(
                f"Relative sample index {idx} is not present in the {data.basename} file: it has {self.samples}."
            )
        with open_regular(self._path(offsets), 0) as file:
            pair = os.pread(file.fileno(), 8, 4 * (1 + int(idx)))
        begin, end = np.frombuffer(pair, "<u4").tolist() if len(pair) == 8 else (1, 0)
        with open_regular(self._path(data), 0) as file:
            found = os.pread(file.fileno(), max(0, end - begin), begin)
        if len(found) != end - begin:
            raise ValueError(
                f"{self._path(data)}, sample {idx}: its bytes are not where its offsets say; the file is damaged. "
                "Remove it, so that it is fetched again."
            )
        return found


def _signature_of(kind: type[Any]) -> Signature:
    """Return the signature of a class of readers."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        hints |= get_annotations(base)
    names = ("dirname", "split", *sorted(kind._fields))
    return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[name]) for name in names])


Reader.__signature__ = Reader._own_signature = _signature_of(Reader)


class JointReader(Reader):
    """The samples of a shard that is one file; the arguments are those of `Reader`, and its files.

    Args:
        raw_data: the uncompressed file.
        zip_data: the compressed file, if any.
    """

    _kinds = ("data",)
    _fields = Reader._fields | {"raw_data", "zip_data"}
    raw_data: FileInfo
    zip_data: FileInfo | None

    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of the sample at `idx`."""
        return self._read(self.raw_data, self.raw_data, idx)


class SplitReader(Reader):
    """The samples of a shard that is two files: one of data, and one of offsets into it.

    The arguments are those of `Reader`, and its files.

    Args:
        raw_data: the uncompressed file of data.
        raw_meta: the uncompressed file of offsets.
        zip_data: the compressed file of data, if any.
        zip_meta: the compressed file of offsets, if any.
    """

    _kinds = ("meta", "data")
    _fields = Reader._fields | {"raw_data", "raw_meta", "zip_data", "zip_meta"}
    raw_data: FileInfo
    raw_meta: FileInfo
    zip_data: FileInfo | None
    zip_meta: FileInfo | None

    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of the sample at `idx`, its line end included."""
        return self._read(self.raw_meta, self.raw_data, idx)

    def _decode_line(
        self, data: bytes, columns: Mapping[str, str], newline: str, separator: str | None
    ) -> dict[str, Any]:
        """Return the sample that a line is; `columns` has the encoding of each, `separator` is None in JSON shards.

        Raises:
            ValueError: it is damaged.
        """
        schema = Schema(tuple(columns), tuple(columns.values()), (None,) * len(columns))
        layout = layout_of(self._format, schema, newline, separator)
        values = decode_lines(layout, [data.decode("utf-8").removesuffix(newline)])
        return {name: column[0] for name, column in zip(columns, values, strict=True)}


serve(__name__, "reader", __all__=["FileInfo", "JointReader", "Reader", "SplitReader"])
