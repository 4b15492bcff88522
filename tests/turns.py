"""Things of which a machine has one, such as a port: tests of several processes take turns."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turn_of(what: str, seconds: float) -> Iterator[None]:
    """While inside, no other test of this user has its turn of the same; waits so long for it."""
    path = os.path.join(tempfile.gettempdir(), f"smalti-{what}-{os.getuid()}.lock")
    deadline = time.monotonic() + seconds
    with open(path, "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, f"another test held {path} for {seconds:.0f} s"
                time.sleep(0.1)
        yield
