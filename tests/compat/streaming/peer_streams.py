"""Describe streams, readers and local datasets: run with MosaicML's package, and with ours, for equal results.

python peer_streams.py PACKAGE FOLDERS OUT.json, where FOLDERS is a JSON list of pairs [folder of a set, split].
"""

import json
import os
import sys
import tempfile
from importlib import import_module

import numpy as np

WEIGHTS = [
    ([{}], [7], None, 0),
    ([{}, {}, {}], [7, 100, 31], 50, 3),
    ([{"proportion": 1}, {"proportion": 2}, {"proportion": 0.1}], [7, 100, 31], 1001, 9176),
    ([{"proportion": 0.3}, {"proportion": 0.7}], [7, 100], None, 1),
    ([{"repeat": 2.5}, {"choose": 12}, {}], [7, 100, 31], None, 5),
    ([{"choose": 0}, {"repeat": 1 / 3}], [7, 100], None, 5),
    ([{"choose": 5}, {}], [7, 100], 60, 5),
    ([{"proportion": 1}, {}], [7, 100], None, 5),
]
"""Weights of each stream, samples of each stream, samples of an epoch, seed."""
ATTRIBUTES = (
    "dirname", "split", "compression", "hashes", "samples", "size", "size_limit", "column_names", "column_encodings",
    "column_sizes", "columns", "newline", "separator",
)  # fmt: skip
SIZES = ("get_raw_size", "get_zip_size", "get_max_size")


def describe_weights(package):
    kind = import_module(f"{package}.base.stream").Stream
    found = []
    for weights, samples, size, seed in WEIGHTS:
        streams = [kind(local="unused", **weight) for weight in weights]
        try:
            total = kind.apply_weights(streams, np.array(samples, np.int64), size, seed)
            derived = [[float(s.proportion).hex(), float(s.repeat).hex(), int(s.choose)] for s in streams]
            kinds = sorted({type(value).__name__ for s in streams for value in (s.proportion, s.repeat, s.choose)})
            found.append([total, type(total).__name__, derived, kinds])
        except Exception as error:
            found.append(type(error).__name__)
    return found


def describe_sample(sample):
    return sorted((name, repr(value)) for name, value in sample.items())


def describe_reader(shard, root):
    facts = {name: getattr(shard, name) for name in ATTRIBUTES if hasattr(shard, name)}
    pairs = [[None if file is None else vars(file) for file in pair] for pair in shard.file_pairs]
    sizes = [getattr(shard, name)() for name in SIZES] + [shard.get_persistent_size(keep) for keep in (False, True)]
    kind = type(shard).__name__
    return {**facts, "dirname": os.path.relpath(shard.dirname, root), "pairs": pairs, "sizes": sizes, "kind": kind}


def describe_set(package, remote, split):
    base = f"{package}.base"
    world = import_module(f"{base}.world").World(1, 1, 1, 0)
    facts = {}
    for keep_zip in (False, True):
        with tempfile.TemporaryDirectory() as local:
            stream = import_module(f"{base}.stream").Stream(remote=remote, local=local, split=split, keep_zip=keep_zip)
            defaults = {"split": None, "download_retry": 1, "download_timeout": 60, "validate_hash": None}
            stream.apply_default({**defaults, "keep_zip": None})
            shards = stream.get_shards(world, False)
            usage = np.zeros(len(shards), np.int64)
            facts[f"deltas {keep_zip}"] = [stream.prepare_shard(shard) for shard in shards]
            facts[f"again {keep_zip}"] = [stream.prepare_shard(shard) for shard in shards]
            stream.set_up_local(shards, usage)
            facts[f"usage {keep_zip}"] = usage.tolist()
            facts[f"files {keep_zip}"] = sorted(
                os.path.relpath(os.path.join(folder, name), local)
                for folder, _, names in os.walk(local)
                for name in names
            )
            facts["index bytes"] = stream.get_index_size()
            facts["readers"] = [describe_reader(shard, local) for shard in shards]
            facts["samples"] = [describe_sample(sample) for shard in shards for sample in shard]
            dataset = import_module(f"{base}.local").LocalDataset(local, split)
            facts["same"] = [describe_sample(sample) for sample in dataset[:]] == facts["samples"]
            facts["local readers"] = [describe_reader(shard, local) for shard in dataset.shards]
            last = len(dataset) - 1
            facts["last"] = [dataset.size, dataset.num_samples, dataset.split, [int(n) for n in dataset.spanner[last]]]
            facts[f"evicted {keep_zip}"] = [shard.evict() for shard in shards]
    return facts


def main(package, folders, out):
    found = {"weights": describe_weights(package)}
    for remote, split in json.loads(folders):
        found[f"{remote} {split}"] = describe_set(package, remote, split)
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
