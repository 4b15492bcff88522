"""Faults of the cache's folder and disk. Bytes under a name change by rename, as other programs change files."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.soak.faults import Fault, Field, Heal, Impossible, classes
from smalti.cache.files import BUDGET_LOCK, FileLock
from smalti.storage.retry import Deadline

BALLAST = ".ballast"
_SPARE = ".replaced"
_LEFT_FREE = 4096  # bytes
_CLI = "from smalti.cli import main; raise SystemExit(main())"


def _copies(field: Field, *, mapped: bool | None) -> list[Path]:
    """Copies of the mixture's shards; those that a process has mapped, those that none has, or both."""
    found = [
        path
        for root in field.roots
        for path in sorted((field.cache / root).rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(field.cache).parts)
        and path.is_file()
        and not path.is_symlink()
    ]
    if mapped is not None:
        used = _mapped(field)
        found = [path for path in found if (str(path) in used) == mapped]
    if not found:
        raise Impossible
    return found


def _mapped(field: Field) -> set[str]:
    names: set[str] = set()
    for pid in field.readers():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            names |= {line.partition("/")[1] + line.partition("/")[2] for line in lines if "/" in line}
    return names


def _some(field: Field, found: list[Path]) -> list[Path]:
    return field.random.sample(found, min(len(found), 5))


def _replaced(change: Callable[[Field, bytearray], bytearray], *, mapped: bool) -> Callable[[Field], None]:
    def plant(field: Field) -> None:
        for path in _some(field, _copies(field, mapped=mapped)):
            with suppress(FileNotFoundError):  # evicted meanwhile
                spare = field.cache / _SPARE
                spare.write_bytes(change(field, bytearray(path.read_bytes())))
                _put_in_place(field, spare, path)

    return plant


def _put_in_place(field: Field, spare: Path, path: Path) -> None:
    """Under the lock of whoever evicts: a copy that goes meanwhile would come back beyond the limit."""
    root = field.cache / path.relative_to(field.cache).parts[0]
    with FileLock(root / BUDGET_LOCK, Deadline(30.0), "a fault of the soak"):
        if path.exists():
            spare.replace(path)
    spare.unlink(missing_ok=True)


def _flipped(field: Field, data: bytearray) -> bytearray:
    if data:
        data[field.random.randrange(len(data))] ^= 1 << field.random.randrange(8)
    return data


def _cut(field: Field, data: bytearray) -> bytearray:
    return data[: field.random.randrange(len(data) + 1) // 2]


def _cut_in_place(field: Field) -> None:
    """Under the feet of whoever maps it: the kernel ends that process (SIGBUS) when it looks there."""
    for path in _some(field, _copies(field, mapped=True))[:2]:
        with suppress(FileNotFoundError):
            os.truncate(path, 0)


def _removed(field: Field) -> None:
    for path in _some(field, _copies(field, mapped=None)):
        path.unlink(missing_ok=True)


def _linked(field: Field) -> None:
    for path in _some(field, _copies(field, mapped=None)):
        spare = field.cache / _SPARE
        spare.symlink_to(__file__)
        _put_in_place(field, spare, path)


def _touched(field: Field) -> None:
    hour = 3600 * 10**9
    for path in _copies(field, mapped=None):
        with suppress(FileNotFoundError):
            now = path.stat().st_mtime_ns
            os.utime(path, ns=(now, now + field.random.randint(-hour, hour)))


def _without_folder(field: Field) -> None:
    shutil.rmtree(field.cache / field.random.choice(field.roots), ignore_errors=True)


def _without_cache(field: Field) -> None:
    for folder in [path for path in field.cache.iterdir() if path.is_dir()]:
        shutil.rmtree(folder, ignore_errors=True)


def _command(*words: str) -> Callable[[Field], None]:
    def plant(field: Field) -> None:
        field.run([sys.executable, "-c", _CLI, "cache", *words, "--local", str(field.cache)])

    return plant


def _full(field: Field) -> Heal:
    ballast = field.cache / BALLAST
    room = os.statvfs(field.cache)
    size = max(0, room.f_bavail * room.f_frsize - _LEFT_FREE)
    with ballast.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    return lambda: ballast.unlink(missing_ok=True)


CACHE_FAULTS = [
    Fault("cache_flipped", "copies with a flipped bit, nobody has them open", _replaced(_flipped, mapped=False)),
    Fault("cache_flipped_open", "the same of copies that are open, by rename", _replaced(_flipped, mapped=True)),
    Fault("cache_cut", "copies cut off, nobody has them open", _replaced(_cut, mapped=False)),
    Fault("cache_cut_open", "the same of copies that are open, by rename", _replaced(_cut, mapped=True)),
    Fault("cache_emptied_open", "open copies truncated in place", _cut_in_place, explains=classes("TrainingError")),
    Fault("cache_removed", "copies removed, open or not", _removed),
    Fault("cache_linked", "copies replaced by links to another file", _linked),
    Fault("cache_touched", "times of all copies moved by up to an hour", _touched),
    Fault("cache_no_folder", "a data set's folder removed, locks and temporaries too", _without_folder),
    Fault("cache_no_cache", "all folders of the cache removed", _without_cache),
    Fault("cache_cleared", "`smalti cache clear` beside the readers", _command("clear")),
    Fault("cache_scrubbed", "`smalti cache scrub` beside the readers", _command("scrub")),
    Fault("disk_full", "no room on the cache's disk for 4 s", _full, 4.0, classes("StoreError"), needs_own_disk=True),
]
"""In no order."""
