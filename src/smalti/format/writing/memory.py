"""The memory in which a shard grows, and the shards that a builder passes to the threads that store them.

Space for the head of the file is reserved in front of the samples, so a finished shard needs no assembly. Memory of
stored shards is reused: the first touch of fresh memory costs more than the copy into it.
"""

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from smalti.format.encodings.encoding import Bytes1d
from smalti.format.hashing import Buffer
from smalti.format.info import ShardInfo

_START_BYTES = 1 << 27  # of address space, most of it never touched; larger shards grow by doubling
_MAX_FRONT_BYTES = 1 << 25  # reserved for the head; a longer head costs one copy of the shard
_MAX_SPARE = 2  # pieces of memory


class SpareMemory:
    """Memory of stored shards, reused for later ones; for one builder, or several in turn."""

    def __init__(self) -> None:
        self._pieces: deque[Bytes1d] = deque(maxlen=_MAX_SPARE)

    def keep(self, memory: Bytes1d) -> None:
        """Store a piece that is no longer referenced; on any thread."""
        self._pieces.append(memory)

    def take(self, num_bytes: int) -> Bytes1d:
        """Return at least `num_bytes` of memory, a reused piece if there is one."""
        while True:
            try:
                memory = self._pieces.pop()
            except IndexError:
                return np.empty(num_bytes, np.uint8)
            if len(memory) >= num_bytes:
                return memory


class FillingShard:
    """The bytes of the samples of one shard, in order, with `front` bytes reserved before them."""

    def __init__(self, memory: Bytes1d, front: int) -> None:
        self._memory = memory
        self._front = front
        self._end = front
        self._is_closed = False

    def append(self, data: Buffer) -> None:
        """Copy `data` to the end."""
        begin, end = self._end, self._end + len(data)
        if begin == end:  # numpy refuses an empty buffer
            return
        if end > len(self._memory):
            self._grow(end)
        self._memory[begin:end] = np.frombuffer(data, np.uint8)
        self._end = end

    @property
    def content(self) -> memoryview:
        """The samples so far.

        Raises:
            ValueError: Closed already; the memory may be in use for another shard.
        """
        self._check_open()
        return memoryview(self._memory[self._front : self._end])

    def close(self, head: bytes) -> tuple[Bytes1d, Bytes1d]:
        """Return `head` and the samples together, and the memory that they lie in; appending ends.

        Raises:
            ValueError: Closed already; the memory may be in use for another shard.
        """
        self._check_open()
        self._is_closed = True
        begin = self._front - len(head)
        if begin < 0:  # many samples, whose number no size limit bounds
            return np.concatenate([np.frombuffer(head, np.uint8), self._memory[self._front : self._end]]), self._memory
        self._memory[begin : self._front] = np.frombuffer(head, np.uint8)
        return self._memory[begin : self._end], self._memory

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("a shard can be sealed once; keep what `seal` returned")

    def _grow(self, needed: int) -> None:
        larger = np.empty(max(needed, 2 * len(self._memory)), np.uint8)
        larger[: self._end] = self._memory[: self._end]
        self._memory = larger


class ShardMemory:
    """Memory for the shards of one builder, reused when no view of a shard is left."""

    def __init__(self, front: int, limit: int | None, spare: SpareMemory | None = None) -> None:
        """Set the sizes; memory is allocated by `lend`.

        Args:
            front: Most bytes that will stand in front of the samples.
            limit: The largest shard file in bytes; None for no limit.
            spare: Memory of earlier builders; by default none.
        """
        self._front = min(front, _MAX_FRONT_BYTES)
        self._size = min(self._front + (limit or _START_BYTES), _START_BYTES)
        self._spare = spare or SpareMemory()

    def lend(self) -> FillingShard:
        """Return memory for the next shard."""
        return FillingShard(self._spare.take(self._size), self._front)

    def close(self, shard: FillingShard, head: bytes) -> memoryview:
        """Return the file, `head` and samples, read-only; its memory is reused when the last view of it is gone."""
        content, memory = shard.close(head)
        if len(memory) <= self._size:
            # Every view, however derived, keeps `content` alive: it is the object behind the memoryview.
            weakref.finalize(content, self._spare.keep, memory).atexit = False
        return memoryview(content).toreadonly()


@dataclass(frozen=True)
class BuiltShard:
    """A finished shard: its index entry, and the bytes to store."""

    info: ShardInfo
    payloads: tuple[Buffer, ...]
    """The content of each of `info.stored_files`, in the same order."""


class FilledShard(Protocol):
    """The encoded samples of one shard, complete but not yet a file."""

    def row_hash(self) -> int:
        """Return the sum of the hashes of its samples (`smalti.format.hashing`); before `seal`, on the same thread."""

    def seal(self) -> BuiltShard:
        """Return the finished shard: assembled, hashed and compressed.

        Called once, on any thread, and expensive: meant for the threads that store it, while the builder fills the next
        one. The bytes depend neither on the thread nor on the number of cores.
        """
