"""LocalDataset: a complete set in a local folder as a map-style dataset of torch, with MosaicML's attributes."""

from functools import cached_property
from typing import Any

import numpy as np

from smalti.compat.streaming.base.array import Array, Spanner, check_sample_id
from smalti.compat.streaming.base.format import readers_of
from smalti.compat.streaming.base.format.base import Reader
from smalti.compat.streaming.errors import mosaicmls_words
from smalti.errors import CatalogError, StoreNotFound
from smalti.torch.dataset import LocalDataset as EngineDataset

__all__ = ["LocalDataset"]


class LocalDataset(EngineDataset, Array):
    """The samples of a complete set in a local folder, by number; values as they are stored.

    Args:
        local: folder of the set.
        split: folder of the split below it, if any.

    Raises:
        FileNotFoundError: there is no set.
        ValueError: the index is damaged, of another version, or has a `pkl` column, whose reading runs code.
    """

    def __init__(self, local: str, split: str | None = None) -> None:
        with mosaicmls_words("read the set with `StreamingDataset(local=..., allow_unsafe_types=True)`"):
            try:
                super().__init__(local, split, logical=False)
            except CatalogError as error:  # MosaicML's reader finds no index file in the split's folder
                raise StoreNotFound(error.message, **error.facts) from error
        vars(self).update(local=local, split=split or "")

    # Attributes of each instance, as in MosaicML Streaming; the base class computes them.
    local = cached_property(lambda self: self._smalti.sets[0].options.root)
    split = cached_property(lambda self: self._smalti.sets[0].options.split or "")

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """Return one sample, column to value.

        Args:
            sample_id: number of the sample, in [0, size).

        Raises:
            IndexError: there is no such sample.
        """
        check_sample_id(sample_id, len(self))
        return self._smalti.sample(sample_id)

    def __getitem__(self, at: Any) -> Any:
        """Return the sample at an index, negative ones from the end; else a list of samples, nested as the indices are.

        Raises:
            IndexError: there is no such sample.
            ValueError: `at` is no index, slice, list or array.
        """
        return Array.__getitem__(self, at)

    @cached_property
    def shards(self) -> list[Reader]:  # type: ignore[override]
        """The reader of each shard."""
        return readers_of(self._smalti.sets[0], self.local, self.split)

    @cached_property
    def spanner(self) -> Spanner:
        """The shard of each sample."""
        return Spanner(np.array(self._smalti.shard_sizes, np.int64))
