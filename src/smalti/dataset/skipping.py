"""Samples that cannot be decoded or transformed: skipped under `on_error="skip"`, and replaced by marked repeats.

A batch keeps its size. In the place of a skipped sample stands the next sample in stored order of the same stream that
can be read, marked as a repeat (position -1), as the repeats that fill an epoch's last step are. So the replacement
depends on the data alone, neither on batch, worker, rank nor world; all ranks take equally many steps, also where a
whole batch fails; and cursors, which count positions, do not change. What else is at fault (a shard that does not
verify, a store, a column that is not there) is raised as always.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.cache.stats import Counters
from smalti.errors import (
    ArgumentError,
    BadImageError,
    ChecksumMismatch,
    FormatError,
    IndexFileError,
    SkipLimitExceeded,
    SmaltiError,
)
from smalti.ledger import SkippedSample
from smalti.order import StepBatch
from smalti.stream import OpenStreams

DEFAULT_LIMIT = 100
ON_ERROR = ("raise", "skip")
_MAX_TRIES = 1000  # samples that are tried in the place of one
_MAX_LISTED = 5  # skipped samples in an error
_MAX_CAUSE_CHARS = 300
_log = logging.getLogger("smalti.dataset")

Ids = NDArray[np.int64]
ReadOne = Callable[[int, int], Any]
"""Reads one sample; called with its id and its position, -1 for a repeat."""


def skip_limit(on_error: Any, max_skipped: Any) -> float | None:
    """Return how many samples the arguments of StreamingDataset allow to skip; None to raise every error.

    Below 1 it is the share of the samples that a rank reads in an iteration.

    Raises:
        ValueError: `on_error` is no such choice, or `max_skipped` no limit, or given without `on_error="skip"`.
    """
    check_choice("on_error", on_error, ON_ERROR)
    if on_error == "raise":
        if max_skipped is not None:
            raise ArgumentError("`max_skipped` is the limit of on_error='skip': give both, or none.")
        return None
    if max_skipped is None:
        return DEFAULT_LIMIT
    is_number = isinstance(max_skipped, (int, float, np.number)) and not isinstance(max_skipped, bool)
    if not (is_number and max_skipped >= 0 and (max_skipped < 1 or max_skipped == int(max_skipped))):
        raise ArgumentError(
            "`max_skipped` must be a whole number of samples from 0, or a share of the epoch below 1, found "
            f"{max_skipped!r}."
        )
    return float(max_skipped) if max_skipped < 1 else int(max_skipped)


@dataclass(frozen=True)
class Replacement:
    """A skipped sample of a batch, and the sample that stands in its place."""

    place: int
    """Row in the batch."""
    sample_id: int
    """The sample that was read instead."""
    skipped: SkippedSample


def is_of_sample(error: Exception) -> bool:
    """Return whether an error means that one sample is unusable, and not a shard, a store or the program."""
    if isinstance(error, SmaltiError):
        is_of_file = isinstance(error, IndexFileError | ChecksumMismatch)
        is_of_value = isinstance(error, BadImageError) or "column" in error.facts
        return isinstance(error, FormatError) and is_of_value and not is_of_file
    # Raised by the user's code, or by a decoder that it calls. An OSError of the system has a number; one of a decoder
    # that finds a damaged picture has none.
    is_of_machine = isinstance(error, MemoryError | ImportError | ConnectionError | TimeoutError)
    return not is_of_machine and not (isinstance(error, OSError) and error.errno is not None)


def read_each(
    step: StepBatch, ids: Ids, read_one: ReadOne, stream: OpenStreams
) -> tuple[list[Any], tuple[Replacement, ...]]:
    """Return the samples of a step read one by one, those that fail replaced, and the replacements.

    Raises:
        Exception: an error that is not of one sample; or of one, if no other sample of the stream can be read either.
    """
    values: list[Any] = []
    replacements: list[Replacement] = []
    for place, (sample_id, position) in enumerate(zip(ids.tolist(), step.positions.tolist(), strict=True)):
        try:
            values.append(read_one(sample_id, position))
        except Exception as error:  # noqa: PERF203 - each sample may fail by itself
            if not is_of_sample(error):
                raise
            other, value = _next_readable(sample_id, read_one, stream, error)
            skipped = SkippedSample(position, sample_id, stream.shard_name(sample_id), _cause(error))
            replacements.append(Replacement(place, other, skipped))
            values.append(value)
    return values, tuple(replacements)


def replaced(step: StepBatch, ids: Ids, replacements: Sequence[Replacement]) -> tuple[StepBatch, Ids]:
    """Return the step and the sample ids with the replacements in place, marked as repeats."""
    if not replacements:
        return step, ids
    places = [each.place for each in replacements]
    positions, ids = step.positions.copy(), ids.copy()
    positions[places] = -1
    ids[places] = [each.sample_id for each in replacements]
    return replace(step, positions=positions), ids


def _next_readable(sample_id: int, read_one: ReadOne, stream: OpenStreams, fault: Exception) -> tuple[int, Any]:
    """Return the next sample of the stream that can be read, in stored order and from its end to its begin."""
    begin, end = stream.span_of_stream(sample_id)
    size = end - begin
    for ahead in range(1, min(size, _MAX_TRIES + 1)):
        other = begin + (sample_id - begin + ahead) % size
        try:
            return other, read_one(other, -1)
        except Exception as error:
            if not is_of_sample(error):
                raise
    raise SkipLimitExceeded(
        f"sample {sample_id} of {stream.root} cannot be read ({_cause(fault)}), nor can the "
        f"{min(size - 1, _MAX_TRIES)} samples after it in stored order: the fault is not one sample's. Read with "
        "`on_error='raise'` to see where it is raised.",
        sample_id=sample_id,
    ) from fault


def _cause(error: Exception) -> str:
    inner = error.__cause__ if isinstance(error, FormatError) else None
    text = f"{type(error).__name__}: {inner if isinstance(inner, FormatError) else error}"  # without sample and digest
    return text if len(text) <= _MAX_CAUSE_CHARS else text[: _MAX_CAUSE_CHARS - 3] + "..."


class SkipCount:
    """The skipped samples of one iteration: counted, logged and limited."""

    def __init__(self, max_samples: int, counters: Counters, root: str) -> None:
        """Count from here on; `counters` are those of the streams at `root`, shared with loader workers."""
        self._max_samples, self._counters, self._root = max_samples, counters, root
        self._before = counters.get("samples_skipped")
        self._first: list[SkippedSample] = []

    def counted(self, batch: Any, replacements: Sequence[Replacement]) -> Any:
        """Return a batch once its skipped samples are counted. Repeats that failed were planned elsewhere.

        Raises:
            SkipLimitExceeded: they are more than may be skipped.
        """
        skipped = [each.skipped for each in replacements if each.skipped.position >= 0]
        if not skipped:
            return batch
        self._counters.add(samples_skipped=len(skipped))
        for each in skipped:
            _log.warning("skipped sample %d of %s (%s): %s", each.sample_id, self._root, each.shard, each.cause)
        self._first += skipped[: _MAX_LISTED - len(self._first)]
        count = self._counters.get("samples_skipped") - self._before
        if count > self._max_samples:
            listed = "; ".join(f"sample {each.sample_id} ({each.shard}): {each.cause}" for each in self._first)
            raise SkipLimitExceeded(
                f"{count} samples of {self._root} could not be read in this iteration, and `max_skipped` allows "
                f"{self._max_samples}. The first are: {listed}",
                skipped=count,
                limit=self._max_samples,
                sample_ids=tuple(each.sample_id for each in self._first),
            )
        return batch
