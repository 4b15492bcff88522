"""Every command answers odd arguments with an exit status and one clear message, and never with a traceback.

The commands and their options come from the app itself: a new command is tried without an entry here.
"""

import io
import shutil

import pytest
from typer.main import get_command

from smalti.cli import main
from smalti.cli.app import build_app
from smalti.cli.faults import ExitCode
from tests.cli.test_page import commands_of
from tests.shard_sets import write_set

COMMANDS = dict(commands_of(get_command(build_app())))
BASE = {"benchmark": ["--seconds", "0.1", "--threads", "1"]}
"""Options without which a command would take long."""
ARGUMENTS = {"url": "set", "source": "set", "target": "out", "config": "c.yaml"}
"""Arguments that mean something; others are `1`."""
FEW = [str(10**30), "caf\udcff"]
"""Of these, one is tried for each option."""
PLACES = ["no/such/place", "folder", "file.txt", "bin", "caf\udcff", "s3:", "http://[", "a\nb\u202ex", "/dev/null"]
"""Tried for each argument."""
MANY = [*FEW, *PLACES, "-1", "0", "1e400", "nan", "-inf", "file://host/x", "~nobody", "x" * 5000, "[", "*",
        "2020-99-99", "a=b", "=", "a==", ":", "s3://", "--", "-"]  # fmt: skip
STORE_OPTIONS = ("--storage-option", "--endpoint-url", "--profile")
"""Tried for one command only."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("odd") / "set", 10)


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    """The working folder, with a set, files that are none, and a cache folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("x\n")
    (tmp_path / "bin").write_bytes(b"\xff\x00\xfe" * 10)
    (tmp_path / "c.yaml").write_text("data: no/such/set\nrun_dir: run\n")
    return tmp_path


def parts_of(name):
    """Return the arguments of a command, and its options that take a value."""
    parameters = COMMANDS[name].params
    options = [each for each in parameters if each.param_type_name != "argument" and not each.is_flag]
    return [each for each in parameters if each.param_type_name == "argument"], options


def word_of(option):
    return next(text for text in option.opts if text.startswith("--"))


def lines_of(name, places, values):
    """Yield command lines with one odd word each."""
    arguments, options = parts_of(name)
    usual = [ARGUMENTS.get(each.name, "1") for each in arguments]
    base = BASE.get(name, [])
    yes = ["--yes"] if any("--yes" in each.opts for each in COMMANDS[name].params) else []

    def needed(but=None):
        return [text for each in options if each.required and each is not but for text in (word_of(each), "1")]

    for place in range(len(usual)):
        for value in places:
            yield [*name.split(), *needed(), *base, *usual[:place], value, *usual[place + 1 :], *yes]
    for number, option in enumerate(options):
        word = word_of(option)
        if word not in STORE_OPTIONS or name == "show":
            for value in values if len(values) > len(FEW) else [values[number % len(values)]]:
                yield [*name.split(), *needed(option), *([] if word in base else base), *usual, word, value, *yes]


def check(line, written, folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for place in ("set", "out"):
        shutil.rmtree(folder / place, ignore_errors=True)
    shutil.copytree(written, folder / "set")
    status = main(line)
    said = capsys.readouterr().err
    assert status in list(ExitCode), line
    assert "Traceback" not in said, line
    if status in (ExitCode.FAULT, ExitCode.USAGE):
        assert said.startswith("smalti: "), line
        assert len(said) < 2000 + 2 * max(map(len, line)), line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_an_odd_argument_is_a_clear_message_and_an_exit_status(name, written, folder, capsys, monkeypatch):
    for line in lines_of(name, PLACES, FEW):
        check(line, written, folder, capsys, monkeypatch)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_many_odd_arguments_are_clear_messages_and_exit_statuses(name, written, folder, capsys, monkeypatch):
    for line in lines_of(name, MANY, MANY):
        check(line, written, folder, capsys, monkeypatch)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_argument_is_refused_by_every_command(name, folder, capsys):
    arguments, options = parts_of(name)
    for place in range(len(arguments)):
        assert main([*name.split(), *["x"] * place, "", *["x"] * (len(arguments) - place - 1)]) == ExitCode.USAGE
        assert capsys.readouterr().err.startswith(
            "smalti: an argument: the value is empty; give one, or leave it out\n"
        )
    for number, option in enumerate(options):
        if word_of(option) not in STORE_OPTIONS or name == "show":
            words = [f"{word_of(option)}="] if number % 2 else [word_of(option), ""]
            assert main([*name.split(), *words]) == ExitCode.USAGE
            assert capsys.readouterr().err.startswith(f"smalti: {word_of(option)}: the value is empty")


@pytest.mark.parametrize("value", ["1e400", "-1e400", "nan", str(10**30)])
def test_a_number_that_is_none_is_refused(value, folder, capsys):
    assert main(["doctor", "--seconds", value]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("smalti: ")


def test_a_value_that_the_library_refuses_by_the_name_of_its_argument_is_wrong_usage(written, folder, capsys):
    assert main(["plan", str(written), "--batch", "4", "--canonical-nodes", "99999999"]) == ExitCode.USAGE
    assert "`num_canonical_nodes` must be a whole number from 1 to 1048576" in capsys.readouterr().err
