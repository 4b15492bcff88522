"""`export`: a version of a shard set as files of another format.

    find      the version, its split and columns; the schema in the other format is decided
    plan      which samples each file has, from the manifest alone
    begin     put the record of the export into the target, or continue one that was interrupted
    write     files side by side, each put in one step when it is whole
    complete  look all files up, and mark the export as complete

Every shard is verified before its samples are written. An export that stops leaves whole files and a record that says
that it is incomplete; the same call continues it.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from smalti.errors import ArgumentError, MixedSplitsWarning, SchemaError
from smalti.exporting import parquet, record, webdataset
from smalti.exporting.record import FilePlan, plan_files
from smalti.format import parse_byte_count
from smalti.format.reading.arrow import ArrowColumn, encode_schema
from smalti.storage import Place, Store, open_store
from smalti.storage.opening import check_apart
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, spans_of
from smalti.stream.shard_set import ShardSet, find_shard_set

Format = Literal["webdataset", "parquet"]
_MAX_WORKERS = 16
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_DEFAULT_LIMIT = "512mb"


@dataclass(frozen=True)
class ExportReport:
    """The result of an export."""

    url: str
    """Place of the files."""
    format: str
    version: int
    digest: str
    split: str | None
    columns: tuple[str, ...]
    num_samples: int
    num_files: int
    num_bytes: int
    """Bytes of all files."""
    num_reused: int
    """Files that an earlier attempt had written."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _FileWriter:
    """The writer of the files of one export."""

    reader: ArrowReader
    target: Store
    format: str
    names: Mapping[str, str] = field(default_factory=dict)
    compression: str = "zstd"

    def write(self, plan: FilePlan) -> int:
        """Write a file and return its size, bytes."""
        with record.new_object(self.target, plan.key) as path:
            if self.format == "parquet":
                parquet.write_parquet(path, self.reader, plan.spans, self.compression)
            else:
                webdataset.write_tar(path, self.reader, plan.spans, self.names)
            return path.stat().st_size


