"""Writer, the base of the writers of all formats, and JointWriter and SplitWriter, of shards of one or two files.

A subclass turns samples into bytes, and the bytes of a shard's samples into files; `places.SetUploader` hashes,
compresses and uploads the files in threads, and makes the set visible when the writer finishes.
"""

import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

import numpy as np
from typing_extensions import Required, Self, TypedDict, Unpack

from smalti.compat.paths import with_parameters
from smalti.compat.streaming.base.compression import is_compression, is_hash
from smalti.compat.streaming.base.format.base.places import SetUploader
from smalti.compat.streaming.base.storage.upload import CloudUploader
from smalti.compat.streaming.base.util import bytes_to_int
from smalti.compat.streaming.errors import BadColumn
from smalti.errors import (
    IndexFileError,
    StoreError,
)
from smalti.format import MAX_FILE_BYTES, FileInfo, Schema, ShardInfo
from smalti.format.hashing import hash_rows
from smalti.format.json_fields import Fields
from smalti.format.layout import encode_config, head_bytes
from smalti.format.reading.shard import check_written
from smalti.format.reading.text import check_written_text
from smalti.format.text import TEXT_FORMATS, parse_layout
from smalti.format.writing.sealing import BuiltShard, FileOptions, ShardOptions
from smalti.writer import WriterOptions

__all__ = ["JointWriter", "SplitWriter"]

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))

_OPTIONS = frozenset({"progress_bar", "max_workers", "retry", "exist_ok"})
Out = str | tuple[str, str]


class WriterArguments(TypedDict, total=False):
    """The arguments that all writers have; see `Writer`."""

    out: Required[Out]
    keep_local: bool
    compression: str | None
    hashes: list[str] | None
    size_limit: int | str | None
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool


