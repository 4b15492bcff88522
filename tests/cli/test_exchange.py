"""`smalti cp` and `smalti sync`: what they print, what they return."""

import json

import pytest

from smalti.catalog import load_manifest, tag
from smalti.cli import main
from tests.faultstore import FaultStore
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    """Version 1 of 20 samples with the tag `best`, version 2 of 30."""
    write_set(tmp_path / "set", 20)
    tag(tmp_path / "set", "best")
    return str(write_set(tmp_path / "set", 30, exist_ok=True))


def test_cp_copies_one_version_and_tells_a_dry_run_that_differs_by_its_status(root, tmp_path, capsys):
    target = str(tmp_path / "copy")
    assert main(["cp", root, target, "--tag", "best", "--dry-run"]) == 4
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "1", "-", "20", load_manifest(root, version=1).digest[:12], "to", "copy"
    ]  # fmt: skip
    assert main(["cp", root, target, "--tag", "best", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["versions"][0]["source"], told["versions"][0]["target"], told["num_present"]) == (1, 1, 0)
    assert load_manifest(target).digest == load_manifest(root, version=1).digest
    assert main(["cp", root, target, "--tag", "best", "--dry-run"]) == 0
    assert main(["cp", root, target]) == 1
    assert "already holds a data set" in capsys.readouterr().err
    assert main(["cp", root, target, "--overwrite", "--read-back", "--jobs", "2"]) == 0
    assert load_manifest(target).digest == load_manifest(root).digest


def test_sync_copies_history_and_tags_to_a_server_with_options_of_its_own(root, capsys, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FaultStore() as server:
        options = [part for name, value in server.options.items() for part in ("--to-option", f"{name}={value}")]
        command = ["sync", root, "s3://bucket/mirror", "--history", "--tags", *options]
        assert main([*command, "--dry-run"]) == 4
        assert main(command) == 0
        assert "tag best: version 1 of the source" in capsys.readouterr().out
        assert main([*command, "--dry-run"]) == 0
        assert load_manifest(server.open("mirror")).version == 2
        assert main(["sync", root, "s3://bucket/mirror", "--to-option", "managed_identity=true"]) == 1
        assert "is not one of s3://, but of abfs://" in capsys.readouterr().err
