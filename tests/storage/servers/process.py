"""Starting a server of somebody else's for the tests: a process of its own, on loopback, gone at the end."""

import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager

import pytest

START_SECONDS = 60


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def not_here(reason: str):
    """A server that this machine has not: a failure in CI, a skipped test elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI must have it", pytrace=False)
    pytest.skip(reason)


@contextmanager
def running(make_argv, *, env=None, tries=3, **who):
    """The port of a server that answers there; `make_argv(port)` says how it is started, `who` as which user.

    A port may be taken between being found and being used, so a server that ends at once is tried again.
    """
    for left in reversed(range(tries)):
        port = free_port()
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(
                make_argv(port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                **who,
            )
            try:
                if wait_for(child, port):
                    yield port
                    return
                log.seek(0)
                text = log.read().decode(errors="replace")[-3000:]
            finally:
                child.terminate()
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait(10)
        if not left:
            raise RuntimeError(f"{make_argv(port)[0]} did not start:\n{text}")


def wait_for(child, port) -> bool:
    """Whether something answers at the port before the child ends or the time is over."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if child.poll() is not None:
            return False
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False
