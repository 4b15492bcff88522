"""`VerifiedFiles`: files that one process verified need not be verified again by its forks."""

import multiprocessing
import os

import pytest

from smalti.cache.mapping import VerifiedFiles


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(b"content")
    return path


def test_a_file_counts_as_verified_only_for_its_shard(file):
    verified = VerifiedFiles(2)
    assert not verified.contains(0, [file])
    verified.add(0, [file])
    assert verified.contains(0, [file])
    assert not verified.contains(1, [file])


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_bytes(b"contents"),
        lambda file: os.utime(file, ns=(1, 1)),
        lambda file: file.rename(file.with_name("old")).parent.joinpath("shard").write_bytes(b"content"),
    ],
    ids=["size", "time", "another file"],
)
def test_a_changed_file_no_longer_counts_as_verified(file, change):
    verified = VerifiedFiles(1)
    verified.add(0, [file])
    change(file)
    assert not verified.contains(0, [file])


def test_a_change_of_any_file_of_a_shard_counts(file, tmp_path):
    meta = tmp_path / "meta"
    meta.write_bytes(b"m")
    verified = VerifiedFiles(1)
    verified.add(0, [file, meta])
    assert verified.contains(0, [file, meta])
    assert not verified.contains(0, [meta, file])
    meta.write_bytes(b"mm")
    assert not verified.contains(0, [file, meta])


def test_an_empty_set_can_be_created():
    VerifiedFiles(0)


@pytest.mark.process
def test_files_verified_by_a_fork_count_in_its_parent_and_siblings(file):
    verified = VerifiedFiles(3)
    child = multiprocessing.get_context("fork").Process(target=verified.add, args=(2, [file]))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert verified.contains(2, [file])
    assert not verified.contains(1, [file])
