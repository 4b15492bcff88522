"""Prints every sample of a set in its stored order, and the shards that hold them."""

import argparse
import hashlib
import json

import numpy as np
from streaming import StreamingDataset


def plain(value):
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return [value.mode, list(value.size), hashlib.sha1(value.tobytes()).hexdigest()]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("local")
    parser.add_argument("log")
    args = parser.parse_args()
    dataset = StreamingDataset(remote=args.data, local=args.local, batch_size=1, allow_unsafe_types=True)
    with open(args.log, "w") as log:
        log.write(json.dumps([len(dataset), dataset.samples_per_shard.tolist()]) + "\n")
        for sample in dataset:
            log.write(json.dumps({name: plain(value) for name, value in sample.items()}) + "\n")
