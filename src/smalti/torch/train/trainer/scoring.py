"""The evaluation of a model over all ranks: exact means, metrics of torchmetrics, and the task's report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from smalti.errors import TrainingError
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.trainer.state import Sums
from smalti.torch.train.trainer.step import autocast, sums_of
from smalti.torch.train.trainer.task import Batch, Outcome, Task, judged


@dataclass(frozen=True)
class Scores:
    """The figures of one evaluation, equal on all ranks."""

    loss: float
    samples: int
    metrics: dict[str, float]
    """All figures of the task by name, and `loss`."""
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
            sums.add(float(loss), {name: float(value) for name, value in scores.items()}, batch.num_real)
            if metrics and batch.num_real:
                _update(metrics, outcome, batch)
                updated = True
            if report is not None:
                report.add(batch, outcome)
    total = ranks.total(sums.values, "sum their scores")
    means = sums.means(total)
    figures = {"loss": means["loss"], **task.figures(means), **merged_metrics(metrics, ranks, updated=updated)}
    return Scores(means["loss"], round(total[-1]), figures, {} if report is None else report.summary(ranks))


def check_finite(figures: Mapping[str, float], epoch: int) -> None:
    """Raise a TrainingError if a figure of an evaluation is not a number."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise TrainingError(
                f"the held-out {name} of epoch {epoch} is {value}: the model's scores are not finite "
                "although its gradients were. Lower `learning_rate`, or look at the model.",
                epoch=epoch,
            )


def _update(metrics: Mapping[str, Any], outcome: Outcome, batch: Batch) -> None:
    real = batch.weights > 0
    for name, metric in metrics.items():
        if outcome.outputs is None or outcome.targets is None:
            raise TrainingError(
                f"metric `{name}` is computed of outputs and targets, and the task's loss returned none: return "
                "`Outcome(losses, outputs=..., targets=...)`."
            )
        metric.to(batch.weights.device).update(outcome.outputs[real], outcome.targets[real])


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
