"""Prepared images as Parquet files in any store, replaced atomically; needs no Hadoop connector.

<path>/_prepared.json              names the current parts and their content; stored last, replaced in one step
<path>/<write id>/part-….parquet   immutable; those of the current write and of the one before, for running readers
"""

import contextlib
import json
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.errors import BadImageError, FormatError, SchemaError, StoreError, StoreNotFound
from smalti.spark.prepare import bad_images, policy_of
from smalti.spark.tasks import Attempt, TaskFunction, make_frame, map_in_arrow, run_tasks
from smalti.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REPORT = "_prepared.json"
_READ_ROWS = 256


@dataclass(frozen=True)
class PreparedReport:
    """The content of a data set of `write_prepared`."""

    path: str
    """Address of the data set."""
    parquet: str
    """Address of the folder with the current Parquet files, for other readers of Parquet."""
    rows: int
    """Number of usable images."""
    num_bytes: int
    """Bytes of the Parquet files."""
    counts: Mapping[str, Mapping[str, int]]
    """Split to class to number of images."""
    bad: tuple[tuple[str, str], ...]
    """(path, reason) of every file that was left out."""


def write_prepared(
    df: "DataFrame", path: str | Path, *, storage_options: Mapping[str, Any] | None = None
) -> PreparedReport:
    """Write the frame of `prepare_images` as Parquet, in one pass; readers see all of it or the previous write.

    Args:
        df: Frame of `prepare_images`; it may have further columns.
        path: A local folder or any address that `open_store` accepts.
        storage_options: Credentials and endpoint of that store.

    Raises:
        BadImageError: The policy is `fail` and there are bad images, which are all named; or no image is usable.
        SchemaError: The frame is not of `prepare_images`.
        StoreError: An image cannot be read, or the result cannot be written.
    """
    policy = policy_of(df.schema)
    if policy is None:
        raise SchemaError("write_prepared takes the frame of prepare_images, with its `error` column and policy")
    store, write_id = open_store(path, storage_options), secrets.token_hex(8)
    try:
        answers = run_tasks(df, part_writer(store.child(write_id)))
        bad = sorted((path, reason) for _, answer in answers for path, reason in answer["bad"])
        rows = sum(answer["rows"] for _, answer in answers)
        if bad and (policy == "fail" or rows == 0):
            raise bad_images(bad, of=rows + len(bad))
        if rows == 0:
            raise BadImageError("there is no image to prepare: the frame is empty")
    except BaseException:
        delete_folder(store, write_id)
        raise
    parts = [part for _, answer in answers if (part := answer["part"]) is not None]
    previous = _load(store)
    report = {
        "write_id": write_id,
        "previous": previous["write_id"] if previous else None,
        "schema": df.drop("error").schema.jsonValue(),
        "parts": parts,
        "counts": _merge([answer["counts"] for _, answer in answers]),
        "bad": bad,
    }
    store.put(_REPORT, json.dumps(report, indent=1).encode())
    if previous and previous["previous"]:
        delete_folder(store, previous["previous"])
    return _report(store, report)


