"""The code of docs/copying.md runs as it is printed."""

import re
from pathlib import Path

from tests.shard_sets import write_set

PAGE = Path(__file__).resolve().parents[2] / "docs" / "copying.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_set("flowers", 32)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert re.fullmatch(r"1 versions, 4 objects, [\d,]+ bytes copied\n", capsys.readouterr().out)


def test_the_command_lines_of_the_page_have_options_that_exist(capsys):
    from smalti.cli import main

    lines = re.findall(r"^smalti (cp|sync) (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 3
    for name, rest in lines:
        assert main([name, "--help"]) == 0
        known = capsys.readouterr().out
        assert all(option in known for option in re.findall(r"--[a-z-]+", rest))
