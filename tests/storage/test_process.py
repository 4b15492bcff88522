"""Connections belong to one process, and are made again after a fork in any state of the parent."""

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from smalti.process import PerProcess, collection_paused
from smalti.storage import open_store

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def in_fork(work, seconds=280) -> str:
    """Return the result of `work` in a forked child, as text; fail if the child hangs."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tests fork while threads run
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    timer = threading.Timer(seconds, os.kill, (pid, 9))
    timer.start()
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    timer.cancel()
    return answer or "nothing: killed after the deadline"


def test_each_process_creates_its_own_value():
    value = PerProcess(os.getpid)
    assert value.get() == os.getpid()
    assert in_fork(lambda: value.get() == os.getpid()) == "True"
    assert value.get() == os.getpid()


def test_a_fork_waits_for_a_value_that_another_thread_creates():
    """A thread that creates a client imports modules: a lock of the import would never be released in the child."""
    begun, created = threading.Event(), []

    def make():
        begun.set()
        time.sleep(0.5)
        created.append("a client")

    thread = threading.Thread(target=PerProcess(make).get)
    thread.start()
    try:
        assert begun.wait(60)
        seen = in_fork(lambda: created)
    finally:
        thread.join()
    assert seen == "['a client']"


def test_a_fork_while_another_thread_pauses_the_collector_has_a_collector():
    paused, end = threading.Event(), threading.Event()

    def pause():
        with collection_paused():
            paused.set()
            end.wait(60)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        assert paused.wait(60)
        found = in_fork(gc.isenabled), gc.isenabled()
    finally:
        end.set()
        thread.join()
    assert (found, gc.isenabled()) == (("True", False), True)


def test_a_forked_child_reads_s3_after_the_parent_did(s3_server, s3_bucket):
    store = open_store(f"s3://{s3_bucket}", {"endpoint_url": s3_server})
    store.put("k", b"from the parent")
    for _ in range(3):
        assert in_fork(lambda: store.get("k")) == "b'from the parent'"
    assert store.get("k") == b"from the parent", "the parent goes on"


def test_a_fork_while_other_threads_use_the_store_does_not_hang(s3_server, s3_bucket):
    """In a process of its own: a fork of this one also depends on what other tests have loaded and started."""
    program = [sys.executable, "-m", "tests.storage.test_process", s3_server, s3_bucket]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["b'1'"] * 4), done.stderr


def read_in_forks_beside_threads(server: str, bucket: str) -> None:
    """Print what four forks read, while two threads of this process read the same object."""
    store = open_store(f"s3://{bucket}", {"endpoint_url": server})
    store.put("k", b"1")
    stop = threading.Event()

    def read():
        while not stop.is_set():
            store.get("k")

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            print(in_fork(lambda: store.get("k")), flush=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_a_fork_while_fsspec_creates_its_event_loop_does_not_hang(s3_server, s3_bucket):
    """fsspec's own hook leaves this lock held in the child."""
    import fsspec.asyn

    store = open_store(f"s3://{s3_bucket}", {"endpoint_url": s3_server})
    store.put("k", b"1")
    with fsspec.asyn.get_lock():
        answer = in_fork(lambda: store.get("k"))
    assert answer == "b'1'"


if __name__ == "__main__":
    read_in_forks_beside_threads(*sys.argv[1:])
