"""Third-party servers for the tests: a child process each, on loopback, ended with the test."""

import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager

import pytest

START_SECONDS = 280


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fail_or_skip(reason: str):
    """Fail the test in CI, and skip it elsewhere, because a server is not installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI must have it", pytrace=False)
    pytest.skip(reason)


@contextmanager
def run_server(make_argv, *, env=None, tries=3, **user):
    """Run the program `make_argv(port)` and yield its port once it answers; `user` has arguments of `Popen`.

    Another process may take the free port first, so a server that ends at once is started again.
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
                **user,
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
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait(60)
        if not left:
            raise RuntimeError(f"{make_argv(port)[0]} did not start:\n{text}")


def wait_for(child, port) -> bool:
    """Return whether the port accepts connections before the child ends or the time is over."""
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
