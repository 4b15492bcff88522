"""One conversion by several processes or machines: begin, write parts, publish.

    begin     plan the conversion, and store its record as `<id>/conversion.json`; idempotent
    parts     each machine writes a share of the groups; the answer of each becomes `<id>/part-00003.json`, by a put
              that only one attempt of a part wins; idempotent: parts that have answers are not written again
    publish   check that every part has its answer, and commit the version; idempotent

The record has the source and all options but credentials, so that a machine needs the place, the id and its own
credentials. The source has to be what it was: its parts and its identity are compared with the record. A conversion
that is abandoned leaves objects below its id, which a vacuum recognises and removes as those of every writer.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.manifest import check_json
from smalti.catalog.publishing import Mode
from smalti.catalog.reading import find_newest
from smalti.catalog.retention import markers
from smalti.conversion.conversion import (
    OnProgress,
    Runner,
    count_processes,
    remove_attempts,
    remove_shards,
    source_options,
)
from smalti.conversion.job import Job, check_unchanged, plan_job
from smalti.conversion.registry import Format, open_source
from smalti.conversion.source import SourceOptions
from smalti.errors import CatalogError, SmaltiError, StoreExists, StoreNotFound
from smalti.storage import Place, Store, open_store
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import collect_parts, delete_all
from smalti.writer.tables.plan import WriteOptions, check_append, require
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.versions import Write, derive_write_id, identify, options_in_id, write_version

_RECORD = "conversion.json"
_OPTIONS = (
    "columns", "nulls", "compression", "hashes", "size_limit", "partition_by", "mode", "lineage", "metadata",
)  # fmt: skip
_READERS = 16
_MAX_SHOWN = 20


@dataclass(frozen=True)
class PartsWritten:
    """The outcome of one call of `Conversion.write_part`."""

    written: tuple[int, ...]
    """Numbers of the parts that this call wrote."""
    skipped: tuple[int, ...]
    """Numbers of the parts of this share that were written before."""
    rows: int
    """Rows that this call wrote."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields (JSON)."""
        return {"written": list(self.written), "skipped": list(self.skipped), "rows": self.rows}


