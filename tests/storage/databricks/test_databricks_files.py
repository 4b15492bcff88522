"""The file system of Databricks as fsspec, pandas and pyarrow use it."""

import io
import logging
import pickle
import warnings
from datetime import datetime, timedelta, timezone

import fsspec
import pytest

from smalti.errors import StoreAuthError
from smalti.storage.databricks.volumes import VolumesFileSystem

FOLDER = "/Volumes/main/default/vol/folder"
PLACES = pytest.mark.parametrize("folder", [FOLDER, "/FileStore/folder"])


@pytest.fixture
def fs(files_api):
    return VolumesFileSystem()


def requests(server, verb="GET"):
    return [path for method, path in server.log if method == verb and not path.startswith("/.well-known")]


def test_fsspec_opens_the_scheme(files_api):
    with fsspec.open(f"dbfs://{FOLDER}/x", "wb") as file:
        file.write(b"by fsspec")
    assert files_api.files[f"{FOLDER}/x"] == b"by fsspec"
    with fsspec.open(f"dbfs://{FOLDER}/x", "rt") as file:
        assert file.read() == "by fsspec"
    assert isinstance(fsspec.filesystem("dbfs", instance=files_api.url), VolumesFileSystem)


def test_pandas_and_pyarrow_read_and_write_volumes(files_api, fs):
    import pandas as pd
    import pyarrow.dataset
    import pyarrow.parquet as pq

    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    frame.to_parquet(f"dbfs://{FOLDER}/table/part.parquet")
    assert pd.read_parquet(f"dbfs://{FOLDER}/table/part.parquet").equals(frame)
    assert pq.read_table(f"{FOLDER}/table/part.parquet", filesystem=fs, columns=["a"]).to_pydict() == {"a": [1, 2, 3]}
    assert pyarrow.dataset.dataset(f"{FOLDER}/table", filesystem=fs).count_rows() == 3


@pytest.mark.parametrize("spelling", [f"dbfs:{FOLDER}/k", f"dbfs://{FOLDER}/k", f"{FOLDER}/k", f"{FOLDER}/k/"])
def test_a_file_has_one_name_in_every_spelling(fs, spelling):
    fs.pipe_file(f"{FOLDER}/k", b"1")
    assert fs.cat_file(spelling) == b"1"
    assert fs.info(spelling)["name"] == f"{FOLDER}/k"


@PLACES
def test_an_open_file_seeks_and_reads(fs, folder):
    fs.pipe_file(f"{folder}/k", bytes(range(100)))
    with fs.open(f"{folder}/k", "rb") as file:
        assert file.read(3) == b"\x00\x01\x02"
        assert file.seek(-2, 2) == 98
        assert file.read() == b"\x62\x63"
        file.seek(50)
        into = bytearray(4)
        assert file.readinto(into) == 4
        assert bytes(into) == b"\x32\x33\x34\x35"


def test_an_open_file_caches_blocks(files_api, fs):
    fs.pipe_file(f"{FOLDER}/k", bytes(1000))
    files_api.log.clear()
    with fs.open(f"{FOLDER}/k", "rb", block_size=100) as file:
        for _ in range(10):
            file.read(10)
        assert len(requests(files_api)) == 1
        file.seek(500)
        file.read(10)
    assert len(requests(files_api)) == 2


@PLACES
def test_ranges_count_from_either_end(fs, folder):
    fs.pipe_file(f"{folder}/k", b"0123456789")
    cases = {
        (2, 4): b"23",
        (-3, None): b"789",
        (None, -8): b"01",
        (-4, -2): b"67",
        (8, 99): b"89",
        (5, 5): b"",
        (20, 30): b"",
    }
    for (start, end), expected in cases.items():
        assert fs.cat_file(f"{folder}/k", start=start, end=end) == expected, (start, end)
    assert fs.cat_ranges([f"{folder}/k"] * 3, [0, 4, 8], [2, 6, 99]) == [b"01", b"45", b"89"]


def test_a_failed_range_is_returned_or_raised_by_option(fs):
    fs.pipe_file(f"{FOLDER}/k", b"1")
    paths = [f"{FOLDER}/k", f"{FOLDER}/none"]
    good, bad = fs.cat_ranges(paths, 0, 1, on_error="return")
    assert good == b"1"
    assert isinstance(bad, FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="none"):
        fs.cat_ranges(paths, 0, 1, on_error="raise")


def test_a_file_whose_writer_failed_does_not_exist(files_api, fs):
    def fail(file):
        file.write(b"half")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), fs.open(f"{FOLDER}/k", "wb") as file:
        fail(file)
    assert not fs.exists(f"{FOLDER}/k")
    file = fs.open(f"{FOLDER}/k", "wb")
    file.write(b"forgotten")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del file
    assert "not closed" in str(seen[0].message)
    assert not fs.exists(f"{FOLDER}/k")


def test_a_transaction_stores_all_or_nothing(fs):
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{FOLDER}/{name}", "wb") as file:
                file.write(name.encode())
        assert fs.find(FOLDER) == []
    assert fs.find(FOLDER) == [f"{FOLDER}/a", f"{FOLDER}/b"]

    def fail():
        with fs.open(f"{FOLDER}/c", "wb") as file:
            file.write(b"c")
        raise RuntimeError("after the file was closed")

    with pytest.raises(RuntimeError, match="after"), fs.transaction:
        fail()
    assert not fs.exists(f"{FOLDER}/c")


