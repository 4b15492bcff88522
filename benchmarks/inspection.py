"""Times of `head`, `stats` and `preview`, and the bytes that `head` reads of a remote set, as a table in Markdown.

    .venv/bin/python -m benchmarks.inspection [--photos 20000] [--rows 2000000] [--work FOLDER]

The remote set is a folder behind a store without local paths, so that every byte that is read is counted.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from benchmarks.photos import Photos
from smalti import MDSWriter, head, info, preview, stats
from smalti.storage import open_store
from tests.stores import LoggedStore

Measured = tuple[str, float, float, str]
"""What was done, wall seconds, processor seconds, and a remark."""


class CountedStore(LoggedStore):
    """A folder as a remote store that counts the bytes of shards."""

    def __init__(self, root: Path, log: Path) -> None:
        super().__init__(open_store(root), log)
        self.shard_bytes = 0

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """As the inner store."""
        data = super().get_range(key, begin, end)
        self.shard_bytes += len(data) if ".mds" in key else 0
        return data

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """As the inner store."""
        size = super().fetch(key, out, on_chunk=on_chunk)
        self.shard_bytes += size if ".mds" in key else 0
        return size


def main() -> None:
    """Write the sets, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--work", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.work) as folder:
        for line in table(measure(Path(folder), chosen.photos, chosen.rows)):
            print(line)


def measure(folder: Path, photos: int, rows: int) -> list[Measured]:
    """Return what each call took on sets of so many photos and rows of numbers and text."""
    sets = {
        "photos": _write_photos(folder / "photos", photos, None),
        "photos, zstd": _write_photos(folder / "photos-zstd", photos, "zstd"),
        "rows": _write_rows(folder / "rows", rows),
    }
    found: list[Measured] = []
    for name, root in sets.items():
        size = info(root).num_bytes
        for what, options in (("first 10", {}), ("10 from the middle", {"offset": info(root).rows // 2})):
            store = CountedStore(root, folder / "log")
            line = _timed(f"head, {what}: {name}", lambda s=store, o=options: head(s, **o))  # type: ignore[misc]
            found.append((*line, f"{store.shard_bytes:,} of {size:,} bytes of shards"))
        count = info(root).rows
        line = _timed(f"stats, all: {name}", lambda r=root: stats(r))  # type: ignore[misc]
        found.append((*line, f"{count / line[1]:,.0f} samples/s, {count / line[2]:,.0f} per core-second"))
        line = _timed(f"stats, 1,000 random: {name}", lambda r=root: stats(r, samples=1000))  # type: ignore[misc]
        found.append((*line, f"{min(count, 1000) / line[1]:,.0f} samples/s"))
        page = folder / "page.html"
        line = _timed(f"preview, 200 rows: {name}", lambda r=root, p=page: preview(r, p))  # type: ignore[misc]
        found.append((*line, f"{page.stat().st_size:,} bytes"))
    return found


def table(found: list[Measured]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| call | wall s | processor s | |", "| --- | ---: | ---: | --- |"]
    return lines + [f"| {what} | {wall:.3f} | {cpu:.3f} | {remark} |" for what, wall, cpu, remark in found]


def _timed(what: str, call: Callable[[], Any]) -> tuple[str, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return what, time.perf_counter() - wall, time.process_time() - cpu


def _write_photos(root: Path, count: int, compression: str | None) -> Path:
    columns = {"image": "jpeg", "label": "int32"}
    with MDSWriter(out=str(root), columns=columns, compression=compression) as out:
        originals = Photos(1).originals
        for number in range(count):
            data, label = originals[number % len(originals)]
            out.write({"image": data, "label": label})
    return root


def _write_rows(root: Path, count: int) -> Path:
    import pyarrow as pa

    random = np.random.default_rng(0)
    with MDSWriter(out=str(root), columns={"id": "int", "x": "float64", "kind": "str"}) as out:
        for begin in range(0, count, 1 << 16):
            ids = np.arange(begin, min(begin + (1 << 16), count))
            kinds = np.char.add("kind ", (ids % 50).astype(str))
            out.write_batch(pa.table({"id": ids, "x": random.normal(size=len(ids)), "kind": kinds.tolist()}))
    return root


if __name__ == "__main__":
    main()
