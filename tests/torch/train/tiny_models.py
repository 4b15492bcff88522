"""Models small enough for tests; named to the trainer as `tests.torch.train.tiny_models:<function>`."""

import os
import signal
import sys
import time
from pathlib import Path

from torch import nn


def convolution(config) -> nn.Module:
    """Three layers with batch normalisation and dropout: every kind of state that a checkpoint must carry."""
    return _after(nn.Identity(), config)


def _after(first: nn.Module, config) -> nn.Module:
    """Return the same model after a module without weights; these models can load each other's checkpoints."""
    return nn.Sequential(
        first,
        nn.Conv2d(3, 8, 5, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, config.task_options["num_classes"]),
    )


class _Killed(nn.Module):
    """An identity that is killed at a given forward of a given rank, as the kernel kills for lack of memory."""

    def __init__(self, rank: str, forward: int) -> None:
        super().__init__()
        self.rank, self.forwards_left = rank, forward

    def forward(self, pixels):
        if self.training:
            self.forwards_left -= 1
            if self.forwards_left == 0 and os.environ.get("RANK", "0") == self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
        return pixels


def killed_on_rank_1(config) -> nn.Module:
    """Rank 1 is killed in its seventh step, unless the file `<run_dir>.calm` is there."""
    if os.path.exists(config.run_dir + ".calm"):
        return convolution(config)
    return _after(_Killed("1", 7), config)


class _Slow(nn.Module):
    def forward(self, pixels):
        time.sleep(0.1)
        return pixels


def slow(config) -> nn.Module:
    """Return a model that takes a tenth of a second per batch, so that a test can interrupt it."""
    return _after(_Slow(), config)


class _Broken(nn.Module):
    def forward(self, pixels):
        if not self.training:
            return pixels
        raise RuntimeError("the model's own fault 4711")


def broken(config) -> nn.Module:
    """Return a model that raises in its first step."""
    return _after(_Broken(), config)


class _NotANumber(nn.Module):
    def forward(self, pixels):
        return pixels * float("nan")


def not_a_number(config) -> nn.Module:
    """Return a model whose scores are NaN in its first step."""
    return _after(_NotANumber(), config)


class _NotANumberLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, pixels):
        self.forwards += self.training
        return pixels * float("nan") if self.forwards >= 2 else pixels


def not_a_number_later(config) -> nn.Module:
    """Return a model whose scores are NaN from its second step on."""
    return _after(_NotANumberLater(), config)


class _NotANumberHeldOut(nn.Module):
    def forward(self, pixels):
        return pixels if self.training else pixels * float("nan")


def not_a_number_held_out(config) -> nn.Module:
    """Return a model whose scores are NaN in evaluation, except in the trial before training."""
    return _after(_NotANumberHeldOut(), config)


class _Leaves(nn.Module):
    """An identity that ends its process with status 0 at the third forward of one rank."""

    def __init__(self, rank: str) -> None:
        super().__init__()
        self.rank, self.forwards_left = rank, 3

    def forward(self, pixels):
        self.forwards_left -= self.training
        if self.forwards_left == 0 and os.environ.get("RANK", "0") == self.rank:
            os._exit(0)
        return pixels


def leaves_on_rank_1(config) -> nn.Module:
    """Rank 1 calls os._exit(0) in its third step."""
    return _after(_Leaves("1"), config)


def leaves(config) -> nn.Module:
    """Rank 0 calls os._exit(0) in its third step, unless the file `<run_dir>.calm` is there."""
    return convolution(config) if os.path.exists(config.run_dir + ".calm") else _after(_Leaves("0"), config)


def needs_token(config) -> nn.Module:
    """Return a model, unless credentials and storage options are missing or are in a file."""
    assert os.environ["DATABRICKS_TOKEN"] == "7951-yranac"[::-1]
    assert config.storage_options == {"auto_mkdir": "4852-yranac"[::-1]}
    # The distributor's folder: its script, and the function with its arguments in a pickle.
    files = [path for path in Path(sys.argv[0]).parent.iterdir() if path.is_file()]
    assert len(files) >= 2, files
    assert not any(b"canary" in path.read_bytes() for path in files)
    return convolution(config)
