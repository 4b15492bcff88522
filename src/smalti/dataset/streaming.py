"""StreamingDataset without torch: samples by id, epochs and cursors, batches in the planned order.

The constructor turns its arguments into option objects; every method calls the EpochReader made from them. The subclass
in `smalti.torch` is a torch dataset.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any, TypeVar

import numpy as np

from smalti.attributes import (
    Replaceable,
    check_flags,
    moved_arguments,
    whole_number,
    whole_or_none,
)
from smalti.cache import CacheOptions, CacheStats
from smalti.catalog import Manifest
from smalti.cursor import MAX_SEED, Cursor
from smalti.dataset.epoch_reader import BatchForm, EpochReader, Form
from smalti.dataset.order import DEFAULT_SEED, MAX_COUNT, OrderOptions, run_order
from smalti.dataset.skipping import skip_limit
from smalti.errors import ArgumentError, ArgumentTypeError, SmaltiError
from smalti.format.reading.batch import pick
from smalti.storage import Store
from smalti.stream import OpenStreams, Stream, StreamOptions, options_of
from smalti.stream.stream import MOVED_TO_CACHE, checked_cache, checked_columns, weight_of
from smalti.world import World

MOVED = {
    **MOVED_TO_CACHE,
    **{name: f"is now in cache=CacheOptions({name}=...)" for name in ("cache_limit", "predownload")},
    **{entry.name: f"is now in order=OrderOptions({entry.name}=...)" for entry in fields(OrderOptions)},
    "rank": "is now in world=World.flat(rank, num_ranks)",
    "num_ranks": "is now in world=World.flat(rank, num_ranks)",
    "shuffle_algo": "is gone: shuffle=True is the `window` order, and MosaicML's (py1e, py1br, py1s, py2s, naive) are "
    "those of smalti.compat.streaming.StreamingDataset, which continues their runs",
    "partition_algo": "is of MosaicML's orders: use smalti.compat.streaming.StreamingDataset",
}
"""By argument of an earlier release: where it is now."""
_MAX_VERSION = (1 << 62) - 1
_ABBREVIATIONS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_ABBREVIATED = re.compile(r"(\d+(?:\.\d+)?) *([kmbt]?)", re.IGNORECASE)

_Dataset = TypeVar("_Dataset", bound="StreamingDataset")


@moved_arguments(MOVED)
class StreamingDataset:
    """Samples of a shard set or of a mixture of several, by id or iterated in an elastic, deterministic order.

    Construction opens nothing. The order depends only on the data set's version, seed, epoch, canonical nodes and
    these options, not on ranks, workers, cache or timing. Each iteration is one epoch, or after `load_state_dict` the
    rest of one.

    A subclass may override `__getitem__`, `get_item` and `__len__`, and may use every other public name for attributes
    and methods of its own: the library does not read them. Assign such attributes before or after `super().__init__`.
    Only `next_epoch` is a property that sets the epoch, unless the class replaces it.

    Args:
        remote: URL or folder of the data set's root (`s3://`, `gs://`, `abfs://`, `dbfs:/Volumes/`, or a path).
        streams: shard sets to mix, each with its weight; instead of `remote`. Fields that a stream leaves None take the
            values given here. Sample ids count over all streams, laid end to end.
        split: split to read, such as `train`.
        version: version to read; by default the newest when first used.
        tag: name of the version to read, instead of its number: the version that has it when first used. A state that
            was saved when the tag named another version continues in that version, with a warning.
        batch_size: samples per rank and step; needed to iterate.
        shuffle: shuffle the samples; otherwise they come in stored order.
        shuffle_seed: base seed, in [0, 2^63).
        epoch_size: samples of an epoch, such as 64000, "64k" or "1.5M"; by default the sum of what the streams'
            weights take.
        transform: called with each sample; with an attribute `on_batches = True`, with each batch of columns, which is
            split again where samples are read one by one; with `takes_epoch = True`, also with `epoch` and
            `sample_ids` (docs/reading.md).
        columns: columns to read, in the order of a sample's; by default all. Others are not decoded, and shards that
            hold only others are not fetched. The order of the samples and saved states do not depend on it.
        include_ids: add `_sample_id` and `_position` (place in the epoch's global order, -1 for a repeat), and with
            several streams `_stream`, the number of the sample's stream.
        on_error: what to do with a sample that cannot be decoded, or for which the transform raises an error: `raise`
            the error, or `skip` the sample: a marked repeat, the next readable sample in stored order, takes its place
            (docs/reading.md). Damaged shards, errors of a store and those of `dataset[i]` are always raised.
        max_skipped: samples that each rank may skip in an epoch, or below 1 the share of them; by default 100.
        logical: convert values to their logical types (dates, booleans, nulls: docs/types.md); otherwise return them
            as stored.
        allow_unsafe_types: read `pkl` columns, which can run code.
        storage_options: passed to fsspec's file system.
        cache: how shards are fetched, verified and kept on this machine: folder, limit, attempts, time limit.
        order: how samples and streams are mixed and divided over ranks: shuffle block, last step, batches of streams.
        world: ranks and hosts, such as `World.flat(rank, num_ranks)` for the data-parallel coordinate of a device mesh;
            by default from the launcher's environment variables.

    Raises:
        TypeError: an argument has the wrong type, or was an argument of an earlier release; the message says where it
            is now.
        ValueError: an argument is out of range, or contradicts another.
    """

    _smalti_reader: type[EpochReader] = EpochReader
    _smalti: EpochReader

    def __init__(  # noqa: PLR0913 - twenty options of reading, most of them needed on the first day
        self,
        *,
        remote: str | Store | None = None,
        streams: Sequence[Stream] | None = None,
        split: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_seed: int = DEFAULT_SEED,
        epoch_size: int | str | None = None,
        transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] | None = None,
        include_ids: bool = False,
        on_error: str = "raise",
        max_skipped: float | None = None,
        logical: bool = True,
        allow_unsafe_types: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: CacheOptions | None = None,
        order: OrderOptions | None = None,
        world: World | None = None,
    ) -> None:
        check_flags(shuffle=shuffle, include_ids=include_ids, allow_unsafe_types=allow_unsafe_types, logical=logical)
        if transform is not None and not callable(transform):
            raise ArgumentTypeError(f"`transform` must be a function, found {transform!r:.80}.")
        if world is not None and not isinstance(world, World):
            raise ArgumentTypeError(
                f"`world` must be a smalti.World, found {world!r:.80}; see World.flat(rank, num_ranks)."
            )
        given: Any = {} if storage_options is None else storage_options
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise ArgumentTypeError(  # without the value, which may hold a secret
                f'`storage_options` must be a mapping such as {{"key": "value"}}, found {type(given).__name__}.'
            )
        version = whole_or_none("version", version, 0, _MAX_VERSION)
        declared = _declared_streams(streams, remote=remote, version=version, tag=tag)
        fetching = checked_cache(cache)
        stream_options = tuple(
            options_of(
                stream,
                fetching,
                split=split,
                storage_options=dict(given),
                allow_unsafe_types=allow_unsafe_types,
                logical=logical,
                columns=checked_columns(columns),
            )
            for stream in declared
        )
        _check_transform(transform, stream_options)
        # The only attribute of an instance that the library reads: all others may be a subclass's own.
        vars(self)["_smalti"] = self._smalti_reader(
            declared,
            stream_options,
            run_order(
                order,
                shuffle=shuffle,
                seed=whole_number("shuffle_seed", shuffle_seed, 0, MAX_SEED),
                weights=tuple(map(weight_of, declared)),
                epoch_size=_number_of_samples("epoch_size", epoch_size),
            ),
            batch_size=whole_or_none("batch_size", batch_size, 1, MAX_COUNT),
            predownload=fetching.predownload,
            transform=transform,
            include_ids=include_ids,
            max_skipped=skip_limit(on_error, max_skipped),
            cache_limit=fetching.limit_bytes,
            chosen_world=world,
        )

    # ------------------------------------------------------------------ options and contents

    @Replaceable
    def streams(self) -> tuple[Stream, ...]:
        """The shard sets, as the user declared them."""
        return self._smalti.declared

    @Replaceable
    def batch_size(self) -> int | None:
        """Samples per rank and step."""
        return self._smalti.batch_size

    @batch_size.setter
    def _set_batch_size(self, value: Any) -> None:
        self._smalti.batch_size = whole_or_none("batch_size", value, 1, MAX_COUNT)

    @Replaceable
    def transform(self) -> Callable[[Any], Any] | None:
        """The constructor's `transform`. A value that a subclass assigns is its own, and never called here."""
        return self._smalti.transform

    @transform.setter
    def _set_transform(self, value: Any) -> None:
        self._smalti.transform = value

    @Replaceable
    def include_ids(self) -> bool:
        """True if batches hold sample ids and positions."""
        return self._smalti.include_ids

    @include_ids.setter
    def _set_include_ids(self, value: Any) -> None:
        self._smalti.include_ids = bool(value)

    @Replaceable
    def stream(self) -> OpenStreams:
        """The opened shard sets, as one run of samples; the first use opens them."""
        return self._smalti.stream

    @Replaceable
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifest of each stream's version: number, digest, schema, shards, lineage."""
        return self._smalti.manifests

    @Replaceable
    def manifest(self) -> Manifest:
        """The manifest of the only stream.

        Raises:
            SmaltiError: there are several streams.
        """
        count = len(self._smalti.declared)
        if count > 1:
            raise SmaltiError(f"this dataset reads {count} streams, each with a manifest: `manifests`.")
        return self._smalti.manifests[0]

    @Replaceable
    def size(self) -> int:
        """Samples of all streams, each counted once."""
        return len(self._smalti.stream)

    @Replaceable
    def num_samples(self) -> int:
        """An alias of `size`, which MosaicML Streaming has."""
        return len(self._smalti.stream)

    @Replaceable
    def epoch_size(self) -> int:
        """Samples of the next iteration's epoch, as the streams' weights determine."""
        return self._smalti.cursor().epoch_size

    @Replaceable
    def num_streams(self) -> int:
        """Shard sets that are mixed."""
        return len(self._smalti.declared)

    @Replaceable
    def num_shards(self) -> int:
        """Shards of all streams."""
        return len(self._smalti.stream.shards)

    def __len__(self) -> int:
        """Return the samples per rank and epoch."""
        reader = self._smalti
        return math.ceil(reader.cursor().epoch_size / reader.readers.num_ranks)

    @Replaceable
    def world(self) -> World:
        """All ranks and hosts, including ranks that read the same samples."""
        return self._smalti.world

    def __getitem__(self, at: Any) -> Any:
        """Return the sample with an id, transformed; for a slice, an array or a (nested) list, a list of samples.

        Negative ids count from the end. A subclass may override this, or `get_item`; loaders call the overriding one.

        Raises:
            IndexError: there is no such sample.
            ValueError: `at` is none of these.
        """
        if type(at) is int and at >= 0:  # fast path for the common case
            return self.get_item(at)
        stream = self._smalti.stream
        if not isinstance(at, int | np.integer):
            stream.read_parts(at)
        return pick(at, len(stream), self.get_item, stream.root)

    def get_item(self, sample_id: int) -> Any:
        """Return one sample, transformed; `sample_id` in [0, size), else an IndexError."""
        return self._smalti.sample(sample_id)

    # ------------------------------------------------------------------ epochs and cursors

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration reads, counting from 0."""
        return self._smalti.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._smalti.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read `epoch` from its start."""
        self._smalti.set_epoch(epoch)

    def cursor(self) -> Cursor:
        """Return the start of the next iteration."""
        return self._smalti.cursor()

    def cursor_at_start(self) -> Cursor:
        """Return the start of the next iteration's epoch."""
        return self._smalti.cursor_at_start()

    def state_dict(self, num_samples: int = 0, from_beginning: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - MosaicML's signature
        """Return the state after `num_samples` global samples of the current epoch; StreamingDataLoader counts them.

        The current epoch is that of the latest iteration, or before the first one that of the next. Iterations in
        worker processes of a torch DataLoader count as well.

        Args:
            num_samples: samples that all ranks together consumed; each replica group counts as one rank.
            from_beginning: count from the epoch's start; otherwise from the start of the iteration.
        """
        return self._smalti.state_dict(num_samples, from_beginning=from_beginning)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a saved state, on any world, worker count or batch size.

        Raises:
            CursorError: the state is damaged, or was saved for another data set, version, split, seed or order; or
                new weights leave a stream without a sample in `stratified` batches. A state of one of MosaicML's orders
                continues under `smalti.compat.streaming`, bit for bit.
        """
        self._smalti.load_state_dict(state)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this rank and worker, one by one, for one epoch or the rest of one."""
        for batch in self._smalti.batches(self._smalti.begin_pass(), sample_form(self)):
            yield from batch

    def batches(self) -> Iterator[Any]:
        """Yield the same samples in batches: as columns, or as lists of samples if code of yours is called for each."""
        form = BatchForm.COLUMNS if reads_columns(self) else self.__getitem__
        return self._smalti.batches(self._smalti.begin_pass(), form)

    def stats(self, *, least: bool = True) -> CacheStats:
        """Return the cost of reading, with that in loader workers; with `least`, also the least possible."""
        return self._smalti.stats(least=least)

    def close(self) -> None:
        """Close open shards and end fetching threads; the next use opens the same versions."""
        self._smalti.close()


def open_dataset(
    url: str | Store, *, version: int | None = None, tag: str | None = None, split: str | None = None, **options: Any
) -> StreamingDataset:
    """Open a shard set for reading by sample id: `open_dataset(url)[0]`, `.size`, `.manifest`.

    Args:
        url: URL or folder of the data set's root, or its store.
        version: version to open; by default the newest.
        tag: version to open, by its name; the dataset stays with that version if the tag moves.
        split: split to open; by default the whole set.
        options: other arguments of StreamingDataset.

    Raises:
        StoreNotFound: there is no data set.
        VersionNotFound: there is no such version, tag or split.
        ValueError: both version and tag are given.

    Examples:
        >>> dataset = open_dataset("s3://bucket/users", version=1)
        >>> dataset.size
        10
        >>> dataset[-1]
        {'text': 'user 9', 'user_id': 9}
    """
    dataset = StreamingDataset(remote=url, version=version, tag=tag, split=split, **options)
    _ = dataset.stream
    return dataset


def view_of(dataset: _Dataset, reader: EpochReader) -> _Dataset:
    """Return a copy of a dataset with all its attributes and another reader.

    Not by `copy.copy`, which would call a subclass's `__getstate__`: that may drop open files, which a view needs.
    """
    kind = type(dataset)
    view: _Dataset = object.__new__(kind)
    vars(view).update(vars(dataset), _smalti=reader)
    for slot in (value for base in kind.__mro__ for value in vars(base).values()):
        if isinstance(slot, MemberDescriptorType):
            with suppress(AttributeError):  # the slot is empty
                slot.__set__(view, slot.__get__(dataset))
    return view


def reads_columns(dataset: StreamingDataset) -> bool:
    """Return whether no code of the user is called for single samples."""
    names = ("__getitem__", "get_item")
    is_inherited = all(getattr(type(dataset), name) is getattr(StreamingDataset, name) for name in names)
    return is_inherited and "get_item" not in vars(dataset) and not dataset._smalti.transforms_samples


def sample_form(dataset: StreamingDataset) -> Form:
    """Return how batches are read as lists of samples: with a transform on batches by column, and then split."""
    reader = dataset._smalti
    transforms_batches = reader.transform is not None and not reader.transforms_samples
    return BatchForm.ROWS if transforms_batches and reads_columns(dataset) else dataset.__getitem__


def _number_of_samples(name: str, value: int | str | None) -> int | None:
    """Parse a number such as 64000, "64000", "64k", "1.5M", "2b" or "1t"; units are decimal, as in MosaicML Streaming.

    Raises:
        ValueError: it is not a number, or not a whole number from 1.
    """
    if isinstance(value, str):
        match = _ABBREVIATED.fullmatch(value.strip())
        number = Decimal(match[1]) * _ABBREVIATIONS[match[2].lower()] if match else Decimal("0.5")
        if number != int(number):
            raise ArgumentError(f"`{name}` must be a whole number such as 64000, '64k' or '1.5M', found {value!r}.")
        value = int(number)
    return whole_or_none(name, value, 1, (1 << 62) - 1)


def _check_transform(transform: Any, streams: Iterable[StreamOptions]) -> None:
    """Check that the columns to read include those that the transform names in an attribute `needed_columns`, if any.

    Raises:
        ValueError: they do not.
    """
    needed = getattr(transform, "needed_columns", None) or ()
    for options in streams:
        missing = [name for name in needed if options.columns is not None and name not in options.columns]
        if missing:
            raise ArgumentError(
                f"the transform {type(transform).__name__} needs the column {missing[0]!r}, and `columns` of "
                f"{options.root} names only {', '.join(options.columns or ())}: add it to `columns`, or leave it out "
                "of the transform."
            )


def _declared_streams(
    streams: Sequence[Stream] | None, *, remote: Any, version: int | None, tag: str | None
) -> tuple[Stream, ...]:
    """Return the streams that the user gave, or the single stream at `remote`.

    Raises:
        ValueError: both are given, or neither, or an empty list; or both a version and a tag.
        TypeError: `streams` holds something other than streams.
    """
    if streams is None:
        return (Stream(remote=remote, version=version, tag=tag),)
    if any(value is not None for value in (remote, version, tag)):
        raise ArgumentError(
            "give either `streams`, each with its `remote` and `version` or `tag`, or these for one set."
        )
    given: object = streams
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ArgumentTypeError(f"`streams` must be a list of smalti.Stream objects, found {type(given).__name__}.")
    chosen = tuple(streams)
    for stream in chosen:
        if not isinstance(stream, Stream):
            raise ArgumentTypeError(f"`streams` must hold smalti.Stream objects, found {type(stream).__name__}.")
    if not chosen:
        raise ArgumentError("`streams` must hold at least one Stream, found none.")
    return chosen
