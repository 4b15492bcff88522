"""The actors that write, read, roll back and vacuum a set: jobs as Spark runs them, readers, and others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from smalti.catalog import Draft, Manifest, load_manifest, publish, rollback
from smalti.catalog.publishing import Mode, check_target
from smalti.catalog.retention import markers
from smalti.catalog.retention.vacuum import vacuum
from smalti.catalog.sidecars import live_keys
from smalti.errors import (
    CatalogError,
    CommitConflict,
    CommitUnknown,
    DatasetExists,
    IndexFileError,
    SmaltiError,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.writer.tables.plan import Attempt, one_answer_each
from tests.sim.oracle import TTL, BrokenPromiseError, Job, Oracle
from tests.sim.store import Disk, SimClock, SimStore
from tests.sim.world import DAY, Actor, Crash, World

SCHEMA = Schema.from_columns({"id": "int64"})
BODY = b"the samples of a shard" * 10
Answers = list[tuple[Attempt, list[ShardInfo]]]


@dataclass(frozen=True)
class Habits:
    """The behaviour of drivers; planted bugs change it."""

    choose: Callable[[Answers], Answers] = one_answer_each  # type: ignore[assignment]  # any answer will do
    waits_for_uploads: bool = True
    cleans_up_after: tuple[type[SmaltiError], ...] = (CommitConflict, DatasetExists)
    keeps_write_id: bool = True
    older_than: float = TTL
    """Age limit of vacuums, seconds."""


@dataclass
class Stage:
    """The objects that all actors share."""

    world: World
    disk: Disk
    oracle: Oracle
    habits: Habits = field(default_factory=Habits)

    def store(self, actor: Actor) -> SimStore:
        """Return the store as this actor uses it."""
        return SimStore(self.disk, actor)


@dataclass
class SparkJob:
    """A driver with its tasks; it may be killed and started again, with the same write id."""

    stage: Stage
    name: str
    mode: Mode
    num_tasks: int
    num_shards: int
    lives: int = 3
    sleeps: tuple[float, ...] = (0.0,)
    """Times in seconds for which a task, and the driver before it publishes, may be suspended."""
    splits: tuple[str, ...] = ("",)
    """The splits of a task's shards, in turn."""

    def __post_init__(self) -> None:
        samples = tuple(
            f"{self.name}/{task:05d}/{n:05d}" for task in range(self.num_tasks) for n in range(self.num_shards)
        )
        self.job = self.stage.oracle.jobs.setdefault(self.name, Job(self.name, self.mode, samples))

    def work(self, actor: Actor) -> None:
        """Run the job as a scheduler does: again until its outcome is known."""
        world = self.stage.world
        for life in range(self.lives):
            try:
                self._live(actor, life)
            except Crash:
                world.log(actor, "is killed")
                self.job.unknown += 1
            except (StoreError, CommitUnknown) as error:
                world.log(actor, f"failed: {type(error).__name__}")
            except SmaltiError as error:
                world.log(actor, f"failed for good: {type(error).__name__}")
                return
            else:
                return
            self._sleep(actor, 5.0)

    def _live(self, actor: Actor, life: int) -> None:
        store = self.stage.store(actor)
        write_id = f"{self.name}-{0 if self.stage.habits.keeps_write_id else life}"
        header = check_target(store, self.mode, write_id=write_id).header
        if header is not None and write_id in header.writes:
            self._record_result(actor, load_manifest(store, version=header.writes[write_id]))
            return
        markers.begin(store, write_id)
        answers = self._run_tasks(actor, write_id)
        shards = [shard for _, found in answers for shard in found]
        self._sleep(actor, self.stage.world.dice.choice(self.sleeps))
        draft = Draft(write_id, SCHEMA, shards)
        try:
            made = self._publish(actor, draft)
        except (StoreError, CommitUnknown):  # the advice of both is to call again
            self._sleep(actor, self.stage.world.dice.choice(self.sleeps))
            made = self._publish(actor, draft)
        self._record_result(actor, made)
        markers.end(store, write_id)

    def _publish(self, actor: Actor, draft: Draft) -> Manifest:
        store, since = self.stage.store(actor), self.stage.world.now
        try:
            return publish(store, draft, mode=self.mode, clock=SimClock(self.stage.world, actor))
        except SmaltiError as error:
            if isinstance(error, CommitUnknown):
                self.job.unknown += 1
            else:
                self.stage.oracle.check_refusal(self.job, actor.name, since)
            if isinstance(error, self.stage.habits.cleans_up_after):
                remove(store, draft.shards)
            raise

    def _record_result(self, actor: Actor, made: Manifest) -> None:
        self.stage.world.log(actor, f"published version {made.version}")
        self.job.returned.append(made.version)

    def _run_tasks(self, actor: Actor, write_id: str) -> Answers:
        """Run all tasks and return their answers; failed attempts are retried, and any task may run twice."""
        world, answers = self.stage.world, []
        running = [
            self._start(write_id, task, actor, answers)
            for task in range(self.num_tasks)
            for _ in range(world.dice.choice((1, 1, 2)))
        ]
        world.wait_for(actor, lambda: all(each.is_done for each in running) or _has_all(answers, self.num_tasks))
        for task in range(self.num_tasks):
            if all(attempt.task != task for attempt, _ in answers):
                last = self._start(write_id, task, actor, answers)
                world.wait_for(actor, lambda last=last: last.is_done)
        if not _has_all(answers, self.num_tasks):
            raise StoreError("a task failed for good")
        return self.stage.habits.choose(self._accepted(list(answers)))

    def _accepted(self, answers: Answers) -> Answers:
        """Return the answers that Spark passes to the driver: the first one of each task, or sometimes all."""
        if self.stage.world.dice.random() < 0.1:
            return answers
        first = {attempt.task: (attempt, shards) for attempt, shards in reversed(answers)}
        return list(first.values())

    def _start(self, write_id: str, task: int, driver: Actor, answers: Answers) -> Actor:
        world = self.stage.world
        attempt = Attempt(task, f"{len(world.actors)}")

        def work(actor: Actor) -> None:
            store = self.stage.store(actor)
            shards = [
                shard_of(f"{write_id}/{attempt.name}/shard.{number:05d}.mds", split=self._split(number))
                for number in range(self.num_shards)
            ]
            if not self.stage.habits.waits_for_uploads:
                answers.append((attempt, shards))
            try:
                for shard in shards:
                    upload(store, shard.stored.basename)
                    self._sleep(actor, world.dice.choice(self.sleeps) if world.dice.random() < 0.2 else 0.0)
            except StoreError:
                remove(store, shards)
                return
            if self.stage.habits.waits_for_uploads:
                answers.append((attempt, shards))

        return world.enter(f"{driver.name}.{attempt.name}", work)

    def _split(self, number: int) -> str:
        return self.splits[number % len(self.splits)]

    def _sleep(self, actor: Actor, seconds: float) -> None:
        if seconds:
            self.stage.world.sleep(actor, seconds)


