"""What a builder hands to the threads that store shards: a filled shard, and the finished one that it becomes."""

from dataclasses import dataclass
from typing import Protocol

from smalti.format.hashing import Buffer
from smalti.format.info import ShardInfo


@dataclass(frozen=True)
class BuiltShard:
    """A finished shard: what the index will say, and the bytes to store."""

    info: ShardInfo
    payloads: tuple[Buffer, ...]
    """The content of each of `info.stored_files`, in the same order."""


class FilledShard(Protocol):
    """The encoded samples of one shard, complete but not yet a file."""

    def row_hash(self) -> int:
        """The sum of the hashes of its samples (`smalti.format.row_hash`); before `seal`, on the same thread."""

    def seal(self) -> BuiltShard:
        """The finished shard: put together, hashed and compressed.

        Called once, on any thread, and heavy: meant for the threads that store it, while the builder fills the next
        one. The bytes depend neither on the thread nor on the number of cores.
        """
