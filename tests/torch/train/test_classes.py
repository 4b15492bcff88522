"""The classes of a run are those that the version of its data lists, unless it lists none."""

from dataclasses import replace

import pytest

from smalti.errors import SchemaError
from smalti.torch.train import train
from smalti.torch.train.run.files import read_json
from tests.torch.train.conftest import publish_squares

pytestmark = pytest.mark.torch

COLOURS = ["red", "green", "blue"]


@pytest.fixture
def named(config, tmp_path):
    """A run on a version that lists its classes, which leaves them out."""
    publish_squares(tmp_path / "named", train=16, metadata={"classes": COLOURS})
    return replace(config, data=str(tmp_path / "named"), task_options={"image_size": 24}, epochs=1)


def test_a_run_has_the_classes_of_its_data_and_resumes_with_or_without_them(named, tmp_path):
    result = train(named)
    assert read_json(tmp_path / "run" / "model" / "smalti.json")["class_names"] == COLOURS
    assert len(result.history[-1]["confusion"]) == 3
    for given in ({}, {"num_classes": 3}, {"class_names": COLOURS}):
        assert train(replace(named, epochs=2, task_options={"image_size": 24, **given})).epochs == 2


@pytest.mark.parametrize(
    "given",
    [{"num_classes": 4}, {"class_names": ["green", "red", "blue"]}, {"class_names": ["red", "green"]}],
    ids=["number", "order", "fewer"],
)
def test_classes_that_contradict_the_data_are_refused(named, given):
    with pytest.raises(SchemaError, match=rf"`{next(iter(given))}` is .*has the 3 classes red, green, blue: leave"):
        train(replace(named, task_options=given))


@pytest.mark.parametrize("listed", [None, [], [1, 2], "red", {"red": 0}])
def test_data_that_list_no_classes_need_their_number(named, tmp_path, listed):
    publish_squares(tmp_path / "unnamed", train=1, metadata={} if listed is None else {"classes": listed})
    with pytest.raises(SchemaError, match=r"`num_classes` must be at least 1 .* does not list its classes"):
        train(replace(named, data=str(tmp_path / "unnamed")))
