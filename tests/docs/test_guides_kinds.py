"""The guides to kinds of data, tables and samples of several kinds: their commands print what the pages show."""

import re

import pytest

from smalti import load_manifest
from tests.docs.guide import Guide

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def test_the_commands_about_tables_print_what_the_page_shows(folder, capsys):
    guide = Guide("tabular.md")
    files, printed = guide.write_files(folder), guide.run_commands(capsys)
    assert [each for each in files if f"python {each}" not in printed] == ["prepare_houses.py"]
    error, naive = numbers(printed["python train_houses.py"])
    assert 8_000 < error < 20_000
    assert naive > 100_000


def test_the_commands_about_several_kinds_print_what_the_page_shows(folder, capsys):
    guide = Guide("multimodal.md")
    files, printed = guide.write_files(folder), guide.run_commands(capsys)
    # The task trains in `code_location/test_kinds.py`.
    assert [each for each in files if f"python {each}" not in printed] == ["collate_items.py", "leaves_task.py"]
    old, new = (load_manifest("items", version=number) for number in (1, 2))
    assert [each.raw.basename for each in new.shards] == [each.raw.basename for each in old.shards]


def numbers(text):
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]+", text)]