@PLACES
def test_an_exclusive_file_does_not_replace_an_earlier_one(fs, folder):
    late = fs.open(f"{folder}/k", "xb")
    late.write(b"late")
    fs.pipe_file(f"{folder}/k", b"first")
    with pytest.raises(FileExistsError):
        late.close()
    with pytest.raises(FileExistsError):
        fs.open(f"{folder}/k", "xb")
    assert fs.cat_file(f"{folder}/k") == b"first"


def test_appending_is_refused(fs):
    with pytest.raises(NotImplementedError, match="written whole"):
        fs.open(f"{FOLDER}/k", "ab")


@PLACES
def test_folders_are_removed_with_their_content_only_with_recursive(fs, folder):
    for name in ("a", "sub/b", "sub/deep/c"):
        fs.pipe_file(f"{folder}/{name}", b"1")
    with pytest.raises(IsADirectoryError):
        fs.rm(folder)
    with pytest.raises(OSError, match=r"DIRECTORY_NOT_EMPTY|IO_ERROR"):
        fs.rmdir(folder)
    assert len(fs.find(folder)) == 3
    fs.rm(folder, recursive=True)
    assert not fs.exists(folder)


@PLACES
def test_folders_are_made_with_their_parents(fs, folder):
    fs.makedirs(f"{folder}/a/b")
    assert fs.isdir(f"{folder}/a/b")
    assert fs.ls(f"{folder}/a", detail=False) == [f"{folder}/a/b"]
    fs.makedirs(f"{folder}/a/b", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{folder}/a/b")


@PLACES
def test_walk_glob_and_find_see_the_same_tree(fs, folder):
    for name in ("a.txt", "sub/b.txt", "sub/c.bin"):
        fs.pipe_file(f"{folder}/{name}", b"1")
    assert fs.glob(f"{folder}/**/*.txt") == [f"{folder}/a.txt", f"{folder}/sub/b.txt"]
    assert [(top, sorted(files)) for top, _, files in fs.walk(folder)] == [
        (folder, ["a.txt"]),
        (f"{folder}/sub", ["b.txt", "c.bin"]),
    ]
    assert fs.find(folder, maxdepth=1) == [f"{folder}/a.txt"]
    assert fs.du(folder) == 3


@PLACES
def test_a_file_moves(files_api, fs, folder):
    fs.pipe_file(f"{folder}/a", b"1")
    files_api.log.clear()
    fs.mv(f"{folder}/a", f"{folder}/b")
    assert fs.find(folder) == [f"{folder}/b"]
    renamed = ("POST", "/api/2.0/dbfs/move") in files_api.log
    assert renamed == (folder != FOLDER), "volumes have no such call"


@PLACES
def test_modification_times_are_known_and_creation_times_are_not(fs, folder):
    fs.pipe_file(f"{folder}/k", b"1")
    found = fs.modified(f"{folder}/k")
    assert abs(found - datetime.now(timezone.utc)) < timedelta(minutes=5)
    with pytest.raises(NotImplementedError, match="when it was made"):
        fs.created(f"{folder}/k")


@PLACES
def test_errors_are_builtin_classes_of_python(files_api, fs, folder):
    with pytest.raises(FileNotFoundError, match="none"):
        fs.cat_file(f"{folder}/none")
    fs.pipe_file(f"{folder}/k", b"1")
    with pytest.raises(IsADirectoryError):
        fs.open(folder, "rb")
    files_api.fail_with = [403]
    with pytest.raises(PermissionError):
        fs.cat_file(f"{folder}/k")
    files_api.fail_with = [403]
    with pytest.raises(PermissionError):
        fs.find(folder)


def test_a_pickle_contains_no_token_that_the_sdk_found(files_api, fs, clean_environment):
    fs.pipe_file(f"{FOLDER}/k", b"1")
    data = pickle.dumps(fs)
    assert files_api.token.encode() not in data
    again = pickle.loads(data)
    assert again.cat_file(f"{FOLDER}/k") == b"1"
    clean_environment.delenv("DATABRICKS_TOKEN")
    with pytest.raises(StoreAuthError):
        pickle.loads(data).cat_file(f"{FOLDER}/k")


def test_a_token_in_the_options_is_never_shown(files_api, caplog):
    caplog.set_level(logging.DEBUG)
    fs = VolumesFileSystem(token="dapi99999999canary")
    with pytest.raises(PermissionError) as caught:
        fs.cat_file(f"{FOLDER}/k")
    shown = io.StringIO()
    for error in (caught.value, caught.value.__cause__):
        shown.write(f"{error} {error!r}")
    shown.write(f"{fs!r} {fs} {fs.to_json()} {fs.to_dict()} {caplog.text}")
    assert "canary" not in shown.getvalue()


def test_two_logins_do_not_mix(files_api, fs):
    other = VolumesFileSystem(token="dapi00000000000000000000")
    fs.pipe_file(f"{FOLDER}/k", b"1")
    with pytest.raises(PermissionError):
        other.cat_file(f"{FOLDER}/k")
    assert fs.cat_file(f"{FOLDER}/k") == b"1"
