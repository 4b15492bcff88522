"""What a worker process is started with, by a file without a name: a pipe that nobody reads blocks who writes it.

`multiprocessing` pickles a process's task into a pipe, of which it holds the reading end as well until all is written
("spawn"): when the new process dies before it has read more than the pipe takes, 64 KiB on Linux, the program waits
for ever. A file is written whether anybody reads it or not, and only its descriptor goes through the pipe.
"""

import os
import pickle
import tempfile
from multiprocessing import context, get_start_method, reduction
from types import TracebackType
from typing import IO, Any


def pickles_tasks(of: Any) -> bool:
    """Whether processes of this context (a name, a context, None for the default) get their task through a pipe."""
    name = of if isinstance(of, str) else get_start_method() if of is None else of.get_start_method()
    return name != "fork"


class HandedOver:
    """Stands for a value in the arguments of processes that are started within the `with` block; arrives as itself."""

    def __init__(self, value: Any) -> None:
        self._value, self._files = value, list[IO[bytes]]()

    def __enter__(self) -> "HandedOver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            raise TypeError("this goes to a process that is being started, and nowhere else")
        file = tempfile.TemporaryFile()  # noqa: SIM115 -- open until the process has its own descriptor of it
        self._files.append(file)
        reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
        file.flush()
        return _arrived, (reduction.DupFd(file.fileno()),)


def _arrived(descriptor: Any) -> Any:
    with os.fdopen(descriptor.detach(), "rb") as file:
        file.seek(0)  # the position is shared with whoever wrote it
        return pickle.load(file)  # noqa: S301 -- as multiprocessing does: our own program wrote it for us
