"""Run one program with MosaicML Streaming or with the package that stands for it, and write what it did.

python dataset_program.py PACKAGE FOLDER CASES.json OUT.json

PACKAGE is `streaming` or `smalti.compat.streaming`. A case is {kind, ...}; its answer is what the function of that name
returns, or the names of the built-in exception classes that it raised.
"""

import json
import logging
import re
import sys
import warnings
from importlib import import_module
from itertools import islice
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

ATTRIBUTES = (
    "num_samples", "num_shards", "num_streams", "size", "length", "epoch_size", "next_epoch", "predownload",
    "cache_limit", "sampling_method", "sampling_granularity", "partition_algo", "num_canonical_nodes", "batch_size",
    "shuffle", "shuffle_algo", "shuffle_seed", "shuffle_block_size", "batching_method", "allow_unsafe_types",
    "replication", "initial_physical_nodes", "epoch_seed_change", "samples_per_shard", "samples_per_stream",
    "shards_per_stream", "stream_per_shard", "sample_offset_per_shard", "sample_offset_per_stream",
    "shard_offset_per_stream",
)  # fmt: skip


def made(streaming, folder, case):
    options = dict(case["options"])
    if "streams" in case:
        options["streams"] = [streaming.Stream(local=str(folder / each.pop("at")), **each) for each in case["streams"]]
    else:
        options["local"] = str(folder / "a")
    return streaming.StreamingDataset(**options)


WARNINGS = (
    "predownload <",
    "Shuffle block size was smaller",
    "Trying to partition",
    "Attempting to partition",
    "Because",
)


WORDS = 90
"""Characters of a log record that are compared."""
OURS = "The loaded state is of epoch"
"""A warning that MosaicML does not have."""


def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def run(streaming, folder, case):
    """Iterate as a training program does: so many batches of each epoch, with a state after each."""
    dataset, done = made(streaming, folder, case), []
    before = {name: plain(getattr(dataset, name)) for name in ATTRIBUTES}
    if case["state"] is not None:
        dataset.load_state_dict(case["state"])
    kind = streaming.StreamingDataLoader if case["loader"] == "streaming" else DataLoader
    workers = case["workers"]
    loader = kind(dataset, batch_size=dataset.batch_size, num_workers=workers, persistent_workers=case["persistent"])
    for number, take in enumerate(case["epochs"]):
        if number == case["load_before"]:
            dataset.load_state_dict(case["loaded"])
        batches = [batch["id"].tolist() for batch in islice(loader, take)]
        state = dataset.state_dict(sum(map(len, batches)), from_beginning=False)
        both = loader.state_dict() if case["loader"] == "streaming" else state
        done.append([batches, state, both, dataset.state_dict(5, True), dataset.next_epoch])
    after = {name: plain(getattr(dataset, name)) for name in ATTRIBUTES}
    weights = [[plain(getattr(each, name)) for name in ("proportion", "repeat", "choose")] for each in dataset.streams]
    return [before, done, after, weights]


def work(streaming, folder, case):
    """Arrange an epoch for a world, through the functions that do it."""
    batching, world = (
        import_module(f"{streaming.__name__}.base.batching"),
        import_module(f"{streaming.__name__}.base.world"),
    )
    dataset = made(streaming, folder, case)
    for name, value in case["set"].items():
        setattr(dataset, name, value)
    place = world.World(*case["world"])
    if case["replication"]:
        place = place.replicate(case["replication"])
    ids = batching.generate_work(dataset.batching_method, dataset, place, case["epoch"], case["sample_in_epoch"])
    return [ids.tolist(), place.to_json(), [plain(each) for each in dataset.resample_streams(case["epoch"])]]


def failing(streaming, folder, case):
    """Make a dataset that cannot be made."""
    made(streaming, folder, case)
    return "made"


KINDS = {"run": run, "work": work, "failing": failing}


class Log(logging.Handler):
    """The logger, level, first words and stream of each record."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def emit(self, record):
        words = " ".join(record.getMessage().split())
        if not words.startswith(OURS):
            self.found.add((record.name, record.levelname, words[:WORDS], *re.findall(r"stream with index \d+", words)))


def answer(streaming, folder, case):
    log = Log()
    logging.getLogger("streaming").handlers = [log]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = KINDS[case.pop("kind")](streaming, folder, case)
        except Exception as error:  # its class is the answer
            found = [each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins"]
    texts = {str(each.message)[: len(text)] for each in seen for text in WARNINGS}
    return [found, sorted(texts & set(WARNINGS)), sorted(log.found)]


def main(package, folder, cases, out):
    logging.getLogger("streaming").setLevel(logging.INFO)
    logging.getLogger("streaming").propagate = False
    streaming = import_module(package)
    answers = [answer(streaming, Path(folder), case) for case in json.loads(Path(cases).read_text())]
    Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
