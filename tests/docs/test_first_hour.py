"""docs/first-hour.md: its programs and commands, in their order, print what the page shows."""

import pytest

from tests.docs.guide import Guide

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process]


def test_every_command_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    guide = Guide("first-hour.md", **{"epochs: 12": "epochs: 1"})
    guide.write_files(tmp_path)
    assert len(guide.run_commands(capsys)) == 16
    assert (tmp_path / "shapes.html").stat().st_size > 10_000
