"""Composer's trainer, where it is installed. Its way of saving, without it: tests/torch/test_plain_loader.py."""

import pytest

pytest.importorskip("composer", reason="needs composer (pip install mosaicml), which pins older versions of torch")

from examples import composer_resume as example

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("stopped", [6, 18])
def test_both_parts_have_the_batches_of_a_run_that_was_not_stopped(tmp_path, stopped):
    url = str(tmp_path / "set")
    example.write_set(url)
    whole = example.train(url, tmp_path / "whole")
    first = example.train(url, tmp_path / "parts", duration=f"{stopped}ba")
    checkpoint = str(tmp_path / "parts" / f"step-{stopped}.pt")
    second = example.train(url, tmp_path / "parts", checkpoint=checkpoint, num_workers=2)
    assert len(first) == stopped
    assert first + second == whole
    assert {number for batch in whole[13:26] for number in batch} == set(range(50))


def test_the_example_runs(capsys):
    example.main()
    assert "18 + 21 steps, 50 of 50 samples in the second epoch" in capsys.readouterr().out
