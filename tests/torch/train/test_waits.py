"""Waits of a step, for the device and the other ranks. Counted, not timed; exchanges also in `test_context`."""

from collections import Counter
from dataclasses import replace

import pytest
from torch.overrides import TorchFunctionMode

from smalti.errors import TrainingError
from smalti.torch.train import train
from smalti.torch.train.life import _Pause

pytestmark = [pytest.mark.torch, pytest.mark.slow]

READS = {"item", "tolist", "__float__", "__int__", "__bool__", "cpu"}
"""Methods of tensors that wait for a device."""


class Reads(TorchFunctionMode):
    """Counts the values that the host reads from tensors."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in READS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("log_every", "looks"), [(12, 5), (48, 2)])
def test_a_step_waits_for_the_device_only_where_its_figures_are_logged(config, log_every, looks):
    """48 steps of one epoch of 50: the figures of steps 1, 12, 24, 36 and 48, or of 1 and 48."""
    long = replace(
        config, batch_size=1, max_steps=48, log_every=log_every, checkpoint_every=1000, eval_split=None, clip_norm=1.0
    )
    with Reads() as reads:
        train(long)
    assert reads.counts["tolist"] == looks
    assert reads.counts.total() - reads.counts["tolist"] <= 4  # at the start and the end, whatever the number of steps


@pytest.mark.parametrize(
    ("seconds", "exchanges"), [(0.0, [1, 3, 7, 15, 31, 47]), (0.25, [1, 3, 7, 11, 15, 19]), (2.0, [1, 2, 3, 4, 5, 6])]
)
def test_slow_steps_are_asked_more_often(seconds, exchanges):
    pause, seen, call = _Pause(), [], 0
    while len(seen) < len(exchanges):
        call += 1
        if pause.is_over():
            seen.append(call)
            pause.begin(seconds)
    assert seen == exchanges


@pytest.mark.parametrize("log_every", [1, 5, 100])
def test_a_gradient_that_is_no_number_names_its_step_however_late_it_is_seen(config, log_every):
    broken = replace(config, model="tests.torch.train.tiny_models:not_a_number", log_every=log_every)
    with pytest.raises(TrainingError, match="the gradient of step 1 is not finite") as caught:
        train(broken)
    assert caught.value.facts["step"] == 1


def test_weights_that_are_no_numbers_are_not_saved(config):
    late = replace(config, model="tests.torch.train.tiny_models:not_a_number_later", log_every=100, checkpoint_every=3)
    with pytest.raises(TrainingError, match="the gradient of step 2 is not finite"):
        train(late)
    with pytest.raises(TrainingError, match="the gradient of step 2 is not finite"):
        train(late)  # from the beginning: step 3 was not saved
