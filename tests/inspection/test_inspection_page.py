"""docs/inspection.md: its programs run in their order, and its commands print what stands there."""

import re
from pathlib import Path

from smalti.cli import main

PAGE = (Path(__file__).parents[2] / "docs/inspection.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
VARYING = re.compile(r"[\d,.]+ (KiB|bytes)|/\S+|[0-9a-f]{64}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""Sizes, which depend on the encoder of PNG files, and places and times."""


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "docs/inspection.md", "exec"), names)
        else:
            command, _, printed = text.partition("\n")
            assert main(command.removeprefix("$ smalti ").split()) == 0
            assert VARYING.sub("…", capsys.readouterr().out) == VARYING.sub("…", printed)
