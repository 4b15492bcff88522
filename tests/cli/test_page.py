"""docs/cli.md: its examples run in their order, and it names every command and option of the app."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from smalti.cli import main
from smalti.cli.app import build_app
from smalti.writer import MDSWriter
from tests.cli.test_ledger import run
from tests.faults.cached_sets import read_all, reader
from tests.shard_sets import write_set

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SHARED = {"--help", "--json", "--storage-option", "--endpoint-url", "--profile", "--at", "--tag", "--split"}
"""Described once for all commands."""
SEVERAL = dict(
    re.findall(
        r"^\| `(--[a-z-]+)[^|]*\| ([^|]*) \|",
        PAGE.partition("\n## Options of several commands\n")[2].partition("\n## ")[0],
        re.MULTILINE,
    )
)
"""Options that are described once for the commands that the page names, by option."""


def commands_of(group, above=""):
    """The commands of a group and of the groups in it, with their words before them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = dict(commands_of(get_command(build_app())))


def section_of(name):
    """The part of the page below the command's heading."""
    found = re.search(rf"^### `smalti {name}`.*?\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no heading ### `smalti {name}`"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_shows_each_command_with_its_options(name):
    section = section_of(name)
    assert f"$ smalti {name}" in section, "no example"
    options = {text for each in COMMANDS[name].params for text in each.opts if text.startswith("--")} - SHARED
    own = re.findall(r"^\| `(--[a-z0-9-]+)", section, re.MULTILINE)
    above = [option for option, commands in SEVERAL.items() if f"`{name}`" in commands]
    assert sorted(options) == sorted(own + above)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_ends_with_examples(name):
    assert f"smalti {name}" in COMMANDS[name].epilog
    used = set(re.findall(r" (--[a-z0-9-]+)", COMMANDS[name].epilog))
    assert used <= {text for each in COMMANDS[name].params for text in each.opts}
    assert COMMANDS[name].help


def test_the_page_has_no_command_that_the_app_has_not():
    assert set(re.findall(r"^### `smalti (.*?)`", PAGE, re.MULTILINE)) == set(COMMANDS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """As the page assumes: two versions of a set, a warm cache, parts of a set, a ledger, a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_set("flowers", 40, compression="zstd")
    run("ledger", "flowers")
    write_set("flowers", 50, exist_ok=True, compression="zstd")
    for number in range(2):
        with MDSWriter(out=f"parts/{number}", columns={"id": "int"}) as writer:
            writer.write({"id": number})
    dataset = reader("flowers", tmp_path / "cache")
    read_all(dataset)
    dataset.close()
    for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        Path(name).write_text(text)
    for name, text in re.findall(r"^```csv (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        Path(name).write_text(text)


def test_the_examples_print_what_the_page_shows(folder, capsys):
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            program, *words = shlex.split(line, comments=True)
            assert program == "smalti"
            main(words)
            printed = "".join(capsys.readouterr())
            assert same(expected, printed), f"$ {line}\n{printed}"


def same(expected, printed):
    """Whether two outputs are equal; "..." stands for any text, and what differs in every run is not compared."""
    return doctest.OutputChecker().check_output(masked(expected), masked(printed), doctest.ELLIPSIS)


def masked(text):
    """The text without digests, times and the names of writes."""
    text = re.sub(r"\b\d{8}t\d{6}-[0-9a-f]{16}\b", "WRITE", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "DIGEST", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
