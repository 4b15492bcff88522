"""The simulated store, and the simulated clock of one actor."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from smalti.catalog.commit import PublishingClock
from smalti.catalog.manifest import INDEX
from smalti.errors import StoreConflict, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.storage import ObjectInfo, Store, Tagged
from tests.sim.world import Actor, Crash, Late, World


class Disk:
    """The objects with their times; calls the watchers on every change."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.watchers: list[Callable[[str, str, bytes | None, bytes | None], None]] = []

    def put(self, who: str, key: str, data: bytes) -> None:
        """Replace an object."""
        before = self.objects.get(key)
        self.objects[key], self.times[key] = data, self.world.now
        self._notify(who, key, before, data)

    def create(self, who: str, key: str, data: bytes) -> bool:
        """Create an object if there is none; return whether it was created."""
        if key in self.objects:
            return False
        self.put(who, key, data)
        return True

    def replace(self, who: str, key: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its content is `expected`; return whether it was replaced."""
        if self.objects.get(key) != expected:
            return False
        self.put(who, key, data)
        return True

    def delete(self, who: str, key: str) -> None:
        """Remove an object."""
        before = self.objects.pop(key, None)
        if before is not None:
            self._notify(who, key, before, None)
            del self.times[key]

    def _notify(self, who: str, key: str, before: bytes | None, after: bytes | None) -> None:
        for watch in self.watchers:
            watch(who, key, before, after)


class SimStore(Store):
    """The store as one actor uses it: every call is a step of the simulation, and may fail at random."""

    url = "sim://world"

    def __init__(self, disk: Disk, actor: Actor) -> None:
        self.disk = disk
        self.actor = actor
        self._world = disk.world
        self.replaces_conditionally = disk.world.is_conditional

    def get(self, key: str) -> bytes:
        return self._read("get", key)

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        return self._read("get", key)[begin:end]

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        data = self._read("fetch", key)
        if on_chunk is not None:
            on_chunk(data)
        return out.write(data)

    def size(self, key: str) -> int:
        return len(self._read("size", key))

    def put(self, key: str, data: bytes | memoryview) -> None:
        content = bytes(data)
        self._write("put", key, lambda: self.disk.put(self.actor.name, key, content))

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def put_if_absent(self, key: str, data: bytes) -> None:
        if self.actor.lag:
            self._world.sleep(self.actor, self.actor.lag)
        made = self._write("create", key, lambda: self.disk.create(self.actor.name, key, data))
        if made is False:
            raise StoreExists(f"{key} exists already", key=key)

    def get_tagged(self, key: str) -> Tagged:
        data = self._read("get", key)
        return Tagged(data, data.hex())

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        made = self._write("replace", key, lambda: self.disk.replace(self.actor.name, key, data, bytes.fromhex(etag)))
        if made is False:
            raise StoreConflict(f"{key} is another one", key=key)
        return data.hex()

    def delete(self, key: str) -> None:
        self._write("delete", key, lambda: self.disk.delete(self.actor.name, key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._world.step(self.actor)
        self._fail("list", prefix)
        self._world.log(self.actor, f"list {prefix}")
        top = prefix.rstrip("/") + "/" if prefix else ""
        keys = sorted(key for key in self.disk.objects if key.startswith(top))
        return iter([ObjectInfo(key, len(self.disk.objects[key]), "", self.disk.times[key]) for key in keys])

    def child(self, prefix: str) -> Store:
        raise NotImplementedError(prefix)

    def local_path(self, key: str) -> Path | None:
        """Return a path for the index file only: readers of a local store do not read ahead in another thread."""
        return Path("/nonexistent") if key == INDEX else None

    def check_exclusive_puts(self, folder: str) -> None:
        """Do nothing: this store supports exclusive puts (row C7 is tested elsewhere), and a probe only adds steps."""

    def _read(self, op: str, key: str) -> bytes:
        self._world.step(self.actor)
        self._fail(op, key)
        data = self.disk.objects.get(key)
        self._world.log(self.actor, f"{op} {key}{'' if data is not None else ' not found'}")
        if data is None:
            raise StoreNotFound(f"{key} does not exist", key=key)
        return data

    def _write(self, op: str, key: str, effect: Callable[[], bool | None]) -> bool | None:
        world = self._world
        rates = world.rates_of_commits if op == "create" else world.rates
        world.step(self.actor)
        self._fail(op, key)
        dice = world.dice.random()
        if dice < rates.late:
            world.log(self.actor, f"{op} {key} late")
            delay = world.dice.choice((1.0, 30.0, 900.0))
            world.late.append(Late(world.now + delay, world.now, self.actor.name, key, effect))
            raise StoreTimeout(f"{op} {key}: no reply", key=key)
        made = effect()
        world.log(self.actor, f"{op} {key}{' refused' if made is False else ''}")
        if dice < rates.late + rates.crash / 2:
            raise Crash
        if dice < rates.late + rates.crash / 2 + rates.lost:
            world.log(self.actor, f"{op} {key} reply lost")
            kind = world.dice.choice((StoreTimeout, StoreError))
            raise kind(f"{op} {key}: the reply was lost", key=key)
        return made

    def _fail(self, op: str, key: str) -> None:
        world = self._world
        rates = world.rates_of_commits if op == "create" else world.rates
        dice = world.dice.random()
        if dice < rates.crash / 2:
            raise Crash
        if dice < rates.crash / 2 + rates.error:
            world.log(self.actor, f"{op} {key} 503")
            raise StoreError(f"{op} {key}: 503", key=key)


class SimClock(PublishingClock):
    """The clock of one actor, with an error of hours; a pause passes the turn to other actors."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._world.now + self._actor.skew, timezone.utc)

    def pause(self, seconds: float) -> None:
        self._world.sleep(self._actor, seconds * self._world.dice.uniform(0.5, 1.5))
