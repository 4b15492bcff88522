"""One optimiser step: model, optimiser, learning rate, random numbers, and the parameters that are not trained.

The learning rate is a pure function of progress, so checkpoints contain no state of a schedule.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smalti.errors import CheckpointError, SchemaError, TrainingError
from smalti.torch.train.config import TrainConfig, find_named
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.trainer.task import Batch, Outcome, Task, check_figures, judged, model_named


@dataclass(frozen=True)
class _Step:
    """The figures of one step on this rank; reading those on the device waits for it."""

    number: int
    rate: float
    sample_ids: NDArray[np.int64]
    num_real: int
    scores: tuple[str, ...]
    figures: torch.Tensor
    """float64, shape (2 + scores,), on the device: the gradient's norm, and the sums of the loss and of the scores."""


@dataclass(frozen=True)
class StepSums:
    """The sums of one step over the samples of this rank."""

    loss: float
    scores: dict[str, float]
    samples: int


class Steps:
    """The steps since the last look at their figures, which stay on the device: a look waits for it once."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []

    def add(self, number: int, rate: float, batch: Batch, outcome: Outcome, norm: torch.Tensor) -> None:
        """Take the outcome of a step, and the norm of its gradient."""
        loss, scores = sums_of(outcome, batch)
        figures = torch.stack([each.double() for each in (norm, loss, *scores.values())])
        self._steps.append(_Step(number, rate, batch.sample_ids, batch.num_real, tuple(scores), figures))

    def take(self) -> list[StepSums]:
        """Return the sums of the steps, oldest first, and forget them.

        Raises:
            TrainingError: the loss or the gradient of a step is not a number.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return []
        values = iter(torch.cat([step.figures for step in steps]).tolist())
        taken: list[StepSums] = []
        for step in steps:
            norm, loss = next(values), next(values)
            if not math.isfinite(norm):
                raise TrainingError(
                    f"the gradient of step {step.number} is not finite (learning rate {step.rate:.3g}); this rank's "
                    f"samples were {step.sample_ids.tolist()}. Lower `learning_rate`, or look at these samples.",
                    step=step.number,
                    sample_ids=tuple(step.sample_ids.tolist()),
                )
            taken.append(StepSums(loss, {name: next(values) for name in step.scores}, step.num_real))
        return taken


