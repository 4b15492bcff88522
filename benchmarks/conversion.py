"""`convert` beside `dataframe_to_mds` on `local[2]`: rows, tokens and files of pictures.

    python -m benchmarks.conversion --runs 3 --report benchmarks/results/<date>-<name>.md

Each measurement is a process of its own, and the two take turns. Spark's session is started, and has converted a few
rows, before the clock starts; `convert` starts its processes while the clock runs. Both have two cores. Processor time
is that of all processes, the Java virtual machine included: it varies less than seconds where others use the cores.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.environment import ROOT
from benchmarks.photos import Photos

WORKLOADS = ("rows", "tokens", "pictures")
PATHS = ("convert", "spark")
_FILES = 8


def make(workload: str, folder: Path, count: int) -> None:
    """Write the source of a workload, if it is not there."""
    if folder.exists():
        return
    made = folder.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    if workload == "pictures":
        photos = Photos(count)
        for number in range(count):
            photo, label = photos._original(number)
            (made / f"class-{label}").mkdir(exist_ok=True)
            (made / f"class-{label}" / f"{number:06d}.jpg").write_bytes(photo)
    else:
        rng, each = np.random.default_rng(0), count // _FILES
        for number in range(_FILES):
            table = _table(workload, rng, number * each, each)
            pq.write_table(table, made / f"{number}.parquet", row_group_size=each // 4)
    made.rename(folder)


def _table(workload: str, rng: np.random.Generator, begin: int, count: int) -> pa.Table:
    ids = pa.array(np.arange(begin, begin + count))
    if workload == "tokens":
        values = (rng.zipf(1.3, count * 2048) % 50_000).astype(np.int32)
        return pa.table({"id": ids, "tokens": pa.ListArray.from_arrays(np.arange(0, values.size + 1, 2048), values)})
    return pa.table(
        {
            "id": ids,
            "label": rng.integers(0, 1000, count, dtype=np.int32),
            "score": rng.random(count),
            "text": [f"row number {number} of the benchmark" for number in range(begin, begin + count)],
        }
    )


def measure(path: str, workload: str, source: Path, out: Path) -> dict[str, float]:
    """Convert once, and return seconds, processor seconds and memory."""
    shutil.rmtree(out, ignore_errors=True)
    run = _by_convert(workload, source, out) if path == "convert" else _by_spark(workload, source, out)
    before, begin = _cpu_seconds(), time.perf_counter()
    rows = run()
    seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - before
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    shutil.rmtree(out)
    return {"rows": rows, "seconds": seconds, "cpu_seconds": cpu, "peak_mb_of_a_process": peak / 1024}


def _cpu_seconds() -> float:
    process = psutil.Process()
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _by_convert(workload: str, source: Path, out: Path) -> Any:
    from smalti import convert

    columns = {"image": None, "label": None, "path": None} if workload == "pictures" else None
    return lambda: convert(source, out, processes=2, columns=columns).rows


def _by_spark(workload: str, source: Path, out: Path) -> Any:
    from pyspark.sql import functions

    from smalti import dataframe_to_mds
    from smalti.spark import SparkOptions, build_session

    spark = build_session(SparkOptions(master="local[2]"))
    dataframe_to_mds(spark.range(1000), out / "warm", progress=False)

    def frame() -> Any:
        if workload != "pictures":
            return spark.read.parquet(str(source))
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(source))
        label = functions.regexp_extract("path", r"class-(\d+)/", 1).cast("int")
        return files.select(functions.col("content").alias("image"), label.alias("label"), "path")

    columns = {"image": "jpeg", "label": None, "path": None} if workload == "pictures" else None
    return lambda: dataframe_to_mds(frame(), out / "set", progress=False, columns=columns).rows


def main() -> None:
    """Run the comparison, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks" / "conversion")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--counts", default="1000000,20000,6000", help="rows, token rows and pictures")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        path, workload = chosen.child
        if path.isdecimal():
            make(workload, chosen.work / workload, int(path))
            return
        print(json.dumps(measure(path, workload, chosen.work / workload, chosen.work / f"out-{path}")))
        return
    lines = []
    for workload, count in zip(WORKLOADS, map(int, chosen.counts.split(",")), strict=True):
        _in_process(str(count), workload, chosen.work)  # so that its memory is not that of this process
        for number in range(chosen.runs):
            for path in PATHS if number % 2 == 0 else reversed(PATHS):
                lines.append({"workload": workload, "path": path, **_in_process(path, workload, chosen.work)})
                print(json.dumps(lines[-1]), flush=True)
    print(report(lines))
    if chosen.report:
        chosen.report.with_suffix(".json").write_text(json.dumps(lines, indent=1) + "\n")


def _in_process(path: str, workload: str, work: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.conversion", "--child", path, workload, "--work", str(work)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=1800)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return {**found, "load": os.getloadavg()[0]}


def report(lines: list[dict[str, Any]]) -> str:
    """Return the table of medians and ratios."""
    rows = [
        "| source | path | rows/s | rows per processor second | memory of a process, MB | load |",
        "| --- " * 6 + "|",
    ]
    ratios = ["", "| source | rows/s | rows per processor second |", "| --- | --- | --- |"]
    for workload in dict.fromkeys(line["workload"] for line in lines):
        found: dict[str, list[float]] = {}
        for path in PATHS:
            mine = [line for line in lines if (line["workload"], line["path"]) == (workload, path)]
            speeds = [
                statistics.median(line["rows"] / line[unit] for line in mine) for unit in ("seconds", "cpu_seconds")
            ]
            found[path] = speeds
            peak = max(line["peak_mb_of_a_process"] for line in mine)
            load = statistics.median(line["load"] for line in mine)
            rows.append(f"| {workload} | {path} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {peak:,.0f} | {load:.1f} |")
        one, other = found["convert"], found["spark"]
        ratios.append(f"| {workload} | {one[0] / other[0]:.2f} | {one[1] / other[1]:.2f} |")
    return "\n".join([*rows, *ratios])


if __name__ == "__main__":
    main()
