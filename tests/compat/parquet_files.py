"""Small Parquet data sets for these tests: rows are numbered, so that every claim can be counted."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(folder: Path, *, files=3, rows=40, group=10, **columns) -> Path:
    """`files` files of `rows` rows each, in row groups of `group`; column `id` counts over all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        ids = np.arange(number * rows, (number + 1) * rows)
        table = pa.table({"id": ids} | {name: [make(int(row)) for row in ids] for name, make in columns.items()})
        pq.write_table(table, folder / f"part-{number:05}.parquet", row_group_size=group, write_page_checksum=True)
    return folder


def url(folder: Path) -> str:
    return f"file://{folder}"


def ids_of(batches) -> list[list[int]]:
    """The ids of each batch, of namedtuples or dicts."""
    return [list(map(int, batch["id"] if isinstance(batch, dict) else batch.id)) for batch in batches]


def flat(batches) -> list[int]:
    return [each for batch in batches for each in batch]
