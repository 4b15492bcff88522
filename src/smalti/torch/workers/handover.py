"""Passing arguments to worker processes through an unnamed file: an unread pipe would block the program.

`multiprocessing` pickles the arguments of a spawned process into a pipe, and keeps the reading end open until all is
written. If the process dies before it has read all but 64 KiB (the size of a pipe on Linux), the program blocks
indefinitely. Writing a file does not block, and its descriptor fits into the pipe.
"""

import os
import pickle
import tempfile
from multiprocessing import context, get_start_method, reduction
from types import TracebackType
from typing import IO, Any


def pickles_tasks(start: Any) -> bool:
    """Return whether processes of a context (a name, a context, None for the default) get arguments through a pipe."""
    name = start if isinstance(start, str) else get_start_method() if start is None else start.get_start_method()
    return name != "fork"


class TaskArgument:
    """A placeholder for a value in the arguments of processes that are started in the `with` block.

    The started process receives the value itself.
    """

    def __init__(self, value: Any) -> None:
        self._value, self._files = value, list[IO[bytes]]()

    def __enter__(self) -> "TaskArgument":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            raise TypeError("a task's argument can be pickled only for a process that is being started")
        file = tempfile.TemporaryFile()  # noqa: SIM115 -- open until the process has its own descriptor of it
        self._files.append(file)
        reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
        file.flush()
        return _receive, (reduction.DupFd(file.fileno()),)


def _receive(descriptor: Any) -> Any:
    with os.fdopen(descriptor.detach(), "rb") as file:
        file.seek(0)  # the position is shared with the process that wrote the file
        return pickle.load(file)  # noqa: S301 -- as multiprocessing does: the parent process wrote it
