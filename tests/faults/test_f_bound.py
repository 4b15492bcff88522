"""F1 to F5: a full disk, limits of any size, eviction beside readers, data that are never removed, jobs that share."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smalti.cache import CacheOptions, inspect
from smalti.errors import SmaltiError, StoreError
from smalti.writer import MDSWriter
from tests.faults.cached_sets import SAMPLES, Watch, copies, read_all, reader, remote_set, shard_bytes
from tests.shard_sets import write_set
from tests.storage.test_process import in_fork

ALL = list(range(SAMPLES))

ON_SMALL_DISK = """
import json, subprocess, sys, time
from pathlib import Path
from tests.faults.cached_sets import read_all, reader
remote, local, size = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
local.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", local], check=True)
try:
    dataset = reader(remote, local)
    found = read_all(dataset)
    dataset.close()
except Exception as error:
    found = f"{type(error).__name__}: {error}"
def leftovers():
    return [path.name for path in local.rglob("*") if path.suffix in {".part", ".lock"}]
end = time.monotonic() + 60
while leftovers() and time.monotonic() < end:  # a fetch ahead may take another moment
    time.sleep(0.05)
left = leftovers()
print(json.dumps([found, left]))
"""


EPOCHS_ON_SMALL_DISK = """
import json, subprocess, sys
from pathlib import Path
from smalti import CacheOptions, OrderOptions
from smalti.torch import StreamingDataLoader, StreamingDataset
remote, local, size = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
local.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", local], check=True)
found = []
for epoch in range(4):
    options = {"shuffle": bool(epoch % 2), "shuffle_seed": epoch, "order": OrderOptions(shuffle_block_size=40)}
    # A tenth of the time limit is for other workers, which may be slow, to free space.
    cache = CacheOptions(local=str(local), download_timeout=1000)
    dataset = StreamingDataset(remote=str(remote), batch_size=8, cache=cache, **options)
    try:
        loader = StreamingDataLoader(dataset, num_workers=epoch // 2 % 2 * 2)
        found.append(len({number for batch in loader for number in batch["id"].tolist()}))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    dataset.close()
    for path in local.rglob("*.mds"):
        path.unlink()
print(json.dumps(found))
"""


DISK_OF_DELETED_FILES = """
import json, os, subprocess, sys, threading, time
from pathlib import Path
from tests.faults.cached_sets import read_all, reader
remote, local, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
local.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", local], check=True)
held = open(local / "evicted", "wb")
os.posix_fallocate(held.fileno(), 0, size)
(local / "evicted").unlink()
dataset = reader(remote, local, download_timeout=1000)
def close_after_a_failure():
    end = time.monotonic() + 90
    while not dataset.stats(least=False).retries and time.monotonic() < end:
        time.sleep(0.01)
    held.close()
closing = threading.Thread(target=close_after_a_failure)
closing.start()
found = read_all(dataset)
closing.join()
print(json.dumps([found, dataset.stats().retries > 0]))
dataset.close()
"""


def on_small_disk(remote, local, size):
    """Read an epoch in a mount namespace whose cache disk has this size; return samples or error, and leftovers."""
    return in_namespace(ON_SMALL_DISK, str(remote), str(local), size)


def in_namespace(program, *arguments):
    """Run a program in a mount namespace of its own; return what it prints as JSON."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here: needs CAP_SYS_ADMIN")
    root = Path(__file__).parents[2]
    path = {"PYTHONPATH": f"{root}/src:{root}"}
    ended = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=500, check=False, cwd=root, env=os.environ | path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.process
@pytest.mark.slow
def test_f1_on_a_full_disk_copies_are_evicted_and_the_epoch_is_complete(tmp_path):
    remote = remote_set(tmp_path / "set", 800)
    assert on_small_disk(remote, tmp_path / "cache", "200k") == [list(range(800)), []]


@pytest.mark.process
def test_f1_epochs_on_a_disk_that_holds_six_shards_are_complete(tmp_path):
    """Shards fetched ahead must not take the space of the one that a reader waits for."""
    remote, columns = tmp_path / "set", {"id": "int", "b": "bytes"}
    with MDSWriter(out=str(remote), columns=columns, size_limit=1 << 19, compression="zstd") as writer:
        for number in range(400):
            writer.write({"id": number, "b": random.Random(number).randbytes(20_000)})
    found = in_namespace(EPOCHS_ON_SMALL_DISK, str(remote), str(tmp_path / "cache"), str(6 << 19))
    assert found == [400] * 4


@pytest.mark.process
def test_f1_a_disk_full_of_deleted_files_that_some_process_has_open_is_waited_for(tmp_path):
    """Evicted copies take space as long as any process has them mapped, and nothing is left then to evict."""
    remote = remote_set(tmp_path / "set")
    found = in_namespace(DISK_OF_DELETED_FILES, str(remote), str(tmp_path / "cache"), str(1 << 20))
    assert found == [ALL, True]


@pytest.mark.process
def test_f1_a_shard_that_is_larger_than_the_disk_is_a_typed_error_and_leaves_nothing(tmp_path):
    remote = remote_set(tmp_path / "set", 6000, size_limit=1 << 20)
    found, left = on_small_disk(remote, tmp_path / "cache", "64k")
    assert found.startswith("StoreError: shard ")
    assert "is full" in found
    assert left == []


