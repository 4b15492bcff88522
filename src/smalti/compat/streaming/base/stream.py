"""Stream: one of the shard sets that a StreamingDataset mixes, with MosaicML Streaming's mutable attributes.

`Stream.to_smalti` returns the declaration that the engine reads. The other methods do by themselves what MosaicML's
do: load the index, fetch and unpack single shards to `local`, compute weights. `PreparedShards` is for classes that
have their own way to do so.
"""

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from smalti.cache import CacheOptions
from smalti.catalog.manifest import INDEX
from smalti.compat.streaming.base.format import reader_from_json
from smalti.compat.streaming.base.format.base import FileInfo, Reader
from smalti.compat.streaming.base.registry_utils import create_registry
from smalti.compat.streaming.base.storage.download import downloader_of
from smalti.compat.streaming.base.util import retry, wait_for_file_to_exist
from smalti.compat.streaming.base.world import World, barrier, get_local_rank
from smalti.compat.streaming.order.sampling import weigh_streams
from smalti.cursor import WEIGHT_NAMES
from smalti.errors import ChecksumMismatch, StoreError, StoreNotFound
from smalti.format import MAX_FILE_BYTES, emit_index, parse_compression, verify_file
from smalti.format import FileInfo as EngineFileInfo
from smalti.format.sizes import VERSION
from smalti.order.mixture.planning import StreamWeight
from smalti.process import PerProcess
from smalti.redaction import redact_address
from smalti.regular_files import read_regular
from smalti.storage import LocalStore, Store
from smalti.storage.opening import check_address
from smalti.storage.store import ObjectInfo, check_key, join_key, temporary_name
from smalti.stream import Stream as EngineStream

__all__ = ["Stream", "streams_registry"]

_LIBRARY = __name__.partition(".")[0]
_POLL_SECONDS = 0.07  # polling interval for the index that another process fetches
_OVERRIDABLE = ("get_shards", "prepare_shard", "_download_file", "_prepare_shard_part", "_decompress_shard_part")
_FETCHING = ("download_retry", "download_timeout", "keep_zip")


