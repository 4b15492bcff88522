"""`get_sampling`: the number of samples that an epoch takes of each shard of a stream."""

from smalti.compat.streaming.order.sampling import get_sampling

__all__ = ["get_sampling"]
