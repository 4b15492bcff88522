"""The place of a dataset (its epoch and position), shared by a program and the worker processes of torch DataLoaders.

Torch calls `iter(dataset)` in each worker, on a copy of the dataset, and not in the program. So the workers agree among
themselves on the epoch that they read, and the program learns it from them.

Intended behaviour; anything else is a bug:
1. A program has one board with the place of each of its datasets. It is created when a process is started
   while a dataset exists. Forked processes inherit it, by hooks that run at every fork of the program (at the end of
   this module); spawned ones get a descriptor of it when a dataset is pickled for them.
2. A process that is not a loader worker, such as a rank, begins with the place at the time when it was started, and has
   its own board for its workers. Reading in it does not change the place of its parent.
3. The first worker of an iteration decides where the iteration begins, when torch creates its iterator; the others
   begin there as well. So with workers an epoch begins at `iter(loader)`.
4. Workers belong to one iteration if torch gave them the same base seed and different numbers, and one thread started
   them one after the other. Base seeds alone are not sufficient: a program may seed torch before each iteration.
5. The program reads the board whenever the place is requested, and writes to it what its user sets. A place that is set
   inside a worker is used by the next iteration of that worker, and must be the same in all workers.
6. No process waits for another, except for the lock of the board, which is held for moments and has a deadline.

The board is a JSON mapping in an unnamed file. Its header contains the place of the content. A change is written
next to the old content, and the header last, so that a process that is killed while it writes leaves the old content.
"""

import fcntl
import itertools
import json
import os
import secrets
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import context, reduction
from typing import Any

from torch.utils.data import get_worker_info

from smalti.cursor import Cursor
from smalti.dataset.resume import RunPlace, RunTracker
from smalti.errors import CursorError, SmaltiError
from smalti.storage.retry import Deadline
from smalti.stream import Version

_HEADER = struct.Struct("<QQQ")  # number of changes; offset and length of the content in bytes
_LOCK_SECONDS = 60.0  # the lock is held for microseconds; a process that holds it longer was stopped
_PAUSE_SECONDS = 0.001  # between two attempts to lock
_CURSORS = ("resume", "adopted", "begun")
_MAX_ITERATIONS = 16  # kept on the board, so that a slow worker finds its iteration
_threads = itertools.count()
_instances: "weakref.WeakSet[SharedProgress]" = weakref.WeakSet()


class Board:
    """A shared mapping; picklable into a process that is being started, which then shares it."""

    def __init__(self, descriptor: int | None = None, *, lock_seconds: float = _LOCK_SECONDS) -> None:
        self._lock_seconds = lock_seconds
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        self._threads = threading.Lock()
        self._handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    @contextmanager
    def content(self) -> Iterator[dict[str, Any]]:
        """Yield the mapping under an exclusive lock; changes made in the block are saved.

        Raises:
            SmaltiError: another process has held the lock for too long.
        """
        deadline = Deadline(self._lock_seconds)
        if not self._threads.acquire(timeout=self._lock_seconds):
            raise self._stuck()
        try:
            # The kernel releases the lock of a process that dies.
            while True:
                with suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if deadline.passed():
                    raise self._stuck()
                time.sleep(_PAUSE_SECONDS)
            try:
                changes, begin, old = self._read()
                content = json.loads(old)
                yield content
                new = json.dumps(content).encode()
                if new != old:
                    self._write(changes + 1, begin, begin + len(old), new)
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    @property
    def changes(self) -> int:
        """Number of changes of the content; read without the lock, for which a process may have to wait."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        return int(_HEADER.unpack(header)[0]) if header else 0

    def forked(self) -> "Board":
        """Return the board for use in a forked process, with a new lock for threads: the copied one may be locked."""
        self._threads = threading.Lock()
        return self

    def _stuck(self) -> SmaltiError:
        return SmaltiError(
            f"another process of this program has locked the place of its datasets for {self._lock_seconds:g} s: a "
            "loader worker or the program was stopped (SIGSTOP, a debugger). Resume it, or end it."
        )

    def _read(self) -> tuple[int, int, bytes]:
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if not header:
            return 0, _HEADER.size, b"{}"
        changes, begin, length = _HEADER.unpack(header)
        return changes, begin, os.pread(self._descriptor, length, begin)

    def _write(self, changes: int, begin: int, end: int, new: bytes) -> None:
        place = _HEADER.size if _HEADER.size + len(new) <= begin else end
        os.pwrite(self._descriptor, new, place)
        os.pwrite(self._descriptor, _HEADER.pack(changes, place, len(new)), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        popen = context.get_spawning_popen()
        if popen is None:
            raise TypeError("a board can be pickled only for a process that is being started")
        # Once for each process: multiprocessing refuses to pass a descriptor twice.
        handle = self._handles.get(popen)
        if handle is None:
            handle = self._handles[popen] = reduction.DupFd(self._descriptor)
        return _received, (handle, self is _Process.own)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("smalti-board", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Process:
    """The boards and the start of this process; a fork hook, at the end of this module, keeps them."""

    own: Board | None = None
    """Board of this process for its workers."""
    parent: Board | None = None
    """Board of the process that started this one."""
    started_by: tuple[int, int] = (0, 0)
    """Number of the parent's thread that started it, and number of processes that the thread had started then."""


