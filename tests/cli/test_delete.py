"""`smalti delete`: what it prints, what it returns, and that it asks before it deletes."""

import io
import json

import pytest

from smalti.catalog import load_manifest, tag
from smalti.cli import main
from smalti.storage import LocalStore
from tests.writer.user_rows import ids_of, ids_without_user, write_rows


@pytest.fixture
def root(tmp_path):
    write_rows(LocalStore(tmp_path / "set"))
    return tmp_path / "set"


def run(capsys, *arguments, status=0):
    """Run the command, and return its stdout."""
    assert main(["delete", *map(str, arguments)]) == status
    return capsys.readouterr().out


def test_a_dry_run_says_what_would_go_and_changes_nothing(root, capsys):
    lines = run(capsys, root, "--where", "user=5", "--dry-run").splitlines()
    assert lines[0] == "would go  5 of 40 samples of version 1"
    assert lines[1].startswith("shards    4 of 4 concerned, ")
    assert lines[-1] == "nothing was changed; this was a dry run"
    assert load_manifest(root).version == 1


def test_ids_of_a_file_are_deleted_and_the_report_is_written(root, tmp_path, capsys):
    (tmp_path / "ids").write_text("3\n 4 \n\n999\n")
    report = tmp_path / "report.json"
    command = [root, "--ids", tmp_path / "ids", "--column", "id", "--purge", "--cache", tmp_path / "cache"]
    text = run(capsys, *command, "--yes", "--report", report)
    assert "deleted  2 of 40 samples of version 1" in text
    assert "ids without a sample: 1" in text
    assert "older versions removed  1\n" in text
    assert "38 samples read: no sample matches" in text
    found = json.loads(report.read_text())
    assert (found["num_deleted"], found["missing_ids"], found["purge"]["scan"]["ok"]) == (2, 1, True)
    assert 3 not in ids_of(LocalStore(root))
    again = json.loads(run(capsys, *command, "--yes", "--json"))
    assert (again["version"], again["num_deleted"], again["ok"]) == (None, 0, True)


def test_positions_come_from_stdin(root, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("0\n39\n"))
    run(capsys, root, "--ids", "-", "--yes")
    assert ids_of(LocalStore(root)) == list(range(1, 39))


def test_nothing_is_deleted_where_nobody_can_be_asked(root, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    run(capsys, root, "--where", "user=5", status=2)
    assert load_manifest(root).version == 1


class Terminal(io.StringIO):
    """Answers of a person."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "status", "version"), [("n\n", 130, 1), ("y\n", 0, 2)])
def test_a_person_is_shown_the_number_and_asked(root, capsys, monkeypatch, answer, status, version):
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", shown)
    run(capsys, root, "--where", "user=5", status=status)
    assert "version 1: 5 of 40 samples match, in 4 shards" in shown.getvalue()
    assert load_manifest(root).version == version


def test_a_tag_in_the_way_is_a_fault_and_can_be_moved(root, tmp_path, capsys):
    tag(root, "best")
    command = [root, "--where", "user=5", "--purge", "--cache", tmp_path / "cache", "--yes"]
    assert main(["delete", *map(str, command)]) == 1
    assert "have tags: 'best' of version 1; nothing was deleted" in capsys.readouterr().err
    assert "tag                     best: moved to version 2" in run(capsys, *command, "--tags", "move")
    assert ids_of(LocalStore(root)) == ids_without_user(5, range(40))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--where", "a=1", "--ids", "x"],
        ["--where", "a=1", "--column", "a"],
        ["--where", "a=1", "--unsafe-ttl"],
        ["--where", "a", "--yes"],
        ["--where", "a=1", "--yes", "--report", "/no/such/folder/r.json"],
    ],
)
def test_options_that_do_not_fit_together_are_refused(root, capsys, arguments):
    run(capsys, root, *arguments, status=2)


def test_a_scan_that_finds_a_sample_has_its_own_status(root, capsys, monkeypatch, tmp_path):
    from smalti.writer import purge as module

    honest = module.retire

    def retire(store, versions, **options):
        done = honest(store, versions, **options)
        write_rows(LocalStore(root), 7, first=40, mode="append")  # another writer, during the purge
        return done

    monkeypatch.setattr(module, "retire", retire)
    command = [root, "--where", "user=5", "--purge", "--cache", tmp_path / "cache", "--yes"]
    assert main(["delete", *map(str, command)]) == 3
    said = capsys.readouterr()
    assert "1 SAMPLES STILL MATCH" in said.out
    assert "others have published them during the call; call again" in said.err
