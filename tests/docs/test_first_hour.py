"""docs/first-hour.md: its programs and commands, in their order, print what the page shows."""

import doctest
import re
import runpy
import shlex
from pathlib import Path

import pytest

from smalti.cli import main
from tests.cli.test_page import masked

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "first-hour.md").read_text()
STEPS = re.compile(r"^```(python|console|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(\w+\.py)`")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of the page; the training is short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    begin = 0
    for step in STEPS.finditer(PAGE):
        kind, text = step.groups()
        if kind == "python":
            Path(NAMED.findall(PAGE[begin : step.start()])[-1]).write_text(text)
        elif kind == "yaml":
            Path("config.yaml").write_text(text.replace("epochs: 12", "epochs: 1"))
        begin = step.end()
    return tmp_path


def test_every_command_prints_what_the_page_shows(folder, capsys):
    num_commands = 0
    for _, block in (step.groups() for step in STEPS.finditer(PAGE) if step[1] == "console"):
        for line, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            program, *words = shlex.split(line)
            printed = (program_output if program == "python" else command_output)(words, capsys)
            assert same(expected, printed), f"$ {line}\n{printed}"
            num_commands += 1
    assert num_commands == 16
    assert (folder / "shapes.html").stat().st_size > 10_000


def program_output(words, capsys):
    runpy.run_path(words[0], run_name="__main__")
    return capsys.readouterr().out


def command_output(words, capsys):
    """Return what a command prints; `diff` ends with 4 where there is a difference."""
    assert main(words) == (4 if words[0] == "diff" else 0), "".join(capsys.readouterr())
    return capsys.readouterr().out


def same(expected, printed):
    """Return whether two outputs are equal; sizes differ with the version of the encoder of images."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    texts = (re.sub(r"[\d.]+ KiB", "SIZE", masked(text)) for text in (expected, printed))
    return not expected or doctest.OutputChecker().check_output(*texts, flags)
