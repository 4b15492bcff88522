"""The steps of a write that makes a version of a table's rows, whatever runs its tasks.

    columns   decide columns and encodings from schema and options; no row is read (`plan`)
    identify  derive the write id; a write that is published already ends here
    begin     mark the write as begun, and make its plan, which travels to the tasks unchanged (`plan`)
    run       each task encodes Arrow batches into shards, uploads them below a prefix of its own, named by attempt,
              and answers with their entries once the store has acknowledged all of them (`task`)
    publish   take one answer per task, join small shards of neighbouring tasks, make all shards durable, and commit
              the version

A task, the process that publishes, or a machine that dies leaves objects that no version names, and nothing else.

Every task's last shard of a split ends where its rows end. A run of such last shards, of tasks that follow each other
with no full shard in between, becomes one shard where the size limit allows it. So small partitions make no small
shards. Samples are copied without being decoded, and keep their order; at most one shard per task and split is written
twice. No version names the shards that were joined; they are deleted after the version is published.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from smalti.catalog import Draft, Manifest, history, load_manifest, new_write_id, publish
from smalti.catalog.manifest import Header, check_write_id, row_hash_text
from smalti.catalog.publishing import check_target
from smalti.catalog.retention import markers
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.table.segments import joined_table
from smalti.catalog.table.shard_table import partitions_of, written_keys
from smalti.catalog.verify import open_checked
from smalti.errors import SmaltiError, StoreError
from smalti.format import ShardInfo, num_bytes_of_empty
from smalti.format.writing.sealing import AUTOMATIC, FileOptions
from smalti.storage import Store
from smalti.storage.store import SyncWatch
from smalti.writer.tables.plan import Answers, Attempt, WriteOptions, WritePlan, check_owner, no_rows, stored_columns

_TABLE_SHARDS = 4096  # from this many on, shards are kept as a table, which takes a tenth of the memory
_MAX_DRIVER_BYTES = 32 << 20  # joined by the process that publishes, which is faster than starting tasks
_PARALLEL_DELETES = 16
_JOINING_THREADS = 4
_KEYS_PER_SYNC = 4096
_ID_VERSION = 1  # increase it to make the same job write again instead of finding what it has published
_NOT_IN_ID = (
    "transform", "progress", "write_id", "storage_options", "unlisted_hashes", "joins_shards", "allow_unsafe_types",
)  # fmt: skip
"""Options that a derived write id leaves out: a write with a transform, or with one of the last three, has none; the
others change no row."""
_REPLACING = ("create", "overwrite", "rollback")
"""Operations after which rows of earlier versions are not shown any more."""


@dataclasses.dataclass(frozen=True)
class Write:
    """The identity of one write, before a row is read."""

    write_id: str
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Lineage for the manifest: what is known of the source, and the caller's additions."""
    parent: Header | None = None
    """The version that is appended to; None in other modes."""
    published: Manifest | None = None
    """The version that this write has published before."""


