"""StreamingDataset as a torch `IterableDataset`: the same samples, divided over loader workers as well."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from smalti.cursor import Cursor
from smalti.dataset import Pass
from smalti.dataset import StreamingDataset as CoreDataset
from smalti.errors import CursorError
from smalti.torch.processes import end_with_program
from smalti.torch.ranks import running_world
from smalti.torch.samples import SampleIterator
from smalti.world import World

_LENGTH_BYTES = 8
_SPARE_BYTES = 1 << 14  # for a cursor that grows: by a change of weights


@dataclass
class LoaderSide:
    """What a loader tells its own view of a dataset, and through it the workers."""

    columns: bool
    """Whether batches are read as columns, or as lists of samples."""
    workers_persist: bool = False
    """Whether worker processes outlive a pass."""
    this_pass: Pass | None = None
    """The pass that is being read."""
    shared_start: torch.Tensor | None = None
    """Where the pass begins, for workers that outlive one: the cursor's state as JSON; uint8, in shared memory."""

    def begin(self, this_pass: Pass) -> None:
        """Tells the view, and workers that live already, where the next pass begins.

        Raises:
            CursorError: workers that live already have no room for so long a cursor.
        """
        self.this_pass = this_pass
        if self.workers_persist:
            told = json.dumps(this_pass.start.to_state()).encode()
            if self.shared_start is None:  # the first pass: its workers are yet to begin
                self.shared_start = torch.zeros(_LENGTH_BYTES + 2 * len(told) + _SPARE_BYTES, dtype=torch.uint8)
                self.shared_start.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
            if len(told) + _LENGTH_BYTES > self.shared_start.numel():
                raise CursorError(
                    f"the cursor takes {len(told)} bytes, and workers that persist were begun with room for "
                    f"{self.shared_start.numel()}: make a new loader for this state, or give persistent_workers=False."
                )
            room = self.shared_start.numpy()
            room[_LENGTH_BYTES : _LENGTH_BYTES + len(told)] = np.frombuffer(told, np.uint8)
            room[:_LENGTH_BYTES] = np.frombuffer(len(told).to_bytes(_LENGTH_BYTES, "little"), np.uint8)

    def current(self) -> Pass:
        """The pass to read, in the loader's process and in its workers."""
        if self.this_pass is None:
            raise CursorError(
                "this view of a StreamingDataset belongs to a loader: iterate the loader, or the dataset itself, and "
                "leave the loader out of Accelerate's `prepare`: it divides its batches over the ranks already."
            )
        if self.shared_start is None:
            return self.this_pass
        room = self.shared_start.numpy()
        length = int.from_bytes(room[:_LENGTH_BYTES].tobytes(), "little")
        told = json.loads(room[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        return replace(self.this_pass, start=Cursor.from_state(told))


class StreamingDataset(CoreDataset, IterableDataset[Any]):
    """A `smalti.dataset.StreamingDataset` that torch's loaders accept; give it to a `StreamingDataLoader`.

    A rank's t-th batch is read by worker t mod W, so the batches do not depend on the number of workers.
    """

    _loader: LoaderSide | None = None  # set on the view that a StreamingDataLoader makes

    def for_loader(
        self, batch_size: int | None, *, drop_last: bool, per_sample: bool, workers_persist: bool
    ) -> "StreamingDataset":
        """A view of this dataset that iterates whole batches, for a loader.

        Raises:
            ValueError: no batch size, or two that differ.
        """
        view = self.view()
        if batch_size is not None and self.batch_size not in {None, batch_size}:
            raise ValueError(
                f"`batch_size` is {batch_size} for the loader and {self.batch_size} for the dataset; give one."
            )
        view.batch_size = batch_size if batch_size is not None else self.batch_size
        if view.batch_size is None:
            raise ValueError("`batch_size` is needed, on the loader or on the dataset: samples per rank and step.")
        if drop_last:
            view._order_options = replace(view._order_options, tail="drop")
        view._loader = LoaderSide(columns=view.reads_columns and not per_sample, workers_persist=workers_persist)
        return view

    @property
    def loader_side(self) -> LoaderSide:
        """What the loader that made this view tells it."""
        if self._loader is None:
            raise TypeError("only a view made by `for_loader` has a loader's side.")
        return self._loader

    def __iter__(self) -> Iterator[Any]:
        """Samples one by one; on a loader's view, whole batches."""
        if get_worker_info() is not None:
            end_with_program()
        if self._loader is None:
            return SampleIterator(self, self._worker())
        return self._batches(self._loader.current(), columns=self._loader.columns)

    @property
    def world(self) -> World:
        """Ranks and hosts that share the epoch: those given, else as the launcher or a running process group says."""
        return self._world if self._world is not None else running_world()

    def _worker(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def begin_pass(self, batch_size: int | None = None) -> Pass:
        """Settles where an iteration begins; refuses to guess the epoch inside a plain DataLoader's worker."""
        if get_worker_info() is not None and not self._progress.set_by_user:
            raise CursorError(
                "a StreamingDataset inside workers of a plain torch DataLoader cannot know which epoch it is, and "
                "every epoch would repeat the first one's order. Use smalti.StreamingDataLoader, or num_workers=0, "
                "or call `dataset.set_epoch(n)` before each epoch."
            )
        return super().begin_pass(batch_size)