def _own_board() -> Board:
    """Return the board of this process for its workers; created on first use."""
    if _Process.own is None:
        _Process.own = Board()
    return _Process.own


def _received(handle: Any, is_of_process: bool) -> Board:  # noqa: FBT001
    if not is_of_process:  # that of a loader
        return Board(handle.detach())
    if _Process.parent is None:
        _Process.parent = Board(handle.detach())
    return _Process.parent


class SharedProgress(RunTracker):
    """The progress of a dataset whose copies in loader workers share it.

    A subclass may have a `cursor_type` of its own, with `epoch`, `to_state` and `from_state` as those of a Cursor.
    """

    cursor_type: Any = Cursor

    def __init__(self) -> None:
        super().__init__()
        self._key = secrets.token_hex(8)
        self._publisher: int | None = None  # id of the process on whose own board the place is
        self._is_placed = False  # the user has set a place in this worker since its last iteration began
        self._has_local_place = False  # in a worker: `_place` is newer than the parent's board
        self._rounds = 0  # iterations that this worker has entered
        self._seen: tuple[int, int] | None = None  # process id, and changes of its board, when `_place` was read
        _instances.add(self)

    def get(self) -> RunPlace:
        """Return the current place."""
        board = self._board()
        if board is not None and not self._has_local_place and self._seen != (os.getpid(), board.changes):
            with board.content() as content:  # not each time: samples are transformed with the epoch of the place
                self._place = self._decoded(self._record(content))
                self._seen = os.getpid(), board.changes
        return self._place

    def set(self, place: RunPlace) -> None:
        """Replace the place by the user's; in a worker, for its next iteration."""
        self._place, self._seen = place, None
        if get_worker_info() is not None:
            self._is_placed = self._has_local_place = True
            return
        board = self._board()
        if board is not None:
            with board.content() as content:
                self._record(content)["place"] = _encoded(place)

    def enter(self) -> int | None:
        """Register an iteration of this worker; return its number, or None outside of workers."""
        info, board = get_worker_info(), self._board()
        if info is None or board is None:
            return None
        self._has_local_place = self._is_placed
        thread, count = _Process.started_by
        identity = {
            "seed": info.seed - info.id,
            "workers": info.num_workers,
            "round": self._rounds,
            "thread": thread,
            "started": count - info.id,  # number of processes that the thread had started before the first worker
        }
        self._rounds += 1
        with board.content() as content:
            record = self._record(content)
            others = [each for each in record["iterations"] if info.id not in each["members"]]
            same = [each for each in others if each["identity"] == identity]
            if not same and any(_is_later(each["identity"], identity) for each in others):
                raise _too_late()
            if not same:
                entered = record["entered"]
                same = [{"number": entered, "identity": identity, "members": [], "start": None, "is_placed": False}]
                record["entered"] += 1
                record["iterations"] = [*record["iterations"], *same][-_MAX_ITERATIONS:]
            same[-1]["members"].append(info.id)
            number: int = same[-1]["number"]
        return number

    def begin(self, settle: Callable[[RunPlace], Cursor], number: int | None = None) -> tuple[Cursor, bool]:
        """Begin an iteration; in a worker, at the start of the other workers of the iteration.

        Raises:
            CursorError: the workers of an iteration have different places, or the dataset was made in a worker.
        """
        board, is_worker = self._board(), get_worker_info() is not None
        if is_worker and board is None:
            return self._begin_alone(settle)
        if board is None:
            return super().begin(settle)
        if not is_worker:
            with board.content() as content:
                record = self._record(content)
                place = self._decoded(record)
                start = settle(place)
                self._place = place.after_begin(start)
                record["place"] = _encoded(self._place)
            return start, True
        if number is None:  # an iteration without torch's loader
            number = self.enter()
        with board.content() as content:
            return self._begin_with_others(self._record(content), settle, number)

    def agree(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Record the versions that were opened, and return those that were recorded first, here or in a worker."""
        board = self._board()
        if board is None:
            return super().agree(versions)
        with board.content() as content:
            record = self._record(content)
            if not record["place"]["versions"]:
                record["place"]["versions"] = versions
            agreed = _versions(record["place"]["versions"])
        self._place = replace(self._place, versions=agreed)
        return agreed

    def _begin_with_others(
        self, record: dict[str, Any], settle: Callable[[RunPlace], Cursor], number: int | None
    ) -> tuple[Cursor, bool]:
        iteration = next((each for each in record["iterations"] if each["number"] == number), None)
        if iteration is None:
            raise _too_late()
        is_placed, is_first = self._is_placed, iteration["start"] is None
        if not is_placed and not is_first:
            start = self.cursor_type.from_state(iteration["start"])
            self._place = self._decoded(record).after_begin(start)
        else:
            place = self._place if is_placed else self._decoded(record)
            start = settle(place)
            if iteration["is_placed"] and iteration["start"] != start.to_state():
                raise CursorError(
                    "workers of one DataLoader were placed differently: one begins at "
                    f"{_describe(iteration['start'])}, and this one at {_describe(start.to_state())}. Load the same "
                    "state, or set the same epoch, in all of them; or once, in the main process."
                )
            self._place = place.after_begin(start)
            if not iteration["is_placed"]:
                iteration |= {"start": start.to_state(), "is_placed": is_placed}
                record["place"] = _encoded(self._place)
        self._is_placed, self._has_local_place = False, True
        return start, is_first

    def _begin_alone(self, settle: Callable[[RunPlace], Cursor]) -> tuple[Cursor, bool]:
        """Begin an iteration of a dataset that was made in a worker."""
        if not self._has_local_place:
            raise CursorError(
                "this StreamingDataset was made inside a worker of a torch DataLoader, where it cannot know which "
                "epoch it is: every epoch would repeat the order of the first. Make it in the main process and pass "
                "it to the workers, or call `dataset.set_epoch(n)` in the worker."
            )
        start = settle(self._place)
        self._place = self._place.after_begin(start)
        return start, True

    def _decoded(self, record: Mapping[str, Any]) -> RunPlace:
        place = record["place"]
        cursors = {name: place[name] for name in _CURSORS}
        decode = self.cursor_type.from_state
        return RunPlace(
            next_epoch=place["next_epoch"],
            versions=_versions(place["versions"]),
            **{name: None if state is None else decode(state) for name, state in cursors.items()},
        )

    def _board(self) -> Board | None:
        """Return the board with this dataset's place; None if the dataset is in this process only."""
        if get_worker_info() is None:
            return _own_board() if self._publisher == os.getpid() else None
        return _Process.parent if self._publisher is not None and self._publisher != os.getpid() else None

    def _record(self, content: Mapping[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] | None = content.get(self._key)
        if record is None:
            raise CursorError(
                "the StreamingDataset that this loader worker has a copy of was deleted in the process that started "
                "the worker. Keep a reference to it there while its workers read."
            )
        return record

    # ------------------------------------------------------------------ to other processes

    def publish(self, content: dict[str, Any]) -> None:
        """Put the place on this process's own board, whose content is passed; a place that is there is kept."""
        if self._publisher == os.getpid():
            self._place = self._decoded(self._record(content))
            return
        content[self._key] = {"place": _encoded(self._place), "iterations": [], "entered": 0}
        self._publisher = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        if context.get_spawning_popen() is None:
            return {"place": self.get()}  # a copy is independent
        board, by = _own_board(), _starts.count(context.get_spawning_popen())
        with board.content() as content:
            self.publish(content)
        return {"place": self._place, "key": self._key, "publisher": self._publisher, "board": board, "started_by": by}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # as a new object of this process
        self._place = state["place"]
        self._key = state.get("key", self._key)
        self._publisher = state.get("publisher")
        _Process.started_by = state.get("started_by", _Process.started_by)


class _Starts(threading.local):
    """The processes that a thread of this process has started."""

    def __init__(self) -> None:
        self._thread, self._count = next(_threads), 0
        self._latest: weakref.ref[Any] | None = None

    def count(self, popen: Any = None) -> tuple[int, int]:
        """Count a process that is being started, only once per `popen`; return thread and count."""
        if popen is None or self._latest is None or self._latest() is not popen:
            self._count += 1
            self._latest = None if popen is None else weakref.ref(popen)
        return self._thread, self._count

    @property
    def latest(self) -> tuple[int, int]:
        """Thread, and count at the latest start."""
        return self._thread, self._count


_starts = _Starts()


def _is_later(other: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """Return whether workers of the same loader entered iteration `other` after the one with `identity`."""
    return {**other, "round": 0} == {**identity, "round": 0} and other["round"] > identity["round"]


def _too_late() -> CursorError:
    return CursorError(
        f"this loader worker is more than {_MAX_ITERATIONS} iterations behind the others of its dataset, and the "
        "start of its iteration is no longer known. Use one iteration of a loader after the other."
    )


def _describe(state: Mapping[str, Any]) -> str:
    return f"sample {state['sample_in_epoch']} of epoch {state['epoch']}"


def _encoded(place: RunPlace) -> dict[str, Any]:
    cursors = {name: getattr(place, name) for name in _CURSORS}
    states = {name: None if cursor is None else cursor.to_state() for name, cursor in cursors.items()}
    return {"next_epoch": place.next_epoch, "versions": place.versions, **states}


def _versions(pairs: Any) -> tuple[Version, ...]:
    return tuple((number, digest) for number, digest in pairs)


# ------------------------------------------------------------ forks


def _publish_all() -> None:
    """Publish the places of all datasets before a fork, on the board that the child inherits."""
    _starts.count()
    progresses = list(_instances)
    if not progresses:
        return
    with _own_board().content() as content:
        for progress in progresses:
            progress.publish(content)
        for key in content.keys() - {progress._key for progress in progresses}:
            del content[key]


def _begin_in_child() -> None:
    """Make the parent's board that of the parent in a forked process, and record which of its threads has forked."""
    own, _Process.own = _Process.own, None
    _Process.parent = None if own is None else own.forked()
    _Process.started_by = _starts.latest  # of the thread that forked, the only one in the child


# Torch calls nothing of a dataset when it forks workers: see 1 in the module's docstring.
os.register_at_fork(before=_publish_all, after_in_child=_begin_in_child)
