"""What all commands share: exit statuses, wrong usage, faults, closed pipes, options of stores, tables."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from smalti.cli import main
from smalti.cli.faults import ExitCode, UsageFault, run_app, run_command
from smalti.cli.options import CommonOptions, Output, VersionChoice, parse_storage_option
from smalti.cli.output import duration, exact_bytes, progress, write_table
from smalti.cli.registration import add_command, make_app
from smalti.errors import SmaltiError
from smalti.texts import byte_count
from tests.shard_sets import write_set

HEAVY = {"numpy", "pyarrow", "fsspec", "torch", "pyspark", "pandas", "yaml", "PIL"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("cli") / "set", 10))


def started(*words, code="from smalti.cli import main; raise SystemExit(main())", **options):
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, **options)


def test_the_exit_statuses_are_those_of_the_page():
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0, "FAULT": 1, "USAGE": 2, "NOT_VERIFIED": 3, "DIFFERS": 4, "INTERRUPTED": 130, "CLOSED_PIPE": 141,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shwo"], "smalti: No such command 'shwo'. Did you mean 'show'?\n"),
        (["cache", "scrbu"], "smalti: No such command 'scrbu'. Did you mean 'scrub'?\n"),
        (["show", "x", "--jsn"], "smalti: No such option: --jsn. Did you mean --json?\n"),
        (["show"], "smalti: Missing argument 'URL'.\n"),
        (["plan", "x"], "smalti: Missing option '--batch'.\n"),
        (
            ["plan", "x", "--batch", "1", "--tail", "shrt"],
            "smalti: Invalid value for '--tail': 'shrt' is not one of 'pad', 'short', 'drop'. Did you mean short?\n",
        ),
        (["show", "x", "--at", "1", "--tag", "y"], "smalti: --at and --tag exclude each other; give one of them\n"),
        (["show", "x", "--storage-option", "anon"], "smalti: --storage-option: expected KEY=VALUE, such as anon=true;"),
        (["show", "s3://b/x", "--storage-option", "a={b"], "smalti: --storage-option a: not valid JSON"),
        (["show", "gs://b/x", "--profile", "p"], "smalti: --profile is for s3://, oci://, dbfs://; for gs:// use"),
        (["plan", "x", "--batch", "1", "--link", "fast"], "smalti: --link: expected a rate such as 10Gbit or 500MB"),
        (
            ["plan", "x", "--batch", "1", "--read-rate", "0"],
            "smalti: speeds and prices: `read`: expected a rate above 0",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_status_two_and_names_what_is_near(words, said, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(said)
    assert printed.out == ""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`older_than` is 1", "`--older-than` is 1"),
        ("leave it out with `columns`", "leave it out with `--column`"),
        ('use mode="append"', "use --mode append"),
        ('use mode="overwrite"', "use --mode overwrite"),
        ("such as version=3", "such as --at 3"),
        ("/lake/version=3/a, s3://b/mode='x'/a", "/lake/version=3/a, s3://b/mode='x'/a"),
        ("settings={'delimiter': ';', 'header': True}", "--setting 'delimiter=;' --setting header=true"),
        ("settings={'names': [...]}", """--setting 'names=["..."]'"""),
        ('settings={"missing": "null"}', """--setting 'missing="null"'"""),
        ("nulls={'a': \"mask\"}", """--nulls '{"a": "mask"}'"""),
        ("settings={1, 2}, settings={3 and metadata={'a': 1}", "settings={1, 2}, settings={3 and metadata={'a': 1}"),
        ("`cache` and key='value'", "`cache` and key='value'"),
    ],
)
def test_arguments_in_messages_are_shown_as_the_options_of_the_command(said, shown, capsys):
    options = {
        "older_than": "--older-than", "column": "--column", "mode": "--mode", "version": "--at",
        "setting": "--setting", "nulls": "--nulls",
    }  # fmt: skip

    def refuse():
        raise SmaltiError(said)

    assert run_command(refuse, options) == 1
    assert capsys.readouterr().err.startswith(f"smalti: {shown}\n")


def test_a_value_that_is_an_option_of_its_own_is_shown_as_that(capsys):
    def refuse():
        raise SmaltiError('use mode="overwrite"')

    run_command(refuse, {"overwrite": "--overwrite"})
    assert capsys.readouterr().err.startswith("smalti: use --overwrite\n")


def test_without_a_command_the_help_is_printed_with_status_two(capsys):
    assert main([]) == 2
    assert "Make, move and change data:" in capsys.readouterr().out


def test_with_json_a_fault_leaves_stdout_empty(tmp_path, capsys):
    assert main(["show", str(tmp_path), "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("smalti: ")
    assert printed.err.endswith("/docs/troubleshooting.md#storenotfound\n")


def failing(fault):
    def work():
        raise fault

    return run_command(work, {"older_than": "--older-than"})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ModuleNotFoundError("no", name="torch"), "this command needs the package torch, which is not installed: "
                                                  "pip install 'smalti[torch]'"),
        (ModuleNotFoundError("no", name="yaml"), "pip install 'smalti[cli]'"),
        (ModuleNotFoundError("no", name="datasets.load"), "pip install 'datasets'"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "/data/x: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
    ids=str,
)  # fmt: skip
def test_faults_of_the_machine_are_one_message_with_what_to_do(fault, said, capsys):
    assert failing(fault) == 1
    assert said in capsys.readouterr().err


def test_a_module_of_smalti_that_is_missing_is_a_defect_and_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError):
        failing(ModuleNotFoundError("no", name="smalti.nothing"))


def test_a_broken_connection_is_a_fault_and_no_closed_pipe(capsys):
    assert failing(BrokenPipeError(errno.EPIPE, "Broken pipe")) == 1
    assert capsys.readouterr().err == "smalti: Broken pipe\n"


def test_the_help_imports_no_heavy_package():
    code = (
        "import sys; from smalti.cli import main; status = main(['--help']); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    process = started(code=code, stdout=subprocess.DEVNULL)
    assert not HEAVY & set(process.communicate(timeout=500)[1].split())


@pytest.mark.parametrize("words", [["history"], ["--help"], ["show", "--help"]], ids=" ".join)
def test_a_closed_pipe_is_status_141_and_no_traceback(words, root):
    with started(*words, *([root] if words == ["history"] else []), stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=500) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_to_a_full_disk_is_a_fault_and_no_traceback(root):
    with open("/dev/full", "w") as full, started("show", root, stdout=full) as process:
        assert process.stderr.read() == "smalti: the output cannot be written: No space left on device\n"
        assert process.wait(timeout=500) == 1


@pytest.mark.process
def test_ctrl_c_is_status_130_and_no_traceback(tmp_path):
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, threading, smalti.catalog.opening as opening\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job of a shell ignores it
        "def wait(*_, **__):\n"
        f"    pathlib.Path({str(ready)!r}).touch()\n"
        "    threading.Event().wait(60)\n"
        "opening.open_version = wait\n"
        "from smalti.cli import main; raise SystemExit(main(['show', '.']))"
    )
    process = started(code=code, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=500) == ("", "smalti: interrupted\n")
    assert process.returncode == 130


def test_without_typer_the_command_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    process = started(stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "needs the package typer, which is not installed: pip install 'smalti[cli]'" in process.communicate()[1]
    assert process.returncode == 1


def completed(line, root):
    words = line.split(" ")
    told = {"_SMALTI_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    process = started(stdout=subprocess.PIPE, env={**os.environ, **told}, cwd=root)
    return process.communicate(timeout=500)[0].split()


def test_commands_options_and_choices_are_completed(root):
    assert completed("smalti ver", root) == ["verify"]
    assert completed("smalti show x --js", root) == ["--json"]
    assert completed("smalti plan x --tail ", root) == ["pad", "short", "drop"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("anon=true", True),
        ("anon=False", False),
        ("x=null", None),
        ("timeout=30", 30),
        ("timeout=2.5", 2.5),
        ('client_kwargs={"region_name": "eu"}', {"region_name": "eu"}),
        ('x="1"', "1"),
        ("x=a=b", "a=b"),
        ("x=", ""),
        ("x=0123", "0123"),
        ("key=123", "123"),
        ("account_key=1e5", "1e5"),
        ("external_id=471108151234", "471108151234"),
        ("bucket_key=false", False),
        ("token=null", "null"),
    ],
)
def test_values_of_storage_options_are_typed_and_credentials_are_text(text, value):
    assert parse_storage_option(text) == (text.partition("=")[0], value)


def test_options_of_a_store_are_not_those_of_a_path():
    options = CommonOptions(storage_option=["anon=true"], endpoint_url="http://127.0.0.1:9", profile="lab")
    assert options.for_address("s3://b/x") == {"anon": True, "endpoint_url": "http://127.0.0.1:9", "profile": "lab"}
    assert options.for_address("./x") == {}
    with pytest.raises(UsageFault, match="--endpoint-url is for s3://, oci://, gs://"):
        options.for_address("abfs://c/x")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1024**2 - 1, "1.0 MiB"),
     (5 * 1024**4, "5.0 TiB"), (3000 * 1024**5, "3,000.0 PiB")],
)  # fmt: skip
def test_byte_counts_are_as_people_read_them(num_bytes, text):
    assert byte_count(num_bytes) == text


def test_exact_counts_and_durations():
    assert (exact_bytes(12), exact_bytes(1_234_567)) == ("12 bytes", "1.2 MiB (1,234,567 bytes)")
    assert [duration(each) for each in (0.04, 99.9, 100, 3599.6, 360_000)] == [
        "0.0 s", "99.9 s", "1 min 40 s", "1 h 00 min", "100 h 00 min",
    ]  # fmt: skip


def test_a_piped_table_is_whole_and_plain(capsys):
    write_table(["a", "b"], [("x" * 200, 1234), ("y", None)])
    assert capsys.readouterr().out == f"{'a':200}  b\n{'x' * 200}  1,234\ny\n"


def test_a_column_of_a_set_that_is_named_as_a_number_stands_at_the_left(capsys):
    write_table(["row", "row"], [(7, "x"), (11, "long")], numbers=("row",))
    assert capsys.readouterr().out == "row  row\n  7  x\n 11  long\n"


def test_no_progress_is_shown_with_json_or_where_stderr_is_no_terminal():
    with progress(Output(as_json=True), "x") as first, progress(Output(), "x") as second:
        assert (first, second) == (None, None)


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_and_wiped_at_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress(Output(), "shards checked") as on_shard:
        on_shard(3, 7)
    shown = sys.stderr.getvalue()
    assert "shards checked" in shown
    assert "3/7" in shown
    assert shown.endswith("\x1b[2K"), "the line is cleared"


def test_a_table_on_a_terminal_of_80_columns_is_folded_and_not_cut(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    write_table(["key", "size", "id"], [("k" * 100, 5, "x")], numbers=("size",), only_piped=("id",))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("k") for line in lines[1:]) == 100
    assert "id" not in lines[0]


def test_a_command_without_docstring_has_no_heading_of_examples(capsys):
    """`python -OO` takes the docstrings away."""
    app = make_app()
    app.callback()(lambda: None)
    add_command(app, lambda: None, name="look", panel=None)
    cli = typer.main.get_command(app)
    assert run_app(lambda: cli.main(["look", "--help"], standalone_mode=False)) == 0
    assert "Examples" not in capsys.readouterr().out


def test_a_group_of_options_reaches_its_command_as_one_value(capsys):
    app = make_app()
    app.callback()(lambda: None)
    seen = []

    def look(name: str, version: VersionChoice, output: Output) -> ExitCode:
        """Look.

        Examples:
            smalti look x
        """
        seen.append((name, version, output))
        return ExitCode.DIFFERS

    add_command(app, look, name="look", panel=None)
    cli = typer.main.get_command(app)
    assert run_app(lambda: cli.main(["look", "x", "--at", "3", "--json"], standalone_mode=False)) == 4
    assert seen == [("x", VersionChoice(at=3), Output(as_json=True))]


def test_the_version_is_that_of_the_package(capsys):
    import smalti

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"smalti {smalti.__version__}\n"


@pytest.mark.slow
def test_the_settings_of_a_store_reach_it(tmp_path, monkeypatch, capsys):
    import boto3
    import moto.server

    for name in [*os.environ]:
        if name.startswith(("AWS_", "S3_")):
            monkeypatch.delenv(name)
    config = tmp_path / "credentials"
    config.write_text("[lab]\naws_access_key_id = o\naws_secret_access_key = o\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(config))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        owner = {"aws_access_key_id": "o", "aws_secret_access_key": "o", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **owner).create_bucket(Bucket="bucket")
        given = {"key": "o", "secret": "o", "endpoint_url": url}
        write_set("s3://bucket/set", 10, storage_options=given)
        assert main(["show", "s3://bucket/set", "--endpoint-url", url]) == 1
        assert "no credentials" in capsys.readouterr().err
        keys = ["--storage-option", "key=1", "--storage-option", "secret=2"]
        for login in (keys, ["--profile", "lab"]):
            assert main(["show", "s3://bucket/set", "--endpoint-url", url, *login, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["rows"] == 10
        assert main(["verify", "s3://bucket/set", "--endpoint-url", url, *keys]) == 0
        assert main(["plan", "s3://bucket/set", "--endpoint-url", url, *keys, "--batch", "2"]) == 0
    finally:
        server.stop()


def test_no_module_of_commands_prints_by_itself():
    """Except the writers: what is printed elsewhere would be neither JSON nor safe against a closed pipe."""
    folder = Path(__file__).parents[2] / "src" / "smalti" / "cli"
    printing = {path.name for path in folder.glob("*.py") if re.search(r"(?<!console\.)\bprint\(", path.read_text())}
    assert printing == {"__init__.py", "faults.py", "output.py"}


def test_the_traceback_of_a_defect_shows_no_secret_of_the_environment_and_no_locals(capsys, monkeypatch):
    login, key = "CANARY-of-a-proxy", "CANARY-of-a-store"
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{login}@proxy:3128")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)

    def command():
        password = "in " + "a local"
        raise KeyError(f"{login} {key} {len(password)}")

    assert run_app(command) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "raise KeyError" in shown
    assert [secret for secret in (login, key, "in a local") if secret in shown] == []
