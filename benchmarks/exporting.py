"""`export` and the sources of `convert` on one core's time: rows and megabytes per second of processor time.

    python -m benchmarks.exporting --folder /tmp/exporting --scale 1

The best of three runs each; processor time varies less than seconds where others use the cores.
"""

import argparse
import io
import json
import resource
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from smalti import MDSWriter, export, load_manifest
from smalti.conversion.registry import open_source

_RUNS = 3


def make(folder: Path, scale: float) -> dict[str, int]:
    """Write the sets and files that are not there yet; return their numbers of rows."""
    counts = {"pictures": int(6000 * scale), "rows": int(400_000 * scale), "lines": int(1_000_000 * scale)}
    random = np.random.default_rng(0)
    if not (folder / "pictures").exists():
        with MDSWriter(out=str(folder / "pictures"), columns={"image": "jpeg", "label": "int64"}) as writer:
            files = [_jpeg(random) for _ in range(50)]
            for number in range(counts["pictures"]):
                writer.write({"image": files[number % 50], "label": number})
    if not (folder / "rows").exists():
        columns = {"id": "int64", "text": "str", "x": "float64", "v": "ndarray:float32:16"}
        with MDSWriter(out=str(folder / "rows"), columns=columns, compression="zstd") as writer:
            for number in range(counts["rows"]):
                vector = np.full(16, number, np.float32)
                writer.write({"id": number, "text": f"row {number} of some words", "x": number / 7, "v": vector})
    if not (folder / "lines.csv").exists():
        lines = [f"{each},name {each},{each / 7:.6f},2024-01-{each % 28 + 1:02d}\n" for each in range(counts["lines"])]
        (folder / "lines.csv").write_text("id,name,x,day\n" + "".join(lines))
        values = ({"id": each, "name": f"name {each}", "x": each / 7} for each in range(counts["lines"]))
        (folder / "lines.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    return counts


def _jpeg(random: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def measure(name: str, call: Callable[[], object], rows: int, num_bytes: int) -> None:
    """Run and print a row of the table."""
    found = []
    for _ in range(_RUNS):
        used, seconds = _processor_time(), time.perf_counter()
        call()
        found.append((_processor_time() - used, time.perf_counter() - seconds))
    used, seconds = min(found)
    megabytes = num_bytes / 1e6
    print(f"| {name} | {rows:,} | {megabytes:.0f} | {rows / used:,.0f} | {megabytes / used:.0f} | {seconds:.2f} |")


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _size(place: Path) -> int:
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in paths)


def _export(source: Path, target: Path, format: str, workers: int) -> None:
    shutil.rmtree(target, ignore_errors=True)
    export(
        source, target, format="parquet" if format == "parquet" else "webdataset", size_limit="64mb", workers=workers
    )


def _read(place: Path) -> Callable[[], object]:
    source = open_source(place)
    return lambda: [batch.num_rows for part in source.parts() for batch in part.batches()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    counts = make(folder, options.scale)
    print("| work | rows | MB | rows/s of a core | MB/s of a core | seconds |\n|---|---|---|---|---|---|")
    for name in ("pictures", "rows"):
        raw = sum(shard.raw.num_bytes for shard in load_manifest(folder / name).shards)
        for format in ("parquet", "webdataset"):
            for workers in (1, 2):
                label = f"export {name} to {format}, {workers} at a time"
                measure(label, partial(_export, folder / name, folder / format, format, workers), counts[name], raw)
    for name in ("lines.csv", "lines.jsonl"):
        place = folder / name
        measure(f"{name}: learn the types", partial(open_source, place), counts["lines"], _size(place))
        measure(f"{name}: read", _read(place), counts["lines"], _size(place))
    _export(folder / "pictures", folder / "webdataset", "webdataset", 2)
    measure(
        "tar files of pictures: read", _read(folder / "webdataset"), counts["pictures"], _size(folder / "webdataset")
    )
    measure("shard set of rows: read", _read(folder / "rows"), counts["rows"], _size(folder / "rows"))


if __name__ == "__main__":
    main()
