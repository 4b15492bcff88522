"""Progress of a training run for a person: numbers per epoch, and a line every few seconds."""

import time
from collections.abc import Callable
from typing import Any

_SECONDS = 3.0  # between two lines; each is a row in the event log


class TrainingReport:
    """Takes the events of `smalti.torch.train`, and hands on those that a person wants to see."""

    def __init__(
        self,
        say: Callable[[str], None],
        observe: Callable[[dict[str, Any]], None],
        *,
        epochs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._observe = observe
        self._epochs = epochs
        self._clock = clock
        self._last_line = clock()
        self._steps_per_epoch = 0

    def __call__(self, event: dict[str, Any]) -> None:
        """Handle one event; other kinds are ignored."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def _on_start(self, event: dict[str, Any]) -> None:
        self._steps_per_epoch = event["steps_per_epoch"]
        resumed = f", going on after step {event['step']}" if event["step"] else ""
        self._say(
            f"training on {event['train_samples']} images of version {event['version']} on {event['device']}, "
            f"{event['num_ranks']} process{'' if event['num_ranks'] == 1 else 'es'}{resumed}"
        )

    def _on_step(self, event: dict[str, Any]) -> None:
        now = self._clock()
        if now - self._last_line < _SECONDS or not self._steps_per_epoch:
            return
        self._last_line = now
        share = event["step"] / (self._steps_per_epoch * self._epochs)
        self._say(
            f"{share:.0%} epoch {event['epoch'] + 1} of {self._epochs}, loss {event['loss']:.3f}, "
            f"{event['images_per_second']:.0f} images/s"
        )

    def _on_epoch(self, event: dict[str, Any]) -> None:
        self._last_line = self._clock()
        numbers = {
            "epoch": event["epoch"] + 1,
            "train_loss": float(event["train_loss"]),
            "loss": float(event["loss"]),
            "accuracy": float(event["accuracy"]),
            "images_per_second": float(event["images_per_second"]),
        }
        self._observe(numbers)
        self._say(
            f"epoch {numbers['epoch']} of {self._epochs}: held-out accuracy {numbers['accuracy']:.3f}, "
            f"loss {numbers['loss']:.3f}, {numbers['images_per_second']:.0f} images/s"
        )

    def _on_output(self, event: dict[str, Any]) -> None:
        self._say(f"rank {event['rank']}: {event['line']}")