class Stream:
    """One of the shard sets that a StreamingDataset mixes.

    A dataset fills in what is not given: from its own arguments how to fetch, and from the sizes of all streams the
    two weights that were not given.

    Args:
        remote: URL or folder of the set; None to read `local` in place. Any address that `smalti.storage` knows.
        local: folder for fetched shards; by default a temporary folder that is named by `remote` and must not exist.
        split: folder of the split, below both.
        proportion: share of the epoch, relative to the other streams' shares.
        repeat: times that an epoch takes the stream.
        choose: samples that an epoch takes of the stream.
        download_retry: attempts for one file.
        download_timeout: seconds without progress after which fetching a file fails.
        validate_hash: hash that the index must have for every file.
        keep_zip: keep compressed files after unpacking.

    Raises:
        ValueError: more than one weight is given, a number is out of range, or `remote` is no known address.
        FileExistsError: the temporary folder exists.
    """

    # Present once they are given or derived, as in MosaicML Streaming.
    proportion: float
    repeat: float
    choose: int
    download_retry: int
    download_timeout: float
    keep_zip: bool
    safe_keep_zip: bool

    def __init__(  # noqa: PLR0913 - MosaicML's signature
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        self.remote = None if remote is None else os.fspath(remote)
        self.split = split or ""
        self.validate_hash = validate_hash
        self._local = local
        self._given_weights = _present(proportion=proportion, repeat=repeat, choose=choose)
        if len(self._given_weights) > 1:
            raise ValueError(
                "At most one of `proportion`, `repeat`, and `choose` may be specified; the others are derived; found "
                f"{', '.join(self._given_weights)}."
            )
        fetching = _present(download_retry=download_retry, download_timeout=download_timeout, keep_zip=keep_zip)
        self._given_fetching = frozenset(fetching)
        for name, value in (self._given_weights | fetching).items():
            if name == "download_timeout":
                if value <= 0:
                    raise ValueError(f"`download_timeout` must be positive, found {value}.")
            elif name != "keep_zip" and value < 0:
                raise ValueError(f"`{name}` must be non-negative, found {value}.")
            setattr(self, name, value)
        self._downloader = downloader_of(self.remote)
        self.local = self._get_temporary_directory() if local is None else os.fspath(local)
        if local is None:
            if get_local_rank() == 0:
                try:
                    os.makedirs(self.local)  # noqa: PTH103 - the path is text
                except FileExistsError as error:
                    raise FileExistsError(
                        f"Could not create a temporary local directory {self.local} because it already exists. To "
                        "reuse what was fetched there, pass it as `local`; otherwise delete it, or pass another folder."
                    ) from error
            barrier()
        self._set_safe_keep_zip()

    def to_smalti(self, *, allow_unsafe_types: bool = False) -> EngineStream:
        """Return the engine's declaration of this stream, with everything that is given or filled in by now.

        Weights are the given ones, not those that `apply_weights` derived. If the class overrides how shards are found
        or fetched, the engine reads what its methods find and fetch; the index is then loaded here.

        Args:
            allow_unsafe_types: accept `pkl` columns; used only for such a class.

        Raises:
            ValueError: neither `remote` nor `local` is given, or a number is out of range.
        """
        if not (self.remote or self._local):
            raise ValueError("`remote` and/or `local` path must be provided")
        fetching = _present(**{name: getattr(self, name, None) for name in _FETCHING})
        if "download_retry" in fetching:
            fetching["download_retry"] = max(1, fetching["download_retry"])  # the engine counts the first attempt
        remote: str | Store = self.remote or self.local
        split = self.split or None
        if self._overrides_fetching():
            remote, split = PreparedShards(self, self.get_shards(World.detect(), allow_unsafe_types)), None
        return EngineStream(
            remote=remote,
            split=split,
            cache=CacheOptions(local=self.local, validate_hash=self.validate_hash or None, **fetching),
            **self._weights(),
        )

    def apply_default(self, default: dict[str, Any]) -> None:
        """Fill in what was not given.

        Args:
            default: the dataset's `split`, `download_retry`, `download_timeout`, `validate_hash` and `keep_zip`.

        Raises:
            ValueError: neither `remote` nor `local` is given.
        """
        if not (self.remote or self._local):
            raise ValueError("`remote` and/or `local` path must be provided")
        self.split = self.split or default["split"] or ""
        if self.validate_hash is None:
            self.validate_hash = default["validate_hash"] or None
        for name in _FETCHING:
            if name not in self._given_fetching:
                setattr(self, name, default[name])
        self._set_safe_keep_zip()

    @classmethod
    def validate_weights(cls, streams: Sequence[Self]) -> tuple[bool, bool]:
        """Return whether the streams have relative weights, and whether they have none.

        Raises:
            ValueError: a stream has more than one weight, or relative and absolute weights are mixed.
        """
        given = [[name for name in WEIGHT_NAMES if hasattr(stream, name)] for stream in streams]
        for number, names in enumerate(given):
            if len(names) > 1:
                raise ValueError(
                    "Streams must provide at most one of `proportion`, `repeat`, or `choose`; found "
                    f"{', '.join(names)} (error in stream {number}). A stream that a dataset has used has all of them: "
                    "make a new one."
                )
            if ("proportion" in names) != ("proportion" in given[0]):
                raise ValueError(
                    "Relative (`proportion`) and absolute (`repeat`, `choose`, none) stream weights are incompatible "
                    f"with each other (error in stream {number}). Give all streams a `proportion`, or none."
                )
        return "proportion" in given[0], not any(given)

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence[Self],
        samples_per_stream: NDArray[np.int64],
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Derive the weights that were not given, set them as attributes, and return the samples of an epoch.

        Args:
            streams: all streams of a dataset.
            samples_per_stream: samples of each.
            choose_per_epoch: samples of an epoch, with relative weights or none; None for as many as there are.
            seed: seed that chooses the streams which get one more sample by rounding.

        Raises:
            ValueError: the weights contradict each other, or take nothing.
        """
        are_relative, are_unspecified = cls.validate_weights(streams)
        if choose_per_epoch and not (are_relative or are_unspecified):
            raise ValueError(
                f"Only provide `choose` when weighting streams relatively; found {choose_per_epoch} samples for an "
                "epoch and streams with `repeat` or `choose`."
            )
        samples = np.asarray(samples_per_stream, np.int64)
        weights = [StreamWeight(**stream._weights()) for stream in streams]
        weighed = weigh_streams([[count] for count in samples], weights, epoch_size=choose_per_epoch, seed=seed)
        chosen = np.array([each.choose for each in weighed], np.int64)
        repeats = np.divide(chosen, samples, out=np.zeros(len(chosen)), where=samples > 0)
        for stream, each, choose, repeat in zip(streams, weighed, chosen, repeats, strict=True):
            stream._given_weights = stream._weights()
            stream.proportion, stream.repeat, stream.choose = np.float64(each.proportion), repeat, choose
        return int(chosen.sum())

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:  # noqa: FBT001 - MosaicML's signature
        """Load the index, from `local` or else from `remote`, and return the reader of each shard.

        Args:
            world: its first process of a machine fetches the index, the others wait for it.
            allow_unsafe_types: accept `pkl` columns, whose reading runs code.

        Raises:
            FileNotFoundError: `remote` has no index.
            RuntimeError: there is no `remote`, and `local` has no index; or it was not fetched in time.
            ValueError: the index is damaged, of another version, or has a `pkl` column.
        """
        path = self._path_of(INDEX)
        if not path.exists():
            if not world.is_local_leader:
                wait_for_file_to_exist(
                    str(path),
                    _POLL_SECONDS,
                    getattr(self, "download_timeout", CacheOptions.download_timeout),
                    f"Index file {self.remote or ''} -> {path} took too long to download or failed to download. Either "
                    "increase the `download_timeout` value or check the local rank 0 traceback. ",
                )
            elif self.remote:
                self._download_file(INDEX)
            else:
                raise RuntimeError(f"No `remote` provided, but local file {path} does not exist either")
        try:
            index = json.loads(read_regular(path))
        except json.JSONDecodeError as error:
            error.args = (f"Index file at {path} is empty or corrupted. {error.args[0]}",)
            raise
        if index["version"] != VERSION:
            raise ValueError(f"Unsupported streaming data version: {index['version']}. Expected version {VERSION}.")
        shards = [reader_from_json(self.local, self.split, entry) for entry in index["shards"]]
        for shard in shards:
            shard.validate(allow_unsafe_types)
        return shards

    def prepare_shard(self, shard: Reader) -> int:
        """Fetch, verify and unpack the files of a shard that `local` lacks, and return by how many bytes it grew.

        Raises:
            FileNotFoundError: `remote` does not have a file.
            ValueError: a file is damaged, or its index entry lacks the hash that `validate_hash` requires.
        """
        return sum(self._prepare_shard_part(raw, zipped, shard.compression) for raw, zipped in shard.file_pairs)

    def set_up_local(self, shards: list[Reader], cache_usage_per_shard: NDArray[np.int64]) -> None:
        """Remove incomplete shards from `local`, and write the bytes of each shard to `cache_usage_per_shard`."""
        top = os.path.join(self.local, self.split)  # noqa: PTH118 - as the readers join it
        listing = {os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names}  # noqa: PTH118
        for number, shard in enumerate(shards):
            cache_usage_per_shard[number] = shard.set_up_local(listing, self.safe_keep_zip)

    def get_index_size(self) -> int:
        """Return the bytes of the index file in `local`."""
        return self._path_of(INDEX).stat().st_size

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        """Fetch one file to `local` unless it is there, and return its path."""
        path = self._path_of(to_basename or from_basename)
        if path.exists():
            return str(path)
        address = f"{self.remote.rstrip('/')}/{join_key(self.split, from_basename)}" if self.remote else None
        attempts = max(1, getattr(self, "download_retry", CacheOptions.download_retry))
        timeout = getattr(self, "download_timeout", CacheOptions.download_timeout)
        download = retry(clean_up_fn=self._downloader.clean_up, num_attempts=attempts)(self._downloader.download)
        download(address, str(path), timeout)
        return str(path)

    def _prepare_shard_part(
        self, raw_info: FileInfo, zip_info: FileInfo | None = None, compression: str | None = None
    ) -> int:
        """Make one uncompressed file available, and return by how many bytes `local` grew."""
        raw_path = self._path_of(raw_info.basename)
        if zip_info is None:
            if raw_path.is_file():
                return 0
            self._download_file(raw_info.basename)
            self._verify(raw_path, raw_info)
            return raw_info.bytes
        zip_path = self._path_of(zip_info.basename)
        if raw_path.is_file():
            if self.safe_keep_zip or not zip_path.is_file():
                return 0
            zip_path.unlink()
            return -zip_info.bytes
        delta = raw_info.bytes
        if not zip_path.is_file():
            self._download_file(zip_info.basename)
            delta += zip_info.bytes
        self._decompress_shard_part(zip_info, str(zip_path), str(raw_path), compression)
        self._verify(raw_path, raw_info)
        return delta if self.safe_keep_zip else delta - zip_info.bytes

    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None:
        """Verify a compressed file and unpack it; then remove it unless it is to be kept."""
        zip_path, raw_path = Path(zip_filename), Path(raw_filename)
        self._verify(zip_path, zip_info)
        codec = parse_compression(compression)
        if codec is None:
            raise ValueError(f"{zip_path} is compressed, and the index names no compression.")
        temporary = raw_path.with_name(temporary_name(raw_path.name))
        try:
            with temporary.open("wb") as out:
                codec.decompress_file(zip_path, out, MAX_FILE_BYTES)
            temporary.replace(raw_path)
        finally:
            temporary.unlink(missing_ok=True)
        if not self.safe_keep_zip:
            zip_path.unlink()

    def _verify(self, path: Path, info: FileInfo) -> None:
        """Compare a file with all hashes in the index; remove it if it differs and can be fetched again."""
        if self.validate_hash and self.validate_hash not in info.hashes:
            raise ValueError(
                f"Hash algorithm `{self.validate_hash}` chosen for data validation does not match with those provided "
                f"during dataset creation `{sorted(info.hashes)}`. Provide one of those."
            )
        try:
            verify_file(path, EngineFileInfo(info.basename, info.bytes, info.hashes), what=f"Checksum failure: {path}")
        except ChecksumMismatch:
            if self._is_fetched:
                path.unlink()
            raise

    def _path_of(self, basename: str) -> Path:
        return Path(self.local, self.split, basename)

    @property
    def _is_fetched(self) -> bool:
        """True if `local` has copies, which can be fetched again."""
        return bool(self.remote) and self.remote != self.local

    def _overrides_fetching(self) -> bool:
        """Return whether the class overrides how shards are found or fetched, or the engine cannot open `remote`."""
        if any(map(self._overrides, _OVERRIDABLE)):
            return True
        if not type(self._downloader).__module__.startswith(f"{_LIBRARY}."):
            return True
        try:
            check_address(self.remote or self.local)
        except StoreError:  # such as a password in the address, which the downloader accepts
            return True
        return False

    def _overrides(self, name: str) -> bool:
        """Return whether a method is not the one below: overridden by a class, or replaced in the class or instance."""
        return getattr(getattr(self, name), "__func__", None) is not _ORIGINALS[name]

    def _weights(self) -> dict[str, Any]:
        """Return the weight that was given, or set since, by name; empty without one."""
        present = {name: getattr(self, name) for name in WEIGHT_NAMES if hasattr(self, name)}
        return present if len(present) < 2 else self._given_weights  # all three: two of them were derived

    def _set_safe_keep_zip(self) -> None:
        """Keep compressed files also where they are the only copy of the set."""
        if hasattr(self, "keep_zip"):
            self.safe_keep_zip = bool(self.keep_zip) or self.remote in {None, self.local}

    def _get_temporary_directory(self) -> str:
        """Return the path of the folder for fetched shards that follows from `remote` and `split`."""
        name = ""
        if self.remote is not None:
            name = hashlib.blake2s(self.remote.encode("utf-8"), digest_size=16).hexdigest()
        return os.path.join(tempfile.gettempdir(), name, self.split)  # noqa: PTH118 - MosaicML's path, to the character


_ORIGINALS = {name: getattr(Stream, name) for name in _OVERRIDABLE}


class PreparedShards(Store):
    """The uncompressed shards that a stream prepares, with an index file of them, as a store for the engine; read-only.

    The engine copies each shard to its cache, and removes it from `local` again. Calls of the stream's methods are
    serialised, because a user's class need not be thread-safe.

    Args:
        stream: prepares a shard when the engine reads it.
        shards: the stream's shards.
    """

    def __init__(self, stream: Stream, shards: list[Reader]) -> None:
        self.url = redact_address(f"{stream.remote or stream.local}/{stream.split}".rstrip("/"))
        self._stream = stream
        entries = (replace(shard.to_smalti(), zip=None, zip_meta=None, compression=None) for shard in shards)
        self._index = emit_index(list(entries))
        self._shard_of = {file.basename: shard for shard in shards for file, _ in shard.file_pairs}
        self._lock = PerProcess(threading.Lock)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return self.get_range(key, 0, self.size(key))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
        if key == INDEX:
            return self._index[begin:end]
        with self._lock.get():
            return self._prepared(key).get_range(key, begin, end)

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks; the stream's own copy is removed if it can be fetched again."""
        with self._lock.get():
            num_bytes = self._prepared(key).fetch(key, out, on_chunk=on_chunk)
            if self._stream._is_fetched:
                self._shard_of[key].evict()
            return num_bytes

    def size(self, key: str) -> int:
        """Return the size of the object, bytes."""
        if key == INDEX:
            return len(self._index)
        return next(file.bytes for file, _ in self._shard(key).file_pairs if file.basename == key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the index file and the files of all shards."""
        names = sorted([INDEX, *self._shard_of])
        return iter([ObjectInfo(name, self.size(name), "") for name in names if name.startswith(prefix)])

    def child(self, prefix: str) -> Store:
        """Raise an error: there are no sets below."""
        raise StoreNotFound(f"{self.url} has no folder {prefix!r}: its shards are those of one Stream", key=prefix)

    def put(self, key: str, *_: Any, **__: Any) -> NoReturn:
        """Raise an error: nothing can be written or removed."""
        raise StoreError(f"{self.locate(key)}: the shards of a Stream can only be read", key=key, url=self.url)

    put_file = put_if_absent = delete = put

    def _shard(self, key: str) -> Reader:
        shard = self._shard_of.get(check_key(key))
        if shard is None:
            raise StoreNotFound(f"{self.url}: no shard of the stream has a file {key!r}", key=key, url=self.url)
        return shard

    def _prepared(self, key: str) -> LocalStore:
        """Have the stream prepare the shard of a file, and return the store that then has the file.

        Raises:
            StoreNotFound: the stream finds no such file.
            StoreError: the stream raised another OSError.
        """
        shard = self._shard(key)
        try:
            self._stream.prepare_shard(shard)
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise StoreNotFound(f"{self.locate(key)}: {error}", key=key, url=self.url) from error
        except OSError as error:
            raise StoreError(f"{self.locate(key)}: {error}", key=key, url=self.url) from error
        return LocalStore(Path(shard.dirname, shard.split))


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


streams_registry = create_registry(
    "streaming",
    "streams_registry",
    generic_type=type[Stream],
    entry_points=True,
    description="The streams registry is used for registering Stream classes.",
)
"""The classes that `StreamingDataset(stream_name=...)` can name."""

streams_registry.register("stream", func=Stream)
