"""`smalti plan`: lines for a person, JSON for a program, a clear word about what was typed."""

import json

import pytest

from smalti.cli import main
from tests.shard_sets import write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("plan") / "set", 137, compression="zstd"))


def test_a_person_is_told_steps_padding_traffic_cache_and_memory(root, capsys):
    assert main(["plan", root, "--world", "2x4", "--batch", "4", "--workers", "2"]) == 0
    said = capsys.readouterr()
    assert "set      137 samples in 17 shards" in said.out
    assert "epoch    5 steps of 32 samples, 23 repeats in the last one" in said.out
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "set", "epoch", "host", "cache", "traffic", "memory", "mixing",
    ]  # fmt: skip
    assert said.err == ""


def test_a_program_gets_the_same_as_json(root, capsys):
    assert main(["plan", root, "--batch", "10", "--tail", "drop", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["repeats"], told["global_batch"], len(told["hosts"])) == (13, 0, 10, 1)
    assert told["hosts"][0]["cache_bytes"] > told["stored_bytes"] == told["cold_bytes"], "unpacked, it is larger"


def test_a_cache_that_is_too_small_is_said_to_be(root, capsys):
    assert main(["plan", root, "--batch", "10", "--cache", "1kb"]) == 0
    assert "a cache of 1.0 KiB is too small for that" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["--world", "8"], ["--world", "0x8"], ["--batch", "0"], ["--cache", "much"], ["--batch", "-1"]], ids=str
)
def test_what_cannot_be_understood_is_refused(root, wrong, capsys):
    with pytest.raises(SystemExit) as status:
        main(["plan", root, "--batch", "4", *wrong])
    assert status.value.code == 2
    assert "expected" in capsys.readouterr().err
