"""Only regular files are opened: a named pipe in place of a file is an error at once, in every function that reads."""

import ast
import io
import os
import re
import shutil
from pathlib import Path

import pytest

import smalti
from smalti import MDSWriter, open_store
from smalti.cli import main
from smalti.compat.petastorm import make_batch_reader
from smalti.dataset.local import LocalDataset
from smalti.errors import SmaltiError, StoreError
from smalti.ledger import check_ledger
from smalti.regular_files import open_regular
from smalti.sources.archive import fetch_archive
from smalti.torch.train.config_file import read_config
from tests.reading_options import grouped

SOURCE = Path(smalti.__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with MDSWriter(out=str(folder / "set"), columns={"i": "int"}) as out:
        for number in range(8):
            out.write({"i": number})
    return folder / "set"


@pytest.fixture
def broken(whole, tmp_path):
    """Return a function that gives a copy of the set with a pipe in place of its index, a shard or a manifest."""

    def make(victim):
        target = tmp_path / "set"
        shutil.copytree(whole, target)
        path = next(target.rglob({"index": "index.json", "shard": "*.mds*", "manifest": "_versions/0*.json"}[victim]))
        path.unlink()
        os.mkfifo(path)
        return str(target)

    return make


def read_streaming(place, tmp_path, **options):
    return smalti.StreamingDataset(batch_size=1, **grouped(download_timeout=120, **options))[0]


READERS = {
    "load_manifest": lambda place, tmp_path: smalti.load_manifest(place),
    "history": lambda place, tmp_path: smalti.history(place),
    "info": lambda place, tmp_path: smalti.info(place),
    "merge_index": lambda place, tmp_path: smalti.merge_index(place),
    "head": lambda place, tmp_path: smalti.head(place),
    "stats": lambda place, tmp_path: smalti.stats(place),
    "preview": lambda place, tmp_path: smalti.preview(place, tmp_path / "preview.html"),
    "copy_version": lambda place, tmp_path: smalti.copy_version(place, tmp_path / "copy"),
    "export": lambda place, tmp_path: smalti.export(place, tmp_path / "export", format="parquet", workers=1),
    "delete": lambda place, tmp_path: smalti.delete(place, ids=[1], column="i"),
    "convert": lambda place, tmp_path: smalti.convert(place, tmp_path / "converted", format="mds", processes=1),
    "LocalDataset": lambda place, tmp_path: LocalDataset(place)[0],
    "in place": lambda place, tmp_path: read_streaming(place, tmp_path, remote=place),
    "remote": lambda place, tmp_path: read_streaming(place, tmp_path, remote=place, local=str(tmp_path / "cache")),
}
NO_SHARD = {"load_manifest", "history", "info", "merge_index"}


@pytest.mark.parametrize("victim", ["index", "shard", "manifest"])
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_in_a_set_is_refused_by_each_function_that_reads_it(broken, tmp_path, victim, name):
    if (victim == "shard" and name in NO_SHARD) or (victim == "manifest" and name == "merge_index"):
        return
    with pytest.raises(SmaltiError, match=r"named pipe \(FIFO\).*only regular files are read"):
        READERS[name](broken(victim), tmp_path)


def test_verify_reports_a_pipe(broken):
    assert not smalti.verify(broken("shard")).ok


def pipe(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return str(path)


FILES = {
    "convert": lambda root: smalti.convert(pipe(root / "a.csv"), root / "set"),
    "convert, with format": lambda root: smalti.convert(pipe(root / "a.jsonl"), root / "set", format="jsonl"),
    "fetch_archive": lambda root: fetch_archive(pipe(root / "a.tar.gz"), root / "photos"),
    "Store.get": lambda root: open_store(root).get(Path(pipe(root / "key")).name),
    "Store.get_range": lambda root: open_store(root).get_range(Path(pipe(root / "key")).name, 0, 1),
    "Store.fetch": lambda root: open_store(root).fetch(Path(pipe(root / "key")).name, io.BytesIO()),
    "Store.put_file": lambda root: open_store(root / "to").put_file("key", Path(pipe(root / "from"))),
    "read_config": lambda root: read_config(pipe(root / "train.yaml")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_that_is_named_itself_is_refused(tmp_path, name):
    with pytest.raises(StoreError, match=r"named pipe \(FIFO\)"):
        FILES[name](tmp_path)


def test_commands_refuse_a_pipe(whole, tmp_path, capsys):
    assert main(["train", pipe(tmp_path / "train.yaml")]) == 1
    assert main(["delete", str(whole), "--ids", pipe(tmp_path / "ids"), "--column", "i"]) == 1
    assert capsys.readouterr().err.count("is a named pipe (FIFO); only regular files are read") == 2


def test_a_ledger_and_a_parquet_folder_with_a_pipe_are_read_to_an_end(tmp_path):
    report = check_ledger(Path(pipe(tmp_path / "run" / "life-00001" / "rank-00000.jsonl")).parents[1])
    assert "only regular files are read" in report.problems[0].message
    with pytest.raises(SmaltiError), make_batch_reader(Path(pipe(tmp_path / "rows" / "a.parquet")).parent.as_uri()):
        pass


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("/dev/zero", StoreError, "/dev/zero is a character device; only regular files are read"),
        ("/no/such", FileNotFoundError, "No such file"),
        ("/", IsADirectoryError, "Is a directory"),
    ],
)
def test_devices_are_refused_and_other_errors_are_those_of_the_system(path, error, says):
    with pytest.raises(error, match=says):
        open_regular(path)


OWN_FILES = {
    "cache/files.py", "world.py", "storage/local.py", "storage/backends/aws_login.py", "storage/backends/s3_models.py",
    "inspection/preview.py", "diagnosis/torch_build.py", "torch/train/threads.py", "regular_files.py",
    "storage/backends/sftp.py", "storage/databricks/volumes.py", "testing/memory.py", "testing/logged.py",
    "compat/streaming/multimodal.py",
}  # fmt: skip
"""Modules that read files which the kernel, the package or the module itself made, or remote ones."""


def opens_for_reading(tree):
    """Yield the lines of calls that open a file by its path for reading."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        mode = next((arg.value for arg in call.args if isinstance(arg, ast.Constant)), None)
        is_open = name == "open" and isinstance(mode, str) and mode.startswith("r")
        if name in {"read_bytes", "read_text", "memmap", "fromfile"} or is_open:
            yield call.lineno


def test_the_library_opens_files_by_one_function():
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    found = {
        f"{name}:{line}"
        for name, text in texts.items()
        if name not in OWN_FILES and re.search(r"read_bytes|read_text|memmap|fromfile|open\(.*[\"']r", text)
        for line in opens_for_reading(ast.parse(text))
    }
    assert found == set()