class Conversion:
    """A conversion whose parts are written by any number of processes and machines."""

    def __init__(self, store: Store, write_id: str, job: Job | None, write: Write) -> None:
        """Create the handle; use `begin_conversion` or `open_conversion`."""
        self._store = store
        self._id = write_id
        self._job = job
        self._write = write

    @property
    def id(self) -> str:
        """Name of the conversion, by which other machines open it."""
        return self._id

    @property
    def parts(self) -> int:
        """Number of parts; 0 if it is published already."""
        return 0 if self._job is None else len(self._job.groups)

    @property
    def is_published(self) -> bool:
        """True if the version was there when the conversion was begun or opened."""
        return self._job is None

    def to_dict(self) -> dict[str, Any]:
        """Return id and number of parts (JSON)."""
        return {"id": self.id, "parts": self.parts, "is_published": self.is_published}

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not written yet, 0-based."""
        keys = {item.key for item in self._store.list(self._id)}
        return [number for number in range(self.parts) if _part_key(self._id, number) not in keys]

    def write_part(
        self, number: int = 1, of: int = 1, *, processes: int | None = None, on_progress: OnProgress | None = None
    ) -> PartsWritten:
        """Write share `number` of `of` of the parts, 1-based, as far as they are not written yet; blocks.

        Idempotent: after a failure, call it again. Two calls with the same share do no harm beyond doubled work.

        Raises:
            SmaltiError: As for `convert`; parts that were written stay written.
            CatalogError: The conversion was removed by a vacuum.
            ValueError: There is no such share.
        """
        require("of", "1 or more", of, met=type(of) is int and of >= 1)
        require("number", f"a share from 1 to {of}", number, met=type(number) is int and 1 <= number <= of)
        job = self._job
        share = range(number - 1, self.parts, of)
        if job is None or _version_of(self._store, self._id) is not None:
            return PartsWritten((), tuple(share), 0)
        todo = set(self.missing())
        markers.begin(self._store, self._id)  # renews it: the conversion is in progress
        plan = dataclasses.replace(job.plan, write_id=self._id)
        runner = Runner(count_processes(processes), on_progress)
        rows = 0
        written: list[int] = []

        def keep(attempt: Attempt, answer: dict[str, Any]) -> None:
            nonlocal rows
            if self._keep(attempt, answer):
                written.append(attempt.task)
                parts = collect_parts([(attempt, answer)])
                rows += sum(info.samples for part in parts for info in part.shards())

        numbers = [each for each in share if each in todo]
        check_unchanged(job)
        runner.write(plan, [job.groups[each] for each in numbers], numbers, keep)
        remove_attempts(self._store, self._id, runner.lost, {None})
        return PartsWritten(tuple(sorted(written)), tuple(each for each in share if each not in written), rows)

    def publish(self) -> Manifest:
        """Publish the version once all parts are written; blocks. Idempotent.

        Raises:
            CatalogError: Parts are missing; the message names them. Or the conversion was removed by a vacuum.
            CommitConflict: Another writer published first; publish again after looking at its version.
            SmaltiError: The source changed since the conversion began.
            Otherwise: As for `convert`.
        """
        version, job = _version_of(self._store, self._id), self._job
        if version is not None or job is None:
            return load_manifest(self._store, version=version)
        check_unchanged(job)
        plan = dataclasses.replace(job.plan, write_id=self._id)
        runner = Runner(count_processes(None))
        try:
            published = write_version(plan, self._write, job.options, lambda _: self._answers(), runner.join)
        except SmaltiError:
            version = _version_of(self._store, self._id)
            if version is None:
                raise
            return load_manifest(self._store, version=version)  # another call published, and removed its records
        records = [_part_key(self._id, number) for number in range(self.parts)]
        delete_all(self._store, [*records, f"{self._id}/{_RECORD}"])
        return published.manifest

    def _keep(self, attempt: Attempt, answer: dict[str, Any]) -> bool:
        """Store the answer of a part; if another attempt has stored one before, remove the shards of this one."""
        record = {"attempt": attempt.attempt, "answer": answer}
        try:
            self._store.put_if_absent(_part_key(self._id, attempt.task), json.dumps(record).encode())
        except StoreExists:
            winner = json.loads(self._store.get(_part_key(self._id, attempt.task)))
            if winner["attempt"] != attempt.attempt:  # after a lost reply it may be our own
                remove_shards(self._store, [(attempt, answer)])
                return False
        return True

    def _answers(self) -> Answers:
        def read(number: int) -> tuple[Attempt, dict[str, Any]] | None:
            try:
                record = json.loads(self._store.get(_part_key(self._id, number)))
            except StoreNotFound:
                return None
            return Attempt(number, record["attempt"]), record["answer"]

        if not self.parts:
            return []
        with ThreadPoolExecutor(min(_READERS, self.parts), thread_name_prefix="smalti-parts") as pool:
            found = list(pool.map(read, range(self.parts)))
        missing = [str(number) for number, answer in enumerate(found) if answer is None]
        if missing:
            more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
            raise CatalogError(
                f"{self._store.url}: conversion {self._id} has {len(missing)} of {self.parts} parts missing: "
                f"{', '.join(missing[:_MAX_SHOWN])}{more}; nothing was published. Write them, and publish again",
                missing=len(missing),
                write_id=self._id,
            )
        return [answer for answer in found if answer is not None]


def begin_conversion(  # noqa: PLR0913  these names are the documented interface
    source: Any,
    to: Place,
    *,
    format: Format | None = None,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "auto",
    hashes: Sequence[str] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    transform: Transform | TransformFunction | None = None,
    partition_by: str | None = None,
    mode: Mode = "create",
    write_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    part_bytes: int | str | None = None,
) -> Conversion:
    """Begin a conversion whose parts any number of processes and machines write; no row is written yet.

    The arguments are those of `convert`. Idempotent: a call with the same arguments over the same source, or with the
    same `write_id`, returns the same conversion, so that every machine may call it. A local path of the source has to
    mean the same files on all machines.

    Raises:
        SchemaError: An option cannot be kept as JSON.
        CatalogError: A conversion of this `write_id` was begun with other arguments.
        Otherwise: As for `convert`.
    """
    options = WriteOptions(
        columns=columns,
        nulls=nulls,
        compression=compression,
        hashes=tuple(hashes),
        size_limit=size_limit,
        transform=transform,
        partition_by=partition_by,
        mode=mode,
        progress=False,
        write_id=write_id,
        lineage=lineage,
        metadata=metadata,
    )
    reading = source_options(options, source_storage_options, settings, part_bytes)
    store = open_store(to, storage_options)
    job = plan_job(open_source(source, format, reading), store, options, reading.settings, reading.part_bytes)
    chosen = options_in_id(options)
    write = identify(
        store, options, job.facts, derive_write_id(job.facts, chosen) if chosen is not None and job.is_exact else None
    )
    if write.published is not None:
        return Conversion(store, write.write_id, None, write)
    check_append(write.parent, dataclasses.replace(job.plan, write_id=write.write_id))
    record = _record_of(source, format, job, reading, write)
    markers.begin(store, write.write_id)
    try:
        store.put_if_absent(f"{write.write_id}/{_RECORD}", json.dumps(record).encode())
    except StoreExists as error:
        if json.loads(store.get(f"{write.write_id}/{_RECORD}")) != record:
            raise CatalogError(
                f"{store.url}: a conversion with the write id {write.write_id} was begun with another source or other "
                f"options; give another `write_id`",
                write_id=write.write_id,
            ) from error
    return Conversion(store, write.write_id, job, write)


def open_conversion(
    to: Place,
    id: str,
    *,
    source: Any = None,
    transform: Transform | TransformFunction | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Return a conversion that `begin_conversion` has begun, on any machine.

    Args:
        to: Path, URL or store of the shard set.
        id: `Conversion.id`.
        source: The source again, if it was no path or URL.
        transform: The transform again, if there is one: a function is not kept in the record.
        storage_options: Credentials and endpoint of the set's store.
        source_storage_options: Credentials and endpoint of the source's store.

    Raises:
        CatalogError: There is no such conversion, or its source is another one now.
        ValueError: `source` or `transform` is missing.
    """
    store = open_store(to, storage_options)
    try:
        record = json.loads(store.get(f"{id}/{_RECORD}"))
    except StoreNotFound as error:
        if _version_of(store, id) is not None:
            return Conversion(store, id, None, Write(id))
        raise CatalogError(
            f"{store.url} has no conversion {id!r}: it was not begun there, or a vacuum removed it", write_id=id
        ) from error
    place = record["source"] if source is None else source
    require("source", "the source that the conversion was begun with", source, met=place is not None)
    require("transform", "the function that the conversion was begun with", transform,
            met=(transform is not None) == record["has_transform"])  # fmt: skip
    kept = record["options"]
    options = WriteOptions(
        **{**kept, "hashes": tuple(kept["hashes"])}, transform=transform, write_id=id, progress=False
    )
    reading = source_options(options, source_storage_options, record["settings"], record["part_bytes"])
    job = plan_job(open_source(place, record["format"], reading), store, options, reading.settings, reading.part_bytes)
    if (len(job.groups), job.facts) != (record["parts"], record["facts"]):
        raise CatalogError(
            f"{job.source.url} is not what it was when conversion {id} began; begin another one", write_id=id
        )
    return Conversion(store, id, job, identify(store, options, job.facts, None))


