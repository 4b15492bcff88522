"""Versions of a million shards: publishing, opening and comparing them. None of the shards' files exists.

What a driver has when the tasks are done, their answers, is there when the clock starts; it counts as memory of its own
(`answers_mb`). The store claims that every shard is there, so that a million files are no part of what is measured.
"""

import gc
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measures.memory import PeakMemory
from benchmarks.task import Figures, Task

if TYPE_CHECKING:
    from smalti.format import ShardInfo
    from smalti.storage import ObjectInfo, Store

_WRITE_ID, _APPENDED = "20261122t000000-0123456789abcdef", "20261122t000000-appended"
_PER_TASK = 1000
_SAMPLES = 60_000
_COLUMNS = {"id": "int64", "label": "int32", "name": "str", "data": "bytes"}
_AGE = 8 * 86400.0


def measure_manifest(task: Task) -> Figures:
    """Seconds and memory of one thing that is done with such a version, named by the option `action`."""
    import_module("smalti.torch")  # what a reader imports; Arrow comes when it is needed
    action = str(task.options["action"])
    folder = task.work / "sets" / f"manifest-{task.samples}"
    if action == "publish":
        shutil.rmtree(folder, ignore_errors=True)
    elif action != "foreign" and not (folder / "index.json").exists():
        _publishing(task, folder)[0]()
    work, about = ACTIONS[action](task, folder)
    gc.collect()
    memory, begin = PeakMemory(), time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    figures = {"seconds": seconds, "added_mb": memory.added_mb(), **about}
    for name, found in result.items():
        if found != about.get(name, found):
            raise ValueError(f"{action}: {name} is {found}, not {about[name]}")
    return figures


Action = tuple[Callable[[], Mapping[str, Any]], dict[str, Any]]
"""What is timed, giving what can be compared, and what is known beforehand."""


def _publishing(task: Task, folder: Path) -> Action:
    """From the tasks' answers to the new version, its index file included: what Spark's driver does."""
    from smalti.catalog import Draft, publish
    from smalti.catalog.table.arrow import pack_shards, unpack_shards
    from smalti.catalog.table.segments import joined_table
    from smalti.format import Schema

    store = _claiming(folder, task.samples)
    answers = [
        pack_shards([_shard(begin + number) for number in range(min(_PER_TASK, task.samples - begin))])
        for begin in range(0, task.samples, _PER_TASK)
    ]

    def work() -> Mapping[str, Any]:
        shards = joined_table((unpack_shards(answer, where="answer") for answer in answers), task.samples)
        manifest = publish(store, Draft(_WRITE_ID, Schema.from_columns(_COLUMNS), shards))
        return {"shards": len(manifest.shards)}

    return work, {"shards": task.samples, "answers_mb": sum(map(len, answers)) / 1e6}


def _appending(task: Task, folder: Path, count: int = 1) -> Action:
    """One more shard as a version of its own, or more of them."""
    from smalti.catalog import Draft, publish
    from smalti.format import Schema

    copy = task.scratch / "copy"
    shutil.copytree(folder, copy)
    shards = [_shard(number, _APPENDED) for number in range(count)]
    store = _claiming(copy, count, _APPENDED)

    def work() -> Mapping[str, Any]:
        draft = Draft(_APPENDED, Schema.from_columns(_COLUMNS), shards)
        return {"shards": len(publish(store, draft, mode="append").shards)}

    return work, {"shards": task.samples + count}


def _opening(task: Task, folder: Path) -> Action:
    """A data set to take samples from by number."""

    def work() -> Mapping[str, Any]:
        from smalti import open_dataset

        return {"samples": len(open_dataset(str(folder)))}

    return work, {"samples": task.samples * _SAMPLES}


def _opening_foreign(task: Task, folder: Path) -> Action:
    """The same of an index file as MosaicML Streaming writes it, with nothing beside it."""
    foreign = task.scratch / "foreign"
    foreign.mkdir()
    entries = [_shard(number).to_json() for number in range(task.samples)]
    (foreign / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))
    return _opening(task, foreign)


def _history(task: Task, folder: Path) -> Action:
    """All versions that there are."""
    from smalti.catalog import history

    return lambda: {"rows": history(str(folder))[0].rows}, {"rows": task.samples * _SAMPLES}


def _comparing(task: Task, folder: Path) -> Action:
    """What one more shard changed."""
    from smalti.catalog.diff import diff

    appending, about = _appending(task, folder)
    appending()
    copy = str(task.scratch / "copy")
    return lambda: {"shards": diff(copy, 1, 2).num_kept + 1}, about


def _tagging(task: Task, folder: Path) -> Action:
    """A name for the version."""
    from smalti.catalog import tag

    copy = task.scratch / "copy"
    shutil.copytree(folder, copy)
    return lambda: {"version": tag(str(copy), "best")}, {"version": 1}


def _rolling_back(task: Task, folder: Path) -> Action:
    """Back to the version before one shard was appended."""
    from smalti.catalog import rollback

    appending, _ = _appending(task, folder)
    appending()
    store = _claiming(task.scratch / "copy", task.samples)  # a short version's shards are all looked up before
    return lambda: {"shards": len(rollback(store, 1).shards)}, {"shards": task.samples}


def _listing(task: Task, folder: Path) -> Action:
    """The index file for other readers."""
    from smalti.catalog import write_index

    copy = task.scratch / "copy"
    shutil.copytree(folder, copy)
    return lambda: {"shards": len(write_index(str(copy)).shards)}, {"shards": task.samples}


def _vacuuming(task: Task, folder: Path) -> Action:
    """What a clean-up would remove, out of as many objects: nothing. A dry run."""
    from smalti.catalog.retention.vacuum import vacuum

    store = _claiming(folder, task.samples)
    return lambda: {"removed": len(vacuum(store).removed)}, {"removed": 0}


ACTIONS: Mapping[str, Callable[[Task, Path], Action]] = {
    "publish": _publishing,
    "append": _appending,
    "append-100": lambda task, folder: _appending(task, folder, 100),
    "tag": _tagging,
    "rollback": _rolling_back,
    "list": _listing,
    "open": _opening,
    "foreign": _opening_foreign,
    "history": _history,
    "diff": _comparing,
    "vacuum": _vacuuming,
}


def _shard(number: int, write_id: str = _WRITE_ID) -> "ShardInfo":
    from smalti.format import FileInfo, Schema, ShardInfo

    digest = f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"
    name = _name(number, write_id)
    raw = FileInfo(name.removesuffix(".zstd"), 67_108_000, {"xxh3_64": digest})
    zipped = FileInfo(name, _size(number), {"xxh3_64": digest[::-1]})
    return ShardInfo(Schema.from_columns(_COLUMNS), _SAMPLES, raw, zipped, "zstd:3", ("xxh3_64",), 1 << 26)


def _name(number: int, write_id: str) -> str:
    task, place = divmod(number, _PER_TASK)
    return f"{write_id}/{task:05d}-0a1b2c3d/shard.{place:05d}.mds.zstd"


def _size(number: int) -> int:
    return 60_108_000 + number


def _claiming(folder: Path, shards: int, write_id: str = _WRITE_ID) -> "Store":
    from smalti.storage import ObjectInfo
    from smalti.storage.local import LocalStore

    old = time.time() - _AGE

    class Claiming(LocalStore):
        """Lists all shards as if they were there."""

        def list(self, prefix: str = "") -> "Iterator[ObjectInfo]":
            for number in range(shards):
                yield ObjectInfo(_name(number, write_id), _size(number), "", old)
            if not prefix:
                yield from super().list("_versions")

    return Claiming(folder)
