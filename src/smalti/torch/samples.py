"""A resumable iterator over the samples of one pass, for torchdata's StatefulDataLoader.

torchdata saves the state of the iterator inside every worker with the batches that the consumer took, and passes it to
the same worker later. So a state belongs to one worker. Unlike a loader's cursor, it can be loaded only with the same
ranks, workers and batch size; anything else is an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from smalti.dataset import Pass
from smalti.dataset.epoch_reader import EpochReader, Get
from smalti.errors import CursorError


class SampleIterator(Iterator[Any]):
    """One worker's samples of an epoch, or of the rest of one.

    In a worker process the epoch begins when the iterator is created, elsewhere with the first sample.

    Args:
        reader: the dataset's reader; its own position advances as in any iteration.
        get: returns the sample with an id.
    """

    def __init__(self, reader: EpochReader, get: Get) -> None:
        self._reader, self._get, self._place = reader, get, reader.worker
        self._number = reader.tracker.enter()
        self._pass: Pass | None = None
        self._rest: Iterator[Any] = iter(())
        self._num_taken = 0
        if self._number is not None:
            self._begin(num_taken=0)

    def __next__(self) -> Any:
        """Return the next sample."""
        if self._pass is None:
            self._begin(num_taken=0)
        sample = next(self._rest)
        self._num_taken += 1
        return sample

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker as a small JSON-able dict; it differs between workers."""
        start = self._reader.cursor() if self._pass is None else self._pass.start
        return {"start": start.to_state(), "given": self._num_taken, "reader": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last sample before `state` was saved, without reading the samples before it.

        Raises:
            CursorError: the state is damaged, or of another data set, order, rank, worker or batch size.
        """
        num_taken, start, reader = state.get("given"), state.get("start"), state.get("reader")
        if (
            type(num_taken) is not int
            or num_taken < 0
            or not isinstance(start, Mapping)
            or not isinstance(reader, Mapping)
        ):
            raise CursorError(
                "saved state of an iterator: expected 'start' and 'reader' as mappings, and 'given' as a whole number "
                f"from 0, found {type(start).__name__}, {type(reader).__name__} and {num_taken!r:.80}; the state is "
                "damaged: use an older checkpoint."
            )
        for name, now in self._identity().items():
            if reader.get(name) != now:
                raise CursorError(
                    f"cannot resume here: this state was saved with {name} {reader.get(name)!r:.80}, and here it is "
                    f"{now!r}. A state of torchdata's StatefulDataLoader holds for the same processes, workers and "
                    "batch size; one of smalti.StreamingDataLoader holds for any.",
                    what=name,
                    saved=reader.get(name),
                    found=now,
                )
        self._reader.load_state_dict(start)
        self._begin(num_taken)

    def _identity(self) -> dict[str, Any]:
        world = self._reader.world if self._pass is None else self._pass.world
        worker, num_workers = self._place
        return {
            "rank": world.rank,
            "num_ranks": world.num_ranks,
            "worker": worker,
            "num_workers": num_workers,
            "batch_size": self._reader.batch_size,
        }

    def _begin(self, num_taken: int) -> None:
        """Begin after `num_taken` samples: complete steps are skipped without reading, part of a step by reading it."""
        this_pass = self._reader.begin_pass(number=self._number)
        self._pass, self._num_taken = this_pass, num_taken
        division, (_, num_workers) = self._reader.division(this_pass), self._place
        own_steps, samples_in_step = divmod(num_taken, division.batch_size)
        steps = own_steps * num_workers  # of all workers, so that the next step is this worker's again
        if steps >= division.num_steps:
            self._rest = iter(())
            return
        later = replace(this_pass, start=self._reader.cursor_after(this_pass, steps)) if steps else this_pass
        steps_left = self._reader.planned(later, *self._place)
        samples = (self._reader.read(step, ids, self._get) for step, ids in steps_left)
        self._rest = islice(chain.from_iterable(samples), samples_in_step, None)
