"""A store in memory whose faults are planted by the test, with a log of every call.

    store = MemoryStore()
    store.plant("put_if_absent", lost_ack=True)                # the put takes effect, but raises
    store.plant("get*", key="*.mds", at=2, error=StoreError("503"))   # the second matching call fails
    store.plant("fetch", truncate=100, times=1)                 # the first fetch delivers 100 bytes

Rules are tried in the order of planting; each matching call is counted by every rule it matches.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from smalti.errors import StoreConflict, StoreError, StoreExists, StoreNotFound
from smalti.storage.store import ObjectInfo, Store, Tagged, UnfinishedUpload, check_key, check_span, folder_of, join_key

WRITES = ("put", "put_file", "put_if_absent", "put_if_match", "delete")


class Killed(BaseException):
    """A simulated SIGKILL, which no handler of `Exception` catches."""


@dataclass(frozen=True)
class Call:
    """One call that a store received."""

    op: str
    key: str


@dataclass(eq=False)
class Rule:
    """One planted fault; see `MemoryStore.plant`."""

    op: str
    key: str = "*"
    at: int = 1
    times: int | None = None
    error: BaseException | None = None
    lost_ack: bool = False
    delay: float = 0.0
    chunk_delay: float = 0.0
    truncate: int | None = None
    flip: int | None = None
    ignore_if_absent: bool = False
    ignore_if_match: bool = False
    chance: float = 1.0
    seen: int = field(default=0, init=False)

    def is_plain(self) -> bool:
        """Return whether no kind of fault was given, so that the call raises StoreError."""
        spoils = self.truncate is not None or self.flip is not None
        waits = self.delay or self.chunk_delay
        ignores = self.ignore_if_absent or self.ignore_if_match
        return not (self.error or self.lost_ack or waits or spoils or ignores)

    def applies(self, op: str, key: str, dice: random.Random) -> bool:
        """Count a matching call, and return whether the fault hits it."""
        if not (fnmatchcase(op, self.op) and fnmatchcase(key, self.key)):
            return False
        self.seen += 1
        if self.seen < self.at or (self.times is not None and self.seen >= self.at + self.times):
            return False
        return self.chance >= 1.0 or dice.random() < self.chance


Rules = list[Rule]  # the class below has a method named list


@dataclass
class _Shared:
    objects: dict[str, bytes] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    uploads: list[UnfinishedUpload] = field(default_factory=list)
    clock: Callable[[], float] = time.time
    calls: list[Call] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    writes_left: int | None = None
    dice: random.Random = field(default_factory=random.Random)


class MemoryStore(Store):
    """Objects in a dict; children share objects, faults and log with their parent."""

    replaces_conditionally = True

    def __init__(
        self,
        url: str = "memory-store://test",
        *,
        chunk_bytes: int = 1 << 16,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty store; `clock` gives the times of its objects."""
        self.url = url
        self.chunk_bytes = chunk_bytes
        self._prefix = ""
        self._shared = _Shared(dice=random.Random(seed), clock=clock)

    @property
    def calls(self) -> list[Call]:
        """Every call so far, with keys relative to the outermost root."""
        with self._shared.lock:
            return list(self._shared.calls)

    @property
    def objects(self) -> dict[str, bytes]:
        """The live objects, by key relative to the outermost root; change them to tamper."""
        return self._shared.objects

    def plant(self, op: str, **fault: Any) -> Rule:
        """Plant a fault on calls of `op` (a pattern such as "get*"); see `Rule` for the faults.

        Without a kind, the matching calls raise `StoreError`. `at` is the first matching call to hit (1-based) and
        `times` how many from there on (default: all); `chance` hits only that share of them, by the store's seed.
        """
        rule = Rule(op, **fault)
        with self._shared.lock:
            self._shared.rules.append(rule)
        return rule

    def heal(self) -> None:
        """Remove every planted fault."""
        with self._shared.lock:
            self._shared.rules.clear()
            self._shared.writes_left = None

    def die_after_writes(self, count: int) -> None:
        """Let `count` more writes take effect; every later one raises `Killed` and does nothing."""
        self._shared.writes_left = count

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return self._spoiled(self._enter("get", key), self._lookup(key))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end), fewer if the object ends before."""
        check_span(begin, end)
        return self._spoiled(self._enter("get_range", key), self._lookup(key))[begin:end]

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the object to `out` in chunks of `chunk_bytes`."""
        rules = self._enter("fetch", key)
        data = self._spoiled(rules, self._lookup(key))
        pause = sum(rule.chunk_delay for rule in rules)
        for begin in range(0, len(data), self.chunk_bytes):
            time.sleep(pause)
            chunk = data[begin : begin + self.chunk_bytes]
            if on_chunk is not None:
                on_chunk(chunk)
            out.write(chunk)
        return len(data)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Replace the object."""
        self._write("put", key, bytes(data), exclusive=False)

    def put_file(self, key: str, path: Path) -> None:
        """Replace the object by the content of a file."""
        self._write("put_file", key, path.read_bytes(), exclusive=False)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise `StoreExists`."""
        self._write("put_if_absent", key, bytes(data), exclusive=True)

    def get_tagged(self, key: str) -> Tagged:
        """Return the whole object with its hash as ETag."""
        rules, found = self._enter("get_tagged", key), self._lookup(key)
        return Tagged(self._spoiled(rules, found), _etag(found))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it is still what `get_tagged` saw, or raise `StoreConflict`."""
        self._write("put_if_match", key, bytes(data), exclusive=False, etag=etag)
        return _etag(bytes(data))

    def size(self, key: str) -> int:
        """Return the size of the object in bytes."""
        self._enter("size", key)
        return len(self._lookup(key))

    def delete(self, key: str) -> None:
        """Remove the object; a no-op if it does not exist."""
        self._enter("delete", key)
        with self._shared.lock:
            self._count_write()
            self._shared.objects.pop(self._full(key), None)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all objects below the folder, sorted by key."""
        folder = folder_of(prefix)
        self._enter("list", folder)
        top = f"{self._prefix}/" if self._prefix else ""
        below = top + (f"{folder}/" if folder else "")
        with self._shared.lock:
            found = [
                ObjectInfo(key.removeprefix(top), len(data), _etag(data), self._shared.times.get(key))
                for key, data in self._shared.objects.items()
                if key.startswith(below)
            ]
        return iter(sorted(found, key=lambda info: info.key))

    def begin_upload(self, key: str) -> UnfinishedUpload:
        """Start an upload in parts and leave it unfinished, like a killed writer."""
        with self._shared.lock:
            number = str(len(self._shared.uploads))
            upload = UnfinishedUpload(self._full(check_key(key)), number, self._shared.clock())
            self._shared.uploads.append(upload)
        return upload

    def unfinished_uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """List the unfinished uploads below the folder."""
        self._enter("unfinished_uploads", folder_of(prefix))
        top = f"{self._prefix}/" if self._prefix else ""
        below = self._full(folder_of(prefix)) + "/" if self._full(folder_of(prefix)) else ""
        with self._shared.lock:
            found = [each for each in self._shared.uploads if each.key.startswith(below)]
        return iter([replace(each, key=each.key.removeprefix(top)) for each in found])

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Forget an upload."""
        self._enter("abort_upload", upload.key)
        with self._shared.lock:
            self._count_write()
            own = replace(upload, key=self._full(upload.key))
            self._shared.uploads[:] = [each for each in self._shared.uploads if each != own]

    def child(self, prefix: str) -> "MemoryStore":
        """Return a view of a folder, with the same objects, faults and log."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._prefix = join_key(self._prefix, folder_of(prefix))
        other.url = f"{self.url}/{prefix}"
        return other

    def _full(self, key: str) -> str:
        return join_key(self._prefix, key)

    def _lookup(self, key: str) -> bytes:
        with self._shared.lock:
            data = self._shared.objects.get(self._full(key))
        if data is None:
            raise StoreNotFound(f"{self.locate(key)} does not exist", key=key, url=self.url)
        return data

    def _enter(self, op: str, key: str) -> Rules:
        """Log the call, wait and fail as planted, and return the rules that hit it."""
        check_key(key, allow_root=op in {"list", "unfinished_uploads"})
        full = self._full(key)
        with self._shared.lock:
            self._shared.calls.append(Call(op, full))
            rules = [rule for rule in self._shared.rules if rule.applies(op, full, self._shared.dice)]
        time.sleep(sum(rule.delay for rule in rules))
        for rule in rules:
            if rule.error is not None and not rule.lost_ack:
                raise rule.error
            if rule.is_plain():
                raise StoreError(f"planted fault at {op} {full}", key=key, url=self.url)
        return rules

    def _write(self, op: str, key: str, data: bytes, *, exclusive: bool, etag: str | None = None) -> None:
        rules = self._enter(op, key)
        with self._shared.lock:
            self._count_write()
            unguarded = any(rule.ignore_if_absent for rule in rules)
            if exclusive and self._full(key) in self._shared.objects and not unguarded:
                raise StoreExists(f"{self.locate(key)} exists already", key=key, url=self.url)
            if etag is not None and not any(rule.ignore_if_match for rule in rules):
                found = self._shared.objects.get(self._full(key))
                if found is None or _etag(found) != etag:
                    raise StoreConflict(f"{self.locate(key)} has changed", key=key, url=self.url)
            self._shared.objects[self._full(key)] = self._spoiled(rules, data)
            self._shared.times[self._full(key)] = self._shared.clock()
        for rule in rules:
            if rule.lost_ack:
                raise rule.error or StoreError(f"planted: the reply to {op} {key} was lost", key=key, url=self.url)

    def _count_write(self) -> None:
        left = self._shared.writes_left
        if left is None:
            return
        if left <= 0:
            raise Killed("the process ends here")
        self._shared.writes_left = left - 1

    @staticmethod
    def _spoiled(rules: Rules, data: bytes) -> bytes:
        for rule in rules:
            if rule.truncate is not None:
                data = data[: rule.truncate]
            if rule.flip is not None:
                data = data[: rule.flip] + bytes([data[rule.flip] ^ 1]) + data[rule.flip + 1 :]
        return data


def _etag(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]
