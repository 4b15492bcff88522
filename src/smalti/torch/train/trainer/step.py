"""One optimiser step: model, optimiser, learning rate, random numbers, and the parameters that are not trained.

The learning rate is a pure function of progress, so checkpoints contain no state of a schedule. An evaluation is here,
too: exact means over all ranks, metrics of torchmetrics, and the task's report.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smalti.errors import CheckpointError, SchemaError, TrainingError
from smalti.torch.loader import StreamingDataLoader
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


@dataclass
class Sums:
    """Sums over samples: of the loss, of each of a task's scores, and of 1."""

    loss: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    num_samples: float = 0.0

    @property
    def values(self) -> list[float]:
        """The sums, as a list whose last value is the number of samples."""
        return [self.loss, *self.scores.values(), self.num_samples]

    def add(self, other: "Sums") -> None:
        """Add the sums of some samples."""
        self.loss += other.loss
        self.num_samples += other.num_samples
        for name, value in other.scores.items():
            self.scores[name] = self.scores.get(name, 0.0) + value

    def means(self, values: Sequence[float]) -> dict[str, float]:
        """Return the means of the loss and of the scores by name; `values` are those of all ranks."""
        samples = max(1.0, values[-1])
        return {name: value / samples for name, value in zip(("loss", *self.scores), values, strict=False)}


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
        self._frozen = [
            module
            for module in self.model.modules()
            if (own := list(module.parameters())) and not any(parameter.requires_grad for parameter in own)
        ]
        example = task.example(config, ranks.device)
        has_unused = None if example is None else self._has_unused_parameters(example)
        self.optimizer = task.optimizer(self.model, config) or make_optimizer(self.model, config)
        self._peaks = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.last_rate = self._peaks[0]
        """The learning rate of the newest step, in the first parameter group."""
        self.scheduler = task.lr_scheduler(self.optimizer, config)
        self._steps: list[_Step] = []
        """Those since the last look at their figures, which stay on the device: a look waits for it once."""
        self._wrapped = None if has_unused is None else self._distributed(find_unused=has_unused)

    def step(self, batch: Batch, *, step: int, done: float) -> None:
        """Learn from one batch, without waiting for the device; `take` returns the losses and scores before the update.

        Args:
            batch: this rank's part of it.
            step: its number, from 1.
            done: the fraction of the run before it.
        """
        if self._wrapped is None:
            unused = self._has_unused_parameters(batch)
            self._wrapped = self._distributed(
                find_unused=any(self.ranks.gather(unused, "compare their unused parameters"))
            )
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
        size = len(batch) // self.config.micro_batches
        parts = [slice(part * size, (part + 1) * size) for part in range(self.config.micro_batches)]
        outcomes = [self._backward(self._wrapped, batch, part) for part in parts]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or math.inf)
        self.optimizer.step()
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        whole = Outcome(
            torch.cat([outcome.losses for outcome in outcomes]),
            {name: torch.cat([outcome.scores[name] for outcome in outcomes]) for name in outcomes[0].scores},
        )
        loss, scores = sums_of(whole, batch)
        figures = torch.stack([each.double() for each in (norm, loss, *scores.values())])
        self._steps.append(_Step(step, self.last_rate, batch.sample_ids, batch.num_real, tuple(scores), figures))

    def take(self) -> list[Sums]:
        """Return the sums of the steps since the last look over the samples of this rank, oldest first.

        Raises:
            TrainingError: the loss or the gradient of a step is not a number.
        """
        steps, self._steps = self._steps, []
        values = iter(torch.cat([step.figures for step in steps]).tolist() if steps else ())
        taken: list[Sums] = []
        for step in steps:
            norm, loss = next(values), next(values)
            if not math.isfinite(norm):
                raise TrainingError(
                    f"the gradient of step {step.number} is not finite (learning rate {step.rate:.3g}); this rank's "
                    f"samples were {step.sample_ids.tolist()}. Lower `learning_rate`, or look at these samples.",
                    step=step.number,
                    sample_ids=tuple(step.sample_ids.tolist()),
                )
            taken.append(Sums(loss, {name: next(values) for name in step.scores}, step.num_real))
        return taken

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
        is_last = part.stop == len(batch)  # the ranks exchange gradients with the last part only
        apart: Any = nullcontext() if is_last or not isinstance(model, DistributedDataParallel) else model.no_sync()
        with apart, autocast(self.config, self.ranks.device):
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


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Return a context of bfloat16, if the configuration wants it; by default where the device is fast at it."""
    # Older GPUs, such as T4 and V100, emulate bfloat16, several times slower than float32.
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    enabled = config.precision == "bfloat16" or (config.precision == "auto" and is_fast)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


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


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """Return the optimiser that a configuration chooses, for the parameters that are trained.

    Raises:
        SchemaError: it cannot be imported or made, or is no optimiser.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, object]] = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},  # biases and scales of normalisation
    ]
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


