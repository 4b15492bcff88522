"""The contents of many small files as Arrow arrays: whole files, read into memory that is reused.

Files of this machine are read one after the other: into memory that was touched before, a photo takes a third of the
time of a copy in fresh memory. Files of other stores are read ahead by threads, which hides the latency of the store.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np
import pyarrow as pa

from smalti.errors import StoreError
from smalti.format.writing.sealing import SpareMemory
from smalti.regular_files import open_descriptor
from smalti.storage import Store

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
BATCH_BYTES = 8 << 20
"""An array is complete when it has this many bytes."""
_BATCH_FILES = 1024
_READ_AHEAD = 16  # files in flight
_BYTES_AHEAD = 64 << 20
"""Bytes in flight, if sizes are known; one larger file is read alone."""
_SPARE = SpareMemory()
"""Memory of arrays that are no longer in use; for all reads of this process."""


def read_contents(store: Store, keys: Sequence[str], sizes: Sequence[int] | None = None) -> Iterator[pa.Array]:
    """Yield the contents of these objects, in order, as arrays of bounded size and Arrow's type `binary`.

    Args:
        store: where the objects are.
        keys: their keys.
        sizes: bytes of each when it was listed; they bound the memory.

    Raises:
        StoreError: An object cannot be read, or a large one has another size than when it was listed; `StoreNotFound`
            if there is none.
    """
    if store.local_path("any") is None:
        yield from _read_files(store, keys, sizes)
        return
    begin = 0
    while begin < len(keys):
        end = begin + _BATCH_FILES
        found = _read_here(store, keys[begin:end], None if sizes is None else sizes[begin:end])
        yield found
        begin += len(found)


def _read_here(store: Store, keys: Sequence[str], sizes: Sequence[int] | None) -> pa.Array:
    """Return the contents of as many of the first files as one array takes, and of one file at least."""
    memory = _SPARE.take(2 * BATCH_BYTES)
    content, at, ends = memoryview(memory), 0, [0]
    for place, key in enumerate(keys):
        if at >= BATCH_BYTES:
            break
        count = _read_into(store, key, content[at:])
        if count is None:
            if len(ends) > 1:
                break
            if sizes is not None and (size := store.size(key)) != sizes[place]:
                raise StoreError(
                    f"{store.locate(key)} changed while its folder was read: it had {sizes[place]:,} bytes, and has "
                    f"{size:,}",
                    key=key,
                )
            return pa.array([store.get(key)], pa.binary())
        at += count
        ends.append(at)
    used = memory[:at]
    array = pa.BinaryArray.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(used)]
    )
    weakref.finalize(used, _SPARE.keep, memory).atexit = False  # the buffer of every slice of the array refers to it
    return array


def _read_into(store: Store, key: str, room: memoryview) -> int | None:
    """Read a file of this machine, and return its number of bytes; None if it has no room, and is to be read alone."""
    with suppress(OSError):  # the store raises its own error, unless the file is there now
        file = open_descriptor(str(store.local_path(key)))
        try:
            size = os.fstat(file).st_size
            if size >= len(room):
                return None
            count = os.readv(file, [room[: size + 1]])  # one byte more shows the end of the file
            if count == size:
                return count
        finally:
            os.close(file)
    data = store.get(key)
    if len(data) > len(room):
        return None
    room[: len(data)] = data
    return len(data)


def _read_files(store: Store, keys: Sequence[str], sizes: Sequence[int] | None) -> Iterator[pa.Array]:
    chosen: list[bytes] = []
    num_bytes = 0
    for data in read_ahead(store.get, zip(keys, sizes or [0] * len(keys), strict=True), _READ_AHEAD):
        chosen.append(data)
        num_bytes += len(data)
        if num_bytes >= BATCH_BYTES or len(chosen) >= _BATCH_FILES:
            yield pa.array(chosen, pa.binary())
            chosen, num_bytes = [], 0
    if chosen:
        yield pa.array(chosen, pa.binary())


def read_ahead(read: Callable[[_Item], _Result], items: Iterable[tuple[_Item, int]], limit: int) -> Iterator[_Result]:
    """Yield the results of reading items, in order, while threads read those that follow.

    Args:
        read: reads one item; the store's deadlines bound it.
        items: each with its number of bytes, 0 if unknown; the sum of those in flight is bounded.
        limit: most items in flight.
    """
    with ThreadPoolExecutor(limit, thread_name_prefix="smalti-contents") as pool:
        reads: deque[tuple[Future[_Result], int]] = deque()
        num_bytes = 0
        try:
            for item, size in items:
                while reads and (len(reads) == limit or num_bytes + size > _BYTES_AHEAD):
                    future, done = reads.popleft()
                    num_bytes -= done
                    yield future.result()
                reads.append((pool.submit(read, item), size))
                num_bytes += size
            while reads:
                yield reads.popleft()[0].result()
        finally:
            for future, _ in reads:
                future.cancel()
