"""The corpus of `tests/golden/malformed`: each file does what its row of the README says, with every reader."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.catalog import load_manifest, merge_index
from smalti.cli import main
from smalti.dataset import StreamingDataset
from smalti.dataset.local import LocalDataset
from smalti.errors import FormatError, IndexFileError, SmaltiError
from smalti.format import parse_index
from tests.golden.malformed.make import all_files
from tests.stores import MemoryStore

CORPUS = Path(__file__).resolve().parents[1] / "golden" / "malformed"
ACCEPTED = "accepted"


def _rows(title):
    """Return name and expectation of each row below a title."""
    section = (CORPUS / "README.md").read_text("utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    table = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in table[2:]}


INDEXES, SETS = _rows("Index files"), _rows("Shard sets")


def read_streaming(folder, scratch):
    dataset = StreamingDataset(remote=str(folder), cache=CacheOptions(local=str(scratch), download_retry=1))
    return [dataset[i] for i in range(dataset.size)]


def read_cached(folder, scratch):
    store = MemoryStore()
    store.objects.update({path.name: path.read_bytes() for path in folder.iterdir()})
    manifest = load_manifest(store)
    cache = ShardCache(
        ShardSource(store, manifest.digest, manifest.shards, CacheOptions(local=str(scratch), download_retry=1))
    )
    return [cache.shard(n)[i] for n, shard in enumerate(manifest.shards) for i in range(shard.samples)]


def read_local(folder, scratch):
    dataset = LocalDataset(str(folder))
    return [dataset[i] for i in range(len(dataset))]


def test_every_file_equals_what_make_py_writes():
    found = {str(path.relative_to(CORPUS)): path for path in CORPUS.rglob("*") if path.parent.name != "__pycache__"}
    made = all_files()
    assert {name for name, path in found.items() if path.is_file()} - {"README.md", "make.py", "names.json"} == set(
        made
    )
    assert [name for name, data in made.items() if found[name].read_bytes() != data] == []


def test_every_file_has_a_row():
    assert {path.stem for path in (CORPUS / "indexes").iterdir()} == set(INDEXES)
    assert {path.name for path in (CORPUS / "sets").iterdir()} == set(SETS)


@pytest.mark.parametrize("name", INDEXES)
def test_index_file_is_refused_with_its_place_or_accepted(name):
    data = (CORPUS / "indexes" / f"{name}.json").read_bytes()
    if INDEXES[name] == ACCEPTED:
        parse_index(data, where="index.json")
        return
    with pytest.raises(IndexFileError) as refusal:
        parse_index(data, where="index.json")
    assert refusal.type is IndexFileError
    assert refusal.value.message.startswith("index.json")
    assert INDEXES[name] in refusal.value.message


@pytest.mark.parametrize("name", [name for name, outcome in INDEXES.items() if outcome != ACCEPTED])
def test_hostile_index_file_is_refused_before_anything_is_read_or_written(name, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "index.json").write_bytes((CORPUS / "indexes" / f"{name}.json").read_bytes())
    for read in (read_streaming, read_local):
        with pytest.raises(IndexFileError):
            read(tmp_path / "set", tmp_path / "cache")
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "index.json"]


@pytest.mark.parametrize("read", [read_streaming, read_cached, read_local])
@pytest.mark.parametrize("name", SETS)
def test_hostile_shard_is_refused_with_its_place_by_every_reader(name, read, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users-cache"))
    if SETS[name] == ACCEPTED:
        read(CORPUS / "sets" / name, tmp_path / "cache")
        return
    with pytest.raises(FormatError) as refusal:
        read(CORPUS / "sets" / name, tmp_path / "cache")
    assert SETS[name] in refusal.value.message


def test_files_that_must_be_accepted_are_read_unchanged():
    for name in ("accepted-healthy", "accepted-padding-in-sample", "accepted-archive-in-config"):
        dataset = StreamingDataset(remote=str(CORPUS / "sets" / name))
        assert [dataset[0], dataset[1]] == [{"x": b"abc"}, {"x": b"defg"}]
    assert StreamingDataset(remote=str(CORPUS / "sets" / "accepted-empty-shard")).size == 0
    assert StreamingDataset(remote=str(CORPUS / "sets" / "lines-accepted-healthy"))[0] == {"id": 1, "name": "a"}


@pytest.mark.parametrize("name", SETS)
def test_command_line_reports_a_hostile_set_in_one_line(name, capsys):
    # The command decodes nothing, so it accepts a set of which only the values are hostile.
    assert main(["show", str(CORPUS / "sets" / name)]) == 0
    assert main(["history", str(CORPUS / "sets" / name)]) == 0
    capsys.readouterr()
    status = main(["verify", str(CORPUS / "sets" / name)])
    said = capsys.readouterr()
    assert (status != 0) == bool(said.err)
    assert "Traceback" not in said.err
    if SETS[name] == ACCEPTED:
        assert status == 0
    elif not SETS[name].startswith("sample"):
        assert status in {1, 3}, "a fault of the files, not of a value"


@pytest.mark.parametrize("name", INDEXES)
def test_command_line_and_merging_refuse_a_hostile_index(name, tmp_path, capsys):
    part = tmp_path / "set" / "part"
    part.mkdir(parents=True)
    (part / "index.json").write_bytes((CORPUS / "indexes" / f"{name}.json").read_bytes())
    accepted = INDEXES[name] == ACCEPTED
    for command in ("show", "verify"):
        status = main([command, str(part)])
        assert accepted or (status, capsys.readouterr().err[:8]) == (1, "smalti: ")
    with suppress(SmaltiError) if accepted else pytest.raises(IndexFileError):
        merge_index(str(tmp_path / "set"))
    assert accepted or not (tmp_path / "set" / "index.json").exists()