# ------------------------------------------------------------ evaluation


@dataclass(frozen=True)
class Scores:
    """The figures of one evaluation, equal on all ranks."""

    samples: int
    loss: float
    """Mean loss."""
    metrics: dict[str, float]
    """All figures of the task by name, and `loss`, unless the task has a figure of that name."""
    report: dict[str, Any]


def evaluate(model: nn.Module, loader: StreamingDataLoader, config: TrainConfig, ranks: Ranks, task: Task) -> Scores:
    """Measure `model` over one pass of `loader`. Collective; leaves the model in eval mode."""
    sums, metrics, report = Sums(), task.metrics(config), task.report(config, ranks.device)
    updated = False
    model.eval()
    with torch.inference_mode():
        for columns in loader:
            batch = task.batch(columns, config, ranks.device, epoch=None)
            with autocast(config, ranks.device):
                outcome = judged(task, model, batch, config)
            loss, scores = sums_of(outcome, batch)
            sums.add(Sums(float(loss), {name: float(value) for name, value in scores.items()}, batch.num_real))
            for name, metric in metrics.items() if batch.num_real else ():
                if outcome.outputs is None or outcome.targets is None:
                    raise TrainingError(
                        f"metric `{name}` is computed of outputs and targets, and the task's loss returned none: "
                        "return `Outcome(losses, outputs=..., targets=...)`."
                    )
                real, updated = batch.weights > 0, True
                metric.to(batch.weights.device).update(outcome.outputs[real], outcome.targets[real])
            if report is not None:
                report.add(batch, outcome)
    total = Sums()
    for part in ranks.gather(sums, "sum their scores"):  # a rank without samples does not know the scores' names
        total.add(part)
    means = total.means(total.values)
    figures = {"loss": means["loss"], **task.figures(means), **merged_metrics(metrics, ranks, updated=updated)}
    return Scores(round(total.num_samples), means["loss"], figures, {} if report is None else report.summary(ranks))


def merged_metrics(metrics: Mapping[str, Any], ranks: Ranks, *, updated: bool) -> dict[str, float]:
    """Return the values of metrics over all ranks. Collective.

    Their states are merged here: torchmetrics' own exchange waits for ever for a rank that had no samples.
    """
    if not metrics:
        return {}
    mine = {name: metric.to("cpu") for name, metric in metrics.items()} if updated else {}
    parts = [each for each in ranks.gather(mine, "merge their metrics") if each]
    return {name: float(_merged([each[name] for each in parts]).compute()) for name in metrics}


def _merged(parts: Sequence[Any]) -> Any:
    """Return the first of the ranks' metrics with the states of all of them, which it does not exchange once more.

    torchmetrics' `merge_state` refuses metrics that do not say that their updates are independent. So each state is
    reduced over the ranks as their own exchange does it, in the metric and in those that it contains. A class with a
    `merge_state` of its own is merged by that.
    """
    from torchmetrics import Metric

    first, *others = parts
    contained = [[each for each in part.modules() if isinstance(each, Metric)] for part in parts]
    for whole, *rest in zip(*contained, strict=True):
        whole._to_sync = False
        if type(whole).merge_state is not Metric.merge_state:
            for other in rest:
                whole.merge_state(other)
        elif others:
            for state, reduction in whole._reductions.items():
                setattr(whole, state, _reduced([getattr(each, state) for each in (whole, *rest)], reduction))
    return first


def _reduced(states: Sequence[Any], reduction: Any) -> Any:
    """Return the states of all ranks as one; states are tensors, or lists of what each batch has added."""
    from torchmetrics.utilities import dim_zero_cat

    if reduction is dim_zero_cat or any(isinstance(each, list) for each in states):
        joined = [value for each in states for value in (each if isinstance(each, list) else [each])]
        return reduction(joined) if reduction is not None and joined else joined
    stacked = torch.stack(list(states))
    return stacked if reduction is None else reduction(stacked)