@pytest.mark.parametrize("count", range(1, 13))
def test_f2_a_limit_of_a_few_shards_is_kept_and_the_epoch_is_complete(tmp_path, count):
    remote, local = remote_set(tmp_path / "set", 60), tmp_path / "cache"
    dataset = reader(remote, local, shuffle_block_size=16)
    limit = count * max(shard_bytes(dataset))
    dataset = reader(remote, local, shuffle_block_size=16, cache_limit=limit)
    with Watch(local) as watch:
        assert read_all(dataset) == list(range(60))
    assert watch.looks > 3
    assert 0 < watch.most <= limit
    assert sum(copies(local).values()) <= limit
    dataset.close()


def test_f2_a_limit_below_the_largest_shard_is_refused_with_both_sizes(tmp_path):
    remote = remote_set(tmp_path / "set", 60)
    largest = max(shard_bytes(reader(remote, tmp_path / "cache")))
    with pytest.raises(ValueError, match=rf"`cache_limit` is {largest - 1} bytes, .* alone takes {largest}") as caught:
        reader(remote, tmp_path / "none", cache_limit=largest - 1)[0]
    assert isinstance(caught.value, SmaltiError)
    assert not (tmp_path / "none").exists(), "nothing was fetched before"


def test_f2_a_limit_below_the_shuffle_window_warns_before_the_first_batch(tmp_path):
    remote = remote_set(tmp_path / "set", 60)
    total = sum(shard_bytes(reader(remote, tmp_path / "cache")))
    dataset = reader(remote, tmp_path / "cache", cache_limit=2000)
    with pytest.warns(UserWarning, match=rf"`cache_limit` is 2,000 bytes, .* take {total:,}:"):
        next(iter(dataset.batches()))
    assert total > 2000


@pytest.mark.slow
@pytest.mark.process
def test_f3_readers_survive_another_process_that_keeps_removing_all_copies(tmp_path):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", FAR_READER, str(remote), str(local), "3000", "3"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(2)
    ]
    removed = 0
    while any(each.poll() is None for each in readers):
        removed += sum(each.files for each in inspect.clear(local))
        time.sleep(0.02)  # so that others get the lock too
    assert [each.communicate(timeout=500)[0] for each in readers] == ["whole\n"] * 2
    assert removed > 50


FAR_READER = """
import sys
import time
from pathlib import Path
sys.path.insert(0, ".")
from tests.faults.cached_sets import read_all, reader
dataset = reader(Path(sys.argv[1]), Path(sys.argv[2]), cache_limit=int(sys.argv[3]), download_timeout=60.0)
for epoch in range(int(sys.argv[4])):
    assert read_all(dataset) == list(range(200))
print("whole")
"""


def test_f4_data_without_a_remote_are_never_removed(tmp_path):
    root = Path(write_set(tmp_path / "set", SAMPLES))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    dataset = reader(root, tmp_path / "cache")
    cache = CacheOptions(cache_limit=max(shard_bytes(dataset)))
    dataset = type(dataset)(remote=str(root), batch_size=8, shuffle=True, cache=cache)
    assert read_all(dataset) == ALL
    assert dataset.stats().evictions == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.nightly  # beside two jobs in containers in `test_f_users.py`
def test_f5_two_jobs_share_a_folder_within_the_limit(tmp_path):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    with Watch(local) as watch:
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", JOB, str(remote), str(local), str(seed)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            for seed in (1, 2)
        ]
        assert [job.communicate(timeout=500)[0] for job in jobs] == ["whole\n"] * 2
    assert 0 < watch.most <= 5000
    assert sum(copies(local).values()) <= 5000


JOB = """
import sys
import time
from pathlib import Path
sys.path.insert(0, ".")
from tests.faults.cached_sets import read_all, reader
dataset = reader(Path(sys.argv[1]), Path(sys.argv[2]), cache_limit=5000, shuffle_seed=int(sys.argv[3]))
assert read_all(dataset) == list(range(200))
print("whole")
"""


@pytest.mark.process
def test_f5_shards_that_another_job_needs_next_are_evicted_last(tmp_path):
    """A second job evicts shards that the first one has read, and not those that it will read next."""
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    sizes = shard_bytes(reader(remote, local))
    half = len(sizes) // 2
    limit = sum(sizes[:half])
    first = reader(remote, local, shuffle=False, cache_limit=limit, predownload=24)
    batches = first.batches()
    for _ in range(6):
        next(batches)
    needed = set(first.stream.shards_of(__import__("numpy").arange(48, 60)).tolist())

    def second():
        other = reader(remote, local, shuffle=False, cache_limit=limit)
        for number in range(150, 200):
            other[number]
        return "read"

    assert in_fork(second) == "read"
    there = {path.name for path in copies(local)}
    root = first.stream.shards
    assert {Path(root[shard].raw.basename).name for shard in needed} <= there
    batches.close()
    first.close()


def test_a_limit_that_is_not_a_number_of_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`cache_limit`"):
        reader(tmp_path, tmp_path, cache_limit="much")
    with pytest.raises(StoreError):
        reader(tmp_path, tmp_path, cache_limit="100gb")[0]
