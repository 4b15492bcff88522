"""Stream: one shard set of a mixture, as the user declares it.

What is chosen about one shard set that is read; frozen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smalti.attributes import Replaceable
from smalti.cursor import MOST_WEIGHT, WEIGHT_NAMES
from smalti.order.mixture import StreamWeight
from smalti.whole import whole_or_none


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


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One of the shard sets that a StreamingDataset mixes, and how much of it an epoch takes.

    Nothing is opened. What is left None is as the dataset has it. At most one of `proportion`, `repeat` and `choose`
    may be given; if one stream has a `proportion`, all have.

    Raises:
        ValueError: neither `remote` nor `local` is given, or both `version` and `tag`; or weights contradict each
            other or are out of range.
    """

    remote: str | None = None
    """URL or folder of the data set's root; None to read `local` in place."""
    local: str | None = None
    """Folder for fetched shards; by default the user's cache folder. Without `remote`, the data set itself."""
    split: str | None = None
    """Split to read, such as `train`."""
    proportion: float | None = None
    """Part of the epoch, from 0, relative to the other streams': they need not sum to 1."""
    repeat: float | None = None
    """Times that an epoch takes the stream, from 0: 0.5 is half of it."""
    choose: int | None = None
    """Samples that an epoch takes of the stream, from 0: more than it has are taken again."""
    version: int | None = None
    """Version to read; by default the newest when first used."""
    tag: str | None = None
    """Name of the version to read, instead of its number: the version that has it when first used."""
    download_retry: int | None = None
    """Attempts per shard."""
    download_timeout: float | None = None
    """Seconds with less than 64 KiB of progress after which fetching a shard fails; in all, it may take this long and
    the time of its size at 64 KiB/s."""
    validate_hash: str | None = None
    """Hash that every file must have in the index."""
    keep_zip: bool | None = None
    """Keep compressed shards in the cache after they were unpacked."""
    storage_options: Mapping[str, Any] | None = None
    """Passed to fsspec's file system."""

    def __post_init__(self) -> None:
        for name in ("remote", "local"):
            value: Any = getattr(self, name)
            if isinstance(value, Path):
                object.__setattr__(self, name, str(value))
        for name in ("version", "download_retry"):
            object.__setattr__(self, name, whole_or_none(name, getattr(self, name), 0 if name == "version" else 1))
        options_of(self)  # checks it
        for name in WEIGHT_NAMES:
            if isinstance(value := getattr(self, name), np.generic):
                object.__setattr__(self, name, value.item())  # a state holds Python's numbers
            _check_number(name, getattr(self, name), 0, is_whole=name == "choose")
        weight_of(self)  # checks that they are one at most

    @Replaceable
    def weight(self) -> StreamWeight:
        """How much an epoch takes of it."""
        return weight_of(self)

    def options(self, **defaults: Any) -> StreamOptions:
        """Where it is read from and how; `defaults` are what the dataset chose for all streams."""
        return options_of(self, **defaults)


# The library uses these: a subclass may have fields or methods of its own named `weight` or `options`.


def weight_of(stream: Stream) -> StreamWeight:
    """Return how much an epoch takes of a stream.

    Raises:
        ValueError: more than one of `proportion`, `repeat` and `choose` is given.
    """
    return StreamWeight(proportion=stream.proportion, repeat=stream.repeat, choose=stream.choose)


def options_of(stream: Stream, **defaults: Any) -> StreamOptions:
    """Return where a stream is read from and how.

    Args:
        stream: what the user declared.
        defaults: what the dataset chose for all streams.

    Raises:
        ValueError: neither `remote` nor `local` is given, or both `version` and `tag`.
    """
    own = {
        name: getattr(stream, name)
        for name in ("split", "download_retry", "download_timeout", "validate_hash", "keep_zip", "storage_options")
        if getattr(stream, name) is not None
    }
    return StreamOptions(
        remote=stream.remote, local=stream.local, version=stream.version, tag=stream.tag, **(defaults | own)
    )


def _check_number(name: str, value: Any, low: int, *, is_whole: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, (float, int)) and not isinstance(value, bool)
    if not (is_number and low <= value <= MOST_WEIGHT and (not is_whole or value == int(value))):
        kind = "whole number" if is_whole else "number"
        raise ValueError(f"`{name}` must be a {kind} from {low} to {MOST_WEIGHT:g}, found {value!r}.")
