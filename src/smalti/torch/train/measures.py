"""Measures of a rank while it trains: samples per second, the share of waiting for data, and memory."""

import resource
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, cast

import torch

from smalti.torch.loader import StreamingDataLoader

_MB = 2**20


def memory_figures(device: torch.device) -> dict[str, float]:
    """Return the largest memory that this process has taken so far, and on a GPU that of torch's tensors."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    figures = {"peak_memory_mb": round(peak / _MB, 1)}
    if device.type == "cuda":
        figures["peak_cuda_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / _MB, 1)
    return figures


@dataclass
class Pace:
    """Seconds and samples of the loaders of this rank, in this life of the run."""

    num_ranks: int = 1
    seconds: float = 0.0
    data_seconds: float = 0.0
    """Part of `seconds` spent waiting for the loader."""
    samples: int = 0
    """Of all ranks together, padding included."""

    def figures(self) -> dict[str, float]:
        """Return the samples per second over all ranks, and the share of waiting for data; empty before the first."""
        if not self.seconds:
            return {}
        return {
            "samples_per_second": round(self.samples / self.seconds, 3),
            "data_fraction": round(self.data_seconds / self.seconds, 5),
        }


class MeasuredLoader(StreamingDataLoader):
    """A loader that measures how long its consumer waits for batches, and how long it works on them."""

    pace: Pace | None = None
    """The figures that were measured, to be set; None: nothing is measured."""

    def __iter__(self) -> Generator[Any, None, None]:  # type: ignore[override]  # as in the base class
        """Iterate as the base class does."""
        batches = cast("Generator[Any, None, None]", super().__iter__())
        pace = self.pace or Pace()
        per_step = int(self.__dict__["batch_size"] or 0) * pace.num_ranks
        mark = time.perf_counter()
        try:
            for batch in batches:
                waited = time.perf_counter()
                pace.data_seconds += waited - mark
                yield batch
                now = time.perf_counter()
                pace.seconds += now - mark
                pace.samples += per_step
                mark = now
        finally:
            batches.close()
