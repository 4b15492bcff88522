"""Opening a shard set to look at it."""

from typing import Any

from smalti.dataset.streaming import StreamingDataset


def open_dataset(
    url: str, *, version: int | None = None, tag: str | None = None, split: str | None = None, **options: Any
) -> StreamingDataset:
    """A shard set opened for reading by sample id: `open_dataset(url)[0]`, `len(...)`, `.manifest`.

    Args:
        url: URL or folder of the data set's root.
        version: version to open; by default the newest.
        tag: version to open, by its name; the dataset stays with that version if the tag moves.
        split: split to open; by default the whole set.
        options: other arguments of StreamingDataset.

    Raises:
        StoreNotFound: no data set there.
        VersionNotFound: no such version, tag or split.
        ValueError: version and tag are given.
    """
    dataset = StreamingDataset(remote=url, version=version, tag=tag, split=split, **options)
    _ = dataset.stream
    return dataset
