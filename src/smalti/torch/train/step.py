"""One optimiser step (model, optimiser, learning rate, random numbers), and the evaluation of a model over all ranks.

The learning rate is a pure function of progress, so checkpoints contain no state of a scheduler.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from smalti.errors import CheckpointError, TrainingError
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.data import DeviceBatch, to_device
from smalti.torch.train.models import build_model, logits_of
from smalti.torch.train.ranks import Ranks

_CLIP_NORM = 5.0  # largest norm of a gradient; far above the usual, so that it only limits outliers
_FINAL_RATE = 0.01  # learning rate at both ends, relative to its peak: a rate of zero would teach nothing


class Learner:
    """The model and its optimiser on this rank. Construction and steps are collective.

    Random numbers (initial weights, dropout) are a function of (seed, step, rank) and nothing else. So a resumed run
    draws the same numbers as an uninterrupted one, and checkpoints contain no generator states.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        torch.manual_seed(_seed_of(config.seed, step=0, rank=0))
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self.model = build_model(config).to(device=ranks.device, memory_format=layout)  # type: ignore[call-overload]  # torch's stub lacks nn.Module here
        has_unused = _has_unused_parameters(self.model, config, ranks.device)
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(self.model, config.weight_decay), lr=config.learning_rate, fused=True
        )
        self._wrapped = self._distributed(find_unused=has_unused) if ranks.num_ranks > 1 else self.model

    def step(self, batch: DeviceBatch, *, step: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Learn from one batch; return its logits (n, classes) and losses (n,) from before the update.

        Raises:
            TrainingError: the loss or the gradient is not a number.
        """
        torch.manual_seed(_seed_of(self.config.seed, step=step, rank=self.ranks.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._wrapped.train()
        self.optimizer.zero_grad(set_to_none=True)
        outputs = [self._backward(batch, part) for part in _parts(len(batch.labels), self.config.micro_batches)]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP_NORM)
        if not math.isfinite(float(norm)):
            raise TrainingError(
                f"the gradient of step {step} is not finite (learning rate {rate:.3g}); this rank's samples were "
                f"{batch.sample_ids.tolist()}. Lower `learning_rate`, or look at these samples.",
                step=step,
                sample_ids=tuple(batch.sample_ids.tolist()),
            )
        self.optimizer.step()
        return torch.cat([logits for logits, _ in outputs]), torch.cat([losses for _, losses in outputs])

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the weights and buffers of a checkpoint.

        Raises:
            CheckpointError: they belong to another model.
        """
        try:
            self.model.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint's weights do not fit `model` '{self.config.model}': {error}. Train on with "
                "the configuration that wrote it."
            ) from error

    def align_buffers(self) -> None:
        """Copy the buffers of rank 0, which are the ones that are saved, to all ranks. Collective."""
        if self.ranks.num_ranks > 1:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def _backward(self, batch: DeviceBatch, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        last = part.stop == len(batch.labels)
        with self._synchronised(when=last), _autocast(self.ranks.device):
            logits = logits_of(self._wrapped(batch.pixels[part]))
            losses = functional.cross_entropy(
                logits.float(), batch.labels[part], reduction="none", label_smoothing=self.config.label_smoothing
            )
            # Divided by the planned number of samples, padding included: each sample then has the same weight on every
            # rank, and padding has none.
            loss = (losses * batch.weights[part]).sum() / len(batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
        return logits.detach(), losses.detach()

    @contextlib.contextmanager
    def _synchronised(self, *, when: bool) -> Iterator[None]:
        """Exchange gradients between the ranks in the body only if `when`."""
        if when or not isinstance(self._wrapped, DistributedDataParallel):
            yield
        else:
            with self._wrapped.no_sync():
                yield

    def _distributed(self, *, find_unused: bool) -> nn.Module:
        on_gpu = self.ranks.device.type == "cuda"
        return DistributedDataParallel(
            self.model,
            device_ids=[self.ranks.device] if on_gpu else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused,
        )


@contextlib.contextmanager
def private_randomness(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators after the body."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _has_unused_parameters(model: nn.Module, config: TrainConfig, device: torch.device) -> bool:
    """Try the model on a small batch, and return whether it leaves parameters unused (poolers, mask tokens).

    DistributedDataParallel needs to know.
    """
    model.eval()
    try:
        scores = logits_of(model(torch.zeros(2, 3, config.image_size, config.image_size, device=device)))
    except (RuntimeError, TypeError, ValueError) as error:
        raise TrainingError(
            f"`model` '{config.model}' does not take images of shape (2, 3, {config.image_size}, {config.image_size}): "
            f"{error}. Look at `image_size`, or at the model.",
            model=config.model,
        ) from error
    if scores.shape != (2, config.num_classes):
        raise TrainingError(
            f"`model` '{config.model}' returned scores of shape {tuple(scores.shape)} for 2 images; expected one "
            f"per class, (2, {config.num_classes}).",
            model=config.model,
        )
    scores.sum().backward()  # type: ignore[no-untyped-call]
    unused = any(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    return unused


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return parameter groups with and without decay: biases and scales of normalisation do not decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _parts(count: int, parts: int) -> list[slice]:
    size = count // parts
    return [slice(part * size, (part + 1) * size) for part in range(parts)]


def _seed_of(seed: int, *, step: int, rank: int) -> int:
    # Odd multipliers keep (seed, step, rank) apart; torch mixes the bits itself.
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % (1 << 63)


def learning_rate_at(config: TrainConfig, progress: float) -> float:
    """Return the learning rate after a fraction `progress` of the run: linear warm-up, then a cosine. Pure."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < config.warmup:
        return config.learning_rate * max(progress / config.warmup, _FINAL_RATE)
    done = (progress - config.warmup) / (1.0 - config.warmup)
    return config.learning_rate * (_FINAL_RATE + (1.0 - _FINAL_RATE) * 0.5 * (1.0 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class _Scores:
    """The figures of one evaluation, equal on all ranks."""

    accuracy: float
    loss: float
    samples: int
    confusion: list[list[int]]
    """Numbers of samples by [true class][predicted class]."""


def evaluate(model: nn.Module, loader: StreamingDataLoader, config: TrainConfig, ranks: Ranks) -> _Scores:
    """Measure `model` over one pass of `loader`. Collective; leaves the model in eval mode."""
    tally = _Tally(config, ranks)
    model.eval()
    with torch.inference_mode():
        for columns in loader:
            batch = to_device(columns, config, ranks.device, epoch=None)
            with _autocast(ranks.device):
                logits = logits_of(model(batch.pixels))
            losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
            tally.add(logits, batch.labels, batch.weights, losses)
    return tally.scores()


class _Tally:
    """Sums over the samples that one rank has evaluated."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self._ranks, self._classes = ranks, config.num_classes
        # Counted here: importing torchmetrics takes each process a second, as it imports transformers.
        self._counts = torch.zeros(self._classes**2, dtype=torch.int64, device=ranks.device)
        """By true class * classes + predicted class."""
        self._loss = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, losses: torch.Tensor) -> None:
        """Count one batch; samples of weight 0 do not count."""
        real = weights > 0
        answers = labels[real] * self._classes + logits.detach()[:, : self._classes].argmax(dim=1)[real]
        self._counts += torch.bincount(answers, minlength=self._classes**2)
        self._loss += (losses.detach() * weights).sum().double().cpu()

    def scores(self) -> _Scores:
        """Return the figures over all ranks. Collective."""
        summed = self._ranks.total([*self._counts.tolist(), float(self._loss)], "sum their scores")
        classes = self._classes
        counts = [round(count) for count in summed[:-1]]
        confusion = [counts[row * classes : (row + 1) * classes] for row in range(classes)]
        samples = sum(counts)
        right = sum(confusion[row][row] for row in range(classes))
        return _Scores(
            accuracy=right / samples if samples else 0.0,
            loss=summed[-1] / samples if samples else 0.0,
            samples=samples,
            confusion=confusion,
        )


def _autocast(device: torch.device) -> torch.autocast:
    """Return a context of bfloat16 where the device is fast at it; on CPUs full precision is faster."""
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_fast)
