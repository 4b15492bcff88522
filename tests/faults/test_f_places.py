"""F10 to F15: corrupt copies, clocks, descriptors, removed folders, unreliable locks, planted links."""

import os
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource, Uses
from smalti.cache.files import check_filesystem, filesystem_of
from smalti.cli import main
from smalti.errors import StoreError
from smalti.storage import LocalStore
from tests.cache.conftest import DIGEST
from tests.faults.cached_sets import SAMPLES, copies, read_all, reader, remote_set
from tests.faults.test_f_bound import in_namespace, on_small_disk

ALL = list(range(SAMPLES))


def test_f10_a_corrupt_copy_is_found_by_the_next_run_and_by_the_command(tmp_path, capsys):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    first = reader(remote, local)
    assert read_all(first) == ALL
    first.close()
    corrupt = sorted(copies(local))[3]
    data = bytearray(corrupt.read_bytes())
    data[len(data) // 2] ^= 1
    corrupt.write_bytes(data)
    assert main(["cache", "verify", str(remote), "--local", str(local)]) == 3
    assert corrupt.name in capsys.readouterr().err
    second = reader(remote, local)
    assert read_all(second) == ALL
    assert second.stats().fetches == 1
    second.close()
    assert main(["cache", "verify", str(remote), "--local", str(local)]) == 0


@pytest.mark.parametrize("shift", [3600, -3600])
@pytest.mark.parametrize("turn", [1, -1])
def test_f11_eviction_does_not_depend_on_clocks(fill, tmp_path, shift, turn):
    """File times an hour ahead or back, in order or in reverse: what is needed last is evicted all the same."""
    store = LocalStore(tmp_path / "set")
    infos = fill(store, compression="zstd")[:4]
    size = max(info.raw.num_bytes for info in infos)
    options = CacheOptions(local=str(tmp_path / "cache"))
    cache = ShardCache(ShardSource(store, DIGEST, infos, options), limit=3 * size)
    cache.plan(iter([Uses(np.array([0, 1, 2, 3, 1, 0, 2]), np.arange(7), 7)]))
    for step in range(3):
        cache.reached(step)
        cache.shard(step)
    for place, path in enumerate(sorted(copies(tmp_path / "cache"))):
        os.utime(path, (path.stat().st_mtime + shift + turn * 10 * place,) * 2)
    cache.reached(3)
    cache.shard(3)  # 2 is needed last of the three that are here
    assert [path.name for path in sorted(copies(tmp_path / "cache"))] == [
        "shard.00000.mds",
        "shard.00001.mds",
        "shard.00003.mds",
    ]
    cache.close()


FEW_FILES = """
import resource, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.faults.cached_sets import read_all, reader
dataset = reader(Path(sys.argv[1]), Path(sys.argv[2]), cache_limit=40000)
assert dataset.num_shards > 64
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
assert read_all(dataset) == list(range(800))
print("whole")
"""


@pytest.mark.process
@pytest.mark.slow
def test_f12_64_descriptors_are_enough_with_a_limit(tmp_path):
    remote = remote_set(tmp_path / "set", 800)
    command = [sys.executable, "-c", FEW_FILES, str(remote), str(tmp_path / "cache")]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, cwd=Path(__file__).parents[2]
    )
    assert ended.stdout == "whole\n", ended.stderr


def test_f12_no_inodes_is_a_typed_error(tmp_path):
    remote = remote_set(tmp_path / "set")
    found, _ = on_small_disk(remote, tmp_path / "cache", "1m,nr_inodes=6")
    assert found.startswith("StoreError: shard ")
    assert "is full" in found


@pytest.mark.parametrize("limit", [None, 4000])
def test_f13_a_cache_folder_that_is_removed_while_it_is_read_is_created_again(tmp_path, limit):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    dataset = reader(remote, local, cache_limit=limit)
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`cache_limit` is")
        for number, batch in enumerate(dataset.batches()):
            found += batch["id"].tolist()
            if number in {2, 9}:
                shutil.rmtree(local, ignore_errors=True)
    assert sorted(found) == ALL
    dataset.close()


def test_f13_a_cache_folder_that_cannot_be_written_is_a_typed_error(tmp_path):
    remote = remote_set(tmp_path / "set")
    found, left = on_small_disk(remote, tmp_path / "cache", "1m,ro")
    assert found.startswith("StoreError: cannot make the cache folder")
    assert "Read-only file system" in found
    assert left == []