def derive_write_id(source: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the id of the write of this source with these options: equal for equal ones, on every machine.

    `source` identifies the rows exactly (JSON).
    """
    facts = [_ID_VERSION, dict(source), dict(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def options_in_id(options: WriteOptions) -> dict[str, str] | None:
    """Return the options that a derived write id depends on; None if a function or the caller decides what it is."""
    if options.write_id is not None or options.transform is not None:
        return None
    names = [field.name for field in dataclasses.fields(options) if field.name not in _NOT_IN_ID]
    if options.compression == AUTOMATIC and options.mode == "append":
        # zstd was the default before: rows that were appended with it are not appended a second time.
        options = dataclasses.replace(options, compression="zstd")
    return {name: repr(getattr(options, name)) for name in names}


def identify(store: Store, options: WriteOptions, source: Mapping[str, Any], derived: str | None) -> Write:
    """Return which write this call is.

    A write id of the caller identifies it for good. Otherwise, equal calls over an equal source have the same derived
    id and are the same write, as long as the newest version shows its rows.

    Raises:
        DatasetExists: The mode is `create`, and the place holds a set that another write made.
        CatalogError: The write id of the caller cannot be one.
    """
    if options.write_id is not None:
        check_write_id(options.write_id)
    write_id = options.write_id or derived or new_write_id()
    header = check_target(store, options.mode, write_id=write_id).header
    version = header.writes.get(write_id) if header is not None else None
    is_fenced = derived is not None and header is not None and write_id in header.fenced  # a vacuum refuses it
    if header is not None and (version is not None or is_fenced):
        if version is not None and (derived is None or _is_shown(store, header, version, options)):
            return Write(write_id, published=load_manifest(store, version=version))
        write_id = f"{write_id}-{secrets.token_hex(4)}"
        header = check_target(store, options.mode, write_id=write_id).header
    lineage = {**source, **dict(options.lineage or {})}
    return Write(write_id, lineage, parent=header if options.mode == "append" else None)


def _is_shown(store: Store, newest: Header, version: int, options: WriteOptions) -> bool:
    """Return whether the newest version shows the rows of this version; of an append, still has them."""
    later = [info for info in history(store) if info.version >= version]
    if options.mode != "append":
        return any(info.version == version and info.digest == newest.digest and not info.is_expired for info in later)
    return not any(info.version > version and info.operation in _REPLACING for info in later)


@contextlib.contextmanager
def begun(store: Store, write: Write) -> Iterator[SyncWatch]:
    """Mark the write as begun, so that no vacuum removes its shards; yield how the process that publishes syncs them.

    Raises:
        StoreError: The store did not take the marker.
    """
    markers.begin(store, write.write_id)  # creates the root, if that is a folder
    with store.watched() as watch:
        yield watch


@dataclasses.dataclass(frozen=True)
class TaskShards:
    """The shards that one task wrote of one split; at least one."""

    split: str | None
    task: int
    count: int
    """Number of shards."""
    tail: ShardInfo
    """The last shard: it ends where the rows end, and may be small."""
    packed: str
    """All shards of the task, as in its answer; takes a hundredth of the memory of the entries."""
    is_synced: bool = True
    """False if the driver must sync the shards to disk."""

    def shards(self) -> Sequence[ShardInfo]:
        """Return all shards, in order."""
        table = unpack_shards(self.packed, where=f"answer of task {self.task}")
        return table if self.split is None else table.of_partition(self.split)


Runs = list[list[TaskShards]]
"""Runs of tasks whose last shards become one; two tasks or more each, in order."""
JoinMany = Callable[[WritePlan, list[tuple[int, str]]], Answers]
"""Run `join_rows` in tasks over rows with the number of a run and its packed shards, and return their answers."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """The shards of all tasks, with the last shards of each run joined."""

    parts: Sequence[TaskShards]
    """Shards of all tasks, in order."""
    runs: Runs
    joined: Sequence[ShardInfo]
    """One shard for each run, which replaces the last shards of its tasks."""
    row_hash: str = ""
    """Row hash of all samples; empty if unknown."""

    @functools.cached_property
    def shards(self) -> Sequence[ShardInfo]:
        """All shards, in order."""
        count = sum(part.count for part in self.parts) - sum(len(run) - 1 for run in self.runs)
        return (
            tuple(itertools.chain.from_iterable(self._in_order()))
            if count < _TABLE_SHARDS
            else joined_table(self._in_order(), count)
        )

    def _in_order(self) -> Iterator[Sequence[ShardInfo]]:
        joined = {id(run[0]): info for run, info in zip(self.runs, self.joined, strict=True)}
        for part, count in self._remaining():
            if count:
                yield part.shards()[:count]
            if id(part) in joined:
                yield [joined[id(part)]]

    def unsynced_keys(self) -> Iterator[str]:
        """Yield the objects that tasks did not sync; joined shards were synced when they were put."""
        for part, count in self._remaining():
            if not part.is_synced:
                yield from (file.basename for info in part.shards()[:count] for file in info.stored_files)

    def unused_keys(self) -> list[str]:
        """Return the objects whose samples are in joined shards now."""
        parts = [part for run in self.runs for part in run]
        files = [file.basename for part in parts for file in part.tail.stored_files]
        # The lists of a task's shards lie together: they are unused if it has no other shard.
        return [*files, *(part.tail.blocks.file for part in parts if part.count == 1 and part.tail.blocks is not None)]

    def _remaining(self) -> Iterator[tuple[TaskShards, int]]:
        """Yield the shards of each task, and how many of them were not joined."""
        in_runs = {id(part) for run in self.runs for part in run}
        for part in self.parts:
            yield part, part.count - (id(part) in in_runs)


def pack(plan: WritePlan, answers: Answers, options: WriteOptions, join_many: JoinMany | None) -> Packed:
    """Return the shards of all tasks in order, with small last ones joined; blocks while these are written.

    `answers` is emptied: with a million shards it is large. No shards are joined with `target_shards`, or
    without `joins_shards`.

    Raises:
        SchemaError: There are no rows, and the mode is not `append`.
        SmaltiError: A shard that a task wrote cannot be read again.
    """
    row_hash = row_hash_text(sum(int(answer["row_hash"], 16) for _, answer in answers))
    parts = collect_parts(answers)
    answers.clear()
    if not parts and options.mode != "append":
        raise no_rows(plan.input.words)
    chosen = FileOptions.of(plan.options).compression_name
    runs = find_runs(parts, chosen) if options.joins_shards and options.target_shards is None else []
    return Packed(parts, runs, join_runs(plan, runs, join_many), row_hash)


def collect_parts(answers: Answers) -> list[TaskShards]:
    """Return the shards of all tasks, by split, then task.

    Raises:
        SmaltiError: An answer has the shards of another attempt.
    """
    parts = []
    for attempt, answer in answers:
        table = unpack_shards(answer["shards"], where=f"answer of task {attempt.name}")
        if len(table):
            for split in partitions_of(table) or (None,):
                shards = table if split is None else table.of_partition(split)
                for info in (shards[0], shards[-1]):
                    check_owner(info.raw.basename.rpartition("/")[0], attempt.name, attempt)
                is_synced = bool(answer.get("is_synced", True))
                parts.append(TaskShards(split, attempt.task, len(shards), shards[-1], answer["shards"], is_synced))
    return sorted(parts, key=lambda part: (part.split or "", part.task))


def find_runs(parts: Sequence[TaskShards], compression: str | None = None) -> Runs:
    """Return the runs of tasks whose last shards are to be joined, in order; pure.

    Shards without a size limit are not joined. `compression` is the one that joined shards may have.
    """
    runs: Runs = []
    size = 0
    for part in parts:
        limit = part.tail.size_limit
        head = num_bytes_of_empty(part.tail)  # a joined shard has it once
        added = part.tail.raw.num_bytes - head
        # A full shard in between keeps the neighbours apart, because rows keep their order.
        follows = runs and part.count == 1 and runs[-1][-1].split == part.split
        if follows and limit is not None and size + added <= limit:
            runs[-1].append(part)
            size += added
        else:
            runs.append([part])
            size = max(head, num_bytes_of_empty(dataclasses.replace(part.tail, compression=compression))) + added
    return [run for run in runs if len(run) > 1]


def join_runs(plan: WritePlan, runs: Runs, join_many: JoinMany | None) -> list[ShardInfo]:
    """Return one shard in the store for each run; blocks until all are written.

    Small runs are joined by threads of this process, others by `join_many` if there is one.

    Raises:
        SmaltiError: A shard that a task wrote cannot be read again, or an answer is another task's.
    """
    tails = [[part.tail for part in run] for run in runs]
    if join_many is None or sum(info.raw.num_bytes for infos in tails for info in infos) <= _MAX_DRIVER_BYTES:
        attempts = itertools.repeat(Attempt.new(0))
        with ThreadPoolExecutor(_JOINING_THREADS, thread_name_prefix="smalti-join") as pool:
            return list(pool.map(functools.partial(join_shards, plan), tails, itertools.count(), attempts))
    rows = [(place, pack_shards(infos)) for place, infos in enumerate(tails)]
    answers = join_many(plan, rows)
    found = {}
    for attempt, answer in answers:
        for place, text in answer["joined"]:
            (found[place],) = unpack_shards(text, where="a joined shard")
            check_owner(found[place].raw.basename.rpartition("/")[0], _joined_folder(place, attempt), attempt)
    if len(found) != len(rows):
        raise SmaltiError(f"{len(rows) - len(found)} of {len(rows)} joined shards were lost; nothing was published")
    return [found[place] for place in range(len(rows))]


def join_rows(plan: WritePlan, rows: Iterable[tuple[int, str]], attempt: Attempt) -> dict[str, Any]:
    """Join the shards that each row names, and return the joined ones as the answer of a task."""
    joined = []
    for place, shards in rows:
        infos = unpack_shards(shards, where="shards to be joined")
        joined.append([place, pack_shards([join_shards(plan, infos, place, attempt)])])
    return {"joined": joined}


def _joined_folder(place: int, attempt: Attempt) -> str:
    return f"joined-{place:05d}-{attempt.attempt}"


def join_shards(plan: WritePlan, infos: Sequence[ShardInfo], place: int, attempt: Attempt) -> ShardInfo:
    """Write one shard with the samples of these, in their order.

    Raises:
        FormatError: One of them is damaged.
        StoreError: One cannot be read, or the new one cannot be stored.
    """
    folder = _joined_folder(place, attempt)
    with plan.uploader(infos[0].schema, infos[0].partition, folder) as uploader:
        for info in infos:
            with open_checked(plan.store, info) as shard:
                samples = shard.stored_samples()
                uploader.write_encoded(samples.lengths, samples.content)
        (joined,) = uploader.finish()
        if joined.samples != sum(info.samples for info in infos):
            raise SmaltiError(f"{joined.raw.basename}: {joined.samples} samples after joining; nothing was published")
    return joined


def delete_all(store: Store, keys: list[str]) -> None:
    """Delete objects that no version names. Best effort: vacuum removes what cannot be deleted now."""

    def delete(key: str) -> None:
        with contextlib.suppress(StoreError):
            store.delete(key)

    if keys:
        with ThreadPoolExecutor(min(_PARALLEL_DELETES, len(keys)), thread_name_prefix="smalti-delete") as pool:
            list(pool.map(delete, keys))


def publish_shards(
    plan: WritePlan, write: Write, options: WriteOptions, answers: Answers, join_many: JoinMany | None, watch: SyncWatch
) -> tuple[Manifest, Sequence[ShardInfo]]:
    """Publish the shards that the tasks of a plan wrote as a version; blocks until that is done.

    Args:
        plan: The plan.
        write: The write that it is for.
        options: Options of the caller.
        answers: One answer per task, in order; the list is emptied.
        join_many: Joins shards where they are too many for this process; None has it join all of them.
        watch: How to sync the shards that tasks on this machine left to this process; from `begun`.

    Returns:
        The version, and those of its shards that this write made.

    Raises:
        SchemaError: There are no rows, or tasks found different columns.
        CommitConflict: Another writer published first; this write published nothing.
        StoreError: The store failed for longer than its retries.
    """
    schema, logical = stored_columns(plan, answers, write.parent)
    packed = pack(plan, answers, options, join_many)
    unsynced = packed.unsynced_keys()
    try:
        # Tasks that see this disk do not wait for it, which would leave their cores idle; most of it is there by now.
        while keys := list(itertools.islice(unsynced, _KEYS_PER_SYNC)):
            watch.sync(keys)
    except StoreError:
        delete_all(plan.store, [*written_keys(packed.shards), *packed.unused_keys()])
        raise
    draft = Draft(
        write.write_id,
        schema,
        packed.shards,
        lineage=dict(write.lineage),
        metadata=dict(options.metadata or {}),
        logical=logical,
        row_hash=packed.row_hash,
    )
    manifest = publish(plan.store, draft, mode=options.mode)
    delete_all(plan.store, packed.unused_keys())
    markers.end(plan.store, write.write_id)
    return manifest, packed.shards
