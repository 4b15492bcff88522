"""`smalti export`: what it prints, its exit status, and that it continues."""

import json

import pytest

from smalti.cli import main
from tests.shard_sets import write_set


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli-export") / "set"
    write_set(root, 30)
    return root


def test_a_version_is_exported_and_found_again(made, tmp_path, capsys):
    words = ["export", str(made), str(tmp_path / "out"), "--format", "webdataset", "--name", "id=cls"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("version 1: 30 samples in 1 files of ")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["num_files"], found["num_reused"]) == ("webdataset", 1, 1)
    assert found["columns"] == ["id", "text", "vector"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--format", "zip"], 2, "expected one of webdataset, parquet"),
        (["--format", "parquet", "--name", "id"], 2, "expected COLUMN=ENDING"),
        (["--format", "parquet", "--column", "idd"], 1, "there is no column 'idd'"),
        (["--format", "parquet", "--at", "7"], 1, "7"),
    ],
)
def test_a_mistake_is_named(made, tmp_path, capsys, words, status, message):
    assert main(["export", str(made), str(tmp_path / "out"), *words]) == status
    assert message in capsys.readouterr().err
