"""The answers of all tasks made into the shards of one version; small last shards of neighbouring tasks are joined.

Every task's last shard of a split ends where its rows end. A run of such last shards, of tasks that follow each other
with no full shard in between, becomes one shard where the size limit allows it. So small partitions make no small
shards. Samples are copied without being decoded, and keep their order; at most one shard per task and split is written
twice. No version names the shards that were joined; the caller deletes them after it has published.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smalti.catalog.manifest import row_hash_text
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.table.segments import joined_table
from smalti.catalog.table.shard_table import written_keys
from smalti.catalog.verify import open_checked
from smalti.errors import SchemaError, SmaltiError, StoreError
from smalti.format import ShardBuilder, ShardInfo
from smalti.format.layout import config_bytes
from smalti.format.writing.sealing import FileOptions
from smalti.storage import Store
from smalti.storage.store import SyncWatch
from smalti.writer.tables.attempts import Answers, Attempt, check_owner
from smalti.writer.tables.plan import WriteOptions, WritePlan
from smalti.writer.uploader import ShardUploader

_TABLE_SHARDS = 4096  # from this many on, shards are kept as a table, which takes a tenth of the memory
_MAX_DRIVER_BYTES = 32 << 20  # joined by the process that publishes, which is faster than starting tasks
_PARALLEL_DELETES = 16
_KEYS_PER_SYNC = 4096


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


def pack(plan: WritePlan, answers: Answers, options: WriteOptions, join_many: JoinMany) -> Packed:
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
        raise SchemaError(f"{plan.table_word} has no rows; nothing was published")
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
            for split in table.partitions or (None,):
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
        head = _head_bytes(part.tail, part.tail.compression)
        added = part.tail.raw.num_bytes - head
        # A full shard in between keeps the neighbours apart, because rows keep their order.
        follows = runs and part.count == 1 and runs[-1][-1].split == part.split
        if follows and limit is not None and size + added <= limit:
            runs[-1].append(part)
            size += added
        else:
            runs.append([part])
            size = max(head, _head_bytes(part.tail, compression)) + added
    return [run for run in runs if len(run) > 1]


def _head_bytes(info: ShardInfo, compression: str | None) -> int:
    """Return the bytes of a shard without samples, which a joined shard has once."""
    config = config_bytes(info.schema, compression=compression, hashes=info.hash_names, size_limit=info.size_limit)
    return 8 + len(config)


def join_runs(plan: WritePlan, runs: Runs, join_many: JoinMany) -> list[ShardInfo]:
    """Return one shard in the store for each run; blocks until all are written.

    Small runs are joined here, others by `join_many`.

    Raises:
        SmaltiError: A shard that a task wrote cannot be read again, or an answer is another task's.
    """
    tails = [[part.tail for part in run] for run in runs]
    if sum(info.raw.num_bytes for infos in tails for info in infos) <= _MAX_DRIVER_BYTES:
        attempt = Attempt.new(0)
        return [join_shards(plan, infos, place, attempt) for place, infos in enumerate(tails)]
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
    first = infos[0]
    prefix = f"{plan.write_id}/{_joined_folder(place, attempt)}"
    if first.partition is not None:
        prefix = f"{first.partition}/{prefix}"
    builder = ShardBuilder(first.schema, plan.options)
    uploader = ShardUploader(plan.store, prefix, builder, partition=first.partition, uploads=plan.uploads)
    try:
        for info in infos:
            with open_checked(plan.store, info) as shard:
                samples = shard.stored_samples()
                uploader.write_encoded(samples.lengths, samples.content)
        (joined,) = uploader.finish()
        if joined.samples != sum(info.samples for info in infos):
            raise SmaltiError(f"{prefix}: {joined.samples} samples after joining; nothing was published")
    except BaseException:
        uploader.abort()
        raise
    return joined


def make_durable(store: Store, watch: SyncWatch, packed: Packed) -> None:
    """Wait until all shards are on disk; if that fails, delete everything that was written.

    Tasks that see the driver's disk do not wait for it, which would leave their cores idle; most of what they wrote is
    on it by now.

    Raises:
        StoreError: A shard cannot be made durable.
    """
    unsynced = packed.unsynced_keys()
    try:
        while keys := list(itertools.islice(unsynced, _KEYS_PER_SYNC)):
            watch.sync(keys)
    except StoreError:
        delete_all(store, [*written_keys(packed.shards), *packed.unused_keys()])
        raise


def delete_all(store: Store, keys: list[str]) -> None:
    """Delete objects that no version names. Best effort: vacuum removes what cannot be deleted now."""

    def delete(key: str) -> None:
        with suppress(StoreError):
            store.delete(key)

    if keys:
        with ThreadPoolExecutor(min(_PARALLEL_DELETES, len(keys)), thread_name_prefix="smalti-delete") as pool:
            list(pool.map(delete, keys))
