"""Whether batches by column can be made of streams whose columns differ; said before the first step is taken."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smalti.dataset.reading import Reading
from smalti.errors import SchemaError
from smalti.stream import ShardSet


def check_batches(reading: Reading, sets: Sequence[ShardSet]) -> None:
    """Return only if no batch at either end of the pass mixes streams with other columns.

    What makes no whole batch of one stream stands at an epoch's end: less than one batch of each stream. So as many
    steps as there are streams, and one, are planned at both ends; in a set of streams that are alike, none.

    Args:
        reading: one rank's part of the pass.
        sets: the streams.

    Raises:
        SchemaError: a batch mixes them; it says which streams, at which step, and what to do.
    """
    kinds: dict[tuple[Any, ...], int] = {}
    kind_of = np.array([kinds.setdefault((each.logical, *sorted(each.columns.items())), len(kinds)) for each in sets])
    if len(kinds) < 2:
        return
    ends = np.cumsum([each.num_samples for each in sets])
    count, looked_at = reading.division.num_steps, len(sets) + 1
    for first, stop in ((0, looked_at), (max(looked_at, count - looked_at), count)):
        for step, ids in reading.steps(first, stop):
            streams = np.unique(np.searchsorted(ends, ids, side="right"))
            if np.unique(kind_of[streams]).size > 1:
                raise _mixed(sets, streams.tolist(), kind_of[streams].tolist(), step.step, count)


def _columns(its: ShardSet) -> dict[str, Any]:
    """Column to encoding, and to logical type where values are given as what they stand for."""
    return its.columns | dict(its.logical.types if its.logical is not None else {})


def _mixed(sets: Sequence[ShardSet], streams: list[int], kinds: list[int], step: int, count: int) -> SchemaError:
    one, other = streams[0], next(stream for stream, kind in zip(streams, kinds, strict=True) if kind != kinds[0])
    columns = [_columns(sets[stream]) for stream in (one, other)]
    return SchemaError(
        f"streams {one} ({sets[one].options.root}) and {other} ({sets[other].options.root}) have different columns, "
        f"{columns[0]} and {columns[1]}, and step {step} of {count} holds samples of both. Use "
        "`batching_method='per_stream'`, with weights and an `epoch_size` by which each stream gives a multiple of the "
        "global batch (what is left of each is mixed at the epoch's end); or read by sample, with a `collate_fn`.",
        streams=(one, other),
        step=step,
    )
