"""The code of docs/deletion.md runs, its commands parse, and its conditions mean something."""

import re
import shlex
from pathlib import Path

import pytest

from smalti.cli import main
from smalti.storage import LocalStore
from smalti.writer.predicate import as_filters, parse_filters
from tests.writer.user_rows import ids_of, write_rows

PAGE = (Path(__file__).parents[2] / "docs" / "deletion.md").read_text(encoding="utf-8")


@pytest.fixture
def people(tmp_path, monkeypatch):
    """A set in the folder `people` of the working directory, with its own cache folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    write_rows(LocalStore(tmp_path / "people"))
    return LocalStore(tmp_path / "people")


def test_the_code_runs_as_it_is_printed(people, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/deletion.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 of 40"
    assert lines[1].endswith("bytes removed of versions [1]")
    assert ids_of(people) == [number for number in range(40) if number not in (3, 11) and number % 7 != 6]


def test_the_commands_run_as_they_are_printed(people, capsys):
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line.removeprefix("$ smalti ")) for line in block.splitlines()]
    assert len(commands) == 3
    Path("erase.txt").write_text("3\n4\n")
    for command in commands:
        replaced = [{"s3://bucket/people": "people"}.get(part, part.replace("user_id", "user")) for part in command]
        assert main([*replaced, "--yes"]) == 0
    assert capsys.readouterr().err == ""


def test_every_comparison_of_the_table_is_one():
    (table,) = re.findall(r"\| comparison \|.*?\n\n", PAGE, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.strip().splitlines()[2:]]
    assert len(rows) >= 6
    for _, word, code in rows:
        if word:
            parse_filters(word.strip("`").removeprefix("--where ").strip('"').split('" --where "'))
        as_filters(eval(code.strip("`")))
