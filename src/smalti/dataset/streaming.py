"""StreamingDataset without torch: samples by id, epochs and cursors, batches in the planned order.

The constructor turns its arguments into option objects; every method calls the EpochReader made from them. The subclass
in `smalti.torch` is a torch dataset.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import Replaceable, check_callable, check_flags, mapping_of, setting
from smalti.cache import CacheOptions, CacheStats
from smalti.catalog import Manifest
from smalti.cursor import WINDOW, Cursor
from smalti.dataset.arguments import check_transform, checked, chosen_world, declared_streams, number_of_samples
from smalti.dataset.epoch_reader import BatchForm, EpochReader, Form
from smalti.dataset.order import DEFAULT_SEED, MixingOptions, OrderOptions, Pass, Planned, Reading
from smalti.dataset.skipping import skip_policy
from smalti.errors import SmaltiError
from smalti.format.reading.batch import pick
from smalti.format.sizes import parse_byte_count
from smalti.order import Division, GlobalOrder, StepBatch
from smalti.storage import Store
from smalti.stream import OpenStreams, Stream, checked_columns, options_of, weight_of
from smalti.world import World

_Dataset = TypeVar("_Dataset", bound="StreamingDataset")


class StreamingDataset:
    """Samples of a shard set or of a mixture of several, by id or iterated in an elastic, deterministic order.

    Construction opens nothing. The order depends only on the data set's version, seed, epoch, canonical nodes and
    these options, not on ranks, workers, cache or timing. Each iteration is one epoch, or after `load_state_dict` the
    rest of one.

    A subclass may override `__getitem__`, `get_item` and `__len__`, and may use every other public name for attributes
    and methods of its own: the library does not read them. Assign such attributes before or after `super().__init__`.
    Only `next_epoch` is a property that sets the epoch, unless the class replaces it.

    Args:
        streams: shard sets to mix, each with its weight; instead of `remote` and `local`. Fields that a stream leaves
            None take the values given here. Sample ids count over all streams, laid end to end.
        remote: URL or folder of the data set's root (`s3://`, `gs://`, `abfs://`, `dbfs:/Volumes/`, or a path).
        local: folder for fetched shards; by default the user's cache folder. Without `remote`, the data set itself.
        split: split to read, such as `train`.
        version: version to read; by default the newest when first used.
        tag: name of the version to read, instead of its number: the version that has it when first used. A state that
            was saved when the tag named another version continues in that version, with a warning.
        epoch_size: samples of an epoch, such as 64000, "64k" or "1.5M"; by default the sum of what the streams'
            weights take.
        batch_size: samples per rank and step; needed to iterate.
        shuffle: shuffle the samples; otherwise they come in stored order.
        shuffle_algo: `window`, or to continue runs that were begun with MosaicML Streaming one of its orders, bit for
            bit: `py1e`, `py1br`, `py1s`, `py2s`, `naive`. MosaicML's defaults then apply to arguments not given.
        shuffle_seed: base seed, in [0, 2^63).
        num_canonical_nodes: runs that the order is woven from; by default 64, fewer for small sets.
        partition_algo: partition of MosaicML's orders over hosts: `relaxed` or `orig`.
        shuffle_block_size: samples within which shuffling mixes; by default `smalti.order.default_block_size`.
        affinity: with `shuffle`, the part of its shards that a host reads again in the following epoch, from 0 to 1;
            by default 1, all of them. With less, the others are exchanged between hosts: samples of all hosts come to
            be read together, and each epoch fetches the rest of 1. See docs/order.md.
        tail: treatment of an incomplete last step: filled with marked repeats (`pad`), left `short`, or left out
            (`drop`); by default `pad`, and `short` with MosaicML's orders.
        replication: consecutive ranks that read the same samples, as tensor or sequence parallelism needs it.
        sampling_method: for a stream of which an epoch takes a part: `balanced` continues where the last epoch stopped,
            `fixed` takes the same part each time.
        sampling_granularity: samples that are drawn from a shard together, from 1.
        batching_method: `random` mixes all streams; `stratified` gives each global batch the same number of each;
            `per_stream` and `device_per_stream` take each global batch, or each rank's, from one stream.
        change_weights: continue a state that was saved with other weights, and record the change; otherwise such a
            state is refused.
        download_retry: attempts per shard.
        download_timeout: seconds with less than 64 KiB of progress after which fetching a shard fails; in all, it may
            take this long and the time of its size at 64 KiB/s.
        predownload: samples to look ahead when fetching; by default 8 batches or four shards.
        validate_hash: hash that the index must have for every file; all hashes in the index are checked in any case.
        cache_limit: bytes that local copies of these shards may take, such as "100gb" (units of 1024), including those
            of other processes; shards that are needed last are evicted first. By default there is no limit.
        cache: `shards` keeps fetched shards in `local`; `none` reads only the blocks that hold the samples, and keeps
            some of them in memory: for sets of which few samples are read (docs/cache.md).
        keep_zip: keep compressed shards in the cache after decompressing.
        transform: called with each sample; with an attribute `on_batches = True`, with each batch of columns, which is
            split again where samples are read one by one.
        include_ids: add `_sample_id` and `_position` (place in the epoch's global order, -1 for a repeat), and with
            several streams `_stream`, the number of the sample's stream.
        rank: number of this reader among `num_ranks`, such as the data-parallel coordinate of a device mesh.
        num_ranks: readers that divide the epoch; each counts as a host of its own.
        world: ranks and hosts, instead of these two; by default from the launcher's environment variables.
        storage_options: passed to fsspec's file system.
        allow_unsafe_types: read `pkl` columns, which can run code.
        logical: convert values to their logical types (dates, booleans, nulls: docs/types.md); otherwise return them
            as stored.
        columns: columns to read, in the order of a sample's; by default all. Others are not decoded, and shards that
            hold only others are not fetched. The order of the samples and saved states do not depend on it.
        on_error: what to do with a sample that cannot be decoded, or for which the transform raises an error: `raise`
            the error, or `skip` the sample: a marked repeat, the next readable sample in stored order, takes its place
            (docs/reading.md). Damaged shards, errors of a store and those of `dataset[i]` are always raised.
        max_skipped: samples that each rank may skip in an epoch, or below 1 the share of them; by default 100.
    """

    _smalti_reader: type[EpochReader] = EpochReader
    _smalti: EpochReader

    def __init__(  # noqa: PLR0913 - MosaicML's wide constructor; its arguments become option objects at once
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | Store | None = None,
        local: str | None = None,
        split: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        epoch_size: int | str | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = WINDOW,
        shuffle_seed: int = DEFAULT_SEED,
        num_canonical_nodes: int | None = None,
        shuffle_block_size: int | None = None,
        affinity: float | None = None,
        partition_algo: str = "relaxed",
        tail: str | None = None,
        replication: int | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        batching_method: str = "random",
        change_weights: bool = False,
        download_retry: int = CacheOptions.download_retry,
        download_timeout: float = CacheOptions.download_timeout,
        predownload: int | None = None,
        validate_hash: str | None = None,
        cache_limit: int | str | None = None,
        cache: str = CacheOptions.cache,
        keep_zip: bool = CacheOptions.keep_zip,
        transform: Callable[[Any], Any] | None = None,
        include_ids: bool = False,
        rank: int | None = None,
        num_ranks: int | None = None,
        world: World | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_unsafe_types: bool = False,
        logical: bool = True,
        columns: Sequence[str] | None = None,
        on_error: str = "raise",
        max_skipped: float | None = None,
    ) -> None:
        check_flags(shuffle=shuffle, change_weights=change_weights, keep_zip=keep_zip, include_ids=include_ids)
        check_flags(allow_unsafe_types=allow_unsafe_types, logical=logical)
        check_callable("transform", transform)
        batch_size, canonical_nodes, predownload = checked(
            batch_size=batch_size, num_canonical_nodes=num_canonical_nodes, predownload=predownload
        )
        block_size, seed = checked(shuffle_block_size=shuffle_block_size, shuffle_seed=shuffle_seed)
        replication, rank, num_ranks = checked(replication=replication, rank=rank, num_ranks=num_ranks)
        granularity, version = checked(sampling_granularity=sampling_granularity, version=version)
        checked(tail="pad" if tail is None else tail, shuffle_algo=shuffle_algo, partition_algo=partition_algo)
        checked(sampling_method=sampling_method, batching_method=batching_method)
        declared = declared_streams(streams, remote=remote, local=local, version=version, tag=tag)
        cache_options = CacheOptions(
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            cache=cache,
        )
        stream_options = tuple(
            options_of(
                stream,
                cache_options,
                split=split,
                storage_options=mapping_of("storage_options", storage_options),
                allow_unsafe_types=allow_unsafe_types,
                logical=logical,
                columns=checked_columns(columns),
            )
            for stream in declared
        )
        check_transform(transform, stream_options)
        mixing = MixingOptions(
            weights=tuple(map(weight_of, declared)),
            epoch_size=number_of_samples("epoch_size", epoch_size),
            sampling_method=sampling_method,
            sampling_granularity=granularity,
            batching_method=batching_method,
            change_weights=change_weights,
        )
        order = OrderOptions(
            shuffle=shuffle,
            seed=seed,
            canonical_nodes=canonical_nodes,
            block_size=block_size,
            tail=tail,
            algorithm=shuffle_algo,
            partition=partition_algo,
            replication=replication or 1,
            affinity=affinity,
        )
        # The only attribute of an instance that the library reads: all others may be a subclass's own.
        vars(self)["_smalti"] = self._smalti_reader(
            declared,
            stream_options,
            mixing,
            order,
            batch_size=batch_size,
            predownload=predownload,
            transform=transform,
            include_ids=include_ids,
            skip_policy=skip_policy(on_error, max_skipped),
            cache_limit=None if cache_limit is None else parse_byte_count(cache_limit, what="`cache_limit`"),
            chosen_world=chosen_world(rank, num_ranks, world),
        )

    # ------------------------------------------------------------------ options and contents

    @Replaceable
    def streams(self) -> tuple[Stream, ...]:
        """The shard sets, as the user declared them."""
        return self._smalti.declared

    @setting(lambda self, value: setattr(self._smalti, "batch_size", checked(batch_size=value)))
    def batch_size(self) -> int | None:
        """Samples per rank and step."""
        return self._smalti.batch_size

    @setting(lambda self, value: setattr(self._smalti, "predownload", checked(predownload=value)))
    def predownload(self) -> int | None:
        """Samples to look ahead when fetching."""
        return self._smalti.predownload

    @setting(lambda self, value: setattr(self._smalti, "transform", value))
    def transform(self) -> Callable[[Any], Any] | None:
        """The constructor's `transform`. A value that a subclass assigns is its own, and never called here."""
        return self._smalti.transform

    @setting(lambda self, value: setattr(self._smalti, "include_ids", bool(value)))
    def include_ids(self) -> bool:
        """True if batches hold sample ids and positions."""
        return self._smalti.include_ids

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

    @Replaceable
    def replication(self) -> int:
        """Consecutive ranks that read the same samples."""
        return self._smalti.order.replication

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

    @Replaceable
    def is_placed(self) -> bool:
        """True if no iteration has begun since a state was loaded or an epoch chosen, or none at all."""
        return self._smalti.tracker.get().begun is None

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

        With one of MosaicML's orders, a state that MosaicML Streaming saved continues as well, in its order and
        within its limits: `docs/resume.md`.

        Raises:
            CursorError: the state is damaged, or was saved for another data set, version, split, seed or order; or
                new weights leave a stream without a sample in `stratified` batches.
        """
        self._smalti.load_state_dict(state)

    def begin_pass(self, batch_size: int | None = None) -> Pass:
        """Determine the start of an iteration, and record that its epoch began.

        `batch_size` is used if the dataset has none of its own.
        """
        return self._smalti.begin_pass(batch_size)

    def cursor_after(self, this_pass: Pass, steps: int) -> Cursor:
        """Return the cursor after this many steps of a pass; after all of them, the start of the next epoch."""
        return self._smalti.cursor_after(this_pass, steps)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this rank and worker, one by one, for one epoch or the rest of one."""
        for batch in self._smalti.batches(self._smalti.begin_pass(), sample_form(self)):
            yield from batch

    def batches(self) -> Iterator[Any]:
        """Yield the same samples in batches: as columns if `reads_columns`, else as lists of samples."""
        form = BatchForm.COLUMNS if reads_columns(self) else self.__getitem__
        return self._smalti.batches(self._smalti.begin_pass(), form)

    @Replaceable
    def reads_columns(self) -> bool:
        """True if batches can be read as columns: no sample transform, no overridden `__getitem__` or `get_item`."""
        return reads_columns(self)

    def planned(
        self, this_pass: Pass, worker: int = 0, num_workers: int = 1, *, num_readers: int = 1
    ) -> Iterator[Planned]:
        """Yield the steps of one loader worker with their sample ids; shards of later steps are prefetched.

        Args:
            this_pass: the pass to read.
            worker: number of the worker; it takes steps worker, worker + num_workers, ...
            num_workers: workers that share the rank's steps.
            num_readers: threads of this worker that read its steps at once.
        """
        return self._smalti.planned(this_pass, worker, num_workers, num_readers=num_readers)

    def read(self, step: StepBatch, ids: NDArray[np.int64], *, columns: bool) -> Any:
        """Return one batch, transformed: columns, or a list of samples. Thread-safe if the transform is."""
        return self._smalti.read(step, ids, BatchForm.COLUMNS if columns else sample_form(self))

    def division(self, this_pass: Pass) -> Division:
        """Return the positions of the order that this rank takes at each step of a pass."""
        return self._smalti.division(this_pass)

    def plan(self, this_pass: Pass) -> GlobalOrder:
        """Return the global order of a pass's epoch."""
        return self._smalti.plan(this_pass)

    def reading(self, this_pass: Pass) -> Reading:
        """Return this rank's part of a pass: its steps and their sample ids; pure."""
        return self._smalti.reading(this_pass)

    def stats(self, *, least: bool = True) -> CacheStats:
        """Return the cost of reading, with that in loader workers; with `least`, also the least possible."""
        return self._smalti.stats(least=least)

    def close(self) -> None:
        """Close open shards and end fetching threads; the next use opens the same versions."""
        self._smalti.close()

    def view(self: _Dataset) -> _Dataset:
        """Return a copy that shares the opened streams and the run's place."""
        return view_of(self, self._smalti.view())


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
    for slot in (each for base in kind.__mro__ for each in vars(base).values()):
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
    return BatchForm.ROWS if dataset._smalti.transforms_batches and reads_columns(dataset) else dataset.__getitem__
