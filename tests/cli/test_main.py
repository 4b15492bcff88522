"""The command line."""

import pytest

from smalti.cli import main
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", 40)


def test_show_says_what_a_version_holds(root, capsys):
    assert main(["show", str(root)]) == 0
    said = capsys.readouterr().out
    assert "version  1," in said
    assert "samples  40 in" in said
    assert "column   text: str" in said


def test_history_has_a_line_for_each_version(root, capsys):
    write_set(root, 50, exist_ok=True)
    assert main(["rollback", str(root), "--at", "1"]) == 0
    assert "version 3 now has the contents of version 1" in capsys.readouterr().out
    assert main(["history", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["version", "published", "samples"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert [line.split()[2] for line in lines[1:]] == ["40", "50", "40"]


def test_verify_succeeds_on_a_good_set(root, capsys):
    assert main(["verify", str(root)]) == 0
    assert "40 samples: all good" in capsys.readouterr().out


def test_verify_fails_and_names_a_shard_with_a_flipped_bit(root, capsys):
    shard = min(root.rglob("*.mds"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(root)]) == 3
    assert shard.name in capsys.readouterr().err


def test_a_fault_is_one_line_to_a_person_and_the_address_of_its_section(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"smalti: {tmp_path} holds no shard set")
    assert said.splitlines()[1:] == [
        "Help: https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md#storenotfound"
    ]