TURNS_READ_ONLY = """
import json, subprocess, sys, time
from pathlib import Path
from tests.faults.cached_sets import reader
remote, local = Path(sys.argv[1]), Path(sys.argv[2])
local.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", local], check=True)
dataset, found, said = reader(remote, local, predownload=16), [], "nothing"
try:
    for number, batch in enumerate(dataset.batches()):
        found += batch["id"].tolist()
        end = time.monotonic() + 120
        while number == 2 and subprocess.run(["mount", "-o", "remount,ro", local], stderr=subprocess.PIPE).returncode:
            assert time.monotonic() < end, "a file is open for writing all the time"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([said, len(found), len(set(found))]))
"""


@pytest.mark.process
@pytest.mark.slow
def test_f13_a_cache_disk_that_turns_read_only_is_a_typed_error_and_no_short_epoch(tmp_path):
    """As a kernel reacts to a faulty disk."""
    remote = remote_set(tmp_path / "set", 800)
    said, taken, others = in_namespace(TURNS_READ_ONLY, str(remote), str(tmp_path / "cache"))
    assert said.startswith("StoreError: shard "), said
    assert "Read-only file system" in said
    assert 24 <= taken == others < 800


def test_f14_a_network_file_system_refuses_a_limit_and_otherwise_warns_once(tmp_path):
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*`cache_limit` cannot be kept"):
        check_filesystem(tmp_path, 1000, lambda _: "nfs4")
    with pytest.warns(UserWarning, match="give a folder of a local disk as `local`"):
        check_filesystem(tmp_path, None, lambda _: "nfs4")
    check_filesystem(tmp_path, None, lambda _: "nfs4")  # a second warning would be an error here
    check_filesystem(tmp_path, 1000, lambda _: "ext4")


def test_f14_the_file_system_is_that_of_the_innermost_mount():
    assert filesystem_of(Path("/proc/self")) == "proc"
    assert filesystem_of(Path("/sys/kernel")) == "sysfs"


@pytest.mark.parametrize("below", ["", "/inside"])
def test_f15_a_planted_link_is_not_followed(tmp_path, below):
    remote, local, elsewhere = remote_set(tmp_path / "set"), tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    dataset = reader(remote, local)
    [digest] = [manifest.digest for manifest in dataset.manifests]
    first = dataset.stream.shards[0].raw.basename
    if below:
        (local / digest).mkdir(parents=True)
        (local / digest / first.split("/")[0]).symlink_to(elsewhere)
    else:
        local.mkdir()
        (local / digest).symlink_to(elsewhere)
    with pytest.raises(StoreError, match="is not a folder but stands where the cache needs one"):
        dataset[0]
    assert list(elsewhere.iterdir()) == []


def test_f15_a_link_in_place_of_a_copy_is_replaced_and_not_followed(tmp_path):
    remote, local, victim = remote_set(tmp_path / "set"), tmp_path / "cache", tmp_path / "victim"
    victim.write_bytes(b"mine")
    dataset = reader(remote, local)
    target = local / dataset.manifest.digest / dataset.stream.shards[0].raw.basename
    target.parent.mkdir(parents=True)
    target.symlink_to(victim)
    assert dataset[0]["id"] == 0
    assert victim.read_bytes() == b"mine"
    assert not target.is_symlink()


def test_f15_a_link_in_place_of_a_lock_is_not_followed(tmp_path):
    """Lock files have predictable names, and are truncated to the size of a reservation."""
    remote, local, victim = remote_set(tmp_path / "set"), tmp_path / "cache", tmp_path / "victim"
    victim.write_bytes(b"mine")
    dataset = reader(remote, local, cache_limit=9000)
    target = local / dataset.manifest.digest / dataset.stream.shards[0].raw.basename
    target.parent.mkdir(parents=True)
    lock = target.with_name(f".{target.name}.lock")
    lock.symlink_to(victim)
    assert dataset[0]["id"] == 0
    assert victim.read_bytes() == b"mine"
    assert not lock.is_symlink()


def test_f15_folders_are_the_users_own_and_private(tmp_path):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    assert read_all(reader(remote, local, cache_limit=9000)) == ALL
    folders = [path for path in local.rglob("*") if path.is_dir()]
    assert folders
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {path.stat().st_uid for path in folders} == {os.geteuid()}
