"""The actors that tag versions, compact shards and add columns."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

from smalti.catalog import Draft, Manifest, load_manifest, publishing, tag, untag
from smalti.catalog.digest import digest_of
from smalti.catalog.opening import read_tag
from smalti.catalog.publishing import check_stored
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import ColumnsEntry, columns_of
from smalti.catalog.table.arrow import emit_table
from smalti.errors import (
    CommitConflict,
    CommitUnknown,
    IndexFileError,
    SmaltiError,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import Schema, ShardInfo
from smalti.spark import reshard
from tests.sim.actors import BODY, Stage, read_all, remove, shard_of, upload
from tests.sim.oracle import TTL, BrokenPromiseError, Job
from tests.sim.store import SimClock, SimStore
from tests.sim.world import DAY, Actor

ADDED = Schema.from_columns({"extra": "int32"})


def tagger(stage: Stage) -> Callable[[Actor], None]:
    """Return an actor that tags a version, and sometimes moves or later removes the tag."""

    def work(actor: Actor) -> None:
        store, tags, world = stage.store(actor), stage.oracle.tags, stage.world
        actor.lag = world.dice.choice((0.0, 10.0))
        for _ in range(world.dice.choice((1, 2))):
            number = world.dice.randint(1, min(2, len(stage.oracle.versions)) or 1)
            move, before = world.dice.random() < 0.3, tags.changes
            if move:
                tags.begin_to_change()
            try:
                made = tag(store, tags.name, number, move=move)
            except SmaltiError as error:
                world.log(actor, f"has no tag: {type(error).__name__}")
            else:
                world.log(actor, f"has a tag of version {made}")
                tags.record_result(made, moved=move, before=before)
        world.sleep(actor, world.dice.choice((1.0, 30.0, 5 * DAY)))
        if world.dice.random() < 0.4:
            before = tags.changes
            tags.begin_to_change()
            try:
                untag(store, tags.name)
            except SmaltiError as error:
                world.log(actor, f"could not remove the tag: {type(error).__name__}")
            else:
                tags.record_result(None, moved=True, before=before)

    return work


def reader_by_tag(stage: Stage) -> Callable[[Actor], None]:
    """Return an actor that opens the version with the tag and reads all of it."""

    def work(actor: Actor) -> None:
        store, tags = stage.store(actor), stage.oracle.tags
        number, changes = tags.version, tags.changes
        if number is None:
            return
        try:
            read_all(store, load_manifest(store, version=read_tag(store, tags.name).version))
        except (StoreNotFound, VersionNotFound, IndexFileError) as error:
            if tags.changes == changes:
                raise BrokenPromiseError(f"version {number} has a tag, and cannot be read: {error}") from error
        except StoreError:
            return

    return work


def replace_content_in_simulation(store: SimStore, draft: Draft, **options: Any) -> Manifest:
    """Call the real `replace_content` with the clock of the actor that uses the store."""
    return publishing.replace_content(store, draft, clock=SimClock(store.disk.world, store.actor), **options)


replace_content = replace_content_in_simulation


def compactor(stage: Stage, name: str) -> Callable[[Actor], None]:
    """Return an actor that merges neighbours of one split and publishes them, keeping concurrent appends."""

    def work(actor: Actor) -> None:
        store, since, write_id = stage.store(actor), stage.world.now, f"{name}-0"
        base = _newest(store)
        if base is None or columns_of(base.sidecars) or len(base.shards) < 2:
            return
        made: list[ShardInfo] = []

        def publishing() -> Manifest:
            markers.begin(store, write_id)
            made.extend(_merge(stage, store, base, f"{write_id}/00000-{len(stage.world.actors)}", since))
            _pause(stage, actor)
            return publish_compacted(store, base, made, write_id)

        error = _published(stage, actor, Job(name, "compact", ()), publishing)
        if isinstance(error, stage.habits.cleans_up_after):
            remove(store, [shard for shard in made if write_id in shard.raw.basename])

    return work


def _newest(store: SimStore) -> Manifest | None:
    try:
        return load_manifest(store)
    except StoreError:
        return None


def _pause(stage: Stage, actor: Actor) -> None:
    stage.world.sleep(actor, stage.world.dice.choice((0.0, 0.0, 2.0, 9 * DAY)))


def _published(stage: Stage, actor: Actor, job: Job, publishing: Callable[[], Manifest]) -> SmaltiError | None:
    """Publish and record the result; return the error if there was one."""
    stage.oracle.jobs[job.name], since = job, stage.world.now
    try:
        made = publishing()
    except SmaltiError as error:
        stage.world.log(actor, f"failed: {type(error).__name__}")
        if isinstance(error, CommitUnknown):
            job.unknown += 1
        else:
            stage.oracle.check_refusal(job, actor.name, since)
        return error
    stage.world.log(actor, f"published version {made.version}")
    job.returned.append(made.version)
    markers.end(stage.store(actor), f"{job.name}-0")
    return None


def _merge(stage: Stage, store: SimStore, base: Manifest, folder: str, since: float) -> list[ShardInfo]:
    """Write and return one shard for each run of neighbours of a split."""
    made = []
    for split, group in groupby(base.shards, key=lambda shard: shard.partition or ""):
        shards = list(group)
        if len(shards) == 1:
            made += shards
            continue
        names = [shard.raw.basename for shard in shards]
        try:
            for name in names:
                store.get(name)
        except StoreNotFound as error:
            if stage.world.now - since < TTL:
                raise BrokenPromiseError(f"a shard to be merged was gone: {error}") from error
            raise
        samples = sum(shard.samples for shard in shards)
        joined = shard_of(f"{folder}/shard.{len(made):05d}.mds", samples=samples, split=split)
        stage.oracle.contents[joined.raw.basename] = stage.oracle.samples_of(names)
        upload(store, joined.raw.basename)
        made.append(joined)
    return made


def publish_compacted(store: SimStore, base: Manifest, made: Sequence[ShardInfo], write_id: str) -> Manifest:
    """Publish as `smalti.writer.compact` does: concurrent appends come after the merged shards."""
    newest = base
    for _ in range(4):
        shards = (*made, *newest.shards[len(base.shards) :])
        draft = newest.redraft(write_id, shards=shards)
        try:
            return replace_content(store, draft, based_on=newest.version)
        except CommitConflict:
            newest = load_manifest(store)
            if tuple(newest.shards[: len(base.shards)]) != tuple(base.shards) or newest.sidecars:
                raise
    raise CommitConflict("overtaken too often")


def adder(stage: Stage, name: str) -> Callable[[Actor], None]:
    """Return an actor that adds a column to the newest version."""

    def work(actor: Actor) -> None:
        store, write_id = stage.store(actor), f"{name}-0"
        base = _newest(store)
        if base is None or columns_of(base.sidecars):
            return

        def publishing() -> Manifest:
            markers.begin(store, write_id)
            added = _added_shards(stage, store, base, f"{write_id}/00000-{len(stage.world.actors)}")
            entry = _entry(store, added, write_id)
            check_stored(store, added, write_id)
            _pause(stage, actor)
            draft = Draft(write_id, base.schema, base.shards, sidecars=(entry.to_json(),))
            return reshard.publish_from(store, base, draft, operation="add_columns")

        _published(stage, actor, Job(name, "add_columns", ()), publishing)

    return work


def _added_shards(stage: Stage, store: SimStore, base: Manifest, folder: str) -> list[ShardInfo]:
    added = []
    for place, shard in enumerate(base.shards):
        key = f"{folder}/shard.{place:05d}.mds"
        beside = shard_of(key, samples=shard.samples, split=shard.partition or "", schema=ADDED)
        stage.oracle.contents[beside.stored.basename] = stage.oracle.samples_of([shard.stored.basename])
        upload(store, beside.stored.basename)
        added.append(beside)
    return added


def _entry(store: SimStore, added: Sequence[ShardInfo], write_id: str) -> ColumnsEntry:
    table, key = emit_table(added), f"{write_id}/columns.arrow"
    store.put(key, table)
    return ColumnsEntry(
        ADDED.columns(), key, sha256(table).hexdigest(), digest_of(added), num_bytes=len(BODY) * len(added)
    )
