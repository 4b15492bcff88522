"""The transfer of objects from one store to another, by threads, in bounded memory.

Intended behaviour; anything else is a bug:
1. What is read is compared with the size and all hashes that the source's manifest declares; a mismatch is read once
   more, and then raised. Nothing that does not match is written.
2. What was written is asked for its size; with `read_back` it is read and compared as well.
3. Objects in memory take at most `memory_limit` bytes together; a larger one goes through a temporary file.
4. The first failure stops the transfer. Complete objects stay, and a repeated call finds them.
5. Every wait ends: requests have the stores' deadlines, and waiting for an object has `timeout_seconds` on top.
"""

import io
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from smalti.catalog.commit import put_and_check
from smalti.errors import ArgumentError, ChecksumMismatch, StoreError, StoreNotFound, StoreTimeout
from smalti.format.hashing import BlockHashes, BlockList, compare_digests, new_hash
from smalti.format.index import FileInfo
from smalti.storage import Place, Store, open_store
from smalti.storage.opening import check_apart

_HASH = "xxh3_64"  # of files whose writer recorded none
_SYNCED_AT_ONCE = 1024
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) after each object."""


@dataclass(frozen=True)
class CopyOptions:
    """Limits and checks of a copy.

    Examples:
        >>> options = CopyOptions(max_workers=16, read_back=True)
        >>> report = copy_version("s3://bucket/users", "/data/copy", options=options)
    """

    max_workers: int = 8
    """Objects that are copied at the same time."""
    memory_limit: int = 256 << 20
    """Bytes of objects in memory at the same time; larger objects go through a temporary file."""
    read_back: bool = False
    """Read every object at the target again and compare it, also those that were there already."""
    server_side: bool = False
    """Let the server copy where both places are on the same one; only sizes are compared then, unless `read_back`."""
    timeout_seconds: float = 900.0
    """Longest wait for one object, seconds."""

    def __post_init__(self) -> None:
        if self.max_workers < 1 or self.memory_limit < 1 or self.timeout_seconds <= 0:
            raise ArgumentError(
                f"`max_workers` ({self.max_workers}), `memory_limit` ({self.memory_limit}) and `timeout_seconds` "
                f"({self.timeout_seconds}) must be greater than 0"
            )


@dataclass(frozen=True)
class BlockFile(FileInfo):
    """A file with block lists: it has no checksum of its own, but each list in it has one."""

    lists: Sequence[tuple[BlockList, int]] = ()
    """The place of each list in the file, and the bytes of its shard."""


class Transfer:
    """The copying of objects from one store to another under the same keys."""

    def __init__(
        self, source: Place, target: Place, options: CopyOptions | None, on_progress: Progress | None, *, dry_run: bool
    ) -> None:
        """Open both stores.

        Raises:
            CatalogError: they are the same place, or one lies inside the other.
        """
        self.source, self.target = open_store(source), open_store(target)
        self.options, self.dry_run = options or CopyOptions(), dry_run
        check_apart(self.source, self.target, advice="copy to another place")
        self._on_progress = on_progress
        self._is_server_side = self.options.server_side and self.target.can_copy_from(self.source)
        self._free_bytes = self.options.memory_limit  # of memory that the threads share
        self._freed = threading.Condition()
        self._is_stopped = threading.Event()

    def run(self, files: Sequence[FileInfo]) -> None:
        """Copy all files, and make them durable.

        Raises:
            ChecksumMismatch: an object at the source is not what its manifest declares.
            StoreError: an object could not be read or written.
        """
        self._is_stopped.clear()
        done, total = 0, sum(file.num_bytes for file in files)
        running: deque[Future[FileInfo]] = deque()
        keys: list[str] = []
        waiting = iter(files)
        pool = ThreadPoolExecutor(self.options.max_workers, thread_name_prefix="smalti-copy")
        try:
            while True:
                missing = 2 * self.options.max_workers - len(running)
                running.extend(pool.submit(self._copy, file) for file in islice(waiting, missing))
                if not running:
                    break
                if not wait([running[0]], timeout=self.options.timeout_seconds).done:
                    raise StoreTimeout(
                        f"{self.target.url}: an object was not copied within {self.options.timeout_seconds:.0f} s; "
                        "look at the stores and the network, and copy again: what is complete is not copied twice"
                    )
                copied = running.popleft().result()
                done += copied.num_bytes
                keys.append(copied.basename)
                if len(keys) == _SYNCED_AT_ONCE:
                    self.target.sync(keys)
                    keys.clear()
                if self._on_progress is not None:
                    self._on_progress(done, total)
            self.target.sync(keys)
        finally:
            self._is_stopped.set()
            for future in running:
                future.cancel()
            pool.shutdown(wait=True, cancel_futures=True)  # requests have deadlines

    def _copy(self, file: FileInfo) -> FileInfo:
        if self._is_stopped.is_set():
            return file
        key = file.basename
        if self._is_server_side:
            self._put(file, partial(self.target.copy_from, self.source, key))
        elif file.num_bytes <= self.options.memory_limit:
            with self._memory(file.num_bytes), io.BytesIO() as out:
                file = self._fetch(file, out)
                self._put(file, partial(self.target.put_unsynced, key, out.getvalue()))
        else:
            with tempfile.TemporaryDirectory(prefix="smalti-copy-") as folder:
                path = Path(folder, "object")
                with path.open("wb") as stored:
                    file = self._fetch(file, stored)
                self._put(file, partial(self.target.put_file, key, path))
        if self.options.read_back:
            check_object(self.target, hashed(self.source, file))
        return file

    @contextmanager
    def _memory(self, num_bytes: int) -> Iterator[None]:
        """Wait until there is memory for the bytes, and hold it during the block."""
        with self._freed:
            timeout = self.options.timeout_seconds
            is_there = self._freed.wait_for(
                lambda: self._free_bytes >= num_bytes or self._is_stopped.is_set(), timeout=timeout
            )
            if not is_there:
                raise StoreTimeout(f"no room in memory for {num_bytes} bytes within {timeout:.0f} s")
            self._free_bytes -= num_bytes
        try:
            yield
        finally:
            with self._freed:
                self._free_bytes += num_bytes
                self._freed.notify_all()

    def _fetch(self, file: FileInfo, out: BinaryIO) -> FileInfo:
        """Fetch an object into an empty file; once more if it is not what its manifest declares."""
        try:
            return _fetch_checked(self.source, file, out)
        except ChecksumMismatch:
            out.seek(0)
            out.truncate()
            return _fetch_checked(self.source, file, out)

    def _put(self, file: FileInfo, put: Callable[[], object]) -> None:
        put_and_check(put, self.target, file.basename, file.num_bytes, error=StoreError)


def check_object(store: Store, file: FileInfo) -> FileInfo:
    """Read an object and compare it with its declared size and hashes; return it with the hashes that it has.

    Raises:
        ChecksumMismatch: it differs.
        StoreNotFound: it is not there.
    """
    with Path(os.devnull).open("wb") as nowhere:
        return _fetch_checked(store, file, nowhere)


def is_whole(store: Store, file: FileInfo) -> bool:
    """Return whether an object is there and has its declared size and hashes, by reading it."""
    try:
        check_object(store, file)
    except (ChecksumMismatch, StoreNotFound):
        return False
    return True


def hashed(source: Store, file: FileInfo) -> FileInfo:
    """Return a file with hashes: those that its manifest has, or else one of its bytes at the source.

    Raises:
        StoreNotFound: it is not there.
    """
    return file if file.hashes else check_object(source, file)


def _fetch_checked(store: Store, file: FileInfo, out: BinaryIO) -> FileInfo:
    """Fetch an object and compare it with what is known of it; return it with the hashes that it has."""
    hashers = {name: new_hash(name) for name in file.hashes or [_HASH]}
    pieces: list[bytes] = []

    def feed(chunk: bytes) -> None:
        for hasher in hashers.values():
            hasher.update(chunk)
        if isinstance(file, BlockFile):
            pieces.append(bytes(chunk))

    found = store.fetch(file.basename, out, on_chunk=feed)
    where = store.locate(file.basename)
    if found != file.num_bytes:
        raise ChecksumMismatch(
            f"{where}: size expected {file.num_bytes} bytes, found {found}; the object was changed or is incomplete",
            expected=file.num_bytes,
            found=found,
        )
    hashes = {name: hasher.hexdigest() for name, hasher in hashers.items()}
    compare_digests(hashes, file.hashes, what=where)
    if isinstance(file, BlockFile):
        data = b"".join(pieces)
        for blocks, num_bytes in file.lists:
            begin, end = blocks.span(num_bytes)
            BlockHashes(data[begin:end], blocks, num_bytes, what=f"{where}, of a shard of {num_bytes} bytes")
    return replace(file, hashes=hashes)
