"""Hugging Face's Trainer outside `launch`: a checkpoint from the middle of an epoch, each sample once."""

import importlib

import pytest

from tests.combinations import nightly
from tests.frameworks.page import run_section

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")]


@pytest.fixture(scope="module")
def example():
    """The example, imported with transformers by the one worker that runs these tests."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    return importlib.import_module("examples.transformers_resume")


@pytest.fixture(scope="module")
def url(tmp_path_factory, example):
    address = str(tmp_path_factory.mktemp("points") / "set")
    example.write_set(address)
    return address


@pytest.fixture(scope="module")
def whole(url, tmp_path_factory, example):
    """The samples of each step of a run that is not stopped; a plain Trainer and ours read alike."""
    return example.train(url, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("plain", "stopped"), [(False, 6), (True, 18), *nightly([pytest.param(False, 18), pytest.param(True, 6)])]
)
def test_both_parts_have_the_batches_of_a_run_that_was_not_stopped(url, whole, tmp_path, stopped, plain, example):
    first = example.train(url, tmp_path, stop_after=stopped, plain=plain)
    second = example.train(url, tmp_path, checkpoint=str(tmp_path / f"checkpoint-{stopped}"), plain=plain)
    assert len(first) == stopped
    assert first + second == whole
    assert {number for batch in whole[13:26] for number in batch} == set(range(50))


def test_the_example_runs(capsys, example):
    example.main()
    assert "18 + 21 steps, 50 of 50 samples in the second epoch" in capsys.readouterr().out


def test_the_page_runs_as_it_is_printed(tmp_path):
    names = run_section("Hugging Face Trainer", tmp_path)
    assert names["loader"].state_dict()["epoch"] == 2
