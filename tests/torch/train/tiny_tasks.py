"""Tasks as a user writes them; named to the trainer as `tests.torch.train.tiny_tasks:<class>`."""

import torch
from torch import nn

from smalti.torch.train import Outcome, Task


class Line(Task):
    """The column `y` as a weighted sum of `a` and `b`; the figures are those of torchmetrics."""

    main_metric = "error"

    def __init__(self, bias: bool = True):
        self.bias = bias

    def build_model(self, config):
        return nn.Linear(2, 1, bias=self.bias)

    def loss(self, model, batch, config):
        output = model(torch.stack([batch["a"], batch["b"]], dim=1).float()).reshape(-1)
        target = batch["y"].float()
        return Outcome((output - target).square(), outputs=output.detach(), targets=target)

    def metrics(self, config):
        from torchmetrics import MeanAbsoluteError

        return {"error": MeanAbsoluteError()}


class Scheduled(Line):
    """The same with an optimiser of two groups, and a scheduler, of its own."""

    def optimizer(self, model, config):
        return torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}], lr=0.05, momentum=0.9)

    def lr_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5),
                torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6]),
            ],
            milestones=[5],
        )

    def metrics(self, config):
        return {}


class WithoutRows(Line):
    """A loss that is one number for the whole batch."""

    def loss(self, model, batch, config):
        return model(torch.stack([batch["a"], batch["b"]], dim=1).float()).mean()


class PartlyUsed(Scheduled):
    """A model with parameters that do not take part."""

    def build_model(self, config):
        model = super().build_model(config)
        model.register_module("idle", nn.Linear(2, 2))
        return model


def falling(done: float) -> float:
    """Return a schedule of a user's."""
    return 1.0 - 0.9 * done
