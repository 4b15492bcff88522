"""Parquet files read as Petastorm's users read them: a transform, two ranks, a stop in the middle of an epoch, resume.

    python examples/petastorm_resume.py

With Spark, `make_spark_converter(df)` writes the files, and `converter.make_torch_dataloader(...)` takes the place of
`make_batch_reader` and `DataLoader`: docs/petastorm.md.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from smalti.compat.petastorm import DataLoader, TransformSpec, make_batch_reader


def write_files(folder: Path, rows: int = 100) -> None:
    """Two files of five row groups each."""
    for number in range(2):
        ids = np.arange(number * rows // 2, (number + 1) * rows // 2)
        pq.write_table(pa.table({"id": ids}), folder / f"part-{number}.parquet", row_group_size=rows // 10)


def square(frame: Any) -> Any:
    """The transform: gets a pandas DataFrame of a batch's rows."""
    return frame.assign(square=frame["id"].astype("float32") ** 2)


def loader_of(folder: Path, rank: int, num_ranks: int, batch_size: int) -> DataLoader:
    """One rank's loader of one epoch."""
    spec = TransformSpec(square, edit_fields=[("square", np.float32, (), False)])
    reader = make_batch_reader(
        f"file://{folder}", transform_spec=spec, seed=7, cur_shard=rank, shard_count=num_ranks, workers_count=2
    )
    return DataLoader(reader, batch_size=batch_size)


def ids_and_state(loader: DataLoader, max_steps: int | None = None) -> tuple[list[int], dict[str, Any]]:
    """The ids that a rank reads in so many steps, and where it stands then."""
    ids: list[int] = []
    with loader:
        for step, batch in enumerate(loader, 1):
            ids += batch["id"].tolist()
            if step == max_steps:
                break
        return ids, loader.state_dict()


def main(folder: Path) -> tuple[list[int], list[int]]:
    """The rows that two ranks read before a stop, and those that three read after it."""
    write_files(folder)
    begun = [ids_and_state(loader_of(folder, rank, 2, batch_size=10), max_steps=2) for rank in range(2)]
    before, state = [row for ids, _ in begun for row in ids], begun[0][1]
    after: list[int] = []
    for rank in range(3):
        loader = loader_of(folder, rank, 3, batch_size=5)
        loader.load_state_dict(state)
        after += ids_and_state(loader)[0]
    return before, after


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        first, rest = main(Path(place))
        print(f"{len(first)} rows before the stop, {len(rest)} after it, {len(set(first) | set(rest))} in all")  # noqa: T201
