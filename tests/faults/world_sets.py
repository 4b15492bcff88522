"""Sets and loaders of the tests of section H, and what all ranks of a world deliver together."""

import json
from itertools import islice

from smalti.catalog import merge_index
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from smalti.writer import MDSWriter
from tests.reading_options import grouped

SIZES = (5, 7, 4, 6)
"""Shards of the set whose order is known by heart."""
KNOWN = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 8, "shuffle_seed": 9176}
"""Options of the golden vectors."""
FIRST_EPOCH = [4, 21, 1, 18, 12, 7, 5, 16, 0, 19, 3, 20, 2, 17, 6, 8, 15, 11, 13, 9, 14, 10]
"""Its epoch 0, as it was written down when version 2 of `window` was fixed."""
SECOND_EPOCH = [14, 8, 1, 17, 13, 7, 0, 21, 4, 16, 3, 20, 2, 18, 12, 19, 5, 9, 15, 10, 6, 11]
"""Its epoch 1."""


def write_known_set(root):
    """Ids 0 to 21 in shards of 5, 7, 4 and 6 samples."""
    begin = 0
    for number, size in enumerate(SIZES):
        with MDSWriter(out=str(root / str(number)), columns={"id": "int"}, size_limit=None) as writer:
            for sample_id in range(begin, begin + size):
                writer.write({"id": sample_id})
        begin += size
    merge_index(str(root))
    return str(root)


def loaders_of(root, hosts, ranks_on_host, batch_size, *, order=None, **loader):
    """One loader for each rank of a world."""
    num_ranks = hosts * ranks_on_host
    worlds = [World.of_blocks(rank, num_ranks, hosts) for rank in range(num_ranks)]
    return [
        StreamingDataLoader(
            StreamingDataset(
                remote=root, include_ids=True, world=world, **grouped(**(KNOWN if order is None else order))
            ),
            batch_size,
            **loader,
        )
        for world in worlds
    ]


def take(loaders, steps, order, state=None):
    """Takes some steps on every rank (None: to the end of the epoch) into `order`, id by position; the state then."""
    states = []
    counts = set()
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        taken = list(islice(batches, steps))
        states.append(json.dumps(loader.state_dict(), sort_keys=True))
        batches.close()
        counts.add(len(taken))
        for batch in taken:
            for position, sample_id in zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True):
                if position >= 0:
                    assert position not in order, "a position is read once"
                    order[position] = sample_id
    assert len(counts) == 1, "all ranks take equally many steps"
    assert len(set(states)) == 1, "states are equal on all ranks"
    return json.loads(states[0])
