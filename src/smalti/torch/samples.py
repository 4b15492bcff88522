"""Samples of one pass, one by one, from an iterator that can say where it stands: for torchdata's StatefulDataLoader.

torchdata asks the iterator inside every worker for its state, keeps it with the batches that the consumer took, and
gives it to the same worker later. So a state is one worker's: unlike a loader's cursor, it holds for the same ranks,
workers and batch size only, and says so where they differ.
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

    In a worker process the epoch counts as begun when this is made, elsewhere with the first sample.

    Args:
        reader: what to read; its own position moves on as for any iteration.
        get: returns the sample with an id.
    """

    def __init__(self, reader: EpochReader, get: Get) -> None:
        self._reader, self._get, self._place = reader, get, reader.worker
        self._number = reader.tracker.enter()
        self._pass: Pass | None = None
        self._rest: Iterator[Any] = iter(())
        self._given = 0
        if self._number is not None:
            self._begin(given=0)

    def __next__(self) -> Any:
        """The next sample."""
        if self._pass is None:
            self._begin(given=0)
        sample = next(self._rest)
        self._given += 1
        return sample

    def state_dict(self) -> dict[str, Any]:
        """Where this worker stands, as a small JSON-able dict; it differs from worker to worker."""
        start = self._reader.cursor() if self._pass is None else self._pass.start
        return {"start": start.to_state(), "given": self._given, "reader": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the sample that was the last when `state` was saved; reads none of those before.

        Raises:
            CursorError: the state is damaged, or of another data set, order, rank, worker or batch size.
        """
        given, start, reader = state.get("given"), state.get("start"), state.get("reader")
        if type(given) is not int or given < 0 or not isinstance(start, Mapping) or not isinstance(reader, Mapping):
            raise CursorError(
                "saved state of an iterator: expected 'start' and 'reader' as mappings, and 'given' as a whole number "
                f"from 0, found {type(start).__name__}, {type(reader).__name__} and {given!r:.80}; the state is "
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
        self._begin(given)

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

    def _begin(self, given: int) -> None:
        """Reads on after `given` samples: whole steps are left out by arithmetic, the rest of one by reading it."""
        this_pass = self._reader.begin_pass(number=self._number)
        self._pass, self._given = this_pass, given
        division, (_, num_workers) = self._reader.division(this_pass), self._place
        own_steps, part = divmod(given, division.batch_size)
        steps = own_steps * num_workers  # of all workers: this one's next step comes as far behind them as before
        if steps >= division.num_steps:
            self._rest = iter(())
            return
        later = replace(this_pass, start=self._reader.cursor_after(this_pass, steps)) if steps else this_pass
        steps_left = self._reader.planned(later, *self._place)
        samples = (self._reader.read(step, ids, self._get) for step, ids in steps_left)
        self._rest = islice(chain.from_iterable(samples), part, None)
