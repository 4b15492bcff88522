"""LocalDataset as a map-style dataset of torch."""

from typing import Any

from torch.utils.data import Dataset

from smalti.local import LocalDataset as _LocalDataset


class LocalDataset(_LocalDataset, Dataset[dict[str, Any]]):
    """The same, for `torch.utils.data.DataLoader` with any sampler; see `smalti.local.LocalDataset`."""

    def __getitems__(self, sample_ids: list[int]) -> list[dict[str, Any]]:
        """The samples of one batch: what torch's loader calls once instead of `__getitem__` for each."""
        found: list[dict[str, Any]] = self[list(sample_ids)]
        return found
