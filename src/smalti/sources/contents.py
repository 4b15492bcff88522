"""The contents of many small files as Arrow arrays: whole files, read into memory that is reused.

Files of this machine are read one after the other: into memory that was touched before, a photo takes a third of the
time of a copy in fresh memory. Files of other stores are read ahead by threads, which hides the latency of the store.
"""

import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyarrow as pa

from smalti.errors import StoreError
from smalti.format.writing.sealing import SpareMemory
from smalti.regular_files import open_descriptor
from smalti.storage import Store

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
        yield from _read_ahead(store, keys, sizes)
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


def _read_ahead(store: Store, keys: Sequence[str], sizes: Sequence[int] | None) -> Iterator[pa.Array]:
    waiting = deque(zip(keys, sizes or [0] * len(keys), strict=True))
    with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="smalti-contents") as pool:
        reads: deque[tuple[Future[bytes], int]] = deque()

        def fill() -> None:
            ahead = sum(size for _, size in reads)
            while waiting and len(reads) < _READ_AHEAD and (not reads or ahead + waiting[0][1] <= _BYTES_AHEAD):
                key, size = waiting.popleft()
                reads.append((pool.submit(store.get, key), size))
                ahead += size

        try:
            fill()
            chosen: list[bytes] = []
            num_bytes = 0
            while reads:
                chosen.append(reads.popleft()[0].result())  # the store has a deadline
                num_bytes += len(chosen[-1])
                fill()
                if num_bytes >= BATCH_BYTES or len(chosen) >= _BATCH_FILES:
                    yield pa.array(chosen, pa.binary())
                    chosen, num_bytes = [], 0
            if chosen:
                yield pa.array(chosen, pa.binary())
        finally:
            for read, _ in reads:
                read.cancel()
