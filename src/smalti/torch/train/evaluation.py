"""Evaluation of a model over all ranks; padding does not count."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassConfusionMatrix

from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.batches import to_device
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.models import logits_of
from smalti.torch.train.ranks import Ranks


@dataclass(frozen=True)
class Scores:
    """The figures of one evaluation, equal on all ranks."""

    accuracy: float
    loss: float
    samples: int
    confusion: list[list[int]]
    """Numbers of samples by [true class][predicted class]."""


def evaluate(model: nn.Module, loader: StreamingDataLoader, config: TrainConfig, ranks: Ranks) -> Scores:
    """Measure `model` over one pass of `loader`. Collective; leaves the model in eval mode."""
    tally = Tally(config, ranks)
    model.eval()
    with torch.inference_mode():
        for columns in loader:
            batch = to_device(columns, config, ranks.device, epoch=None)
            with autocast(ranks.device):
                logits = logits_of(model(batch.pixels))
            losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
            tally.add(logits, batch.labels, batch.weights, losses)
    return tally.scores()


class Tally:
    """Sums over the samples that one rank has evaluated."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self._ranks = ranks
        # `scores` sums over the ranks, all figures at once, so torchmetrics does not synchronise them.
        self._confusion = MulticlassConfusionMatrix(
            config.num_classes, validate_args=False, distributed_available_fn=lambda: False
        ).to(ranks.device)
        self._loss = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, losses: torch.Tensor) -> None:
        """Count one batch; samples of weight 0 do not count."""
        real = weights > 0
        self._confusion.update(logits.detach().argmax(dim=1)[real], labels[real])
        self._loss += (losses.detach() * weights).sum().double().cpu()

    def scores(self) -> Scores:
        """Return the figures over all ranks. Collective."""
        own = self._confusion.confmat.flatten().tolist()
        summed = self._ranks.total([*own, float(self._loss)], "sum their scores")
        classes = self._confusion.num_classes
        counts = [round(count) for count in summed[:-1]]
        confusion = [counts[row * classes : (row + 1) * classes] for row in range(classes)]
        samples = sum(counts)
        right = sum(confusion[row][row] for row in range(classes))
        return Scores(
            accuracy=right / samples if samples else 0.0,
            loss=summed[-1] / samples if samples else 0.0,
            samples=samples,
            confusion=confusion,
        )


def autocast(device: torch.device) -> torch.autocast:
    """Return a context of bfloat16 where the device is fast at it; on CPUs full precision is faster."""
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_fast)