class Learner:
    """The model and its optimiser on this rank. Construction and steps are collective.

    Random numbers (initial weights, dropout) are a function of (seed, step, rank) and nothing else. So a resumed run
    draws the same numbers as an uninterrupted one, and checkpoints contain no generator states.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, task: Task) -> None:
        self.config, self.ranks, self.task = config, ranks, task
        torch.manual_seed(_seed_of(config.seed, step=0, rank=0))
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self.model = task.build_model(config).to(device=ranks.device, memory_format=layout)  # type: ignore[call-overload]  # torch's stub lacks nn.Module here
        freeze(self.model, config.freeze)
        self._frozen = list(frozen_modules(self.model))
        example = task.example(config, ranks.device)
        has_unused = None if example is None else self._has_unused_parameters(example)
        self.optimizer = task.optimizer(self.model, config) or make_optimizer(self.model, config)
        self._peaks = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.last_rate = self._peaks[0]
        """The learning rate of the newest step, in the first parameter group."""
        self.scheduler = task.lr_scheduler(self.optimizer, config)
        self.steps = Steps()
        self._wrapped = None if has_unused is None else self._distributed(find_unused=has_unused)

    def step(self, batch: Batch, *, step: int, done: float) -> None:
        """Learn from one batch, without waiting for the device; `steps` has the losses and scores before the update.

        Args:
            batch: this rank's part of it.
            step: its number, from 1.
            done: the fraction of the run before it.
        """
        if self._wrapped is None:
            unused = self._has_unused_parameters(batch)
            self._wrapped = self._distributed(find_unused=self.ranks.any(unused, "compare their unused parameters"))
        torch.manual_seed(_seed_of(self.config.seed, step=step, rank=self.ranks.rank))
        if self.scheduler is None:
            factor = rate_factor(self.config, done)
            for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
                group["lr"] = peak * factor
        self.last_rate = float(self.optimizer.param_groups[0]["lr"])
        self._wrapped.train()
        for module in self._frozen:
            module.eval()
        self.optimizer.zero_grad(set_to_none=True)
        parts = _parts(len(batch), self.config.micro_batches)
        outcomes = [self._backward(self._wrapped, batch, part) for part in parts]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or math.inf)
        self.optimizer.step()
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        whole = Outcome(
            torch.cat([outcome.losses for outcome in outcomes]),
            {name: torch.cat([outcome.scores[name] for outcome in outcomes]) for name in outcomes[0].scores},
        )
        self.steps.add(step, self.last_rate, batch, whole, norm)

    def end_epoch(self, loss: float) -> None:
        """Pass the loss of the evaluation to a scheduler that expects it."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the weights and buffers of a checkpoint.

        Raises:
            CheckpointError: they belong to another model.
        """
        try:
            self.model.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint's weights do not fit {model_named(self.config)}: {error}. Train on with the "
                "configuration that wrote it."
            ) from error

    def align_buffers(self) -> None:
        """Copy the buffers of rank 0, which are the ones that are saved, to all ranks. Collective."""
        if self.ranks.num_ranks > 1:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def _backward(self, model: nn.Module, batch: Batch, part: slice) -> Outcome:
        last = part.stop == len(batch)
        with _synchronised(model, when=last), autocast(self.config, self.ranks.device):
            outcome = judged(self.task, model, batch.part(part), self.config)
            # Divided by the planned number of samples, padding included: each sample then has the same weight on every
            # rank, and padding has none.
            loss = (outcome.losses * batch.weights[part]).sum() / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(outcome.losses.detach(), {name: value.detach() for name, value in outcome.scores.items()})

    def _has_unused_parameters(self, batch: Batch) -> bool:
        """Try the model on a batch, check its figures, and return whether it leaves parameters unused (poolers).

        DistributedDataParallel needs to know. Nothing changes: neither weights nor running statistics.
        """
        self.model.eval()
        try:
            outcome = judged(self.task, self.model, batch, self.config)
        except (RuntimeError, TypeError, ValueError) as error:
            shapes = {name: tuple(value.shape) for name, value in batch.values.items() if hasattr(value, "shape")}
            raise TrainingError(
                f"{model_named(self.config)} does not take a batch of shapes {shapes}: {error}",
                model=self.config.model,
            ) from error
        if self.config.eval_split is not None:
            check_figures(self.task, outcome, self.config)
        outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
        unused = any(parameter.requires_grad and parameter.grad is None for parameter in self.model.parameters())
        self.model.zero_grad(set_to_none=True)
        return unused

    def _distributed(self, *, find_unused: bool) -> nn.Module:
        if self.config.compile is not None:
            self.model.compile(backend=self.config.compile)  # in place: the parameters keep their names
        if self.ranks.num_ranks == 1:
            model: nn.Module = self.model
            return model
        on_gpu = self.ranks.device.type == "cuda"
        return DistributedDataParallel(
            self.model,
            device_ids=[self.ranks.device] if on_gpu else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused,
        )


def sums_of(outcome: Outcome, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the sums of the losses and of each score over the samples of a batch, on the device."""
    weights = batch.weights
    # Scores may be integers or doubles, and their sums must not lose what those hold.
    scores = {name: (values * weights.to(values.dtype)).sum() for name, values in outcome.scores.items()}
    return (outcome.losses * weights).sum(), scores


@contextlib.contextmanager
def private_randomness(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators after the body."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def _synchronised(model: nn.Module, *, when: bool) -> Iterator[None]:
    """Exchange gradients between the ranks in the body only if `when`."""
    if when or not isinstance(model, DistributedDataParallel):
        yield
    else:
        with model.no_sync():
            yield


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Return a context of bfloat16, if the configuration wants it; by default where the device is fast at it."""
    # Older GPUs, such as T4 and V100, emulate bfloat16, several times slower than float32.
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    enabled = config.precision == "bfloat16" or (config.precision == "auto" and is_fast)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def _parts(count: int, parts: int) -> list[slice]:
    size = count // parts
    return [slice(part * size, (part + 1) * size) for part in range(parts)]


def _seed_of(seed: int, *, step: int, rank: int) -> int:
    # Odd multipliers keep (seed, step, rank) apart; torch mixes the bits itself.
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % (1 << 63)


# ------------------------------------------------------------ the optimiser


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


def rate_factor(config: TrainConfig, progress: float) -> float:
    """Return the learning rate relative to its peak, after a fraction `progress` of the run. Pure.

    A linear warm-up, then the schedule.

    Raises:
        SchemaError: the function of the schedule cannot be imported, or returns no rate.
    """
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
