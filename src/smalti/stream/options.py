"""What is chosen about one shard set that is read; frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StreamOptions:
    """Where the shard set lies, which version and split of it, and how it is fetched."""

    remote: str | None = None
    """URL or folder of the data set's root; None to read `local` in place."""
    local: str | None = None
    """Folder for fetched shards; None for the user's cache folder."""
    split: str | None = None
    """Split to read, such as `train`; None for the whole set."""
    version: int | None = None
    """Version to read; None for the newest."""
    tag: str | None = None
    """Its name, instead of its number: what it means when the set is opened."""
    download_retry: int = 2
    """Attempts per shard."""
    download_timeout: float = 60.0
    """Seconds with less than 64 KiB of progress after which fetching a shard fails; in all, it may take this long and
    the time of its size at 64 KiB/s."""
    validate_hash: str | None = None
    """Hash that every file must have in the index; None for whichever it has. All that are there are checked."""
    keep_zip: bool = False
    """Whether compressed shards stay in the cache after they were unpacked."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to fsspec's file system."""
    allow_unsafe_types: bool = False
    """Whether `pkl` columns are read, which can run code."""
    logical: bool = True
    """Whether values are given as what they stand for by the manifest's logical types, or as they are stored."""

    def __post_init__(self) -> None:
        for name in ("remote", "local", "split"):
            if getattr(self, name) == "":  # as MosaicML's reader takes it: not given
                object.__setattr__(self, name, None)
        if self.remote is None and self.local is None:
            raise ValueError("`remote` or `local` is needed: the URL or folder that holds the data set's index.json.")
        if self.version is not None and self.tag is not None:
            raise ValueError(f"`version` is {self.version} and `tag` is {self.tag!r}; give one of them")

    @property
    def root(self) -> str:
        """Where the data set is read from."""
        return str(self.local if self.remote is None else self.remote)
