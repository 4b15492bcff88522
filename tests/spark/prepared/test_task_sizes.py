"""Sizes of Spark tasks over images: enough work for each, and the same on every machine."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from smalti.sources.image_folder import list_images
from smalti.spark import prepare
from smalti.spark.prepare import PrepareOptions, _count_partitions, prepare_here
from smalti.spark.prepared.rows import _grouped
from tests.spark.photos import put

MB = 1 << 20


@pytest.mark.parametrize(
    ("files", "num_bytes", "expected"),
    [
        (1, 10, 1),
        (3_670, 41_000, 18),  # 150 MB in pieces of 8 MiB
        (50_000, 5_700, 49),  # 1,024 small ones each
        (1_280, 4 * MB, 10),  # 128 large ones each
        (10_000_000, 1 * MB, 4_096),
    ],
)
def test_a_task_decodes_128_files_or_8_mb_of_up_to_1024_small_ones(files, num_bytes, expected):
    inventory = pa.table({"num_bytes": pa.array([num_bytes]).take(pa.array([0] * files))})
    assert _count_partitions(inventory) == expected


def test_no_file_is_one_task():
    assert _count_partitions(pa.table({"num_bytes": pa.array([], pa.int64())})) == 1


def grouped(sizes, places):
    groups = _grouped(sizes, np.array(places, np.int64))
    return groups.tolist(), int(groups.max(initial=0)) + 1


def test_a_task_reads_neighbouring_parts_of_16_mb_together():
    sizes = [6 * MB, 6 * MB, 6 * MB, 20 * MB, 1 * MB]
    # Parts begin at 0, 6, 12, 18 and 38 MB.
    assert grouped(sizes, [0, 1, 2, 3, 4, 4]) == ([0, 0, 0, 1, 2, 2], 3)


def test_tasks_are_numbered_without_gaps_whatever_parts_are_read():
    sizes = [16 * MB] * 10
    assert grouped(sizes, [7, 2, 7, 9]) == ([1, 0, 1, 2], 3)
    assert grouped([100] * 10, [7, 2, 9]) == ([0, 0, 0], 1)
    assert grouped(sizes, []) == ([], 1)


def test_parts_of_terabytes_are_read_by_4096_tasks_at_most():
    sizes = [64 * MB] * 20_000
    groups, count = grouped(sizes, list(range(20_000)))
    assert count <= 4_096
    assert groups == sorted(groups)


def test_eight_files_are_read_while_one_is_slow(tmp_path, monkeypatch):
    for number in range(12):
        put(tmp_path / "class" / f"{number}.jpg", b"not read")
    others, enough, is_first = [], threading.Event(), threading.Lock()

    def read(_store, file, _options):
        if is_first.acquire(blocking=False):
            assert enough.wait(10), f"{len(others)} other files were read"
        else:
            others.append(file["path"])
            if len(others) == 8:
                enough.set()
        return {**dict.fromkeys(prepare._PREPARED.names), "path": file["path"], "error": "x"}

    monkeypatch.setattr(prepare, "prepare_file", read)
    folder = list_images(str(tmp_path))
    rows = prepare_here(folder, PrepareOptions(), [file.path for file in folder.files])
    assert sum(batch.num_rows for batch in rows) == 12
