"""What `StreamingDataset(columns=[...])` saves: `python -m benchmarks.columns`, a table of ratios in one run.

All columns and some columns are read in turn, so that the machine's state is the same for both; of each, the fastest
round counts. Bytes are those that are fetched into an empty cache folder.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smalti import add_columns
from smalti.cache import CacheOptions
from smalti.dataset import StreamingDataset
from smalti.writer import MDSWriter

COLUMNS = {
    "id": "int",
    "image": "bytes",
    "label": "int",
    "meta": "json",
    "text": "str",
    "tokens": "ndarray:int32:512",
}
CHOICES = (("id", "label"), ("text",), ("meta",), ("tokens", "label"), ("image", "label"))
_IMAGE_BYTES = 14_400  # a picture of 256 x 256 as JPEG


def write(folder: Path, samples: int) -> None:
    """Writes the set, and adds a column of embeddings to it."""
    numbers = np.random.default_rng(1)
    with MDSWriter(out=str(folder), columns=COLUMNS, size_limit=1 << 24, compression="zstd:1") as writer:
        for number in range(samples):
            writer.write({
                "id": number,
                "image": numbers.bytes(_IMAGE_BYTES),
                "label": number % 100,
                "meta": {"source": f"https://example.org/{number}", "size": [256, 256], "tags": ["a", "b"] * 4},
                "text": f"a caption of picture {number} " * 8,
                "tokens": np.arange(512, dtype=np.int32),
            })  # fmt: skip
    add_columns(
        str(folder),
        {"embedding": "ndarray:float32:256"},
        lambda batch: {"embedding": numbers.random((len(batch["id"]), 256), np.float32)},
    )


def opened(root: Path, cache: Path, columns: Sequence[str] | None) -> StreamingDataset:
    """Returns the set with these columns."""
    names = None if columns is None else list(columns)
    return StreamingDataset(
        remote=str(root), cache=CacheOptions(local=str(cache)), batch_size=64, shuffle=True, columns=names
    )


def by_id(dataset: StreamingDataset) -> None:
    """Reads every sample by its id, in a fixed random order."""
    for number in np.random.default_rng(2).permutation(dataset.size).tolist():
        dataset[number]


def by_batch(dataset: StreamingDataset) -> None:
    """Reads an epoch of batches."""
    for _ in dataset.batches():
        pass


def times(datasets: Sequence[StreamingDataset], read: Callable[[StreamingDataset], Any], rounds: int) -> list[float]:
    """Returns the microseconds per sample of each dataset: the least over rounds in which all take turns."""
    taken: list[list[float]] = [[] for _ in datasets]
    for _ in range(rounds):
        for place, dataset in enumerate(datasets):
            begin = time.perf_counter()
            read(dataset)
            taken[place].append((time.perf_counter() - begin) / dataset.size * 1e6)
    return [min(each) for each in taken]


def speed_table(root: Path, cache: Path, rounds: int) -> list[str]:
    """Returns the rows of a table: microseconds per sample, and ratios to all columns."""
    rows = ["| columns | `dataset[i]`, µs | of all | batches of 64, µs | of all |", "| --- | --- | --- | --- | --- |"]
    choices: list[Sequence[str] | None] = [(*COLUMNS,), *CHOICES]
    datasets = [opened(root, cache, columns) for columns in choices]
    for dataset in datasets:
        by_batch(dataset)
    single, batched = (times(datasets, read, rounds) for read in (by_id, by_batch))
    for columns, one, many in zip(choices, single, batched, strict=True):
        name = "all six" if columns == (*COLUMNS,) else ", ".join(columns or ())
        rows.append(f"| {name} | {one:.2f} | {one / single[0]:.2f} | {many:.2f} | {many / batched[0]:.2f} |")
    for dataset in datasets:
        dataset.close()
    return rows


def byte_table(root: Path, folder: Path) -> list[str]:
    """Returns the rows of a table: bytes that an epoch fetches into an empty cache, and ratios to all columns."""
    rows = ["| columns | fetched, MB | of all |", "| --- | --- | --- |"]
    fetched = []
    choices = {"all seven": None, "the six of the set": (*COLUMNS,), "embedding, label": ("embedding", "label"),
               "embedding": ("embedding",)}  # fmt: skip
    for number, (name, columns) in enumerate(choices.items()):
        dataset = opened(root, folder / f"empty-{number}", columns)
        by_batch(dataset)
        fetched.append(dataset.stats(least=False).bytes_fetched)
        rows.append(f"| {name} | {fetched[-1] / 1e6:.1f} | {fetched[-1] / fetched[0]:.3f} |")
        dataset.close()
    return rows


def main(arguments: Sequence[str] | None = None) -> str:
    """Measures, and returns the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "set", chosen.samples)
        speed, sizes = speed_table(folder / "set", folder / "cache", chosen.rounds), byte_table(folder / "set", folder)
    return "\n".join([*speed, "", *sizes])


if __name__ == "__main__":
    print(main())
