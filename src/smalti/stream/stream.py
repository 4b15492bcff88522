"""Stream: one shard set of a mixture as the user declares it, and StreamOptions: the same with all defaults settled.

Declarations only: nothing is opened here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smalti.attributes import Replaceable, moved_arguments, whole_or_none
from smalti.cache import CacheOptions
from smalti.cursor import MAX_WEIGHT, WEIGHT_NAMES
from smalti.errors import ArgumentError, ArgumentTypeError
from smalti.order.mixture.planning import StreamWeight
from smalti.redaction import hide_options
from smalti.storage import Store
from smalti.storage.opening import check_secrets


@dataclass(frozen=True)
class StreamOptions:
    """The shard set to open, the version and split to read, and how to fetch and decode it."""

    root: str
    """URL or folder of the data set's root."""
    split: str | None = None
    """Split to read, such as `train`; None or empty for the whole set."""
    version: int | None = None
    """Version to read; None for the newest."""
    tag: str | None = None
    """Name of the version to read, instead of its number; resolved when the set is opened."""
    cache: CacheOptions = field(default_factory=CacheOptions)
    """Options for fetching and keeping its shards."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to fsspec's file system."""
    allow_unsafe_types: bool = False
    """Read `pkl` columns, which can run code."""
    logical: bool = True
    """Convert values to the manifest's logical types; otherwise return them as stored."""
    store: Store | None = None
    """The store of the root, if the user gave one instead of an address; `root` is then its URL."""
    columns: tuple[str, ...] | None = None
    """Columns to read, in the order of a sample's; None for all."""

    def __post_init__(self) -> None:
        hide_options(self)
        if self.split == "":  # MosaicML's reader treats an empty string as not given
            object.__setattr__(self, "split", None)
        check_secrets(self.root)
        if self.version is not None and self.tag is not None:
            raise ArgumentError(f"`version` is {self.version} and `tag` is {self.tag!r}; give one of them")


MOVED_TO_CACHE = {
    "local": "is now in cache=CacheOptions(local=...), or is `remote` if the data set itself lies there",
    **{
        name: f"is now in cache=CacheOptions({name}=...)"
        for name in ("download_retry", "download_timeout", "validate_hash", "keep_zip")
    },
}
"""The arguments of earlier releases that `CacheOptions` has now."""


@moved_arguments(MOVED_TO_CACHE)
@dataclass(frozen=True, kw_only=True)
class Stream:
    """One of the shard sets that a StreamingDataset mixes, and how much of it an epoch takes.

    Nothing is opened. Fields left None take the dataset's value. At most one of `proportion`, `repeat` and `choose`
    may be given; if one stream has a `proportion`, all must have one.

    Raises:
        ValueError: `remote` is not given, or both `version` and `tag` are; or weights contradict each other or are
            out of range; or `columns` is empty.
        TypeError: `columns` is not a list of names, or an argument is given that is elsewhere since an earlier release.

    Examples:
        >>> mostly = Stream(remote="s3://bucket/users", proportion=0.9)
        >>> seldom = Stream(remote="s3://bucket/more-users", proportion=0.1)
        >>> StreamingDataset(streams=[mostly, seldom], shuffle=True).num_streams
        2
    """

    remote: str | Store | None = None
    """URL or folder of the data set's root, or its store."""
    split: str | None = None
    """Split to read, such as `train`."""
    proportion: float | None = None
    """Share of the epoch, from 0, relative to the other streams' shares: they need not sum to 1."""
    repeat: float | None = None
    """Times that an epoch takes the stream, from 0: 0.5 is half of it."""
    choose: int | None = None
    """Samples that an epoch takes of the stream, from 0: more than it has are taken again."""
    version: int | None = None
    """Version to read; by default the newest when first used."""
    tag: str | None = None
    """Name of the version to read, instead of its number: the version that has it when first used."""
    cache: CacheOptions | None = None
    """Options for fetching and keeping its shards; None for the dataset's choice."""
    storage_options: Mapping[str, Any] | None = None
    """Passed to fsspec's file system."""
    columns: Sequence[str] | None = None
    """Columns to read, in the order of a sample's; by default all."""

    def __post_init__(self) -> None:
        hide_options(self)
        object.__setattr__(self, "columns", checked_columns(self.columns))
        remote: Any = self.remote
        if isinstance(remote, Path):
            object.__setattr__(self, "remote", str(remote))
        object.__setattr__(self, "version", whole_or_none("version", self.version, 0))
        cache = options_of(self).cache  # checks it
        if self.cache is not None and (cache.cache_limit, cache.predownload) != (None, None):
            raise ArgumentError(
                "`cache_limit` and `predownload` are of all streams together: give them to the dataset, in its `cache`."
            )
        for name in WEIGHT_NAMES:
            if isinstance(value := getattr(self, name), np.generic):
                object.__setattr__(self, name, value.item())  # saved states hold Python's own numbers
            _check_weight(name, getattr(self, name), is_whole=name == "choose")
        weight_of(self)  # checks that at most one is given

    @Replaceable
    def weight(self) -> StreamWeight:
        """The share of the stream that an epoch takes."""
        return weight_of(self)

    def options(self, **defaults: Any) -> StreamOptions:
        """Return the stream's options; `defaults` (see `options_of`) apply to the fields left None."""
        return options_of(self, **defaults)