def _record_of(source: Any, format: str | None, job: Job, reading: SourceOptions, write: Write) -> dict[str, Any]:
    kept = {name: getattr(job.options, name) for name in _OPTIONS}
    for name in ("columns", "nulls", "lineage", "metadata"):
        if isinstance(kept[name], Mapping):
            check_json(name, kept[name])
            kept[name] = dict(kept[name])
    check_json("settings", reading.settings)
    record = {
        "smalti": 1,
        "write_id": write.write_id,
        "source": _address_of(source),
        "format": format,
        "options": {**kept, "hashes": list(job.options.hashes)},
        "settings": dict(reading.settings),
        "part_bytes": reading.part_bytes,
        "has_transform": job.options.transform is not None,
        "parts": len(job.groups),
        "facts": job.facts,
    }
    read_back: dict[str, Any] = json.loads(json.dumps(record))  # tuples become lists, as in the stored record
    return read_back


def _address_of(source: Any) -> str | None:
    """Return the address of a source for other machines; None for an object."""
    if isinstance(source, Store):
        return source.url
    if not isinstance(source, str | PathLike):
        return None
    text = str(source)
    return text if "://" in text else str(Path(text).absolute())


def _part_key(write_id: str, number: int) -> str:
    return f"{write_id}/part-{number:05d}.json"


def _version_of(store: Store, write_id: str) -> int | None:
    """Return the version that a write is published as; None if it is not."""
    header = find_newest(store).header
    return None if header is None else header.writes.get(write_id)
