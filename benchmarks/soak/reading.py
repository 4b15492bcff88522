"""What every reading process of the soak does: opens a dataset, takes batches, checks them, and tells its journal."""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.soak.journal import Journal
from benchmarks.soak.samples import Expected
from benchmarks.soak.told import Reads
from smalti import Stream
from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions
from smalti.ledger import LedgerWriter
from smalti.torch import StreamingDataLoader, StreamingDataset

MOST_TOLD = 5  # wrong samples of a batch that are told one by one
STATS_EVERY = 40  # steps


class Spoiled:
    """A transform that changes a character now and then, as a cache that serves wrong bytes would."""

    on_batches = thread_safe = True

    def __call__(self, columns: Any) -> Any:
        if int(columns["_sample_id"][0]) % 5 == 0:
            columns["text"] = [*columns["text"][:-1], columns["text"][-1][:-1] + "~"]
        return columns


def open_dataset(reads: Reads, **options: Any) -> StreamingDataset:
    """The dataset."""
    nodes = 2
    return StreamingDataset(
        streams=[Stream(remote=f"s3://{reads.bucket}/{name}", version=reads.version) for name, _ in reads.streams],
        shuffle=True,
        shuffle_seed=reads.seed,
        order=OrderOptions(num_canonical_nodes=nodes, shuffle_block_size=max(1, reads.block // nodes)),
        include_ids=True,
        cache=CacheOptions(
            local=reads.cache,
            cache_limit=reads.cache_limit * (3 if "over-limit" in reads.plants else 1),
            download_retry=4,
            download_timeout=reads.timeout,
        ),
        storage_options={"request_timeout": reads.timeout, **reads.store},
        transform=Spoiled() if "wrong-byte" in reads.plants else None,
        **options,
    )


def steps(
    loader: StreamingDataLoader, ledger: LedgerWriter, expected: Expected, journal: Journal
) -> Generator[int, None, None]:
    """Takes one epoch, or the rest of one; yields after each step that is checked and told."""
    batches = iter(loader)
    number = 0
    while True:
        begin = time.monotonic()
        try:
            batch = next(batches)
        except StopIteration:
            journal.write("epoch", seconds=time.monotonic() - begin)
            return
        waited = time.monotonic() - begin
        wrong = expected.problems(batch)
        if wrong:
            journal.write("wrong", problems=wrong[:MOST_TOLD], number=len(wrong))
        journal.write(
            "seen",
            ledger=ledger.path.parent.parent.name,
            life=ledger.path.parent.name,
            file=ledger.path.name,
            within=ledger.num_passes - 1,
            step=number,
            positions=batch["_position"].tolist(),
            ids=batch["_sample_id"].tolist(),
            waited=waited,
            num_bytes=sum(map(len, batch["text"])),
        )
        number += 1
        if number % STATS_EVERY == 0:
            tell_stats(loader.streaming_dataset, journal)
        yield number


def tell_stats(dataset: StreamingDataset, journal: Journal) -> None:
    """What reading has cost in this life so far."""
    journal.write("stats", **json.loads(dataset.stats().to_json()))


def save_state(path: Path, state: dict[str, Any]) -> None:
    """The checkpoint: whole, or the one before."""
    text = path.with_suffix(".new")
    text.write_text(json.dumps(state))
    os.replace(text, path)


def saved_state(path: Path) -> dict[str, Any] | None:
    """The newest checkpoint."""
    return json.loads(path.read_text()) if path.exists() else None
