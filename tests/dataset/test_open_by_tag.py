"""A shard set can be opened by the name of a version."""

import pytest

import smalti
from smalti.errors import VersionNotFound
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    write_set(tmp_path / "set", 20)
    smalti.tag(str(tmp_path / "set"), "first")
    return str(write_set(tmp_path / "set", 30, exist_ok=True))


def test_a_tag_opens_its_version_and_a_dataset_stays_with_it(root):
    dataset = smalti.open_dataset(root, tag="first")
    smalti.tag(root, "first", 2, move=True)
    assert (dataset.manifest.version, len(dataset)) == (1, 20)
    assert dataset[19]["id"] == 19
    dataset.close()
    moved = smalti.open_dataset(root, tag="first")
    assert (moved.manifest.version, len(moved)) == (2, 30)
    moved.close()


def test_an_unknown_tag_and_two_answers_are_refused(root):
    with pytest.raises(VersionNotFound, match="has no tag 'best'"):
        smalti.open_dataset(root, tag="best")
    with pytest.raises(ValueError, match="give one of them"):
        smalti.open_dataset(root, tag="first", version=1)
