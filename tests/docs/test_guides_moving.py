"""The guides for those who come from another library: their commands print what the pages show."""

import shutil
from pathlib import Path

import pytest

from tests.docs.guide_runs import QUESTION, follow, foreign_code, page, save_files

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SETS = Path(__file__).with_name("sets")
MOVING = {
    "from-webdataset.md": (None, "prepare_tars.py", 2),
    "from-litdata.md": ("chunks", "squares.py", 3),
    "from-huggingface.md": ("saved", "image_bytes.py", 3),
}
"""By page: the set that the first program of the other library writes, the file that others import, and the number of
programs of the other library."""
GUIDES = [*MOVING, "sources.md", "mosaicml.md", "petastorm.md", "dagster.md", "tabular.md", "multimodal.md"]


@pytest.mark.parametrize("name", MOVING)
def test_every_command_prints_what_the_page_shows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    found, module, _ = MOVING[name]
    if found is not None:
        shutil.copytree(SETS / found, tmp_path / found)
    files = save_files(name)
    printed = follow(name, capsys)
    assert [each for each in files if f"python {each}" not in printed] == [module]
    assert any(line.startswith("smalti convert ") for line in printed)


@pytest.mark.parametrize("name", MOVING)
def test_the_programs_of_the_other_library_can_be_parsed(name):
    programs = foreign_code(name)
    assert len(programs) == MOVING[name][2]
    for text in programs:
        compile(text, name, "exec")


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_ends_with_five_questions(name):
    _, mark, questions = page(name).rpartition("\n## ")
    assert mark
    assert questions.startswith("Questions\n")
    assert len(QUESTION.findall(questions)) == 5
