"""The guides for those who come from another library: their commands print what the pages show."""

import shutil
from pathlib import Path

import pytest

from tests.docs.guide import Guide

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SETS = Path(__file__).with_name("sets")
MOVING = {
    "from-webdataset.md": (None, "prepare_tars.py", 2),
    "from-litdata.md": ("chunks", None, 2),
    "from-huggingface.md": ("saved", None, 2),
}
"""By page: the set with which it begins, the file that others import, and the number of programs of the other
library."""


@pytest.mark.parametrize("name", MOVING)
def test_every_command_prints_what_the_page_shows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    found, module, _ = MOVING[name]
    if found is not None:
        shutil.copytree(SETS / found, tmp_path / found)
    guide = Guide(name)
    files, printed = guide.write_files(tmp_path), guide.run_commands(capsys)
    assert [each for each in files if f"python {each}" not in printed] == ([] if module is None else [module])
    assert any(line.startswith("smalti convert ") for line in printed)


@pytest.mark.parametrize("name", MOVING)
def test_the_programs_of_the_other_library_can_be_parsed(name):
    programs = Guide(name).foreign_code()
    assert len(programs) == MOVING[name][2]
    for text in programs:
        compile(text, name, "exec")
