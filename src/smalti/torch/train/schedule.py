"""The learning rate as a pure function of progress; it has no state, so a checkpoint need not carry any."""

import math

from smalti.torch.train.config import TrainConfig

_FLOOR = 0.01
"""The rate ends at this part of its peak: a last epoch at exactly zero would teach nothing."""


def learning_rate_at(config: TrainConfig, progress: float) -> float:
    """The learning rate when `progress` of the run, in [0, 1], lies behind: linear warm-up, then a cosine. Pure."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < config.warmup:
        # The first step must move too, so the ramp does not begin at zero.
        return config.learning_rate * max(progress / config.warmup, _FLOOR)
    done = (progress - config.warmup) / (1.0 - config.warmup)
    return config.learning_rate * (_FLOOR + (1.0 - _FLOOR) * 0.5 * (1.0 + math.cos(math.pi * done)))
