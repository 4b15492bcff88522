"""What a deletion reads and writes: `python -m benchmarks.deletion [FOLDER] [MEGABYTES]` prints a table in Markdown.

A set of rows of 4 kB in shards of 16 MiB is made on a disk. Ids are deleted that lie in one shard, in some, and in all.
Times are of one run, beside `verify`, which reads the same bytes, and the row of a full rewrite; the counts are exact.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smalti.catalog import load_manifest, verify
from smalti.writer import DeletionReport, MDSWriter, PurgeOptions, delete

_ROW_BYTES = 4096
_SHARD_BYTES = 16 << 20


def write_set(folder: Path, megabytes: int) -> int:
    """Write the set, and return its number of rows."""
    rows = (megabytes << 20) // _ROW_BYTES
    generator = np.random.default_rng(1)
    columns = {"user_id": "int64", "data": "bytes"}
    with MDSWriter(out=folder, columns=columns, size_limit=_SHARD_BYTES, hashes=["xxh3_64"], row_hash=True) as writer:
        for row in range(rows):
            writer.write({"user_id": row, "data": generator.bytes(_ROW_BYTES)})
    return rows


def measured(folder: Path, megabytes: int) -> Iterator[tuple[str, DeletionReport | None, float]]:
    """Yield the name, report and seconds of each measurement; each deletes from a set of its own."""
    rows = write_set(folder / "set", megabytes)
    started = time.perf_counter()
    assert verify(folder / "set").ok
    yield "`verify` (reads everything)", None, time.perf_counter() - started
    in_shard = len(load_manifest(folder / "set").shards)
    cases = {
        "no id": [rows],
        "1 id": [rows // 2],
        "100 ids in one shard": list(range(rows // 2, rows // 2 + 100)),
        "4 ids in 4 shards": [rows * place // 4 for place in range(4)],
        "an id in every shard": [rows * place // in_shard + 5 for place in range(in_shard)],
        "1 % of the rows, anywhere": list(range(0, rows, 100)),
    }
    for name, ids in cases.items():
        shutil.copytree(folder / "set", folder / "copy")
        started = time.perf_counter()
        report = delete(folder / "copy", ids=ids, column="user_id")
        yield name, report, time.perf_counter() - started
        if name == "1 id":
            started = time.perf_counter()
            again = delete(folder / "copy", ids=ids, column="user_id", purge=PurgeOptions(cache=False))
            yield "... then its purge, with the scan", again, time.perf_counter() - started
        shutil.rmtree(folder / "copy")


def main() -> None:
    """Print the table."""
    above = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 512
    mib = float(1 << 20)
    with tempfile.TemporaryDirectory(dir=above) as folder:
        print("| deleted | samples | shards concerned | MiB total | MiB concerned | MiB written | seconds |")
        print("|---|---|---|---|---|---|---|")
        for name, report, seconds in measured(Path(folder), megabytes):
            if report is None:
                print(f"| {name} | | | | | | {seconds:.2f} |")
                continue
            sizes = (report.bytes_total, report.bytes_concerned, report.bytes_written)
            cells = " | ".join(f"{size / mib:.1f}" for size in sizes)
            shards = f"{report.shards_concerned} of {report.num_shards}"
            print(f"| {name} | {report.num_deleted:,} | {shards} | {cells} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
