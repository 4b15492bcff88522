"""The error tree."""

import pickle

import pytest

from smalti import errors

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
