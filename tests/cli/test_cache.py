"""`smalti cache ls|verify|scrub|clear`."""

import json
import os

import pytest

from smalti import add_columns
from smalti.catalog import tag
from smalti.cli import main
from smalti.texts import byte_count
from tests.faults.cached_sets import SAMPLES, copies, read_all, reader, remote_set
from tests.shard_sets import write_set
from tests.storage.test_process import in_fork


@pytest.fixture
def cache(tmp_path):
    """A set, its warm cache, and the folder of its copies."""
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    dataset = reader(remote, local)
    assert read_all(dataset) == list(range(SAMPLES))
    dataset.close()
    return remote, local, local / dataset.manifest.digest


def run(capsys, *words):
    status = main(["cache", *map(str, words)])
    return status, capsys.readouterr()


def test_ls_says_what_there_is(cache, capsys):
    _, local, folder = cache
    num_bytes = sum(copies(local).values())
    (folder / ".x.mds.77.abcdef0123456789.part").write_bytes(b"12345")
    status, said = run(capsys, "ls", "--local", local)
    assert status == 0
    heading, row, total = said.out.splitlines()
    assert heading.split("  ")[0] == "folder"
    assert row.split() == [str(folder), "25", *byte_count(num_bytes).split(), "0", "0", "1", "(5", "bytes)"]
    assert total == f"1 data sets, {byte_count(num_bytes)}"
    _, said = run(capsys, "ls", "--local", local, "--json")
    [found] = json.loads(said.out)
    assert (found["shards"], found["num_bytes"], found["left_bytes"]) == (25, num_bytes, 5)


def readers(table):
    """The column of readers that have a limit; before it a size of two words and the transfers."""
    return int(table.splitlines()[1].split()[5])


def test_a_reader_under_a_limit_shows(cache, capsys):
    remote, local, _ = cache
    dataset = reader(remote, local, cache_limit="1mb")
    batches = dataset.batches()
    next(batches)
    _, said = run(capsys, "ls", "--local", local)
    assert readers(said.out) == 1
    batches.close()
    dataset.close()
    _, said = run(capsys, "ls", "--local", local)
    assert readers(said.out) == 0


def test_verify_looks_at_the_version_that_a_tag_names(cache, capsys):
    remote, local, _ = cache
    tag(remote, "read")
    write_set(remote, 1, exist_ok=True)
    assert "version 2: 0 copies" in run(capsys, "verify", remote, "--local", local)[1].out
    assert "version 1: 25 copies" in run(capsys, "verify", remote, "--tag", "read", "--local", local)[1].out


def test_verify_names_and_removes_what_is_damaged(cache, capsys):
    remote, local, _ = cache
    assert run(capsys, "verify", remote, "--local", local)[1].out == "version 1: 25 copies as declared: all good\n"
    damaged = sorted(copies(local))[7]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    status, said = run(capsys, "verify", remote, "--local", local, "--json")
    assert status == 3
    found = json.loads(said.out)
    assert (found["good"], [each["file"] for each in found["problems"]], found["removed"]) == (24, [str(damaged)], 0)
    assert run(capsys, "verify", remote, "--local", local, "--remove")[0] == 3
    assert not damaged.exists()
    assert run(capsys, "verify", remote, "--local", local)[0] == 0


def test_verify_looks_at_added_columns_too(tmp_path, capsys):
    remote, local = remote_set(tmp_path / "set"), tmp_path / "cache"
    add_columns(remote, {"double": "int"}, lambda batch: {"double": batch["id"] * 2})
    dataset = reader(remote, local)
    read_all(dataset)
    beside = dataset.stream.sets[0].parts[1].digest
    dataset.close()
    assert run(capsys, "verify", remote, "--local", local)[1].out == "version 2: 50 copies as declared: all good\n"
    damaged = sorted(path for path in copies(local) if beside in str(path))[3]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    status, said = run(capsys, "verify", remote, "--local", local, "--json")
    found = json.loads(said.out)
    assert (status, found["good"], [each["file"] for each in found["problems"]]) == (3, 49, [str(damaged)])
    assert run(capsys, "verify", remote, "--local", local, "--remove")[0] == 3
    assert run(capsys, "verify", remote, "--local", local)[1].out == "version 2: 49 copies as declared: all good\n"


def test_scrub_leaves_copies_and_takes_the_rest(cache, capsys):
    _, local, folder = cache
    before = copies(local)
    (folder / ".bad-shard.mds").write_bytes(b"rotten")
    (folder / ".x.mds.77.abcdef0123456789.part").write_bytes(b"12345")
    (folder / ".y.mds.lock").touch()
    assert run(capsys, "scrub", "--local", local)[1].out == f"{folder}: 3 files removed, 11 bytes\n"
    assert copies(local) == before
    assert run(capsys, "scrub", "--local", local)[1].out == f"{folder}: 0 files removed, 0 bytes\n"


def test_clear_takes_the_copies_of_the_chosen_set_and_nothing_else(cache, capsys):
    remote, local, folder = cache
    other = local / "documents"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert json.loads(run(capsys, "clear", "--local", local, "--digest", "ffff", "--json")[1].out) == []
    status, said = run(capsys, "clear", "--local", local, "--digest", folder.name[:8], "--json")
    assert status == 0
    assert [each["files"] for each in json.loads(said.out)] == [25]
    assert list(copies(local)) == [other / "thesis.txt"]
    again = reader(remote, local)
    assert read_all(again) == list(range(SAMPLES))
    again.close()


def test_a_job_goes_on_while_its_cache_is_cleared(cache, capsys):
    remote, local, _ = cache
    dataset = reader(remote, local)
    found = []
    for number, batch in enumerate(dataset.batches()):
        found += batch["id"].tolist()
        if number == 3:
            assert run(capsys, "clear", "--local", local)[0] == 0
    assert sorted(found) == list(range(SAMPLES))
    dataset.close()


def test_no_cache_at_all_is_no_fault(tmp_path, capsys):
    assert run(capsys, "ls", "--local", tmp_path / "none")[1].out == "0 data sets, 0 bytes\n"
    assert run(capsys, "clear", "--local", tmp_path / "none")[0] == 0


def as_nobody(work):
    """What `work` returns as a user who owns nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs the superuser to become somebody else")

    def become():
        os.seteuid(65534)
        return work()

    return in_fork(become, seconds=280)


@pytest.mark.process
def test_folders_of_other_users_are_left_alone(cache, capsys):
    _, local, folder = cache
    for above in [local, *local.parents][:-2]:
        above.chmod(0o755)
    before = copies(local)
    for word in ("ls", "scrub", "clear"):
        assert as_nobody(lambda word=word: main(["cache", word, "--local", str(local)])) == "0"
    assert copies(local) == before
    assert run(capsys, "ls", "--local", local)[1].out.splitlines()[1].startswith(f"{folder}  ")


@pytest.mark.process
def test_a_cache_folder_that_cannot_be_looked_into_is_said(cache):
    _, local, _ = cache
    local.chmod(0o700)
    assert as_nobody(lambda: main(["cache", "ls", "--local", str(local)])) == "1"


def test_an_empty_cache_and_files_of_others_are_no_fault(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("d" * 64)).write_text("a file, and no folder of copies")
    for word in ("ls", "scrub", "clear"):
        status, said = run(capsys, word, "--local", tmp_path, "--json")
        assert (status, json.loads(said.out)) == (0, [])
    assert (tmp_path / "notes.txt").read_text() == "mine"
