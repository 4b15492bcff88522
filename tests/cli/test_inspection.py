"""`smalti info|head|stats|preview`: what they print, as text and as JSON."""

import json
import os
import pty

import pytest

from smalti.cli import main
from smalti.cli.commands.inspection import column_widths
from smalti.compat import streaming
from smalti.writer import MDSWriter
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", 40, compression="zstd")


@pytest.fixture
def said(capsys):
    def run(*arguments, status=0):
        assert main(list(map(str, arguments))) == status
        return capsys.readouterr().out

    return run


def test_info_fits_a_screen_and_ends_with_how_to_open_the_set(root, said):
    lines = said("info", root).splitlines()
    assert len(lines) < 24
    assert "written by  Smalti, format mds" in lines
    assert f"open with   StreamingDataset(remote={str(root)!r})" in lines
    assert [line.split() for line in lines[-3:]] == [["id", "int"], ["text", "str"], ["vector", "ndarray:float32:3"]]
    assert json.loads(said("info", root, "--json"))["compression"] == ["zstd"]


def test_head_is_a_table_that_cuts_nothing_in_a_pipe(root, said, capsys):
    lines = said("head", root, "-n", 2, "--offset", 13, "--columns", "id,text").splitlines()
    assert [line.split(maxsplit=2) for line in lines] == [
        ["row", "id", "text"],
        ["13", "13", "sample 13 xxxxxx"],
        ["14", "14", "sample 14"],
    ]
    found = json.loads(said("head", root, "--sample", "--json"))
    assert [row["row"] for row in found["rows"]] == [row["values"]["id"] for row in found["rows"]]
    assert said("head", root, "--offset", 40) == "no rows from 40 on: there are 40\n"
    assert main(["head", str(root), "--columns", "ids"]) == 1
    assert "did you mean 'id'?" in capsys.readouterr().err
    assert main(["head", str(root), "-n", "10001"]) == 2


def test_stats_has_a_line_for_each_column(root, said):
    lines = said("stats", root).splitlines()
    assert lines[0] == "all 40 rows, version 1"
    assert lines[3].split()[:4] == ["id", "int", "0", "40"]
    assert "0 to 39" in lines[3]
    assert said("stats", root, "--samples", 10).startswith("10 random ones of 40 rows")
    assert json.loads(said("stats", root, "--json"))["columns"][0]["values"]["max"] == 39


def test_preview_writes_a_page_and_says_so(root, tmp_path, said, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said("preview", root).startswith("set.html: 40 of 40 rows, ")
    assert json.loads(said("preview", root, "-o", "page.html", "--rows", 5, "--json"))["rows"] == 5
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["preview", str(root), "-o", "missing/page.html"]) == 1
    assert "the folder missing does not exist" in capsys.readouterr().err


def test_a_place_without_a_set_is_one_line(tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(b"x")
    for command in ("info", "head", "stats", "preview"):
        assert main([command, str(tmp_path)]) == 1
        assert (
            "holds no shard set, but other files such as a.jpg: if they are data, `smalti convert`"
            in capsys.readouterr().err
        )


def test_the_widest_columns_share_the_room_that_is_left():
    assert column_widths([3, 100, 10, 50], 60) == [3, 24, 10, 23]
    assert column_widths([3, 10], 60) == [3, 10]


def test_on_a_terminal_long_values_are_cut_and_control_characters_are_shown(tmp_path, monkeypatch):
    with MDSWriter(out=str(tmp_path), columns={"n": "int", "text": "str"}) as out:
        out.write({"n": 7, "text": "\x1b[31m" + "x" * 5000})
    monkeypatch.setenv("COLUMNS", "60")
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert main(["head", str(tmp_path)]) == 0
        terminal.flush()
        shown = os.read(reader, 100_000).decode()
    os.close(reader)
    line = next(line for line in shown.splitlines() if "xxx" in line)
    assert "\\u001b[31mxxx" in line
    assert line.rstrip().endswith("…")
    assert len(line) <= 60


def test_names_and_values_of_a_hostile_set_reach_no_terminal(tmp_path, said, monkeypatch, capsys):
    bad = "\x1b[31mred\x9b0m\u202egnp"
    with streaming.MDSWriter(out=str(tmp_path), columns={bad: "str", "[/]": "json"}) as out:  # Smalti's refuses it
        out.write({bad: bad, "[/]": {"lone": "\ud800", "wide": "\x9b\u2066"}})
    commands = ["info"], ["head"], ["stats"], ["head", "--json"]
    shown = [said(name, tmp_path, *options) for name, *options in commands]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    shown += [said(name, tmp_path, *options) for name, *options in commands]
    assert main(["head", str(tmp_path), "--columns", "none"]) == 1
    shown.append(capsys.readouterr().err)
    assert not [text for text in shown if "\x1b[31m" in text or set("\x9b\u202e\u2066\ud800") & set(text)]
    (row,) = json.loads(said("head", tmp_path, "--json"))["rows"]
    assert row["values"] == {bad: bad, "[/]": {"lone": "\ud800", "wide": "\x9b\u2066"}}
