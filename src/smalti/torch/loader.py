"""StreamingDataLoader: a torch DataLoader that reads whole batches and counts what its consumer has taken."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, default_collate

from smalti.dataset import Pass
from smalti.errors import SmaltiError
from smalti.torch.collate import columns_to_tensors
from smalti.torch.dataset import StreamingDataset

_DEADLINE_SECONDS = 600.0  # a worker that delivers nothing for so long is not coming back


class StreamingDataLoader(DataLoader[Any]):
    """Batches of a StreamingDataset as dicts of tensors (and lists, for columns of varying size), with resume.

    Each `for batch in loader` is one epoch, or after `load_state_dict` the rest of one. `state_dict()` counts the
    batches that were taken out of the loader, not those that workers have prefetched; it is equal on all ranks.

    Args:
        dataset: what to read. Overridden `__getitem__` and per-sample transforms are honoured, at a sample's price.
        batch_size: samples per rank and step; needed here or on the dataset.
        num_workers: loader processes; 0 reads in this one.
        collate_fn: makes a batch from a list of samples; by default columns become tensors without a detour.
        drop_last: leave out an incomplete last step; by default the dataset's `tail` decides.
        timeout: seconds to wait for a worker's batch; 0 means ten minutes, not for ever.
        kwargs: DataLoader's other arguments. `shuffle`, `sampler` and `batch_sampler` belong to the dataset.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(
                f"`dataset` must be a smalti StreamingDataset, found {type(dataset).__name__}; other datasets go to "
                "torch's own DataLoader."
            )
        for name in ("shuffle", "sampler", "batch_sampler"):
            if kwargs.pop(name, None):
                raise ValueError(f"`{name}` is not the loader's: the dataset plans the order; give it `shuffle=True`.")
        view = dataset.for_loader(
            batch_size,
            drop_last=drop_last,
            per_sample=collate_fn is not None,
            workers_persist=bool(kwargs.get("persistent_workers")),
        )
        self.streaming_dataset, self._view = dataset, view
        self._pass: Pass | None = None
        self._taken = 0
        collate: Callable[[Any], Any] = collate_fn or default_collate
        if view.loader_side.columns:
            collate = columns_to_tensors
        super().__init__(
            view,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate,
            timeout=timeout or (_DEADLINE_SECONDS if num_workers else 0),
            **kwargs,
        )
        # Batches come whole from the dataset, so torch is told of none; these are for those who look at the loader.
        self.__dict__["batch_size"], self.__dict__["drop_last"] = view.batch_size, drop_last

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, to count what is taken
        """One epoch, or the rest of one.

        Raises:
            SmaltiError: fewer batches came than were planned.
        """
        this_pass = self.streaming_dataset.begin_pass()
        self._pass, self._taken = this_pass, 0
        self._view.loader_side.begin(this_pass)
        planned = self._view.division(this_pass).num_steps
        batches: Iterator[Any] = super().__iter__() if planned else iter(())
        try:
            for batch in batches:
                self._taken += 1
                yield batch
        except Exception:
            self._end_workers(batches)
            raise
        if self._taken != planned:
            raise SmaltiError(
                f"epoch {this_pass.start.epoch} ended after {self._taken} of {planned} planned batches on rank "
                f"{this_pass.world.rank}: a loader worker stopped early. Resume from the state after the last batch.",
                planned=planned,
                delivered=self._taken,
            )

    def __len__(self) -> int:
        """Steps of a whole epoch, equal on all ranks."""
        view = self._view
        return view.division(Pass(view.cursor_at_start(), view.world)).num_steps

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch taken, as a small JSON-able dict, equal on all ranks."""
        if self._pass is None or self.streaming_dataset.resumes:
            return self.streaming_dataset.cursor().to_state()
        division, start = self._view.division(self._pass), self._pass.start
        left = start.epoch_size - start.samples
        whole = self._taken >= division.num_steps
        return start.advanced(left if whole else self._taken * division.global_batch).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where `state` was saved, on any world, worker count or batch size.

        Raises:
            CursorError: the state is damaged, or belongs to another data set, version, split, seed or order.
        """
        self.streaming_dataset.load_state_dict(state)

    def _end_workers(self, batches: Iterator[Any]) -> None:
        """Ends the workers of a failed epoch now: the traceback would keep them, and a fork inherits what is kept."""
        self._iterator = None  # persistent workers are not asked again
        shut_down = getattr(batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
