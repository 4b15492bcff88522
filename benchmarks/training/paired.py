"""The trainer's own step over batches from the loader and over batches that lie in memory, in turn, on each rank."""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

WINDOW = 8
"""Steps that are timed together: a second or two."""


def paired(context: Any) -> dict[str, float]:
    """Take steps in windows, by turns from the loader and from memory; return the figures. Collective."""
    from smalti.torch.train.config import TrainConfig
    from smalti.torch.train.trainer.data import RunData
    from smalti.torch.train.trainer.step import Learner, private_randomness
    from smalti.torch.train.trainer.task import task_of

    config = TrainConfig.from_json(context.config["train"])
    task = task_of(config)
    with private_randomness(context.device):
        data = RunData(config, context._ranks, version=None, task=task)
        learner, loader = Learner(config, context._ranks, task), data.loader(data.train)
        steps = _Steps(config, task, learner, context.device)
        live = _forever(loader)
        kept = list(itertools.islice(live, min(WINDOW, len(loader))))
        memory = itertools.cycle(kept)
        for source in (live, memory):
            steps.take(source)
        windows: dict[str, list[tuple[float, float]]] = {"live": [], "memory": []}
        for number in range(context.config["rounds"]):
            order = [("live", live), ("memory", memory)]
            for name, source in order if number % 2 else order[::-1]:
                windows[name].append(steps.take(source))
    seconds = {name: [window for window, _ in found] for name, found in windows.items()}
    ratios = [of_loader / of_memory for of_loader, of_memory in zip(*seconds.values(), strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "least_ratio": min(seconds["live"]) / min(seconds["memory"]),
        "images_per_s": config.batch_size * WINDOW / statistics.median(seconds["live"]),
        "memory_images_per_s": config.batch_size * WINDOW / statistics.median(seconds["memory"]),
        "data_share": sum(wait for _, wait in windows["live"]) / sum(seconds["live"]),
    }


class _Steps:
    """Training steps, with what the trainer does for each."""

    def __init__(self, config: Any, task: Any, learner: Any, device: Any) -> None:
        self._config, self._task, self._learner, self._device, self._step = config, task, learner, device, 0

    def take(self, source: Iterator[Any]) -> tuple[float, float]:
        """Take a window of steps; return its seconds, and those of waiting for batches."""
        begin, waited = time.perf_counter(), 0.0
        for _ in range(WINDOW):
            mark = time.perf_counter()
            columns = next(source)
            waited += time.perf_counter() - mark
            self._step += 1
            batch = self._task.batch(columns, self._config, self._device, epoch=0)
            outcome = self._learner.step(batch, step=self._step, done=0.5)
            float((outcome.losses * batch.weights).sum())
        return time.perf_counter() - begin, waited


def _forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader
