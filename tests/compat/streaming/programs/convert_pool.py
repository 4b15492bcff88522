"""Converts records in a pool of processes: a folder of shards for each, and one index over all of them."""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.util import merge_index

COLUMNS = {
    "key": "int",
    "text": "str",
    "image": "png",
    "tokens": "ndarray:int32",
    "embedding": "ndarray:float16:4",
    "score": "float32",
    "meta": "json",
    "blob": "pkl",
}


def record(i):
    return {
        "key": i,
        "text": f"record {i}",
        "image": Image.new("L", (3 + i % 4, 2), i % 256),
        "tokens": np.arange(1 + i % 7, dtype=np.int32),
        "embedding": np.full(4, i / 8, np.float16),
        "score": i / 3,
        "meta": {"source": "pool", "at": [i, None]},
        "blob": {"set": {i}},
        "unused": object(),
    }


def convert(task):
    out, keys = task
    with MDSWriter(
        columns=COLUMNS, out=out, compression="zstd:5", hashes=["sha1", "xxh64"], size_limit="4kb"
    ) as writer:
        for key in keys:
            writer.write(record(key))
    return len(keys)


def main(args):
    groups = np.array_split(np.arange(args.records), args.groups)
    tasks = [(os.path.join(args.out, f"{i:03d}"), keys.tolist()) for i, keys in enumerate(groups)]
    with ProcessPoolExecutor(args.processes) as pool:
        print(json.dumps({"records": sum(pool.map(convert, tasks))}))
    merge_index(args.out, keep_local=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--records", type=int, default=70)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    main(parser.parse_args())
