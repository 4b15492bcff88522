"""Three shard sets to mix, of 40, 25 and 15 samples: sample ids 0 to 39, 40 to 64, 65 to 79."""

import json
from pathlib import Path

from smalti import Stream
from smalti.dataset import StreamingDataset
from smalti.dataset.epoch_reader import BatchForm
from tests.reading_options import grouped
from tests.shard_sets import write_set

COUNTS = (40, 25, 15)
BEGINS = (0, 40, 65)


def write_three(folder: Path) -> list[str]:
    """Write the sets and return their roots."""
    return [str(write_set(folder / name, count)) for name, count in zip("abc", COUNTS, strict=True)]


def streams_of(roots, name="proportion", values=(2, 1, 1), **options):
    """Return a stream for each root, with weights of one kind; None for no weight."""
    return [
        Stream(remote=root, **({} if value is None else {name: value}), **options)
        for root, value in zip(roots, values, strict=False)
    ]


def mixed(roots, name="proportion", values=(2, 1, 1), **options):
    """Return a dataset over the streams, with ids, shuffled, in batches of 8."""
    chosen = {"batch_size": 8, "shuffle": True, "include_ids": True, "tail": "short"} | options
    return StreamingDataset(streams=streams_of(roots, name, values), **grouped(**chosen))


def take(dataset, steps=None):
    """Return the sample ids of some steps, or of the rest of the epoch, and the state after them, through JSON."""
    this_pass, batches = dataset._smalti.begin_pass(), []
    for step, ids in dataset._smalti.planned(this_pass):
        if len(batches) == steps:
            break
        batches.append(dataset._smalti.read(step, ids, BatchForm.COLUMNS)[0]["_sample_id"].tolist())
    return batches, json.loads(json.dumps(dataset._smalti.reading(this_pass).cursor_after(len(batches)).to_state()))


def by_stream(ids):
    """Return the number of these sample ids in each stream."""
    ends = [begin + count for begin, count in zip(BEGINS, COUNTS, strict=True)]
    return [sum(begin <= sample < end for sample in ids) for begin, end in zip(BEGINS, ends, strict=True)]


def flat(batches):
    """Return all batches as one list."""
    return [sample for batch in batches for sample in batch]
