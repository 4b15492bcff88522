"""The promises of the catalogue, checked after every change of the store, and against the results of calls at the end.

The oracle watches every change of every object, and parses headers and tables itself; it does not use the code that
publishes.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa

from smalti.catalog.manifest import INDEX, parse_header
from tests.sim.store import Disk

HEADER = re.compile(r"_versions/(\d{8})\.json")
TABLE = re.compile(r"_versions/[0-9a-f]{64}(-\d+)?\.arrow")
SHARD = re.compile(
    r"(?:(?P<split>[a-z]+)/)?(?P<write>(?:job|pack|side)[^/]*)/(?P<task>\d{5})-[^/]+/shard\.(?P<number>\d{5})\.mds"
)
COLUMNS = re.compile("side[^/]*/columns.arrow")
SPLIT_INDEX = re.compile(r"([a-z]+)/index\.json")
VACUUM = "vacuum"
TTL = 7 * 86_400.0


class BrokenPromiseError(AssertionError):
    """The error of a broken promise."""


@dataclass(frozen=True)
class Version:
    """A version as it was when it appeared."""

    number: int
    operation: str
    write_id: str
    digest: str
    samples: tuple[str, ...]
    """Job, task and number of every shard, which stand for its samples."""
    keys: frozenset[str]
    """Keys of all objects that a reader of it needs."""
    time: float
    """Time when it appeared."""
    names: frozenset[str] = frozenset()
    """Its shards, without those of added columns."""

    def of_split(self, split: str) -> set[str]:
        """Return the shards in the folder of a split."""
        return {name for name in self.names if _split_of(name) == split}


@dataclass
class Job:
    """A write that a caller requested, and the results of the calls."""

    name: str
    mode: str
    samples: tuple[str, ...]
    returned: list[int] = field(default_factory=list)
    """Versions that calls returned."""
    refused: int = 0
    """Calls that failed with the promise that nothing is visible."""
    unknown: int = 0
    """Calls with an unknown outcome, or whose caller was killed."""


class Tags:
    """The single tag of a run, and its version as far as no change is in progress."""

    name = "best"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._version: int | None = None
        self._open = 0
        self.changes = 0
        """Number of changes that were begun."""

    @property
    def version(self) -> int | None:
        """The version of the tag; None after a change was begun, until one has succeeded."""
        return None if self._open else self._version

    def begin_to_change(self) -> None:
        """Record that a caller starts to move or remove the tag."""
        self.changes += 1
        self._open += 1

    def record_result(self, version: int | None, *, moved: bool, before: int) -> None:
        """Record a successful call after which the tag has this version; `before` is `changes` before the call."""
        self._open -= moved
        is_alone = self.changes == before + moved
        self._version = version if is_alone or self._shown() == version else None

    def _shown(self) -> int | None:
        data = self._disk.objects.get(f"_versions/tags/{self.name}.json")
        return None if data is None else int(json.loads(data)["version"])


class Oracle:
    """The checks of all promises."""

    def __init__(self, disk: Disk, foreign: dict[str, bytes]) -> None:
        self.disk = disk
        self.foreign = foreign
        self.versions: list[Version] = []
        self.expired: frozenset[int] = frozenset()
        self.jobs: dict[str, Job] = {}
        self.tags = Tags(disk)
        self.contents: dict[str, tuple[str, ...]] = {}
        """Samples of shards that no task wrote: merged ones, and those of added columns."""
        for key, data in foreign.items():
            disk.put("foreign", key, data)
        disk.watchers.append(self.look)

    def look(self, who: str, key: str, before: bytes | None, after: bytes | None) -> None:
        """Check the change of one object.

        Raises:
            BrokenPromiseError: the change breaks a promise.
        """
        if key in self.foreign:
            raise BrokenPromiseError(f"{who} touched {key}, which Smalti did not write")
        if before is not None and before != after:
            self._replaced(who, key, after)
        if after is not None and before is None and HEADER.fullmatch(key):
            self._appeared(who, key, after)
        if before is not None and key == INDEX and self.disk.world.is_conditional:
            older, newer = (0 if data is None else _shown(data) for data in (after, before))
            if older < newer:
                raise BrokenPromiseError(f"{who} made {key} show version {older} after version {newer}")

    def _replaced(self, who: str, key: str, after: bytes | None) -> None:
        if HEADER.fullmatch(key):
            raise BrokenPromiseError(f"{who} changed {key}: a version never changes")
        if (TABLE.fullmatch(key) or SHARD.fullmatch(key)) and after is not None:
            raise BrokenPromiseError(f"{who} changed {key}: shards and tables never change")
        if after is not None:
            return
        for version in self.kept():
            if key in version.keys:
                raise BrokenPromiseError(f"{who} removed {key}, which version {version.number} needs")
        if who.startswith(VACUUM):
            self._vacuumed(who, key)

    def _vacuumed(self, who: str, key: str) -> None:
        """Check that a removed object is old, and so is every object of its write if that was never published."""
        found = SHARD.fullmatch(key)
        write_id = found["write"] if found else ""
        is_published = any(version.write_id == write_id for version in self.versions)
        together = {key}
        if found and not is_published:
            together |= {other for other in self.disk.times if f"/{write_id}/" in f"/{other}"}
            together |= {f"_versions/writes/{write_id}.json"} & self.disk.times.keys()
        if found or TABLE.fullmatch(key) or COLUMNS.fullmatch(key):
            for other in sorted(together):
                age = self.disk.world.now - self.disk.times[other]
                if age < TTL:
                    raise BrokenPromiseError(f"{who} removed {key}, and {other} is only {age:.0f} s old")

    def living(self) -> list[Version]:
        """Return the versions that readers may open."""
        return [version for version in self.versions if version.number not in self.expired]

    def kept(self) -> list[Version]:
        """Return those, and the version with the tag."""
        return [each for each in self.versions if each.number not in self.expired or each.number == self.tags.version]

    def _appeared(self, who: str, key: str, data: bytes) -> None:
        header = parse_header(data, where=key)
        number = len(self.versions) + 1
        if (header.version, key) != (number, f"_versions/{number:08d}.json"):
            raise BrokenPromiseError(f"{who} made {key}, the next version is {number}")
        if any(version.write_id == header.write_id for version in self.versions):
            raise BrokenPromiseError(f"{who} published write {header.write_id} again, as version {number}")
        names = self._names(f"{who} made version {number}", header.table_key, header.table_sha256)
        samples = self.samples_of(names)
        keys = {key, header.table_key, *names}
        for entry in header.sidecars:
            beside = self._names(f"{who} made version {number}", entry["table_key"], entry["table_sha256"])
            if self.samples_of(beside) != samples:
                raise BrokenPromiseError(
                    f"{who} made version {number} with columns of {self.samples_of(beside)} beside it"
                )
            keys |= {entry["table_key"], *beside}
        version = Version(
            number,
            header.operation,
            header.write_id,
            header.digest,
            samples,
            frozenset(keys),
            self.disk.world.now,
            frozenset(names),
        )
        self._check_content(who, version, header.metadata.get("rolled_back_to"))
        self.versions.append(version)
        self._check_expired(who, frozenset(header.expired) - self.expired)
        self.expired = frozenset(header.expired)

    def _names(self, what: str, key: str, sha256_of_table: str) -> list[str]:
        """Return the names of the shards in a table, and check that all exist."""
        table = self.disk.objects.get(key)
        if table is None:
            raise BrokenPromiseError(f"{what}, and its table {key} is not there")
        if sha256(table).hexdigest() != sha256_of_table:
            raise BrokenPromiseError(f"{what}, and its table {key} is another one")
        names: list[str] = pa.ipc.open_file(table).read_all()["raw_name"].to_pylist()
        gone = [name for name in names if name not in self.disk.objects]
        if gone:
            raise BrokenPromiseError(f"{what}, and its shard {gone[0]} is not there")
        return names

    def samples_of(self, names: list[str]) -> tuple[str, ...]:
        """Return the samples in these shards, in order."""
        return tuple(sample for name in names for sample in self.contents.get(name) or (_sample(name),))

    def _check_expired(self, who: str, numbers: frozenset[int]) -> None:
        """Check that a reader that opened a version while it was the newest had until the limit to read it."""
        for number in numbers:
            age = self.disk.world.now - self.versions[number].time  # of the version after it
            if age < TTL:
                raise BrokenPromiseError(f"{who} expired version {number}, which was the newest {age:.0f} s ago")

    def _check_content(self, who: str, version: Version, target: object) -> None:
        """Check that the samples follow from the operation and the parent, so that no append is lost."""
        parent = self.versions[-1].samples if self.versions else ()
        job = self.jobs.get(_job_of(version.write_id))
        if version.operation in {"create", "overwrite"}:
            expected = job.samples if job else ()
        elif version.operation == "append":
            expected = (*parent, *(job.samples if job else ()))
        elif version.operation == "rollback":
            expected = self.versions[int(str(target)) - 1].samples
        else:
            expected = parent
        doubled = [sample for sample, count in Counter(version.samples).items() if count > 1]
        if doubled:
            raise BrokenPromiseError(f"{who} made version {version.number} with {doubled[0]} twice")
        if version.samples != expected:
            raise BrokenPromiseError(f"{who} made version {version.number} of {version.samples}, expected {expected}")

    def check_read(self, digest: str, number: int, newest_before: int) -> None:
        """Check a read of the newest version, when there were `newest_before` versions at its start."""
        if number < newest_before:
            raise BrokenPromiseError(
                f"a reader was given version {number}, and {newest_before} was there before the call"
            )
        if digest != self.versions[number - 1].digest:
            raise BrokenPromiseError(f"a reader was given something else than version {number}")

    def check_refusal(self, job: Job, who: str, since: float) -> None:
        """Check that a call that failed with the promise that nothing is visible has no late header either."""
        job.refused += 1
        for late in self.disk.world.late:
            is_open = late.key not in self.disk.objects  # else the late put will be refused
            if is_open and late.who == who and late.sent >= since and HEADER.fullmatch(late.key):
                raise BrokenPromiseError(f"{who} was told that nothing is visible, and its {late.key} is still to come")

    def check_end(self, *, is_quiet: bool) -> None:
        """Check the final state, after all actors and late writes are done."""
        for job in self.jobs.values():
            made = [version for version in self.versions if _job_of(version.write_id) == job.name]
            for number in job.returned:
                if [number] != [version.number for version in made]:
                    raise BrokenPromiseError(f"{job.name} was told version {number}; {len(made)} versions are of it")
            if job.refused and not job.unknown and not job.returned and made:
                raise BrokenPromiseError(
                    f"{job.name} was told that nothing is visible, and version {made[0].number} is"
                )
            if len(made) > 1:
                raise BrokenPromiseError(f"{job.name} is in versions {[version.number for version in made]}")
        for version in self.kept():
            gone = [key for key in version.keys if key not in self.disk.objects]
            if gone:
                raise BrokenPromiseError(f"version {version.number} lacks {gone[0]}")
        if is_quiet and self.versions:
            shown = _shown(self.disk.objects[INDEX])
            if shown != len(self.versions):
                raise BrokenPromiseError(
                    f"index.json shows version {shown} of {len(self.versions)}, and all actors are done"
                )
            self._check_split_indexes()

    def _check_split_indexes(self) -> None:
        """Check that exactly the splits of the newest version have an index file, of that version."""
        newest = self.versions[-1]
        found = {match[1]: key for key in self.disk.objects if (match := SPLIT_INDEX.fullmatch(key))}
        splits = {_split_of(name) for name in newest.names} - {""}
        if found.keys() != splits:
            raise BrokenPromiseError(f"there are index files of splits {sorted(found)}, not of {sorted(splits)}")
        for split, key in found.items():
            index = json.loads(self.disk.objects[key])
            listed = {f"{split}/{entry['raw_data']['basename']}" for entry in index["shards"]}
            if listed != newest.of_split(split) or index["smalti"]["version"] != newest.number:
                raise BrokenPromiseError(f"{key} lists {sorted(listed)}, not those of version {newest.number}")


def _split_of(name: str) -> str:
    found = SHARD.fullmatch(name)
    return (found["split"] or "") if found else ""


def _shown(index: bytes) -> int:
    """Return the version that an index file shows."""
    return int(json.loads(index)["smalti"]["version"])


def _job_of(write_id: str) -> str:
    return write_id.rsplit("-", 1)[0]


def _sample(name: str) -> str:
    found = SHARD.fullmatch(name)
    if found is None:
        raise BrokenPromiseError(f"a version names {name}, which no task wrote")
    return f"{_job_of(found['write'])}/{found['task']}/{found['number']}"