def load_report(path: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> PreparedReport:
    """Return the content of a data set of `write_prepared`.

    Raises:
        StoreNotFound: Nothing was written there.
    """
    store = open_store(path, storage_options)
    return _report(store, _require(store))


def read_prepared(
    spark: "SparkSession", path: str | Path, *, storage_options: Mapping[str, Any] | None = None
) -> "DataFrame":
    """Return the rows that `write_prepared` wrote, one partition per Parquet file, in the same order everywhere; lazy.

    Raises:
        StoreNotFound: Nothing was written there.
    """
    from pyspark.sql.types import StructType

    store = open_store(path, storage_options)
    report = _require(store)
    keys = [(place, f"{report['write_id']}/{part['name']}") for place, part in enumerate(report["parts"])]
    frame = make_frame(spark, keys, "place int, key string").repartitionByRange(len(keys), "place")
    return map_in_arrow(frame, _part_reader(store), StructType.fromJson(report["schema"]))


def _require(store: Store) -> dict[str, Any]:
    report = _load(store)
    if report is None:
        raise StoreNotFound(f"{store.url}: no prepared images here ({_REPORT} is missing); write_prepared makes them")
    return report


def _load(store: Store) -> dict[str, Any] | None:
    try:
        data = store.get(_REPORT)
    except StoreNotFound:
        return None
    try:
        report: dict[str, Any] = json.loads(data)
        report["write_id"], report["previous"], report["parts"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{store.locate(_REPORT)} is not what write_prepared writes; prepare the images again"
        ) from error
    return report


def _report(store: Store, report: dict[str, Any]) -> PreparedReport:
    return PreparedReport(
        path=store.url,
        parquet=store.locate(report["write_id"]),
        rows=sum(part["rows"] for part in report["parts"]),
        num_bytes=sum(part["num_bytes"] for part in report["parts"]),
        counts=report["counts"],
        bad=tuple((path, reason) for path, reason in report["bad"]),
    )


def _merge(counts: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    merged: dict[str, Counter[str]] = {}
    for part in counts:
        for split, classes in part.items():
            merged.setdefault(split, Counter()).update(classes)
    return {split: dict(sorted(merged[split].items())) for split in sorted(merged)}


def delete_folder(store: Store, name: str) -> None:
    """Delete all objects of a folder. Best effort: nothing names what remains, and errors are ignored."""
    with contextlib.suppress(StoreError):
        for item in store.list(name):
            store.delete(item.key)


def part_writer(store: Store) -> TaskFunction:
    """Return the work of a task: write good rows to one Parquet file, and answer with the bad ones."""

    def work(batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
        tally: dict[str, Counter[str]] = {}
        bad: list[tuple[str, str]] = []
        with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
            file = Path(folder) / "part.parquet"
            rows = write_part(file, _good_rows(batches, tally, bad))
            answer: dict[str, Any] = {"rows": rows, "counts": tally, "bad": bad, "part": None}
            if rows:
                name = f"part-{attempt.name}.parquet"
                num_bytes = file.stat().st_size
                store.put_file(name, file)
                if (stored := store.size(name)) != num_bytes:
                    raise StoreError(f"{store.locate(name)}: {num_bytes} bytes were put, {stored} are there; try again")
                answer["part"] = {"name": name, "rows": rows, "num_bytes": num_bytes}
        return answer

    return work


def _good_rows(
    batches: Iterator[pa.RecordBatch], tally: dict[str, Counter[str]], bad: list[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        is_good = pc.is_null(batch.column("error"))
        refused = batch.filter(pc.invert(is_good))
        bad.extend(zip(refused.column("path").to_pylist(), refused.column("error").to_pylist(), strict=True))
        good = batch.filter(is_good).drop_columns(["error"])
        for split, name in zip(good.column("split").to_pylist(), good.column("class_name").to_pylist(), strict=True):
            tally.setdefault(split, Counter())[name] += 1
        if good.num_rows:
            yield good


def write_part(file: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the rows to one Parquet file, and return their number; without rows there is no file."""
    rows = 0
    first = next(batches, None)
    if first is None:
        return 0
    names = first.schema.names
    compression = {name: "NONE" if name == "image" else "ZSTD" for name in names}  # JPEG does not compress again
    repeated = [name for name in ("class_name", "split", "label") if name in names]
    with pq.ParquetWriter(file, first.schema, compression=compression, use_dictionary=repeated) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            writer.write_batch(batch)
            rows += batch.num_rows
            batch = next(batches, None)
    return rows


def local_part(store: Store, part: str, folder: Path) -> Path:
    """Return a part as a local file: the object itself if the store is a folder, else a copy in `folder`.

    Raises:
        StoreNotFound: The part is gone.
    """
    file = store.local_path(part)
    if file is None:
        file = folder / "part.parquet"
        with file.open("wb") as out:
            store.fetch(part, out)
    elif not file.is_file():
        raise StoreNotFound(f"{file} is gone, or is on another machine; use storage that all workers share", key=part)
    return file


def _part_reader(store: Store) -> Any:
    """Return the function that a task runs: it reads the Parquet files that its rows name."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted((row["place"], row["key"]) for batch in batches for row in batch.to_pylist())
        for _, key in rows:
            with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
                file = local_part(store, key, Path(folder))
                yield from pq.ParquetFile(file).iter_batches(batch_size=_READ_ROWS)

    return task