class Writer(ABC):
    """A writer of one data set. Not thread-safe.

    The set appears at `out` all at once when the writer finishes: where there was none, as MosaicML's writer leaves it,
    shards beside `index.json`; else as a new version. If the `with` block raises, nothing appears.

    Args:
        out: Local folder, which must be empty; or URL; or both as (local, remote).
        keep_local: With a URL, whether the set is written to the local folder too.
        compression: Name such as `zstd` or `zstd:7`, or None.
        hashes: Names of the checksums that the shards and the index list, sorted. Without any, xxh3_64 is recorded
            apart from the entries all the same, by which readers of Smalti verify the shards.
        size_limit: Largest shard in bytes, or as text such as "64mb"; None for one shard.
        extra_bytes_per_shard: Bytes of a shard without samples.
        extra_bytes_per_sample: Bytes of a sample in addition to its own.
        **kwargs: `progress_bar`, False by default; `max_workers`, shards being uploaded at the same time; `retry`,
            attempts at each upload, by default 2; `exist_ok`, whether a local folder with contents is emptied.

    Raises:
        ValueError: an argument is wrong or unknown.
        FileExistsError: the local folder has contents, or the remote one has a set that Smalti did not write.
        StoreError: the remote folder cannot be read.
    """

    format: str = ""
    """Name of the format in the index."""

    def __init__(
        self,
        *,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **kwargs: Any,
    ) -> None:
        if self.format not in {"mds", *TEXT_FORMATS}:
            raise ValueError(
                f"the format of {type(self).__name__} is {self.format!r:.80}; expected mds or one of the text formats "
                f"{', '.join(sorted(TEXT_FORMATS))}, because no reader knows others."
            )
        self.keep_local = keep_local
        self.compression = _checked_compression(compression)
        self.hashes = hashes or []
        _check_hashes(self.hashes)
        self.size_limit = _checked_size_limit(size_limit)
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        unknown = [name for name in kwargs if name not in _OPTIONS]
        if unknown:
            raise ValueError(f"Invalid Writer argument(s): {unknown}; expected some of {sorted(_OPTIONS)}.")
        self.shards: list[dict[str, Any]] = []
        """Entries of the shards so far, as in the index; those of a new version get their folder at the end."""
        if kwargs.get("exist_ok", False):
            folder = Path(out if isinstance(out, str) else out[0]).expanduser()
            if folder.exists():
                logger.warning("Directory %s exists; its contents are removed (exist_ok=True).", folder)
                shutil.rmtree(folder)
        progress_bar, retry = kwargs.get("progress_bar", False), kwargs.get("retry", 2)
        self.cloud_writer = CloudUploader.get(out, keep_local, progress_bar, retry)
        self.local: str = self.cloud_writer.local
        self.remote: str | None = self.cloud_writer.remote
        try:
            places = (self.local, self.remote) if self.remote else self.local
            options = WriterOptions(places, keep_local, max_workers=kwargs.get("max_workers"), retry=retry)
            self._upload = SetUploader(options.stores(), options.uploads(), shows_progress=progress_bar)
        except BaseException:
            self._clear_local()
            raise
        self.event = Event()
        """Set when an upload has failed, or by the user's program; nothing is published then."""
        self.new_samples: list[bytes]
        """The encoded samples of the shard that is being filled."""
        self.new_shard_size: int
        """The size of its file so far."""
        self._reset_cache()

    def _reset_cache(self) -> None:
        """Begin a new shard."""
        self.new_samples = []
        self.new_shard_size = self.extra_bytes_per_shard

    @abstractmethod
    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Return the stored bytes of a sample."""

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        return {
            "version": 2,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    def _encode_table(self, first: int, config: bytes | None = None) -> bytes:
        """Return the number of buffered samples, the offset of each and of the end as uint32, and the description.

        Args:
            first: the offset of the first sample.
            config: the encoded description of the shard; by default it is made anew.

        Raises:
            ValueError: an offset exceeds uint32.
        """
        ends = np.cumsum([first, *map(len, self.new_samples)], dtype=np.int64)
        if ends[-1] > MAX_FILE_BYTES:
            raise ValueError(
                f"a shard of {ends[-1]} bytes exceeds the {MAX_FILE_BYTES} of uint32; give a `size_limit`."
            )
        return head_bytes(config or encode_config(self.get_config()), np.diff(ends), first)

    @abstractmethod
    def flush_shard(self) -> None:
        """Encode the buffered samples as a shard, and store it; `write` begins a new one."""

    def write(self, sample: dict[str, Any]) -> None:
        """Add one sample; keys that are no columns are ignored.

        Raises:
            KeyError: a column is missing, or has a value of another size than its encoding.
            AttributeError: a value is of another type than its column.
            ValueError: a value does not fit its column, or the writer was finished.
            StoreError: an upload failed.
        """
        self._stop_if_failed()
        new_sample = self.encode_sample(sample)
        num_bytes = len(new_sample) + self.extra_bytes_per_sample
        if self.size_limit and self.size_limit < self.new_shard_size + num_bytes:
            self.flush_shard()
            self._reset_cache()
        self.new_samples.append(new_sample)
        self.new_shard_size += num_bytes

    def _stop_if_failed(self) -> None:
        """Cancel the write and raise a StoreError if an upload or a task of the user has failed."""
        if self.event.is_set():
            self.cancel_future_jobs()
            raise StoreError("One of the threads failed, and nothing more can be written; see its error above.")

    def _store(self, parts: Mapping[str, bytes]) -> None:
        """Upload a shard of these files, by kind: data, meta; blocks while too many are being uploaded.

        `compression` and `hashes` count as they are now.
        """
        _check_hashes(self.hashes)
        options = ShardOptions(
            _checked_compression(self.compression),
            tuple(self.hashes),
            self.size_limit,
            () if self.hashes else ("xxh3_64",),
        )
        name = f"shard.{len(self.shards):05}.{self.format}"
        shard = _WholeShard(
            {**self.get_config(), "hashes": list(self.hashes)},
            FileOptions.of(options),
            {kind: (name if kind == "data" else f"{name}.{kind}", content) for kind, content in parts.items()},
            np.fromiter(map(len, self.new_samples), np.int64, len(self.new_samples)),
        )
        try:
            self._upload.write_shard(shard)
        except StoreError as error:
            self.event.set()
            raise StoreError(f"One of the threads failed: {error.message}", **error.facts) from error
        self.shards.append(shard.provisional_entry())

    def finish(self) -> None:
        """Store the last shard, wait for all, and publish the set. Leaving the `with` block calls it.

        Raises:
            StoreError: an upload failed, or `event` is set; nothing was published.
            FileExistsError: another program has written a set there in the meantime.
            ValueError: the writer was finished already.
        """
        try:
            self._stop_if_failed()
            if self.new_samples:
                self.flush_shard()
                self._reset_cache()
            config = self.get_config()
            self._stop_if_failed()
            columns = config.get("columns") or dict(
                zip(config["column_names"], config["column_encodings"], strict=True)
            )
            sizes = config.get("column_sizes") or [None] * len(columns)
            schema = Schema(tuple(sorted(columns)), tuple(columns[name] for name in sorted(columns)), tuple(sizes))
            shards = self._upload.finish(schema)
        except StoreError as error:
            self.event.set()
            if "One of the threads failed" in error.message:
                raise
            raise StoreError(f"One of the threads failed: {error.message}", **error.facts) from error
        finally:
            self._clear_local()
        self.shards[:] = [{**config, **info.listed().to_json()} for info in shards]

    def _clear_local(self) -> None:
        if self.remote and not self.keep_local:
            shutil.rmtree(self.local, ignore_errors=True)

    def cancel_future_jobs(self) -> None:
        """Stop, and remove what was uploaded; nothing is published."""
        self._upload.abort()
        self._clear_local()
        # Folders without files are removed, so that the same program can be run again.
        for folder in sorted((path for path in Path(self.local).rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()

    def exception_callback(self, future: "Future[Any]") -> None:
        """Set `event` if `future`, a task of the user's program, has failed; the write then ends with a StoreError."""
        error = future.exception()
        if error is not None:
            self.event.set()
            logger.error("A task of the writer failed: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self.cancel_future_jobs()
        else:
            self.finish()


class JointWriter(Writer):
    """A writer of shards of one file each; arguments as for `Writer`."""

    @abstractmethod
    def encode_joint_shard(self) -> bytes:
        """Return the file of a shard of the samples in `new_samples`."""

    def flush_shard(self) -> None:
        """Encode the buffered samples as a shard, and store it; `write` begins a new one."""
        self._store({"data": self.encode_joint_shard()})


with_writer_arguments = with_parameters(
    each for name, each in signature(Writer).parameters.items() if not name.startswith("extra_")
)
"""Decorator of an `__init__` that takes the arguments of all writers as `**arguments`."""


class SplitWriter(Writer):
    """A writer of shards of two files each, lines of text and their offsets; arguments as for `Writer`."""

    extra_bytes_per_shard = 0
    extra_bytes_per_sample = 0

    @with_writer_arguments
    def __init__(self, **arguments: Unpack[WriterArguments]) -> None:
        super().__init__(
            extra_bytes_per_shard=self.extra_bytes_per_shard,
            extra_bytes_per_sample=self.extra_bytes_per_sample,
            **arguments,
        )

    def _check_layout(self, columns: Mapping[str, str], newline: str, separator: str | None = None) -> None:
        """Check that lines of these columns can be read back.

        Raises:
            ValueError: there is no column, a mark is empty or too long, or one mark contains the other.
        """
        names = sorted(columns)
        fields = {
            "columns": dict(columns),
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "newline": newline,
            "separator": separator,
        }
        try:
            parse_layout(Fields(fields, "columns"), self.format)
        except IndexFileError as error:
            raise BadColumn(f"the writer of {self.format} cannot write such lines: {error.message}") from error

    @abstractmethod
    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of the samples in `new_samples`: lines of text, and their offsets."""

    def flush_shard(self) -> None:
        """Encode the buffered samples as a shard, and store it; `write` begins a new one."""
        data, meta = self.encode_split_shard()
        self._store({"data": data, "meta": meta})


@dataclass(frozen=True)
class _WholeShard:
    """The files of one shard, to be hashed, compressed and described by a thread that stores them."""

    config: dict[str, Any]
    files: FileOptions
    parts: dict[str, tuple[str, bytes]]
    """Name and content of each file, by kind: data, meta."""
    lengths: "np.ndarray[Any, np.dtype[np.int64]]"
    """Bytes of each sample, int64, shape (N,); they end the data file."""

    def row_hash(self) -> int:
        """Return the sum of the hashes of its samples."""
        data = self.parts["data"][1]
        ends = np.concatenate([[0], np.cumsum(self.lengths)]) + (len(data) - int(self.lengths.sum()))
        return hash_rows(memoryview(data), ends)

    def provisional_entry(self) -> dict[str, Any]:
        """Return the entry of the index as far as it is known before the files are hashed and compressed."""
        extension = None if self.files.compression is None else self.files.compression.extension
        entry: dict[str, Any] = {"samples": len(self.lengths)}
        for kind, (name, content) in self.parts.items():
            entry[f"raw_{kind}"] = FileInfo(name, len(content)).to_json()
            entry[f"zip_{kind}"] = FileInfo(f"{name}.{extension}", 0).to_json() if extension else None
        return {**entry, **self.config}

    def seal(self) -> BuiltShard:
        """Return the finished shard."""
        entry: dict[str, Any] = {**self.config, "samples": len(self.lengths)}
        payloads = []
        for kind, (name, content) in self.parts.items():
            raw, zipped, stored = self.files.finish(name, content)
            entry[f"raw_{kind}"] = raw.to_json()
            entry[f"zip_{kind}"] = None if zipped is None else zipped.to_json()
            payloads.append(stored)
        info = ShardInfo.from_json(entry, where=f"the new shard {self.parts['data'][0]}")
        contents = [content for _, content in self.parts.values()]
        if info.layout is not None:
            check_written_text(contents[0], contents[1], info)
        else:
            check_written(memoryview(contents[0]), info, check_config=False)  # users' writers may have none
        return BuiltShard(info, tuple(payloads))


def _checked_compression(compression: str | None) -> str | None:
    if compression and not is_compression(compression):
        raise ValueError(
            f'Invalid compression: {compression}. Expected br, bz2, gz, snappy or zstd, with a level such as "zstd:7".'
        )
    return compression or None


def _check_hashes(hashes: Sequence[str]) -> None:
    if list(hashes) != sorted(set(hashes)):
        raise ValueError(f"Hashes must be unique and in sorted order, found {hashes}.")
    for name in hashes:
        if not is_hash(name):
            raise ValueError(f"Invalid hash: {name}. `streaming.base.hashing.get_hashes` lists all.")


def _checked_size_limit(size_limit: int | str | None) -> int | None:
    num_bytes = bytes_to_int(size_limit) if size_limit else None
    if num_bytes is not None and num_bytes < 0:
        raise ValueError(f"`size_limit` must be greater than zero, instead, found as {num_bytes}.")
    if num_bytes is not None and num_bytes > MAX_FILE_BYTES:
        raise ValueError(
            f"`size_limit` must be less than 2**32, instead, found as {num_bytes}: the offsets of samples are uint32."
        )
    return num_bytes
