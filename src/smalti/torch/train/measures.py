"""Measures of a rank while it trains: memory, samples per second, and the share of waiting for data."""

import resource
import sys
from collections.abc import Iterable

import torch

from smalti.cache import CacheStats

_MB = 2**20


def memory_figures(device: torch.device) -> dict[str, float]:
    """Return the largest memory that this process has taken so far, and on a GPU that of torch's tensors."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    figures = {"peak_memory_mb": round(peak / _MB, 1)}
    if device.type == "cuda":
        figures["peak_cuda_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / _MB, 1)
    return figures


def pace_figures(stats: Iterable[CacheStats], num_ranks: int) -> dict[str, float]:
    """Return the samples per second over all ranks, padding included, and the share of waiting for data.

    Args:
        stats: those of this rank's training loaders.
        num_ranks: ranks that take the same number of samples.

    Returns:
        `samples_per_second` and `data_fraction`; empty before the second batch.
    """
    samples = seconds = waited = 0.0
    for each in stats:
        samples, seconds = samples + each.loop_samples, seconds + each.loop_seconds
        waited += each.loop_wait_seconds
    if not seconds:
        return {}
    return {
        "samples_per_second": round(samples * num_ranks / seconds, 3),
        "data_fraction": round(waited / seconds, 5),
    }
