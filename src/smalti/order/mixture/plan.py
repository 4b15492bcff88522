"""MixturePlan: one epoch over several streams, as a `GlobalOrder`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smalti.order.mixture.batches import Layout
from smalti.order.mixture.units import Units
from smalti.order.positions import GlobalOrder
from smalti.order.window import EpochPlan, Ids


@dataclass(frozen=True, eq=False)
class OrderedUnits:
    """Samples that are ordered together: those of one stream, or of all streams."""

    order: EpochPlan
    """The order of the units' samples."""
    units: Units
    """The units that hold the samples."""

    def ids_at(self, places: Ids) -> Ids:
        """Return sample ids at the given places of the order."""
        return self.units.sample_ids(self.order.ids_at(places))


class MixturePlan(GlobalOrder):
    """The global order of one epoch: `len(plan)` sample ids, any part of which can be looked up alone.

    Sample ids count over all streams laid end to end; a sample of which the epoch takes several copies occurs that
    often. Memory is O(units) plus the windows in use. Not thread-safe, as `EpochPlan`.
    """

    def __init__(self, parts: Sequence[OrderedUnits], layout: Layout | None, stream_samples: Sequence[int]) -> None:
        self.stream_samples = tuple(stream_samples)
        """Samples that the epoch takes of each stream."""
        self.num_batched = sum(stream_samples) if layout is None else layout.num_batched
        """Positions [0, num_batched) hold batches as the batching method defines them; then follow the remaining
        samples of the streams."""
        self._parts = parts
        self._layout = layout

    def __len__(self) -> int:
        return sum(self.stream_samples)

    def ids_at(self, positions: Ids) -> Ids:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        flat = positions.reshape(-1)
        if self._layout is None:
            return self._parts[0].ids_at(flat).reshape(positions.shape)
        streams, places = self._layout.locate(flat)
        ids = np.empty(flat.size, dtype=np.int64)
        for stream in np.unique(streams).tolist():
            here = streams == stream
            ids[here] = self._parts[stream].ids_at(places[here])
        return ids.reshape(positions.shape)
