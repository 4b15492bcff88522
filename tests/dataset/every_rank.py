"""All ranks of a world, read one after the other."""

from smalti.dataset import StreamingDataset
from smalti.world import World
from tests.reading_options import grouped


def ranks_of(root, hosts, ranks_on_host, **options):
    worlds = [
        World(r, hosts * ranks_on_host, r // ranks_on_host, hosts, r % ranks_on_host, ranks_on_host)
        for r in range(hosts * ranks_on_host)
    ]
    return [StreamingDataset(remote=str(root), include_ids=True, world=world, **grouped(**options)) for world in worlds]


def global_order(datasets, steps=None):
    """Return the sample ids by global position, read by all ranks, without padding; no position may be read twice."""
    order = {}
    for dataset in datasets:
        for step, batch in enumerate(dataset.batches()):
            if steps is not None and step >= steps:
                break
            for position, sample_id in zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True):
                if position >= 0:
                    assert position not in order
                    order[position] = sample_id
    return order
