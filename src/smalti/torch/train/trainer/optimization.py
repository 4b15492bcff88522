"""The optimiser of a run, its learning rate, and the parameters that are not trained.

The learning rate is a pure function of progress, so checkpoints contain no state of a schedule.
"""

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import AdamW, Optimizer

from smalti.errors import SchemaError
from smalti.torch.train.config import TrainConfig, find_named

_FINAL_RATE = 0.01  # learning rate at both ends, relative to its peak: a rate of zero would teach nothing
_MAX_NAMES = 8  # of parameters in an error


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Exclude the parameters from training that patterns name: see `TrainConfig.freeze`.

    Raises:
        SchemaError: a pattern names no parameter, or no parameter is left.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
        if not found:
            shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
            raise SchemaError(f"`freeze` '{pattern}' is no parameter of the model; it has {shown}.", freeze=pattern)
        for name in found:
            model.get_parameter(name).requires_grad = False
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise SchemaError(f"`freeze` {list(patterns)} leaves no parameter to train.", freeze=patterns)


def frozen_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules with parameters of which none is trained."""
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            yield module


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """Return the optimiser that a configuration chooses, for the parameters that are trained.

    Raises:
        SchemaError: it cannot be imported or made, or is no optimiser.
    """
    groups = _parameter_groups(model, config.weight_decay)
    if config.optimizer == "adamw":
        return AdamW(groups, lr=config.learning_rate, **{"fused": True, **config.optimizer_options})
    factory = find_named(config.optimizer, field="optimizer")
    try:
        made = factory(groups, lr=config.learning_rate, **config.optimizer_options)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"`optimizer` '{config.optimizer}' cannot be made with the options {dict(config.optimizer_options)}: "
            f"{error}",
            optimizer=config.optimizer,
        ) from error
    if not isinstance(made, Optimizer):
        raise SchemaError(
            f"`optimizer` '{config.optimizer}' is {type(made).__name__}; expected a subclass of "
            "torch.optim.Optimizer, or a function that returns one.",
            optimizer=config.optimizer,
        )
    return made


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return parameter groups with and without decay: biases and scales of normalisation do not decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def learning_rate_at(config: TrainConfig, progress: float) -> float:
    """Return the learning rate after a fraction `progress` of the run: linear warm-up, then the schedule. Pure.

    Raises:
        SchemaError: the function of the schedule cannot be imported, or returns no rate.
    """
    return config.learning_rate * rate_factor(config, progress)


def rate_factor(config: TrainConfig, progress: float) -> float:
    """Return the learning rate relative to its peak."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < config.warmup:
        return max(progress / config.warmup, _FINAL_RATE)
    done = (progress - config.warmup) / (1.0 - config.warmup)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "step":
        return config.milestone_factor ** sum(done >= milestone for milestone in config.milestones)
    if config.schedule == "cosine":
        return _FINAL_RATE + (1.0 - _FINAL_RATE) * 0.5 * (1.0 + math.cos(math.pi * done))
    found = find_named(config.schedule, field="schedule")(done)
    if not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise SchemaError(
            f"`schedule` '{config.schedule}' returned {found!r:.80} for {done:.3f}; expected the rate relative to "
            "`learning_rate`, 0 or more.",
            schedule=config.schedule,
        )
    return float(found)
