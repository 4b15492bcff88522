"""The error tree."""

import ast
import builtins
import pickle
import sys
import traceback
from pathlib import Path

import pytest

from smalti import errors, redaction
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
        (errors.ArgumentError, ValueError),
        (errors.ArgumentTypeError, TypeError),
        (errors.SampleIndexError, IndexError),
        (errors.ClosedError, ValueError),
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
    page = Path(__file__).parents[2] / redaction.HELP_PAGE.partition("/blob/main/")[2]
    headings = {line.lstrip("# ") for line in page.read_text().splitlines() if line.startswith("### ")}
    assert sorted(set(TREE) - headings) == []


SOURCE = Path(errors.__file__).parent
CAUGHT = {
    "attributes.py": "attributes that Python itself asks for",
    "cache/cache.py": "a wait that becomes a StoreTimeout",
    "catalog/table/content.py": "defects of a table, which become an IndexFileError",
    "conversion/sources/huggingface.py": "the end of a file, which becomes a FormatError",
    "conversion/sources/json_lines.py": "defects of a line, which become a FormatError",
    "conversion/sources/litdata.py": "defects of a value, which become a FormatError",
    "conversion/sources/parquet.py": "the end of a child process, which becomes a FormatError",
    "conversion/sources/webdataset.py": "defects of a value, which become a FormatError",
    "diagnosis/reading_speed.py": "a key of a mapping",
    "format/json_fields.py": "defects of JSON, which become an IndexFileError or a FormatError",
    "format/npy.py": "defects of an array, which become a FormatError",
    "format/writing/rows.py": "values that the slower way encodes, or refuses with their column",
    "regular_files.py": "errors of the system, which become a StoreError",
    "sources/archive_members.py": "the end of a member, which becomes a FormatError",
    "storage/databricks/api.py": "fsspec's interface",
    "storage/databricks/workspace.py": "fsspec's interface",
    "storage/backends/memory.py": "fsspec's interface",
    "storage/backends/s3.py": "a wait that becomes a StoreTimeout",
    "storage/backends/sftp.py": "fsspec's interface",
    "storage/databricks/volumes.py": "fsspec's interface",
    "storage/local.py": "errors of the system, which become a StoreError",
    "storage/object_store.py": "a wait that becomes a StoreTimeout",
    "storage/store.py": "names that are not those of temporary files",
    "torch/shared_progress.py": "what pickle asks for",
    "torch/train/values.py": "values of fields, which pydantic reports and which become a SchemaError",
    "torch/train/run/files.py": "defects of a file, which become a CheckpointError",
    "torch/train/trainer/state.py": "defects of a state, which become a CheckpointError",
    "torch/train/trainer/task.py": "methods that a subclass has to have",
    "torch/worker_processes.py": "what pickle asks for",
    "writer/predicate.py": "values that are no numbers, which become a SchemaError",
}
"""Modules that raise Python's own errors, which do not reach a user as such, and why."""


def plain_errors(path):
    """Return the lines on which a module raises one of Python's own errors."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    raised = [each for each in nodes if isinstance(each, ast.Raise)]
    names = [(each.lineno, getattr(each.exc, "func", each.exc)) for each in raised]
    own = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
    allowed = {"StopIteration"}
    if any(getattr(node, "name", "") == "__getattr__" for node in nodes):
        allowed.add("AttributeError")  # of a module with names that are imported when they are used
    return [line for line, name in names if isinstance(name, ast.Name) and name.id in own - allowed]


def test_errors_that_reach_a_user_belong_to_the_tree():
    """Outside `compat`, whose errors are those of the libraries that it stands in for."""
    raising = {
        path.relative_to(SOURCE).as_posix(): lines
        for path in sorted(SOURCE.rglob("*.py"))
        if "compat" not in path.parts and (lines := plain_errors(path))
    }
    assert {name: lines for name, lines in raising.items() if name not in CAUGHT} == {}
    assert sorted(set(CAUGHT) - set(raising)) == [], "modules that no longer raise one"
