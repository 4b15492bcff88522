"""`SharedBarrier`: a barrier of processes of one machine, in named shared memory.

Intended behaviour; anything else is a bug:
1. No process leaves a round before all have entered it. A process may enter the next round while others still leave.
2. The last process that enters inverts `flag`, and the others wait for that; `flag` cannot be inverted again before
   all of them have seen it, because the next round needs them too.
3. Only the process that creates the memory initialises it; memory of processes that have all ended is created anew. A
   wait has a deadline.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from smalti.compat.streaming.base.constant import TICK
from smalti.compat.streaming.base.shared.array import SharedArray

TIMEOUT = 60
"""Longest wait for the lock, which is only held for a few assignments, seconds."""
BARRIER_SECONDS = 3600.0
"""Longest wait for the other processes."""


class SharedBarrier:
    """A barrier of processes of one machine.

    Args:
        filelock_path: Path of a lock file, the same in all processes.
        shm_name: Name of the memory, the same in all processes.
    """

    def __init__(self, filelock_path: str, shm_name: str) -> None:
        self.filelock_path = filelock_path
        with self._locked():
            self._arr = SharedArray(3, np.int32, shm_name)
            if self._arr.shm.created_shms:
                self.num_enter, self.num_exit, self.flag = 0, -1, True

    @property
    def num_enter(self) -> int:
        """Number of processes that wait in this round."""
        return int(self._arr[0])

    @num_enter.setter
    def num_enter(self, num_enter: int) -> None:
        self._arr[0] = num_enter

    @property
    def num_exit(self) -> int:
        """Number of processes that have left the last round; -1 if there was none, or all have left it."""
        return int(self._arr[1])

    @num_exit.setter
    def num_exit(self, num_exit: int) -> None:
        self._arr[1] = num_exit

    @property
    def flag(self) -> bool:
        """State that each round inverts."""
        return bool(self._arr[2])

    @flag.setter
    def flag(self, flag: bool) -> None:
        self._arr[2] = bool(flag)

    def __call__(self, num_procs: int) -> None:
        """Wait until `num_procs` processes have called this.

        Raises:
            TimeoutError: they have not within an hour.
        """
        with self._locked():
            before = self.flag
            self.num_enter += 1
            if self.num_enter == num_procs:
                self.num_enter, self.num_exit, self.flag = 0, 0, not before
        _wait(lambda: self.flag != before, BARRIER_SECONDS, f"{num_procs} processes to reach the barrier")
        with self._locked():
            self.num_exit = -1 if self.num_exit + 1 == num_procs else self.num_exit + 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, which the kernel releases if the process dies."""
        with Path(self.filelock_path).open("ab") as file:
            _wait(lambda: _try_lock(file.fileno()), TIMEOUT, f"the lock of {self.filelock_path}")
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(is_done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}; check that all processes still run.")
        time.sleep(TICK)