def _has_all(answers: Answers, num_tasks: int) -> bool:
    return len({attempt.task for attempt, _ in answers}) == num_tasks


def shard_of(key: str, *, samples: int = 1, split: str = "", schema: Schema = SCHEMA) -> ShardInfo:
    """Return a shard of this name, below the folder of its split."""
    raw = FileInfo(f"{split}/{key}" if split else key, len(BODY))
    return ShardInfo(schema, samples=samples, raw=raw, partition=split or None)


def upload(store: SimStore, key: str) -> None:
    """Upload as `ShardUploader` does: at most twice, with a check of the size."""
    with suppress(StoreError):
        store.put(key, BODY)
        if store.size(key) == len(BODY):
            return
    store.put(key, BODY)
    if store.size(key) != len(BODY):
        raise StoreError(f"{key} is cut")


def remove(store: SimStore, shards: Sequence[ShardInfo]) -> None:
    """Remove shards, as a writer does after an error which promises that nothing is visible."""
    for shard in shards:
        try:
            store.delete(shard.stored.basename)
        except StoreError:  # noqa: PERF203 -- left for vacuum
            continue


def reader(stage: Stage) -> Callable[[Actor], None]:
    """Return an actor that opens the newest version and reads all of it, sometimes days later."""

    def work(actor: Actor) -> None:
        store, oracle, world = stage.store(actor), stage.oracle, stage.world
        there, since = len(oracle.versions), world.now
        try:
            found = load_manifest(store)
        except StoreNotFound as error:
            if there:
                raise BrokenPromiseError(f"a reader was told that there is no set: {error}") from error
            return
        except StoreError:
            return
        oracle.check_read(found.digest, found.version, there)
        if world.dice.random() < 0.1:
            world.sleep(actor, 6 * DAY)
        try:
            read_all(store, found)
        except (StoreNotFound, IndexFileError) as error:
            if world.now - since < TTL or found.version not in oracle.expired:
                raise BrokenPromiseError(f"a reader of version {found.version} missed a part: {error}") from error

    return work


