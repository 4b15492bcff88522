"""`smalti plan`: lines for a person, JSON for a program, a clear word about what was typed."""

import json
import os
import random

import pytest

from smalti import add_columns
from smalti.catalog import tag
from smalti.cli import main
from tests.faults.cached_sets import copies, read_all, reader, remote_set, shard_bytes
from tests.shard_sets import write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("plan") / "set", 137, compression="zstd"))


def test_a_person_is_told_steps_padding_traffic_cache_and_memory(root, capsys):
    assert main(["plan", root, "--world", "2x4", "--batch", "4", "--workers", "2"]) == 0
    said = capsys.readouterr()
    assert "set      137 samples in 17 shards" in said.out
    assert "epoch    5 steps of 32 samples, 23 repeats in the last one" in said.out
    assert [line.split()[0] for line in said.out.splitlines() if not line.startswith(" ")] == [
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
    assert "a cache of 1.0 KiB is too small for what is mixed, " in capsys.readouterr().out


def test_an_affinity_adds_traffic_to_the_later_epochs(root, capsys):
    """Two hosts of one run each: half of a quarter of what each reads leaves it, rounded to a byte."""
    assert main(["plan", root, "--world", "2x1", "--batch", "4", "--canonical-nodes", "2", "--json"]) == 0
    stays = json.loads(capsys.readouterr().out)
    options = ["--canonical-nodes", "2", "--affinity", "0.75", "--json"]
    assert main(["plan", root, "--world", "2x1", "--batch", "4", *options]) == 0
    moves = json.loads(capsys.readouterr().out)
    assert (stays["warm_bytes"], moves["warm_bytes"]) == (
        0,
        sum(round(host["cold_bytes"] / 8) for host in moves["hosts"]),
    )


def test_a_plan_is_of_the_version_that_a_tag_names(tmp_path, capsys):
    root = str(write_set(tmp_path / "set", 10))
    tag(root, "ten")
    write_set(root, 1, exist_ok=True)
    assert main(["plan", root, "--batch", "1"]) == 0
    assert "set      1 samples in" in capsys.readouterr().out
    assert main(["plan", root, "--batch", "1", "--tag", "ten"]) == 0
    assert "set      10 samples in" in capsys.readouterr().out
    assert main(["plan", root, "--batch", "1", "--tag", "twenty"]) == 1
    assert "has no tag 'twenty'; its tags: 'ten'" in capsys.readouterr().err
    assert main(["plan", root, "--batch", "1", "--tag", "ten", "--at", "1"]) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ["--world", "8"],
        ["--world", "0x8"],
        ["--batch", "0"],
        ["--cache", "much"],
        ["--batch", "-1"],
        ["--workers", "-1"],
        ["--workers", "²"],
        ["--batch", "1.5"],
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_refused(root, wrong, capsys):
    assert main(["plan", root, "--batch", "4", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize("part", [0.3, pytest.param(0.6, marks=pytest.mark.nightly), None])
def test_the_bytes_that_are_told_are_those_that_two_epochs_fetch(tmp_path, capsys, part):
    """100 shards; the second epoch finds what the first one left within the limit."""
    remote = remote_set(tmp_path / "set", 800)
    raw = sum(shard_bytes(reader(remote, tmp_path / "x")))
    limit = None if part is None else int(part * raw)
    shuffle = {"shuffle_block_size": 25, "num_canonical_nodes": 2}
    cache = [] if limit is None else ["--cache", str(limit)]
    assert main(["plan", str(remote), "--batch", "8", "--tail", "short", "--shuffle-block-size", "25",
                 "--canonical-nodes", "2", "--json", *cache]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    dataset = reader(remote, tmp_path / "cache", cache_limit=limit, **shuffle)
    fetched = []
    for _ in range(2):
        read_all(dataset)
        fetched.append(dataset.stats(least=False).bytes_fetched - sum(fetched))
    dataset.close()
    assert told["cold_bytes"] == pytest.approx(fetched[0], rel=0.1)
    assert told["warm_bytes"] == pytest.approx(fetched[1], rel=0.1)
    assert (fetched[1] == 0) == (part is None)


def test_shards_beside_those_of_the_set_are_counted(tmp_path, capsys):
    """What is told is what an epoch fetches, and what its copies take: added columns come and go with the shards."""
    remote = remote_set(tmp_path / "set", 400)

    def told():
        assert main(["plan", str(remote), "--batch", "8", "--tail", "short", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    alone = told()
    add_columns(remote, {"blob": "bytes"}, lambda batch: {"blob": [random.randbytes(500)] * len(batch["id"])})
    both = told()
    dataset = reader(remote, tmp_path / "cache")
    read_all(dataset)
    fetched = dataset.stats(least=False).bytes_fetched
    dataset.close()
    assert both["cold_bytes"] == both["stored_bytes"] == fetched > alone["cold_bytes"] + 500 * both["shards"]
    assert both["hosts"][0]["cache_bytes"] == sum(copies(tmp_path / "cache").values())
    assert both["hosts"][0]["cache_bytes"] > alone["hosts"][0]["cache_bytes"] + 500 * 400
    assert both["batch_bytes"] > alone["batch_bytes"] + 500 * 8
    assert (both["shards"], both["samples"]) == (alone["shards"], 400)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at /proc")
def test_what_cannot_be_planned_is_said_and_leaves_nothing_open(root, capsys):
    before = files_open_below(root)
    assert main(["plan", root, "--batch", "4", "--split", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert files_open_below(root) == before


def files_open_below(root) -> list[str]:
    """Of this set alone: other tests' files are closed whenever Python collects its garbage."""
    return sorted(name for name in map(os.readlink, descriptors()) if name.startswith(os.path.realpath(root)))


def descriptors() -> list[str]:
    held = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [fd for fd in held if os.path.lexists(fd)]
