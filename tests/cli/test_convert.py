"""`smalti convert`: what it prints, what it returns."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.catalog import load_manifest
from smalti.cli import main


@pytest.fixture
def rows(tmp_path):
    """A file of 100 rows in four row groups, with a null."""
    values = [None if number == 7 else number for number in range(100)]
    pq.write_table(pa.table({"id": values, "part": ["a", "b"] * 50}), tmp_path / "rows.parquet", row_group_size=25)
    return tmp_path / "rows.parquet"


@pytest.fixture
def said(capsys):
    """Run a command, and give what it printed."""

    def run(*arguments, status=0):
        assert main(list(map(str, arguments))) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return run


def test_a_file_becomes_a_version(rows, said, tmp_path):
    out = tmp_path / "set"
    text = said(
        "convert", rows, out, "--column", "id=int32", "--nulls", '{"id": {"default": -1}}', "--split-by", "part"
    )
    assert text.startswith("version 1: 100 rows in 2 shards of ")
    manifest = load_manifest(out)
    assert (manifest.schema.columns(), {info.partition for info in manifest.shards}) == ({"id": "int32"}, {"a", "b"})
    options = ("--column", "id", "--nulls", "mask", "--mode", "append", "--compression", "none", "--json")
    assert "cannot append" in said("convert", rows, out, *options, status=1)
    found = json.loads(said("convert", rows, tmp_path / "other", *options[:4], "--compression", "none", "--json"))
    assert (found["version"], found["rows"], found["shards"]) == (1, 100, 1)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (
            ["--nulls", "reject"],
            1,
            "row group 0 to rows.parquet, row group 3): column 'id', sample 7",
        ),
        (["--nulls", "{"], 2, "--nulls: not valid JSON"),
        (["--format", "excel"], 2, "`--format`: expected one of parquet"),
        (["--mode", "replace"], 2, "`--mode`: expected"),
    ],
)
def test_faults_and_wrong_usage_have_their_own_exit_statuses(rows, said, tmp_path, arguments, status, says):
    assert says in said("convert", rows, tmp_path / "set", *arguments, status=status)
