"""The commands that look at versions and change them: what they print, what they return."""

import json
import os

import pytest

from smalti.catalog import load_manifest
from smalti.cli import main
from smalti.writer import MDSWriter
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    """Version 1 of 40 samples, version 2 of 50."""
    write_set(tmp_path / "set", 40)
    return write_set(tmp_path / "set", 50, exist_ok=True)


@pytest.fixture
def said(capsys):
    """Run a command that succeeds, and give what it printed."""

    def run(*arguments, status=0):
        assert main(list(map(str, arguments))) == status
        return capsys.readouterr().out

    return run


@pytest.fixture
def told(said):
    """The same with `--json`, parsed."""
    return lambda *arguments, status=0: json.loads(said(*arguments, "--json", status=status))


def test_tags_are_put_listed_moved_and_taken_away(root, said, told, capsys):
    assert said("tag", root, "best", "--at", 1) == "best: version 1\n"
    assert main(["tag", str(root), "best", "--at", "2"]) == 1
    assert "tag 'best' is that of version 1" in capsys.readouterr().err
    assert told("tag", root, "best", "--at", 2, "--move") == {"tag": "best", "version": 2}
    assert told("tags", root) == {"best": 2}
    assert said("tags", root) == "best: version 2\n"
    assert said("untag", root, "best") == "best: tag removed\n"
    assert told("tags", root) == {}


def test_a_tag_stands_for_its_version(root, said, told):
    said("tag", root, "first", "--at", 1)
    assert "samples  40 in" in said("show", root, "--tag", "first")
    assert told("verify", root, "--tag", "first")["rows"] == 40
    found = told("diff", root, "first", status=4)
    assert (found["a"], found["b"]) == (1, 2)


def test_a_tag_at_a_wrong_address_is_told_that_there_is_no_set(root, tmp_path, capsys):
    for command in (["show", tmp_path], ["verify", tmp_path], ["plan", tmp_path, "--batch", 1]):
        assert main([*map(str, command), "--tag", "first"]) == 1
        assert "holds no shard set: neither index.json nor" in capsys.readouterr().err


def test_history_shows_operations_and_tags(root, said, told):
    said("tag", root, "best", "--at", 1)
    said("rollback", root, "--at", 1)
    lines = said("history", root).splitlines()
    assert lines[1].split()[-2:] == ["create", "best"]
    assert lines[3].endswith("rollback")
    found = told("history", root)
    assert [(info["version"], info["rows"], info["tags"]) for info in found] == [
        (1, 40, ["best"]),
        (2, 50, []),
        (3, 40, []),
    ]


def test_show_tells_the_same_as_json(root, told):
    found = told("show", root, "--at", 1)
    assert (found["version"], found["rows"], found["splits"]) == (1, 40, {})
    assert found["columns"] == {"id": "int", "text": "str", "vector": "ndarray:float32:3"}


def test_diff_names_every_shard_that_came_and_went(root, said, told):
    lines = said("diff", root, 1, status=4).splitlines()
    assert lines[0].startswith("version 1 to 2: ")
    old = {f"- {shard.raw.basename}" for shard in load_manifest(root, version=1).shards}
    new = {f"+ {shard.raw.basename}" for shard in load_manifest(root, version=2).shards}
    assert set(lines[1:]) == old | new
    found = told("diff", root, 2, 1, status=4)
    assert (found["rows"], found["rows_added"], found["rows_removed"], found["num_kept"]) == ([50, 40], 40, 50, 0)


def test_diff_of_equal_versions_succeeds(root, said):
    said("rollback", root, "--at", 1)
    assert "0 shards (0 samples) added, 0 (0) removed" in said("diff", root, 1, 3)


def test_verify_tells_problems_as_json_and_by_its_status(root, told):
    assert told("verify", root)["ok"] is True
    shard = root / load_manifest(root).shards[0].raw.basename
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    found = told("verify", root, status=3)
    assert [problem["kind"] for problem in found["problems"]] == ["checksum"]
    assert told("verify", root, "--sizes")["ok"] is True


def test_verify_says_whether_the_row_hash_is_that_of_the_version(tmp_path, said):
    with MDSWriter(out=tmp_path, columns={"id": "int"}, row_hash=True) as writer:
        writer.write({"id": 7})
    assert ": as declared" in said("verify", tmp_path)


def test_vacuum_says_what_would_go_and_removes_it_when_told(root, said, told, capsys):
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    count = len(load_manifest(root, version=1).shards)
    text = said("vacuum", root)
    assert text.count("of a version that is no longer kept") == count
    assert "nothing was removed; give --remove to remove it" in text
    assert told("vacuum", root)["expired"] == [1]
    temporary = root / "dead" / ".shard.00000.mds.0123456789abcdef.smalti-tmp"
    temporary.parent.mkdir()
    temporary.write_bytes(bytes(1234))
    os.utime(temporary, (1e9, 1e9))
    lines = [line.split(maxsplit=3) for line in said("vacuum", root).splitlines()]
    assert ["dead/shard.00000.mds", "1.2", "KiB", "a temporary file that was never completed"] in lines
    uploads = [{"key": "dead/shard.00000.mds", "num_bytes": 1234, "upload_id": temporary.name}]
    assert told("vacuum", root)["uploads"] == uploads
    found = told("vacuum", root, "--remove")
    assert (found["dry_run"], found["version"], found["expired"]) == (False, 3, [1])
    assert found["uploads"] == uploads
    assert not temporary.exists()
    assert main(["show", str(root), "--at", "1"]) == 1
    assert "version 1 was removed by a vacuum" in capsys.readouterr().err
    assert "(removed by a vacuum)" in said("history", root).splitlines()[1]


def test_vacuum_of_less_than_a_week_must_be_insisted_upon(root, said, capsys):
    assert main(["vacuum", str(root), "--older-than", "1h"]) == 1
    assert "Say `--unsafe-ttl`" in capsys.readouterr().err
    said("vacuum", root, "--older-than", "1h", "--unsafe-ttl")


def test_compact_joins_shards_and_says_so(root, said, told):
    before = len(load_manifest(root).shards)
    assert f"version 3: 1 shards in place of {before}" in said("compact", root, "--size-limit", "64kb")
    assert "none to merge" in said("compact", root, "--size-limit", "64kb")
    assert told("compact", root, "--size-limit", "64kb") == {"version": 3, "from": 3, "shards": [1, 1]}
    assert said("verify", root).startswith("version 3: 1 shards, 50 samples: all good")


def test_a_wrong_call_is_status_two(root, capsys):
    for arguments in (["diff", str(root)], ["tag", str(root)], ["verify", str(root), "--at", "1", "--tag", "x"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("smalti: ")