# The library calls the functions below: a subclass may have its own attributes `weight` or `options`.


def weight_of(stream: Stream) -> StreamWeight:
    """Return how much of a stream an epoch takes.

    Raises:
        ValueError: more than one of `proportion`, `repeat` and `choose` is given.
    """
    return StreamWeight(proportion=stream.proportion, repeat=stream.repeat, choose=stream.choose)


def options_of(stream: Stream, cache: CacheOptions | None = None, **defaults: Any) -> StreamOptions:
    """Return the options of a stream, in which its own choices override those of the dataset.

    `cache` and `defaults` are the dataset's choices of how to fetch and for other fields of `StreamOptions`.

    Raises:
        ValueError: `remote` is not given, or both `version` and `tag` are; or a number is out of range.
        TypeError: `cache` is no CacheOptions.
    """
    remote = stream.remote
    if not remote and not isinstance(remote, Store):
        raise ArgumentError("`remote` is needed: the URL or folder that holds the data set's index.json.")
    store, root = (remote, remote.url) if isinstance(remote, Store) else (None, remote)
    fields = ("split", "storage_options", "columns")
    own = {name: getattr(stream, name) for name in fields if getattr(stream, name) is not None}
    chosen = checked_cache(cache if stream.cache is None else stream.cache)
    return StreamOptions(root, version=stream.version, tag=stream.tag, cache=chosen, store=store, **(defaults | own))


def checked_cache(cache: Any) -> CacheOptions:
    """Return how to fetch and keep shards; the defaults for None.

    Raises:
        TypeError: this is neither None nor a CacheOptions.
    """
    if cache is None:
        return CacheOptions()
    if not isinstance(cache, CacheOptions):
        raise ArgumentTypeError(
            f"`cache` must be smalti.CacheOptions(...), found {cache!r:.80}; an earlier release's `cache='none'` is "
            "CacheOptions(mode='none')."
        )
    return cache


def checked_columns(columns: Any) -> tuple[str, ...] | None:
    """Return the names of columns to read as a tuple; None for all columns.

    Raises:
        TypeError: this is not a sequence of texts.
        ValueError: it is empty, or has a name twice.
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        raise ArgumentTypeError(f"`columns` is a list of names, found the text {columns!r}; write [{columns!r}].")
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise ArgumentTypeError(f"`columns` must be a list of names, found {columns!r:.80}.")
    names = tuple(columns)
    if not names:
        raise ArgumentError("`columns` must name at least one column, found none; leave it out to read all.")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ArgumentError(f"`columns` names {twice[0]!r} twice.")
    return names


def _check_weight(name: str, value: Any, *, is_whole: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, (float, int)) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= MAX_WEIGHT and (not is_whole or value == int(value))):
        kind = "whole number" if is_whole else "number"
        raise ArgumentError(f"`{name}` must be a {kind} from 0 to {MAX_WEIGHT:g}, found {value!r}.")
