"""docs/text.md and docs/own-loop.md: their programs and commands, in their order, print what the pages show."""

import doctest
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smalti.cli import main
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter

DOCS = Path(__file__).resolve().parents[2] / "docs"
STEPS = re.compile(r"^```(python|console|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
NAMED = re.compile(r"`(\w+\.(?:py|yaml))`")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process]


@pytest.fixture(autouse=True)
def one_thread():
    """Compute in one thread: where other tests use the cores, several threads of torch wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "num_commands"), [("text", 11), ("own-loop", 8)])
def test_every_command_prints_what_the_page_shows(name, num_commands, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    page = (DOCS / f"{name}.md").read_text()
    num_run = begin = 0
    for step in STEPS.finditer(page):
        kind, text = step.groups()
        if kind != "console":
            Path(NAMED.findall(page[begin : step.start()])[0]).write_text(text)
        for line, expected in COMMAND.findall(text) if kind == "console" else ():
            if "pip install" not in line:
                printed = output_of(*shlex.split(line), capsys=capsys, monkeypatch=monkeypatch)
                assert same(expected, printed), f"$ {line}\n{printed}"
                num_run += 1
        begin = step.end()
    assert num_run == num_commands


def output_of(program, *words, capsys, monkeypatch):
    """Return what a command of a page prints."""
    if program == "torchrun":
        command = [str(Path(sys.executable).parent / program), *words]
        path = os.pathsep.join(each for each in sys.path if each)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    if program == "smalti":
        assert main(list(words)) == 0, "".join(capsys.readouterr())
    else:
        monkeypatch.setattr(sys, "argv", list(words))
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            assert end.code is None  # noqa: PT017 - the end that the page means
    return capsys.readouterr().out


def same(expected, printed):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return not expected or doctest.OutputChecker().check_output(expected, printed, flags)


@pytest.fixture
def loader(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int"}) as writer:
        for number in range(12):
            writer.write({"id": number})
    return StreamingDataLoader(StreamingDataset(local=str(tmp_path / "set")), batch_size=4)


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
