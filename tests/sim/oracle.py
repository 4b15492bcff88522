"""What must be true of the store after every step, and of what callers were told, at the end.

Watches every change of every object, and reads headers and tables by itself; it calls nothing that publishes.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa

from smalti.catalog.header import parse_header
from tests.sim.store import Disk

HEADER = re.compile(r"_versions/(\d{8})\.json")
TABLE = re.compile(r"_versions/[0-9a-f]{64}(-\d+)?\.arrow")
SHARD = re.compile(r"(?P<write>job[^/]*)/(?P<task>\d{5})-[^/]+/shard\.(?P<number>\d{5})\.mds")
VACUUM = "vacuum"
TTL = 7 * 86_400.0


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


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
    """Every object that a reader of it needs."""


@dataclass
class Job:
    """What somebody wants to be written, and what he was told."""

    name: str
    mode: str
    samples: tuple[str, ...]
    told: list[int] = field(default_factory=list)
    """Versions that calls returned."""
    refused: int = 0
    """Calls that failed, and said that nothing is visible."""
    unknown: int = 0
    """Calls that said that they do not know, or whose caller died."""


class Oracle:
    """The promises, kept an eye on."""

    def __init__(self, disk: Disk, foreign: dict[str, bytes]) -> None:
        self.disk = disk
        self.foreign = foreign
        self.versions: list[Version] = []
        self.expired: frozenset[int] = frozenset()
        self.jobs: dict[str, Job] = {}
        for key, data in foreign.items():
            disk.put("stranger", key, data)
        disk.watchers.append(self.look)

    def look(self, who: str, key: str, before: bytes | None, after: bytes | None) -> None:
        """One object changed.

        Raises:
            BrokenPromiseError: it must not.
        """
        if key in self.foreign:
            raise BrokenPromiseError(f"{who} touched {key}, which is not ours")
        if before is not None and before != after:
            self._replaced(who, key, after)
        if after is not None and before is None and HEADER.fullmatch(key):
            self._appeared(who, key, after)

    def _replaced(self, who: str, key: str, after: bytes | None) -> None:
        if HEADER.fullmatch(key):
            raise BrokenPromiseError(f"{who} changed {key}: a version never changes")
        if (TABLE.fullmatch(key) or SHARD.fullmatch(key)) and after is not None:
            raise BrokenPromiseError(f"{who} changed {key}: shards and tables never change")
        if after is not None:
            return
        for version in self.living():
            if key in version.keys:
                raise BrokenPromiseError(f"{who} removed {key}, which version {version.number} needs")
        if who.startswith(VACUUM):
            self._vacuumed(who, key)

    def _vacuumed(self, who: str, key: str) -> None:
        """What a vacuum removes must be old; of a write that nobody published, everything that belongs to it."""
        found = SHARD.fullmatch(key)
        write_id = found["write"] if found else ""
        is_published = any(version.write_id == write_id for version in self.versions)
        together = {key}
        if found and not is_published:
            together |= {other for other in self.disk.times if other.startswith(f"{write_id}/")}
            together |= {f"_versions/writes/{write_id}.json"} & self.disk.times.keys()
        if found or TABLE.fullmatch(key):
            for other in sorted(together):
                age = self.disk.world.now - self.disk.times[other]
                if age < TTL:
                    raise BrokenPromiseError(f"{who} removed {key}, and {other} is only {age:.0f} s old")

    def living(self) -> list[Version]:
        """The versions that readers may open."""
        return [version for version in self.versions if version.number not in self.expired]

    def _appeared(self, who: str, key: str, data: bytes) -> None:
        header = parse_header(data, where=key)
        number = len(self.versions) + 1
        if (header.version, key) != (number, f"_versions/{number:08d}.json"):
            raise BrokenPromiseError(f"{who} made {key}, the next version is {number}")
        if any(version.write_id == header.write_id for version in self.versions):
            raise BrokenPromiseError(f"{who} published write {header.write_id} again, as version {number}")
        table = self.disk.objects.get(header.table_key)
        if table is None:
            raise BrokenPromiseError(f"{who} made version {number}, and its table is not there")
        if sha256(table).hexdigest() != header.table_sha256:
            raise BrokenPromiseError(f"{who} made version {number}, and its table is another one")
        names = pa.ipc.open_file(table).read_all()["raw_name"].to_pylist()
        gone = [name for name in names if name not in self.disk.objects]
        if gone:
            raise BrokenPromiseError(f"{who} made version {number}, and its shard {gone[0]} is not there")
        version = Version(
            number,
            header.operation,
            header.write_id,
            header.digest,
            tuple(_sample(name) for name in names),
            frozenset({key, header.table_key, *names}),
        )
        self._check_content(who, version, header.metadata.get("rolled_back_to"))
        self.versions.append(version)
        self.expired = frozenset(header.expired)

    def _check_content(self, who: str, version: Version, target: object) -> None:
        """It holds what its operation makes of its parent: so an append is in every version until an overwrite."""
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
        """Somebody opened this version as the newest, when so many were there."""
        if number < newest_before:
            raise BrokenPromiseError(
                f"a reader was given version {number}, and {newest_before} was there before he asked"
            )
        if digest != self.versions[number - 1].digest:
            raise BrokenPromiseError(f"a reader was given something else than version {number}")

    def check_refusal(self, job: Job, who: str, since: float) -> None:
        """A call of this time was told that nothing of it is visible: nothing may be on its way, either."""
        job.refused += 1
        for late in self.disk.world.late:
            is_open = late.key not in self.disk.objects  # else it is refused when it comes
            if is_open and late.who == who and late.sent >= since and HEADER.fullmatch(late.key):
                raise BrokenPromiseError(f"{who} was told that nothing is visible, and its {late.key} is on its way")

    def check_end(self, *, is_quiet: bool) -> None:
        """Nobody goes on, and nothing is on its way any more."""
        for job in self.jobs.values():
            made = [version for version in self.versions if _job_of(version.write_id) == job.name]
            for number in job.told:
                if [number] != [version.number for version in made]:
                    raise BrokenPromiseError(f"{job.name} was told version {number}; {len(made)} versions are of it")
            if job.refused and not job.unknown and not job.told and made:
                raise BrokenPromiseError(
                    f"{job.name} was told that nothing is visible, and version {made[0].number} is"
                )
            if len(made) > 1:
                raise BrokenPromiseError(f"{job.name} is in versions {[version.number for version in made]}")
        for version in self.living():
            gone = [key for key in version.keys if key not in self.disk.objects]
            if gone:
                raise BrokenPromiseError(f"version {version.number} lacks {gone[0]}")
        if is_quiet and self.versions:
            shown = json.loads(self.disk.objects["index.json"])["smalti"]["version"]
            if shown != len(self.versions):
                raise BrokenPromiseError(
                    f"index.json shows version {shown} of {len(self.versions)}, and everybody is done"
                )


def _job_of(write_id: str) -> str:
    return write_id.rsplit("-", 1)[0]


def _sample(name: str) -> str:
    found = SHARD.fullmatch(name)
    if found is None:
        raise BrokenPromiseError(f"a version names {name}, which nobody wrote")
    return f"{_job_of(found['write'])}/{found['task']}/{found['number']}"