def export(  # noqa: PLR0913 -- the options of one call
    place: Place,
    to: Place,
    *,
    format: Format,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    size_limit: int | str = _DEFAULT_LIMIT,
    compression: str | None = None,
    workers: int | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write a version as WebDataset tar files or as Parquet files with the same values; docs/export.md.

    An export that was interrupted continues where it stopped when it is called again with the same arguments; a
    complete one is left as it is.

    Args:
        place: The root of the set: a URL, folder or store.
        to: A folder, URL or store for the files: empty, or with an incomplete export of the same version and options.
        format: "webdataset" or "parquet".
        version: The number of the version; the newest by default.
        tag: Its tag, instead of the number.
        split: The split; by default all, each in a folder of its name.
        columns: Columns to write; all by default.
        names: Of WebDataset, endings of members by column, such as {"image": "jpg", "label": "cls"}; by default the
            column's name and an ending for its type.
        size_limit: Bytes of the samples of a file, before compression, as a number or as "512mb".
        compression: Of Parquet: zstd (the default), snappy, gzip, lz4, brotli or none. Images are not compressed again.
        workers: Files that are written at a time; by default one for each core.
        on_file: Called with (done, total) after each file.

    Raises:
        StoreNotFound: There is no set.
        VersionNotFound: There is no such version, tag or split.
        SchemaError: There is no such column, or one has no form in the other format.
        CatalogError: `to` holds something else; or it is the set's own place, or one lies inside the other.
        ChecksumMismatch, FormatError: A shard is damaged.
        StoreError: A store failed; the same call continues.
        ValueError: An option cannot be used.

    Examples:
        >>> report = export("s3://bucket/users", "s3://bucket/users-parquet", format="parquet")
        >>> report.num_samples, report.num_files
        (15, 1)
    """
    _check_options(format, names, compression, workers)
    limit = parse_byte_count(size_limit, what="`size_limit`")
    source, target = open_store(place), open_store(to)
    check_apart(source, target, advice="export to another place")
    with warnings.catch_warnings():  # each split gets a folder of its own
        warnings.simplefilter("ignore", MixedSplitsWarning)
        found = find_shard_set(StreamOptions(source.url, split, version, tag, store=source, allow_unsafe_types=True))
    reader = ArrowReader.of(found, columns)
    _require_columns(reader)
    writer = _FileWriter(reader, target, format, dict(names or {}), compression or "zstd")
    suffix, overhead = _layout(writer)
    plans = plan_files(spans_of(found), suffix, limit, overhead)
    facts = _facts(found, writer, limit)
    sizes, is_complete = record.begin(target, facts, plans)
    reused = len(sizes)
    missing = [plan for plan in plans if plan.key not in sizes]
    if not is_complete:
        sizes |= _write_all(writer, missing, workers, lambda done: on_file and on_file(reused + done, len(plans)))
        record.complete(target, facts, plans, sizes)
    return ExportReport(
        url=target.url,
        format=format,
        version=found.manifest.version,
        digest=found.manifest.digest,
        split=found.options.split,
        columns=tuple(column.name for column in reader.columns),
        num_samples=sum(plan.num_samples for plan in plans),
        num_files=len(plans),
        num_bytes=sum(sizes.values()),
        num_reused=reused,
    )


def _check_options(format: str, names: Any, compression: str | None, workers: int | None) -> None:
    if format not in get_args(Format):
        raise ArgumentError(f"`format`: expected one of {', '.join(get_args(Format))}, found {format!r}")
    if names and format != "webdataset":
        raise ArgumentError("`names` are endings of members of tar files; a Parquet file has the columns' own names")
    if compression is not None and format != "parquet":
        raise ArgumentError("`compression` is Parquet's; tar files of WebDataset are not compressed")
    if compression is not None and compression not in _COMPRESSIONS:
        raise ArgumentError(f"`compression`: expected one of {', '.join(_COMPRESSIONS)}, found {compression!r}")
    if workers is not None and workers < 1:
        raise ArgumentError(f"`workers` is {workers}; expected at least 1")


def _require_columns(reader: ArrowReader) -> None:
    if not reader.columns:
        raise SchemaError("the export has no columns: name at least one in `columns`")


def _layout(writer: _FileWriter) -> tuple[str, int]:
    """Return the ending of the files' names, and the bytes that the format adds to a sample."""
    if writer.format == "parquet":
        return parquet.SUFFIX, 0
    plans = webdataset.member_plans(writer.reader.columns, writer.names, writer.reader.logical)
    return webdataset.SUFFIX, webdataset.OVERHEAD * len(plans)


def _facts(found: ShardSet, writer: _FileWriter, limit: int) -> dict[str, Any]:
    """Return what the record says of the export."""
    manifest, reader = found.manifest, writer.reader
    source = {
        "url": found.store.url,
        "version": manifest.version,
        "digest": manifest.digest,
        "split": found.options.split,
    }
    facts: dict[str, Any] = {
        "format": writer.format,
        "source": source,
        "size_limit": limit,
        "columns": [column.name for column in reader.columns],
        "schema": encode_schema(reader.schema),
    }
    if writer.format == "parquet":
        facts["compression"] = writer.compression
    else:
        plans = webdataset.member_plans(reader.columns, writer.names, reader.logical)
        facts["members"] = {plan.column.name: plan.extension for plan in plans}
        facts["stored"] = {column.name: _stored(reader, column) for column in reader.columns}
    identity = {key: value for key, value in facts.items() if key != "source"} | {
        "digest": manifest.digest,
        "split": found.options.split,
    }
    return {"fingerprint": record.fingerprint_of(identity), **facts}


def _stored(reader: ArrowReader, column: ArrowColumn) -> dict[str, Any]:
    """Return encoding and logical type of a column, by which a conversion stores its members again."""
    logical = {key: value for key, value in reader.logical.get(column.name, {}).items() if key != "mask"}
    has_type = logical.get("type") not in (None, "plain")
    return {"encoding": column.encoding, **({"logical": logical} if has_type else {})}


def _write_all(
    writer: _FileWriter, plans: Sequence[FilePlan], workers: int | None, on_done: Callable[[int], Any]
) -> dict[str, int]:
    """Write files side by side; the first error stops the export once the files that were begun are whole or gone."""
    sizes: dict[str, int] = {}
    count = min(workers or min(os.cpu_count() or 1, _MAX_WORKERS), max(1, len(plans)))
    with ThreadPoolExecutor(count, thread_name_prefix="smalti-export") as pool:
        running: dict[Future[int], str] = {}
        waiting = iter(plans)
        try:
            while True:
                for plan in waiting:
                    running[pool.submit(writer.write, plan)] = plan.key
                    if len(running) >= count:
                        break
                if not running:
                    return sizes
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    sizes[running.pop(future)] = future.result()
                    on_done(len(sizes))
        except BaseException:
            for future in running:
                future.cancel()
            raise
