"""StreamingDataLoader: torch's DataLoader, with a state."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from smalti.compat.streaming.base.dataset import StreamingDataset
from smalti.compat.streaming.base.world import World

__all__ = ["StreamingDataLoader"]


class StreamingDataLoader(DataLoader[Any]):
    """A DataLoader that counts the samples which it yields, and saves and restores the place of its dataset.

    Args:
        args: those of torch's DataLoader.
        kwargs: those of torch's DataLoader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_samples_yielded = 0

    def _get_batch_size(self, batch: Any) -> int:
        """Return the samples of a batch: of a mapping or sequence, the length of its first value.

        Raises:
            ValueError: the batch is an empty mapping.
        """
        if isinstance(batch, Mapping):  # BatchEncoding and BatchFeature of transformers, too
            for value in batch.values():
                return len(value)
            raise ValueError("Batch is empty")
        return len(batch) if isinstance(batch, Tensor) else len(batch[0])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's type is private
        """Yield the batches of an epoch, or of the rest of one, and count their samples."""
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            self.num_samples_yielded += self._get_batch_size(batch)
            yield batch

    def state_dict(self) -> dict[str, Any] | None:
        """Return the place after the batches that were yielded, equal on all ranks; None for another dataset."""
        if not isinstance(self.dataset, StreamingDataset):
            return None
        num_samples = self.num_samples_yielded * World.detect().num_ranks
        if self.dataset.replication is not None:  # each replica group counts as one rank
            num_samples //= self.dataset.replication
        return self.dataset.state_dict(num_samples, from_beginning=False)

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Make the next iteration continue from a saved place; does nothing with another dataset."""
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)

    def __del__(self) -> None:
        """End the workers."""
        if getattr(self, "_iterator", None) is not None:
            self._iterator._shutdown_workers()  # type: ignore[union-attr]  # of torch
