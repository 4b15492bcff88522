"""torchdata's StatefulDataLoader over a Smalti dataset: stop in the middle of an epoch, and resume there.

    python examples/stateful_dataloader.py

For code that has a StatefulDataLoader already. Its state is about each worker of one rank, and holds for the same
ranks, workers and batch size only. `smalti.StreamingDataLoader` has the same two methods and reads whole batches, which
is many times as fast; its state holds for any number of each.
"""

import tempfile
from pathlib import Path
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from smalti import MDSWriter, StreamingDataset


def write_set(folder: Path, count: int = 50) -> None:
    """Write a small set of numbers."""
    with MDSWriter(out=str(folder / "set"), columns={"id": "int"}, size_limit=200) as writer:
        for number in range(count):
            writer.write({"id": number})


def loader_of(folder: Path, num_workers: int = 2) -> StatefulDataLoader[Any]:
    """Return a loader, whose batch size is that of the dataset."""
    dataset = StreamingDataset(remote=str(folder / "set"), batch_size=4, shuffle=True)
    return StatefulDataLoader(dataset, batch_size=4, num_workers=num_workers)


def two_lives(folder: Path, max_steps: int, num_workers: int = 2) -> tuple[list[list[int]], list[list[int]]]:
    """Return the samples of each step before and after a stop in the middle of an epoch."""
    first, before = loader_of(folder, num_workers), []
    for batch in first:
        before.append(batch["id"].tolist())
        if len(before) == max_steps:
            break
    state = first.state_dict()

    second = loader_of(folder, num_workers)
    second.load_state_dict(state)
    return before, [batch["id"].tolist() for batch in second]


def main() -> None:
    """Stop after 6 of 13 steps, and resume."""
    with tempfile.TemporaryDirectory() as name:
        write_set(Path(name))
        first, second = two_lives(Path(name), max_steps=6)
        numbers = {number for batch in first + second for number in batch}
        print(f"{len(first)} + {len(second)} steps, {len(numbers)} of 50 samples seen")  # noqa: T201


if __name__ == "__main__":
    main()