def read_all(store: SimStore, version: Manifest) -> None:
    """Read every shard of a version, and those of its added columns.

    Raises:
        StoreNotFound: a shard is missing.
        IndexFileError: a table is missing.
    """
    for key in [shard.stored.basename for shard in version.shards]:
        read_one(store, key)
    with suppress_faults():
        for key in list(live_keys(store, version.sidecars)):
            read_one(store, key)


def read_one(store: SimStore, key: str) -> None:
    """Read an object that must exist; simulated faults are ignored."""
    with suppress_faults():
        store.get(key)


@contextmanager
def suppress_faults() -> Iterator[None]:
    """Ignore simulated faults of the store, but not missing objects."""
    try:
        yield
    except StoreNotFound:
        raise
    except StoreError:
        return


def old_reader(stage: Stage) -> Callable[[Actor], None]:
    """Return an actor that opens a version by its number."""

    def work(actor: Actor) -> None:
        number = stage.world.dice.randint(1, 3)
        was_there = number <= len(stage.oracle.versions)
        try:
            found = load_manifest(stage.store(actor), version=number)
        except VersionNotFound as error:
            if was_there and number not in stage.oracle.expired:
                raise BrokenPromiseError(f"version {number} was not found") from error
        except IndexFileError as error:
            if number not in stage.oracle.expired:
                raise BrokenPromiseError(f"version {number} cannot be read: {error}") from error
        except StoreError:
            return
        else:
            stage.oracle.check_read(found.digest, number, number)

    return work


def vacuumer(stage: Stage, *, times: int) -> Callable[[Actor], None]:
    """Return an actor that runs vacuum some times."""

    def work(actor: Actor) -> None:
        store, clock, habits = stage.store(actor), SimClock(stage.world, actor), stage.habits
        for _ in range(times):
            try:
                vacuum(store, dry_run=False, clock=clock, older_than=habits.older_than, unsafe_ttl=True)
            except (StoreError, CatalogError) as error:
                stage.world.log(actor, f"vacuum failed: {type(error).__name__}")
            stage.world.sleep(actor, stage.world.dice.choice((1.0, DAY, 5 * DAY)))

    return work


def roller(stage: Stage, name: str) -> Callable[[Actor], None]:
    """Return an actor that rolls back, again while the outcome is unknown."""

    def work(actor: Actor) -> None:
        store, clock = stage.store(actor), SimClock(stage.world, actor)
        number = stage.world.dice.randint(1, 3)
        for _ in range(3):
            try:
                rollback(store, number, write_id=f"{name}-0", clock=clock)
            except (StoreError, CommitUnknown):
                continue
            except SmaltiError:
                return
            return

    return work
