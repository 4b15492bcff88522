"""The error tree."""

import pickle
import sys
import traceback
from pathlib import Path

import pytest

from smalti import errors
from smalti.compat.streaming.errors import DamagedIndexError, MissingShardError

TREE = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.SmaltiError)
}


def test_every_error_is_drawn_in_the_tree():
    assert [name for name in TREE if f" {name}" not in errors.__doc__] == []


@pytest.mark.parametrize("name", TREE)
def test_an_error_keeps_message_and_facts_when_a_worker_sends_it_home(name):
    fault = pickle.loads(pickle.dumps(TREE[name]("shard 3 is gone", key="a/b")))
    assert type(fault) is TREE[name]
    assert str(fault) == "shard 3 is gone"
    assert fault.key == "a/b"


def test_errors_can_be_caught_by_pythons_own_classes():
    for ours, theirs in (
        (errors.StoreNotFound, FileNotFoundError),
        (errors.StoreExists, FileExistsError),
        (errors.StoreAuthError, PermissionError),
        (errors.StoreTimeout, TimeoutError),
        (errors.FormatError, ValueError),
        (errors.CursorError, ValueError),
        (errors.CacheLimitError, ValueError),
        (errors.MissingDependency, ImportError),
    ):
        assert issubclass(ours, theirs)


def test_a_traceback_ends_with_the_address_of_the_section_about_the_class():
    fault = pickle.loads(pickle.dumps(errors.StoreTimeout("no answer")))
    address = "https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md#storetimeout"
    assert fault.help_url == address
    assert str(fault) == "no answer", "the message itself is not longer"
    assert fault.__notes__ == [f"Help: {address}"]
    shown = ["smalti.errors.StoreTimeout: no answer\n", f"Help: {address}\n"]
    assert traceback.format_exception_only(fault) == shown[: 2 if sys.version_info >= (3, 11) else 1]


@pytest.mark.parametrize(
    ("kind", "anchor"), [(MissingShardError, "shardnotfound"), (DamagedIndexError, "indexfileerror")]
)
def test_a_class_of_another_module_is_explained_where_its_base_is(kind, anchor):
    assert [note.rpartition("#")[2] for note in kind("gone").__notes__] == [anchor]


def test_notes_of_a_worker_reach_the_main_process():
    fault = errors.FormatError("sample 7")
    fault.__notes__.append("while reading s3://b/set")
    assert pickle.loads(pickle.dumps(fault)).__notes__[1:] == ["while reading s3://b/set"]


def test_every_class_has_a_heading_on_the_page_of_its_address():
    page = Path(__file__).parents[2] / errors.HELP_PAGE.partition("/blob/main/")[2]
    headings = {line.lstrip("# ") for line in page.read_text().splitlines() if line.startswith("### ")}
    assert sorted(set(TREE) - headings) == []
