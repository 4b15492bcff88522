"""Tens of thousands of columns are written and read; a quadratic step would exceed the limit of time of the test."""

import pyarrow as pa
import pytest

from smalti import LocalDataset, MDSWriter, head, info

COLUMNS = {f"c{number:05}": "int32" if number % 2 else "str" for number in range(30_000)}
ROW = {name: 7 if kind == "int32" else "x" for name, kind in COLUMNS.items()}
BATCH = pa.record_batch(
    [pa.array([7], pa.int32()) if kind == "int32" else pa.array(["x"]) for kind in COLUMNS.values()], names=[*COLUMNS]
)


@pytest.mark.nightly  # takes 10 s of a processor
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_thirty_thousand_columns_are_written_and_read(tmp_path):
    with MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        writer.write(ROW)
        writer.write_batch(BATCH)
    dataset = LocalDataset(str(tmp_path))
    assert dataset[0] == dataset[1] == ROW
    assert head(str(tmp_path)).rows == (ROW, ROW)
    assert len(info(str(tmp_path)).columns) == 30_000
