"""Run by MosaicML's interpreter: make orders with its functions and write what was found; imports nothing of Smalti.

python peer_orders.py CASES.json OUT.json

A case is [kind, arguments]; its answer nested lists, or null where the peer raises.
"""

import json
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np


def shuffle(case):
    from streaming.base.shuffle import get_shuffle

    case["shard_sizes"] = np.array(case["shard_sizes"], np.int64)
    return get_shuffle(**case)


def partition(case):
    from streaming.base.partition import get_partitions

    return get_partitions(**case)


def sampling(case):
    from streaming.base.sampling import get_sampling

    case["samples_per_shard"] = np.array(case["samples_per_shard"], np.int64)
    return get_sampling(**case)


def weights(case):
    return np.array([[s.choose, s.proportion] for s in weighed(case)], np.float64)


def weighed(case):
    from streaming import Stream

    streams = [SimpleNamespace(**weight) for weight in case["weights"]]
    samples = np.array([sum(sizes) for sizes in case["shard_sizes"]], np.int64)
    cls = SimpleNamespace(validate_weights=partial(Stream.validate_weights.__func__, Stream))
    Stream.apply_weights.__func__(cls, streams, samples, case["epoch_size"], case["shuffle_seed"])
    return streams


def epoch(case):
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    streams = weighed(case)
    sizes = [np.array(stream, np.int64) for stream in case["shard_sizes"]]
    samples_per_shard = np.concatenate(sizes)
    shards_per_stream = np.array([len(stream) for stream in sizes], np.int64)
    dataset = SimpleNamespace(
        streams=streams,
        num_streams=len(streams),
        epoch_size=int(sum(stream.choose for stream in streams)),
        shards_per_stream=shards_per_stream,
        shard_offset_per_stream=shards_per_stream.cumsum() - shards_per_stream,
        samples_per_shard=samples_per_shard,
        sample_offset_per_shard=samples_per_shard.cumsum() - samples_per_shard,
        epoch_seed_change=case["shuffle"] and case["sampling_method"] == "balanced",
        **{name: case[name] for name in OPTIONS},
    )
    dataset.resample_streams = partial(StreamingDataset.resample_streams, dataset)
    world = World(case["num_nodes"], case["ranks_per_node"], case["workers_per_rank"], 0)
    if case["replication"]:
        world = world.replicate(case["replication"])
    return generate_work(case["batching_method"], dataset, world, case["epoch"], case["sample_in_epoch"])


OPTIONS = (
    "batch_size",
    "initial_physical_nodes",
    "num_canonical_nodes",
    "partition_algo",
    "sampling_granularity",
    "sampling_method",
    "shuffle",
    "shuffle_algo",
    "shuffle_block_size",
    "shuffle_seed",
)
KINDS = {"shuffle": shuffle, "partition": partition, "sampling": sampling, "weights": weights, "epoch": epoch}


def answer(kind, case):
    try:
        return KINDS[kind](case).tolist()
    except (ValueError, ZeroDivisionError):
        return None


def main(cases, out):
    warnings.simplefilter("ignore")
    with open(cases) as file:
        answers = [answer(kind, case) for kind, case in json.load(file)]
    with open(out, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
