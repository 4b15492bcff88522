"""The limit of local copies where the user of a run has chosen none: half of the disk that is free at the start."""

from smalti.cache import default_cache_limit
from smalti.torch.dataset import StreamingDataset


def with_cache_limit(dataset: StreamingDataset) -> int | None:
    """Limit the local copies of a dataset that has no limit, before it is read; return its limit.

    Returns:
        Bytes; None where nothing is copied, or where no limit can be kept.
    """
    reader = dataset._smalti
    if reader.cache_limit is None:
        limits = [limit for each in reader.stream.sets if (limit := default_cache_limit(each.source)) is not None]
        if limits:
            reader.close()  # opened again, in the same versions, by the next use
            reader.cache_limit = max(limits)
    return reader.cache_limit
