"""The learning rate rises, peaks and falls, as a function of progress alone."""

import pytest

from smalti.torch.train.config import TrainConfig
from smalti.torch.train.trainer.step import rate_factor

pytestmark = pytest.mark.torch


def test_the_rate_warms_up_peaks_and_falls_along_a_cosine():
    config = TrainConfig(data="x", run_dir="y", learning_rate=1.0, warmup=0.2)
    rates = [rate_factor(config, progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0, 1.5)]
    assert rates == pytest.approx([0.01, 0.5, 1.0, 0.505, 0.01, 0.01])


def test_without_warm_up_the_first_rate_is_the_peak():
    config = TrainConfig(data="x", run_dir="y", learning_rate=1.0, warmup=0.0)
    assert rate_factor(config, 0.0) == 1.0
