"""The helper functions: arguments, waits and retries as MosaicML documents them, and `merge_index` equal to its own."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from smalti.catalog import load_manifest
from smalti.catalog import merge_index as engine_merge_index
from smalti.compat.streaming.base.util import (
    bytes_to_int,
    get_import_exception_message,
    get_list_arg,
    merge_index,
    number_abbrev_to_int,
    retry,
    wait_for_file_to_exist,
)
from tests.shard_sets import write_set

PARTS = ("2", "10", "a/b")

# ------------------------------------------------------------------ arguments


def test_lists_are_split_at_commas():
    assert get_list_arg("a,b, c") == ["a", "b", " c"]
    assert get_list_arg("") == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (1024, 1024),
        (7.9, 7),
        ("1234", 1234),
        ("10b", 10),
        ("1KB", 1024),
        ("1.5kb", 1536),
        (" 2 mb ", 2 << 20),
        ("3gb", 3 << 30),
        ("1tb", 1 << 40),
        ("1pb", 1 << 50),
        ("1eb", 1 << 60),
        ("1zb", 1 << 70),
        ("1yb", 1 << 80),
    ],
)
def test_bytes_are_parsed(text, number):
    assert bytes_to_int(text) == number


@pytest.mark.parametrize("text", ["", "kb", "1.5", "1.5b", "abc", "10xb", "-5", "nankb"])
def test_other_bytes_are_a_value_error(text):
    with pytest.raises(ValueError, match=rf"^Unsupported value/suffix {text}\. Supported suffix are \['b', 'kb', 'mb'"):
        bytes_to_int(text)


def test_infinite_numbers_are_an_overflow_error():
    with pytest.raises(OverflowError, match="Unsupported value/suffix inf kb"):
        bytes_to_int(" inf KB")
    with pytest.raises(OverflowError, match="Unsupported value/suffix infk"):
        number_abbrev_to_int("infk")


@pytest.mark.parametrize(
    ("text", "number"),
    [(5, 5), (5.5, 5), ("55", 55), ("1k", 1000), ("1.5K", 1500), ("2m", 2_000_000), ("3b", 3 * 10**9), ("1t", 10**12)],
)
def test_numbers_are_parsed(text, number):
    assert number_abbrev_to_int(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "10kb", "-1", "x"])
def test_other_numbers_are_a_value_error(text):
    with pytest.raises(ValueError, match=r"Unsupported value/suffix .* Supported suffix are \['k', 'm', 'b', 't'\]"):
        number_abbrev_to_int(text)


def test_the_message_for_a_missing_package_has_the_command():
    message = get_import_exception_message("databricks.sdk", "databricks")
    assert "was installed without databricks.sdk support" in message
    assert "pip install 'smalti[databricks]'" in message


# ------------------------------------------------------------------ waits


def test_a_file_is_waited_for(tmp_path):
    file = tmp_path / "later"
    timer = threading.Timer(0.05, file.touch)
    timer.start()
    wait_for_file_to_exist(str(file), 0.01, 60, "no file. ")
    assert file.exists()
    timer.join(60)


def test_a_file_that_never_comes_is_a_runtime_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"^no file\. 0\.020 < [0-9.]+ secs\. The file .*never is not"):
        wait_for_file_to_exist(str(tmp_path / "never"), 0.01, 0.02, "no file. ")


# ------------------------------------------------------------------ retry


class Flaky:
    """Fails as often as it was made to, with this error."""

    def __init__(self, faults, error=RuntimeError):
        self.faults, self.error, self.calls = faults, error, []

    def __call__(self, *args, **kwargs):
        """Add two numbers."""
        self.calls.append((args, kwargs))
        if len(self.calls) <= self.faults:
            raise self.error("too soon")
        return "done"


def test_a_function_is_called_again_until_it_succeeds_and_cleaned_up_after_each_failure():
    flaky, cleaned = Flaky(2), []
    call = retry(RuntimeError, clean_up_fn=lambda: cleaned.append(1), num_attempts=3, initial_backoff=0, max_jitter=0)
    assert call(flaky)(1, b=2) == "done"
    assert flaky.calls == [((1,), {"b": 2})] * 3
    assert cleaned == [1, 1]


def test_the_last_error_is_raised_after_the_clean_up():
    flaky, cleaned = Flaky(9), []
    with pytest.raises(RuntimeError, match="too soon"):
        retry(clean_up_fn=lambda: cleaned.append(1), num_attempts=2, initial_backoff=0, max_jitter=0)(flaky)()
    assert (len(flaky.calls), cleaned) == (2, [1, 1])


@pytest.mark.parametrize("kinds", [RuntimeError, (ValueError, RuntimeError), [RuntimeError, KeyError]])
def test_only_the_given_errors_are_retried(kinds):
    flaky = Flaky(1)
    assert retry(kinds, initial_backoff=0, max_jitter=0)(flaky)() == "done"
    other = Flaky(1, OSError)
    with pytest.raises(OSError, match="too soon"):
        retry(kinds, initial_backoff=0, max_jitter=0)(other)()
    assert len(other.calls) == 1


def test_without_parentheses_three_attempts_with_a_growing_pause(monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    calls = []

    @retry
    def flaky():
        """Say something."""
        calls.append(1)
        raise OSError("again")

    assert flaky.__doc__ == "Say something."
    with pytest.raises(OSError, match="again"):
        flaky()
    assert len(calls) == 3
    assert 1 <= pauses[0] <= 1.5
    assert 2 <= pauses[1] <= 2.5


def test_a_function_that_is_given_with_options_is_retried_by_these():
    flaky = Flaky(9)
    with pytest.raises(RuntimeError, match="too soon"):
        retry(flaky, num_attempts=2, initial_backoff=0, max_jitter=0)()
    assert len(flaky.calls) == 2


def test_less_than_one_attempt_is_a_value_error():
    with pytest.raises(ValueError, match="num_attempts must be at-least 1, found 0"):
        retry(num_attempts=0)


# ------------------------------------------------------------------ merge_index


def index_of(folder):
    return json.loads((Path(folder) / "index.json").read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Three parts below one root."""
    root = tmp_path_factory.mktemp("written")
    for part in PARTS:
        write_set(root / part, 20)
    return root


