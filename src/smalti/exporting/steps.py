"""`export`: a version of a shard set as files of another format.

    find      the version, its split and columns; the schema in the other format is decided
    plan      which samples each file has, from the manifest alone
    begin     put the record of the export into the target, or continue one that was interrupted
    write     files side by side, each put in one step when it is whole
    complete  look all files up, and mark the export as complete

Every shard is verified before its samples are written. An export that stops leaves whole files and a record that says
that it is incomplete; the same call continues it.

`_smalti_export.json` is put before the first file, with `"complete": false`, and replaced after the last one. Files are
put in one step each, so a file that exists is whole. An empty `_SUCCESS` is put last, as Spark does, for programs that
wait for it. Names that begin with `_` are ignored by readers of folders of Parquet files.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.errors import (
    ArgumentError,
    CatalogError,
    FormatError,
    SchemaError,
    StoreError,
    StoreExists,
    StoreNotFound,
)
from smalti.exporting import webdataset
from smalti.format import load_strict, parse_byte_count
from smalti.format.index import MAX_INDEX_BYTES
from smalti.format.reading.arrow import STORED_AS, encode_schema
from smalti.storage import Place, Store, open_store
from smalti.storage.local import sync_path
from smalti.storage.opening import check_apart
from smalti.storage.store import put_own, temporary_name
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, RowSpan, group_spans, spans_of
from smalti.stream.shard_set import ShardSet, load_shard_set

Format = Literal["webdataset", "parquet"]
_MAX_WORKERS = 16
_ROW_GROUP_BYTES = 32 << 20  # of Parquet, in memory; readers load and skip a row group as a whole
_COMPRESSED_ALREADY = (b"jpeg", b"png")
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_DEFAULT_LIMIT = "512mb"
RECORD = "_smalti_export.json"
SUCCESS = "_SUCCESS"
_FORMAT = 1
_ADVICE = "give another folder, or remove this one"


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
class FilePlan:
    """One file to write."""

    key: str
    """Name below the target, such as `train/part-00003-of-00012.tar`."""
    spans: tuple[RowSpan, ...]

    @property
    def num_samples(self) -> int:
        """Samples of the file."""
        return sum(span.end - span.begin for span in self.spans)


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
    # No warning of splits: each gets a folder of its own.
    found = load_shard_set(StreamOptions(source.url, split, version, tag, store=source, allow_unsafe_types=True))
    reader = ArrowReader.of(found, columns)
    if not reader.columns:
        raise SchemaError("the export has no columns: name at least one in `columns`")
    is_parquet, codec = format == "parquet", compression or "zstd"
    members = [] if is_parquet else webdataset.member_plans(reader.columns, names or {}, reader.logical)
    suffix = ".parquet" if is_parquet else webdataset.SUFFIX
    plans = _plan_files(spans_of(found), suffix, limit, webdataset.OVERHEAD * len(members))
    facts = _facts(found, reader, limit, codec if is_parquet else None, members)

    def write(plan: FilePlan) -> int:
        with _new_object(target, plan.key) as path:
            if is_parquet:
                _write_parquet(path, reader, plan.spans, codec)
            else:
                webdataset.write_tar(path, reader, plan.spans, members)
            return path.stat().st_size

    sizes, is_complete = _begin(target, facts, plans)
    reused = len(sizes)
    missing = [plan for plan in plans if plan.key not in sizes]
    if not is_complete:
        sizes |= _write_all(write, missing, workers, lambda done: on_file and on_file(reused + done, len(plans)))
        _complete(target, facts, plans, sizes)
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


def _facts(
    found: ShardSet, reader: ArrowReader, limit: int, codec: str | None, members: Sequence[webdataset.MemberPlan]
) -> dict[str, Any]:
    """Return what the record says of the export; `codec` is that of Parquet, and None for tar files."""
    identity = {"digest": found.manifest.digest, "split": found.options.split}
    facts: dict[str, Any] = {
        "format": "parquet" if codec else "webdataset",
        "source": {"url": found.store.url, "version": found.manifest.version, **identity},
        "size_limit": limit,
        "columns": [column.name for column in reader.columns],
        "schema": encode_schema(reader.schema),
    }
    if codec is not None:
        facts["compression"] = codec
    else:
        facts["members"] = {plan.column.name: plan.extension for plan in members}
        facts["stored"] = {}
        for column in reader.columns:  # by which a conversion stores its members again
            logical = {key: value for key, value in reader.logical.get(column.name, {}).items() if key != "mask"}
            has_type = logical.get("type") not in (None, "plain")
            facts["stored"][column.name] = {"encoding": column.encoding, **({"logical": logical} if has_type else {})}
    # Equal fingerprints mean equal files.
    marks = {name: value for name, value in facts.items() if name != "source"} | identity
    return {"fingerprint": hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest(), **facts}


def _write_all(
    write: Callable[[FilePlan], int], plans: Sequence[FilePlan], workers: int | None, on_done: Callable[[int], Any]
) -> dict[str, int]:
    """Write files side by side; the first error stops the export once the files that were begun are whole or gone."""
    sizes: dict[str, int] = {}
    count = min(workers or min(os.cpu_count() or 1, _MAX_WORKERS), max(1, len(plans)))
    with ThreadPoolExecutor(count, thread_name_prefix="smalti-export") as pool:
        waiting = iter(plans)
        running = {pool.submit(write, plan): plan.key for plan in islice(waiting, count)}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                sizes[running.pop(future)] = future.result()
                on_done(len(sizes))
            running |= {pool.submit(write, plan): plan.key for plan in islice(waiting, count - len(running))}
    return sizes


def _plan_files(spans: Sequence[RowSpan], suffix: str, size_limit: int, overhead: int = 0) -> list[FilePlan]:
    """Return the files of an export, by split and in the order of the samples.

    Args:
        spans: All samples; those of a split are neighbours.
        suffix: Ending of the files' names.
        size_limit: Most bytes of samples in a file, before compression and about: an average of each shard counts.
        overhead: Bytes that the format adds to each sample.
    """
    splits: dict[str | None, list[RowSpan]] = {}
    for span in spans:
        splits.setdefault(span.shards[0].partition, []).append(span)
    plans = []
    for split, members in splits.items():
        groups = group_spans(members, size_limit, overhead)
        folder = f"{split}/" if split else ""
        width = max(5, len(str(len(groups))))
        for number, group in enumerate(groups):
            key = f"{folder}part-{number:0{width}d}-of-{len(groups):0{width}d}{suffix}"
            plans.append(FilePlan(key, tuple(group)))
    return plans


def _begin(store: Store, facts: Mapping[str, Any], plans: Sequence[FilePlan]) -> tuple[dict[str, int], bool]:
    """Put the record, or find the one of an earlier attempt.

    Returns:
        The files that exist already, with their sizes, and whether that is the whole export. A file whose size is not
        that of a complete record is not one of them: another program has changed it.

    Raises:
        CatalogError: The target holds something else.
        StoreError: The store failed.
    """
    known = _read_record(store)
    if known is None:
        first = next(iter(store.list()), None)
        if first is not None:
            raise CatalogError(
                f"{store.url} is not empty: it has {first.key!r}, and no export; {_ADVICE}",
                url=store.url,
                key=first.key,
            )
        try:
            put_own(store, RECORD, _encode(facts, plans, {}, is_complete=False))
            return {}, False
        except StoreExists:  # another process
            known = _read_record(store)
    if known is None or known.get("fingerprint") != facts["fingerprint"]:
        other = known.get("source") if known is not None else None
        source = f"version {other['version']} of {other['url']}" if isinstance(other, dict) else "unknown"
        raise CatalogError(
            f"{store.url} holds another export ({source}), of another version or with other options; {_ADVICE}",
            url=store.url,
        )
    present = {item.key: item.num_bytes for item in store.list()}
    recorded = {entry["name"]: entry.get("bytes") for entry in known["files"]}
    sizes = {
        plan.key: present[plan.key]
        for plan in plans
        if plan.key in present and recorded.get(plan.key) in {None, present[plan.key]}
    }
    return sizes, bool(known["complete"]) and len(sizes) == len(plans) and SUCCESS in present


def _complete(store: Store, facts: Mapping[str, Any], plans: Sequence[FilePlan], sizes: Mapping[str, int]) -> None:
    """Check that all files are in the store, and mark the export as complete.

    Raises:
        StoreNotFound: A file was removed meanwhile.
    """
    found = {item.key: item.num_bytes for item in store.list()}
    for plan in plans:
        if found.get(plan.key) != sizes[plan.key]:
            raise StoreNotFound(
                f"{store.locate(plan.key)}: expected {sizes[plan.key]} bytes, found {found.get(plan.key, 'no file')}; "
                "another program changed the target during the export: run it again",
                key=plan.key,
                url=store.url,
            )
    for upload in list(store.unfinished_uploads()):  # of attempts that were killed
        if upload.key in sizes:
            store.abort_upload(upload)
    store.put(RECORD, _encode(facts, plans, sizes, is_complete=True))
    store.put(SUCCESS, b"")


def _read_record(store: Store) -> dict[str, Any] | None:
    """Return the record of an export; None if there is none.

    Raises:
        FormatError: It cannot be read.
    """
    try:
        data = store.get_limited(RECORD, MAX_INDEX_BYTES)
    except StoreNotFound:
        return None
    record = load_strict(data, where=store.locate(RECORD))
    if not isinstance(record, dict) or record.get("smalti_export") != _FORMAT:
        raise FormatError(
            f"{store.locate(RECORD)}: expected the record of an export in format {_FORMAT}; update smalti", key=RECORD
        )
    return record


def _encode(
    facts: Mapping[str, Any], plans: Sequence[FilePlan], sizes: Mapping[str, int], *, is_complete: bool
) -> bytes:
    files = [
        {"name": plan.key, "samples": plan.num_samples} | ({"bytes": sizes[plan.key]} if plan.key in sizes else {})
        for plan in plans
    ]
    record = {"smalti_export": _FORMAT, "complete": is_complete, **facts, "files": files}
    return json.dumps(record, indent=1).encode()


def _write_parquet(path: Path, reader: ArrowReader, spans: Iterable[RowSpan], compression: str) -> None:
    """Write the samples of these spans to a new file; memory holds one row group."""
    schema = reader.schema
    codecs = {field.name: compression for field in schema if not _is_image(field)}
    words = [field.name for field in schema if _repeats(field.type)]
    with pq.ParquetWriter(
        path,
        schema,
        compression=codecs or "none",
        use_dictionary=words or False,
        write_statistics=[field.name for field in schema if not _is_image(field)] or False,
    ) as writer:
        batches = chain.from_iterable(map(reader.batches, spans))
        while (batch := next(batches, None)) is not None:
            group, num_bytes = [batch], batch.nbytes
            while num_bytes < _ROW_GROUP_BYTES and (batch := next(batches, None)) is not None:
                group.append(batch)
                num_bytes += batch.nbytes
            table = pa.Table.from_batches(group, schema)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            del group, batch, table  # before the next group is read


def _is_image(field: pa.Field) -> bool:
    return (field.metadata or {}).get(STORED_AS) in _COMPRESSED_ALREADY


def _repeats(kind: pa.DataType) -> bool:
    """Return whether a dictionary of values is worth trying: for words and integers, not for arrays and files."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind))


@contextmanager
def _new_object(store: Store, key: str) -> Iterator[Path]:
    """Yield the path of a file to write, and put it under the key in one step afterwards; nothing after an error.

    Raises:
        StoreError: The file cannot be written or put.
    """
    target = store.local_path(key)
    try:
        if target is None:
            with TemporaryDirectory(prefix="smalti-export-") as folder:
                path = Path(folder) / "file"
                yield path
                store.put_file(key, path)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        path = target.parent / temporary_name(target.name)
        try:
            yield path
            sync_path(path)
            path.replace(target)
        finally:
            path.unlink(missing_ok=True)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot write {store.locate(key)}: {error.strerror or error}", key=key, url=store.url
        ) from error
