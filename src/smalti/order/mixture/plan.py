"""MixturePlan: one epoch over several streams, which offers what `EpochPlan` does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smalti.order.mixture.batches import Layout
from smalti.order.mixture.units import Units
from smalti.order.positions import GlobalOrder
from smalti.order.window import EpochPlan, Ids


@dataclass(frozen=True, eq=False)
class Part:
    """Samples that are ordered by themselves: one stream's, or all streams' together."""

    order: EpochPlan
    """The order of the units' samples."""
    units: Units
    """The samples."""

    def ids_at(self, places: Ids) -> Ids:
        """Sample ids at the given places of the order."""
        return self.units.sample_ids(self.order.ids_at(places))


class MixturePlan(GlobalOrder):
    """The global order of one epoch: `len(plan)` sample ids, any part of which can be asked for alone.

    Sample ids count over all streams laid end to end; a sample of which more than one copy is taken comes that often.
    Memory is O(units) plus the windows in use. Not thread-safe, as `EpochPlan` is not.
    """

    def __init__(self, parts: Sequence[Part], layout: Layout | None, stream_samples: Sequence[int]) -> None:
        self.stream_samples = tuple(stream_samples)
        """Samples that the epoch takes of each stream."""
        self.num_batched = sum(stream_samples) if layout is None else layout.num_batched
        """Positions [0, num_batched) hold the batches that the batching method promises; behind them comes what the
        streams have left."""
        self._parts = parts
        self._layout = layout

    def __len__(self) -> int:
        return sum(self.stream_samples)

    def ids_at(self, positions: Ids) -> Ids:
        """Sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        flat = positions.reshape(-1)
        if self._layout is None:
            return self._parts[0].ids_at(flat).reshape(positions.shape)
        streams, places = self._layout.locate(flat)
        ids = np.empty(flat.size, dtype=np.int64)
        for stream in np.unique(streams).tolist():
            here = streams == stream
            ids[here] = self._parts[stream].ids_at(places[here])
        return ids.reshape(positions.shape)
