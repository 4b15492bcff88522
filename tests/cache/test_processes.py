"""Several processes with one cache folder: each shard is fetched once, whichever process dies at any moment."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from smalti.errors import StoreTimeout
from smalti.storage import LocalStore
from tests.cache.conftest import DIGEST, ids
from tests.storage.test_process import in_fork
from tests.stores import LoggedStore

pytestmark = pytest.mark.process

READER = """
import json, pickle, sys
from pathlib import Path
cache = pickle.loads(Path(sys.argv[1]).read_bytes())
print("ready", flush=True)
sys.stdin.readline()
if "prefetch" in sys.argv:
    cache.prefetch(range(len(cache)))
found = [int(cache.shard(i)[k]["id"]) for i in range(len(cache)) for k in range(len(cache.shard(i)))]
print(json.dumps(found), flush=True)
"""


class Reader:
    """A process that reads every sample through a pickled cache, after `go`."""

    def __init__(self, cache, folder: Path, *words: str) -> None:
        import pickle

        path = folder / "cache.pickle"
        path.write_bytes(pickle.dumps(cache))
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def ids(self):
        out, _ = self.process.communicate(timeout=500)
        return json.loads(out)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(280)
        self.process.stdout.close()
        self.process.stdin.close()


@pytest.fixture
def remote(tmp_path):
    """A slow remote store with a log on disk."""
    return LoggedStore(LocalStore(tmp_path / "set"), tmp_path / "log", chunk_delay=0.02)


def wait_for(check):
    end = time.monotonic() + 280
    while not check():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


def leftovers(folder):
    return [path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".mds")]


@pytest.mark.slow
def test_four_processes_fetch_each_shard_once(fill, make_cache, remote, tmp_path):
    infos = fill(remote.inner, 60)
    readers = [
        Reader(make_cache(remote, infos, timeout=500), tmp_path, *words)
        for words in ([], [], ["prefetch"], ["prefetch"])
    ]
    for reader in readers:
        reader.go()
    for reader in readers:
        assert reader.ids() == list(range(60))
    fetched = [key for _, key, _ in remote.lines("fetch")]
    assert sorted(fetched) == sorted(info.stored.basename for info in infos), "each once"
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.slow
def test_a_reader_killed_in_a_download_does_not_block_the_next_one(fill, make_cache, remote, tmp_path, compression):
    infos = fill(remote.inner, 40, compression=compression)
    slow = LoggedStore(remote.inner, remote.log, chunk_delay=300)
    reader = Reader(make_cache(slow, infos, timeout=300), tmp_path)
    reader.go()
    root = tmp_path / "cache" / DIGEST
    wait_for(lambda: remote.lines("fetch") and [name for name in leftovers(root) if name.endswith(".lock")])
    reader.kill()
    assert not list(root.rglob("*.mds"))
    # The dead process's lock is free at once: the next one would wait for a living one's for 300 seconds.
    assert ids(make_cache(remote, infos, timeout=500)) == list(range(40))
    assert leftovers(root) == [], "its temporaries are gone"


def test_files_of_a_process_that_died_after_publishing_are_removed(fill, make_cache, remote, tmp_path):
    infos = fill(remote.inner)
    ids(make_cache(remote, infos))
    target = tmp_path / "cache" / DIGEST / infos[0].raw.basename
    for name in (f".{target.name}.lock", f".{target.name}.123.abc.part"):
        target.with_name(name).write_bytes(b"left")
    assert ids(make_cache(remote, infos)) == list(range(40))
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.slow
def test_readers_killed_at_many_moments_never_leave_a_wrong_file(fill, make_cache, remote, tmp_path):
    infos = fill(remote.inner, 60, compression="zstd")
    for turn in range(3):
        reader = Reader(make_cache(remote, infos), tmp_path)
        reader.go()
        time.sleep(0.02 + 0.06 * turn)
        reader.kill()
        for info in infos:
            path = tmp_path / "cache" / DIGEST / info.raw.basename
            if path.exists():
                assert path.stat().st_size == info.raw.num_bytes
    assert ids(make_cache(remote, infos)) == list(range(60))
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.slow
def test_waiting_for_another_process_ends_at_the_deadline(fill, make_cache, remote, tmp_path):
    infos = fill(remote.inner)
    slow = LoggedStore(remote.inner, remote.log, chunk_delay=300)
    reader = Reader(make_cache(slow, infos, timeout=300), tmp_path)
    reader.go()
    wait_for(lambda: remote.lines("fetch"))
    begin = time.monotonic()
    with pytest.raises(StoreTimeout, match="another process"):
        make_cache(remote, infos, timeout=0.5).shard(0)
    assert time.monotonic() - begin < 60
    reader.kill()


def test_a_cache_used_before_a_fork_works_in_the_child(fill, make_cache, remote):
    infos = fill(remote.inner, 60)
    cache = make_cache(remote, infos)
    cache.prefetch(range(len(infos)))
    first = len(cache.shard(0))
    assert in_fork(lambda: ids(cache) == list(range(60))) == "True"
    assert ids(cache) == list(range(60))
    assert len(cache.shard(0)) == first
    assert len(remote.lines("fetch")) == len(infos)


def test_a_child_forked_during_a_fetch_does_not_keep_the_lock(fill, make_cache, remote, tmp_path):
    """A fork shares locks: if the child kept one, it would outlive its parent."""
    infos = fill(remote.inner)
    held = HeldStore(remote.inner, remote.log)
    cache = make_cache(held, infos)
    cache.prefetch([0])
    assert held.begun.wait(280)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    assert open_locks() == 1
    assert in_fork(open_locks) == "0"
    held.go_on.set()
    assert len(cache.shard(0)) > 0


class HeldStore(LoggedStore):
    """A store whose fetches wait in the middle for `go_on`."""

    def __init__(self, inner, log):
        super().__init__(inner, log)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def fetch(self, key, out, *, on_chunk=None):
        self.begun.set()
        assert self.go_on.wait(280)
        return super().fetch(key, out, on_chunk=on_chunk)

    def child(self, prefix):
        return self  # the set is the whole store


def open_locks() -> int:
    """Return how many lock files this process has open."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{fd}").endswith(".lock")
    return count


@pytest.mark.slow
def test_few_file_descriptors_are_enough(fill, make_cache, remote):
    """RLIMIT_NOFILE of 64 and more shards than that."""
    import resource

    infos = fill(LocalStore(remote.inner.root), 700)
    assert len(infos) > 64
    cache = make_cache(LocalStore(remote.inner.root), infos)

    def read():
        used = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 24, used + 24))
        return ids(cache) == list(range(700))

    assert in_fork(read) == "True"


def test_a_full_disk_is_a_store_error_and_leaves_no_files(fill, make_cache, tmp_path):
    """RLIMIT_FSIZE simulates the full disk."""
    import resource
    import signal as signals

    store = LocalStore(tmp_path / "set")
    infos = fill(store, compression="zstd")
    cache = make_cache(store, infos)

    def read():
        signals.signal(signals.SIGXFSZ, signals.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            cache.shard(0)
        except OSError as error:
            return f"{type(error).__name__} {error}"

    answer = in_fork(read)
    assert answer.startswith("StoreError")
    assert "is full" in answer
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert ids(cache) == list(range(40)), "space again: reading succeeds"
