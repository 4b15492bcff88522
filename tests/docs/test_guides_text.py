"""docs/text.md and docs/own-loop.md: their programs and commands, in their order, print what the pages show."""

import json

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.docs.guide import Guide

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process]


@pytest.mark.parametrize(("name", "num_commands"), [("text.md", 8), ("own-loop.md", 5)])
def test_every_command_prints_what_the_page_shows(name, num_commands, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    guide = Guide(name)
    guide.write_files(tmp_path)
    assert len(guide.run_commands(capsys)) == num_commands


@pytest.fixture
def loader(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int"}) as writer:
        for number in range(12):
            writer.write({"id": number})
    return StreamingDataLoader(StreamingDataset(remote=str(tmp_path / "set")), batch_size=4)


def ids_of(loader):
    return [batch["id"].tolist() for batch in loader]


def test_a_look_at_a_batch_begins_the_epoch_and_set_epoch_returns_to_its_start(loader):
    next(iter(loader))
    assert loader.streaming_dataset.next_epoch == 1
    loader.streaming_dataset.set_epoch(0)
    assert ids_of(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert loader.streaming_dataset.next_epoch == 1


def test_after_a_break_its_own_state_makes_the_loader_continue_the_epoch(loader):
    for _ in loader:
        break
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert ids_of(loader) == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_set_epoch_after_load_state_dict_drops_the_position(loader):
    for _ in loader:
        break
    loader.load_state_dict(loader.state_dict())
    loader.streaming_dataset.set_epoch(0)
    assert len(ids_of(loader)) == 3


def test_the_state_of_the_dataset_alone_counts_no_batch(loader):
    for _ in loader:
        break
    loader.load_state_dict(loader.streaming_dataset.state_dict())
    assert len(ids_of(loader)) == 3
