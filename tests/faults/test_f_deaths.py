"""F6 to F9: killed process groups, cleaning beside jobs, deaths between two steps and during a download."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource, inspect
from smalti.storage import LocalStore
from tests.cache.conftest import DIGEST, ids
from tests.faults.cached_sets import SAMPLES, copies, read_all, reader, remote_set
from tests.storage.test_process import in_fork
from tests.stores import LoggedStore

pytestmark = pytest.mark.process

GROUP = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.faults.cached_sets import reader
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.cache import CacheOptions
cache = CacheOptions(local=sys.argv[2], cache_limit=60000)
dataset = StreamingDataset(remote=sys.argv[1], cache=cache, batch_size=8, shuffle=True)
loader = StreamingDataLoader(dataset, num_workers=2, worker_kind="process", persistent_workers=True)
while True:
    for batch in loader:
        print("batch", flush=True)
"""


def is_any_left(group):
    """Return whether a process of this group has not ended yet."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, number = stat.read_text().rsplit(") ", 1)[1].split()[:3]
            if int(number) == group and state not in "ZX":
                return True
    return False


def leftovers(local):
    return sorted(path.name for path in local.rglob("*") if path.name.endswith((".part", ".lock")))


@pytest.mark.slow
def test_f6_a_restart_after_a_killed_process_group_works(tmp_path):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    job = subprocess.Popen(
        [sys.executable, "-c", GROUP, str(remote), str(local)],
        stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    for _ in range(3):
        assert job.stdout.readline() == "batch\n"
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(10)
    job.stdout.close()
    end = time.monotonic() + 20
    while is_any_left(job.pid) and time.monotonic() < end:  # leases are released when their processes have ended
        time.sleep(0.02)
    dataset = reader(remote, local, cache_limit=60000)
    assert read_all(dataset) == list(range(SAMPLES))
    dataset.close()
    end = time.monotonic() + 20
    # A process that was killed under the lock of the budget leaves its file: the next one to evict takes it over.
    harmless = {".budget.lock"}
    while set(leftovers(local)) - harmless and time.monotonic() < end:  # threads that fetch ahead complete their fetch
        time.sleep(0.05)
    assert set(leftovers(local)) - harmless == set()
    assert list(local.rglob(".leases/*")) == []


def test_f7_scrub_removes_files_of_dead_processes_and_of_no_living_one(fill, make_cache, tmp_path):
    store = LoggedStore(LocalStore(tmp_path / "set"), tmp_path / "log", chunk_delay=0.4)
    infos = fill(store.inner)
    cache = make_cache(store, infos)
    cache.prefetch([0])
    while not store.lines("fetch"):
        time.sleep(0.005)
    root = tmp_path / "cache" / DIGEST
    part = root / f".{infos[1].raw.basename.rpartition('/')[2]}.123.abcdef0123456789.part"
    dead = (root / infos[1].raw.basename).parent / part.name
    dead.write_bytes(b"left by a dead process")
    bystander = tmp_path / "cache" / "other" / ".notes.1.ab.part"
    bystander.parent.mkdir()
    bystander.write_text("not the cache's")
    assert [each.files for each in inspect.scrub(tmp_path / "cache")] == [1]
    assert not dead.exists()
    assert len(cache.shard(0)) > 0
    assert len(store.lines("fetch")) == 1, "the running fetch was not disturbed"
    assert bystander.read_text() == "not the cache's"
    assert leftovers(tmp_path / "cache") == [bystander.name]


class KillingStore(LoggedStore):
    """A store that kills its process when so many bytes of an object were sent."""

    def __init__(self, inner: LocalStore, log: Path, after: int) -> None:
        super().__init__(inner, log)
        self.after = after

    def fetch(self, key, out, *, on_chunk=None):
        out.write(self.inner.get(key)[: self.after])
        time.sleep(0.05)  # until it is on disk
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("limit", [None, 4000])
@pytest.mark.slow
def test_f9_a_reader_killed_anywhere_in_a_download_leaves_no_partial_file_under_a_final_name(
    fill,
    make_cache,
    tmp_path,
    compression,
    limit,
):
    store = LocalStore(tmp_path / "set")
    infos = fill(store, compression=compression)
    options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=10.0)
    size = infos[0].stored.num_bytes
    for after in range(0, size + 1, max(1, size // 8)):
        dying = ShardCache(
            ShardSource(KillingStore(store, tmp_path / "log", after), DIGEST, infos, options), limit=limit
        )
        assert in_fork(lambda cache=dying: cache.shard(0)) == "nothing: killed after the deadline"
        assert copies(tmp_path / "cache") == {}
    cache = ShardCache(ShardSource(LoggedStore(store, tmp_path / "log"), DIGEST, infos, options), limit=limit)
    assert ids(cache) == list(range(40))
    cache.close()
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("keep_zip", [False, True])
def test_f8_a_reader_killed_at_any_rename_leaves_copies_within_the_limit(fill, tmp_path, keep_zip):
    """Killed just before and just after the unpacked file is published, and the compressed one."""
    infos = fill(LocalStore(tmp_path / "set"), compression="zstd")
    held = max(info.raw.num_bytes + (info.zip.num_bytes if keep_zip else 0) for info in infos)
    options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=10.0, keep_zip=keep_zip)

    def make():
        return ShardCache(ShardSource(LocalStore(tmp_path / "set"), DIGEST, infos, options), limit=2 * held)

    for renames in range(3):
        for before in (True, False):

            def work(renames=renames, before=before):
                done, rename = [], Path.replace

                def fatal(self, target):
                    done.append(target)
                    if before and len(done) > renames:
                        os.kill(os.getpid(), signal.SIGKILL)
                    rename(self, target)
                    if len(done) > renames:
                        os.kill(os.getpid(), signal.SIGKILL)

                Path.replace = fatal
                return ids(make())

            assert in_fork(work) == "nothing: killed after the deadline"
            assert sum(copies(tmp_path / "cache").values()) <= 2 * held
            cache = make()
            assert ids(cache) == list(range(40))
            cache.close()
            assert sum(copies(tmp_path / "cache").values()) <= 2 * held
            assert leftovers(tmp_path / "cache") == []