@pytest.fixture
def parts(written, tmp_path):
    """Return the addresses of three parts below one root."""
    shutil.copytree(written, tmp_path / "set")
    return [str(tmp_path / f"set/{part}/index.json") for part in PARTS]


def folders(root):
    """The parts in the order of their shards, which are two folders below each part."""
    return list(dict.fromkeys(shard.raw.basename.rsplit("/", 3)[0] for shard in load_manifest(root).shards))


def test_a_root_is_merged_in_the_order_of_names_at_any_depth(parts, tmp_path):
    assert merge_index(str(tmp_path / "set"), keep_local=False, download_timeout=30) is None
    assert folders(tmp_path / "set") == ["10", "2", "a/b"]
    engine_merge_index(str(tmp_path / "set"))
    assert folders(tmp_path / "set") == ["2", "10", "a/b"], "the engine's own order compares numbers by value"
    merge_index(parts[:2], str(tmp_path / "set"), True, 30)
    assert folders(tmp_path / "set") == ["2", "10"]
    merge_index(index_file_urls=parts[1:], out=str(tmp_path / "set"))
    assert folders(tmp_path / "set") == ["10", "a/b"]


def test_the_local_folder_of_a_pair_is_removed_only_after_the_remote_one_is_found_complete(parts, tmp_path):
    pair = (str(tmp_path / "local"), str(tmp_path / "set"))
    shutil.copytree(tmp_path / "set", tmp_path / "local")
    shard = next((tmp_path / "set").glob("2/**/*.mds"))
    shard.rename(tmp_path / "aside")
    with pytest.raises(RuntimeError, match=f"{shard.name} is not there"):
        merge_index(pair, keep_local=False)
    assert (tmp_path / "local" / "2" / "index.json").exists()
    (tmp_path / "aside").rename(shard)
    merge_index(pair)
    assert index_of(tmp_path / "local") == index_of(tmp_path / "set")
    merge_index(pair, keep_local=False)
    assert not (tmp_path / "local").exists()
    assert folders(tmp_path / "set") == ["10", "2", "a/b"]


@pytest.mark.parametrize("local", ["set", ""])
def test_a_local_folder_that_holds_the_remote_one_stays(parts, tmp_path, local):
    merge_index((str(tmp_path / local), str(tmp_path / "set")), keep_local=False)
    assert folders(tmp_path / "set") == ["10", "2", "a/b"]


@pytest.mark.parametrize("args", [([], "out"), (["x"], ""), ("",)])
def test_nothing_to_merge_is_a_warning(args, tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    merge_index(*args) if isinstance(args, tuple) else merge_index(args)
    assert "o index merged" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_of_a_pair_the_remote_file_is_read_where_the_local_one_is_missing(parts, tmp_path):
    out = tmp_path / "other"
    pairs = [(str(out / part / "index.json"), url) for part, url in zip(("2", "10"), parts, strict=False)]
    merge_index(pairs, str(out))
    assert folders(out) == ["2", "10"]
    shutil.copytree(tmp_path / "set" / "10", out / "10")
    merge_index([*pairs, pairs[0]], str(out))
    assert folders(out) == ["2", "10"]


def test_a_root_without_parts_is_a_warning(tmp_path, caplog):
    merge_index(str(tmp_path))
    assert "there is no index.json in any folder below it. No index merged" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [(), (1,), ("a", "b", "c", "d"), (["a"],), (["a"], "b", True, 1, 2)])
def test_other_arguments_are_a_value_error(args):
    with pytest.raises(ValueError, match="Invalid arguments to merge_index"):
        merge_index(*args)


@pytest.mark.parametrize("out", ["nonsense://bucket/set", ("a", "b", "c")])
def test_a_root_that_cannot_be_one_is_a_value_error(out):
    with pytest.raises(ValueError, match=r"unknown scheme 'nonsense'|must be one address or a pair"):
        merge_index(out)


@pytest.mark.parametrize("where", ["set", "elsewhere"])
def test_an_index_file_that_is_not_there_is_a_runtime_error(parts, tmp_path, where):
    with pytest.raises(RuntimeError, match=r"9.index\.json"):
        merge_index([*parts, str(tmp_path / "set" / "9" / "index.json")], str(tmp_path / where))
    assert not (tmp_path / where / "index.json").exists()


def test_index_files_that_are_missing_are_named_as_mosaicml_names_them(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^Check data availability! local index /nowhere/index\.json is not acc"
    ):
        merge_index([("/nowhere/index.json", "")], str(tmp_path))
    for url in ("/nowhere/1/index.json", str(tmp_path / "1" / "index.json")):  # outside and inside the root
        with pytest.raises(RuntimeError, match=r"^Failed to download index\.json: .*1/index\.json"):
            merge_index([url], str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_index_file_that_is_none_is_a_value_error(parts, tmp_path):
    (tmp_path / "set" / "2" / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"2/index\.json"):
        merge_index(str(tmp_path / "set"))
