"""LocalDataset without torch: the samples of a complete shard set in a local folder, by number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smalti.attributes import Replaceable
from smalti.errors import SampleIndexError, StoreError
from smalti.format import ShardInfo
from smalti.format.reading.batch import pick
from smalti.storage import LocalStore, open_store
from smalti.stream import OpenStreams, StreamOptions
from smalti.stream.stream import checked_columns


class LocalDataset:
    """The samples of a complete shard set in a local folder; thread-safe, picklable, safe under fork.

    Uncompressed shards are mapped in place, including those that MosaicML's reader unpacked there; compressed ones are
    unpacked once to the user's cache folder. Every file is verified before its first use in a process.

    Args:
        local: Folder of the set: of any format, published by Smalti or written by MosaicML's writers.
        split: Split to read, such as `train`; None for the whole set.
        allow_unsafe_types: Read `pkl` columns, which can run code.
        logical: Convert values to their logical types (docs/types.md); otherwise return them as stored.
        columns: Columns to read and decode, in the order of a sample's; None for all.

    Raises:
        StoreNotFound: There is no set.
        StoreError: `local` is not a local folder, or cannot be read.
        FormatError: The index cannot be trusted.
        SchemaError: A column is unsafe and `allow_unsafe_types` is not given, or the set lacks one of `columns`.
        ValueError: `columns` is empty, or has a name twice.
    """

    def __init__(
        self,
        local: str | Path,
        split: str | None = None,
        *,
        allow_unsafe_types: bool = False,
        logical: bool = True,
        columns: Sequence[str] | None = None,
    ) -> None:
        names = checked_columns(columns)
        if not isinstance(open_store(local), LocalStore):
            raise StoreError(
                f"{local} is not a local folder; use `StreamingDataset` to read from a store", url=str(local)
            )
        # The only attribute of an instance that the library reads: all others may be a subclass's own.
        self._smalti = OpenStreams(
            [
                StreamOptions(
                    str(local), split=split, allow_unsafe_types=allow_unsafe_types, logical=logical, columns=names
                )
            ]
        )

    def __len__(self) -> int:
        return len(self._smalti)

    @Replaceable
    def local(self) -> str:
        """Folder of the set."""
        return self._smalti.sets[0].options.root

    @Replaceable
    def split(self) -> str | None:
        """The split; None for the whole set."""
        return self._smalti.sets[0].options.split

    @Replaceable
    def size(self) -> int:
        """Samples of the set, or of the split."""
        return len(self._smalti)

    @Replaceable
    def num_samples(self) -> int:
        """An alias of `size`, which MosaicML Streaming has."""
        return len(self._smalti)

    @Replaceable
    def num_shards(self) -> int:
        """Shards of the set, or of the split."""
        return len(self._smalti.shards)

    @Replaceable
    def shards(self) -> Sequence[ShardInfo]:
        """The index entry of each shard."""
        return self._smalti.shards

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """Return one sample, column to value; `sample_id` in [0, size).

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= sample_id < len(self._smalti):
            raise SampleIndexError(
                f"sample {sample_id} of {self._smalti.root}: expected a number from 0 to {len(self._smalti) - 1}; "
                "indexing the dataset counts negative numbers from the end."
            )
        return self._smalti.sample(sample_id)

    def __getitem__(self, at: Any) -> Any:
        """Return the sample with a number; for a slice, an array or a (nested) list of numbers, a list of samples.

        Raises:
            IndexError: There is no such sample.
            ValueError: `at` is none of these.
            FormatError: The sample's shard is damaged.
            ShardNotFound: The sample's shard is missing.
        """
        return pick(at, len(self._smalti), self.get_item, self._smalti.root)
