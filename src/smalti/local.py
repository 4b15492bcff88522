"""LocalDataset, the part that needs no torch: a complete shard set in a local folder, by number of the sample."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smalti.attributes import Replaceable
from smalti.errors import StoreError
from smalti.format import ShardInfo
from smalti.format.reading.selection import pick
from smalti.storage import LocalStore, open_store
from smalti.stream import OpenStreams, StreamOptions


class LocalDataset:
    """The samples of a shard set that lies whole in a local folder; thread-safe, picklable, safe under fork.

    Uncompressed shards are mapped where they lie, also those that MosaicML's reader unpacked there; compressed ones are
    unpacked once to the user's cache folder. Every file is verified before its first use in a process.

    Args:
        local: Folder of the set: of any format, published by Smalti or written by MosaicML's writers.
        split: Split to read, such as `train`; None for the whole set.
        allow_unsafe_types: Read `pkl` columns, which can run code.
        logical: Give values as what they stand for (docs/types.md); False as they are stored.

    Raises:
        StoreNotFound: No set is there.
        StoreError: `local` is not a local folder, or cannot be read.
        FormatError: The index cannot be trusted.
        SchemaError: A column is unsafe and `allow_unsafe_types` is not given.
    """

    def __init__(
        self, local: str | Path, split: str | None = None, *, allow_unsafe_types: bool = False, logical: bool = True
    ) -> None:
        if not isinstance(open_store(local), LocalStore):
            raise StoreError(
                f"{local} is not a local folder; use `StreamingDataset` to read from a store", url=str(local)
            )
        # The only attribute of an instance that the library reads: all others may be a subclass's own.
        self._smalti = OpenStreams(
            [StreamOptions(str(local), split=split, allow_unsafe_types=allow_unsafe_types, logical=logical)]
        )

    def __len__(self) -> int:
        return len(self._smalti)

    @Replaceable
    def local(self) -> str:
        """Folder of the set."""
        return self._smalti.sets[0].options.root

    @Replaceable
    def split(self) -> str | None:
        """The split that is read; None for the whole set."""
        return self._smalti.sets[0].options.split

    @Replaceable
    def size(self) -> int:
        """Samples of the set, or of the split."""
        return len(self._smalti)

    @Replaceable
    def num_samples(self) -> int:
        """The same as `size`, under MosaicML's other name."""
        return len(self._smalti)

    @Replaceable
    def num_shards(self) -> int:
        """Shards of the set, or of the split."""
        return len(self._smalti.shards)

    @Replaceable
    def shards(self) -> Sequence[ShardInfo]:
        """What the index says about each shard."""
        return self._smalti.shards

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """One sample, column to value; `sample_id` in [0, size)."""
        return self._smalti.sample(sample_id)

    def __getitem__(self, at: Any) -> Any:
        """The sample with this number, or lists of samples for a slice, a list (maybe of lists) or an array of numbers.

        Raises:
            IndexError: No such sample.
            ValueError: `at` is none of these.
            FormatError: The sample's shard is damaged.
            ShardNotFound: The sample's shard is not there.
        """
        return pick(at, len(self._smalti), self.get_item, self._smalti.root)
