"""StreamingDataset, the part that needs no torch: samples by id, epochs and cursors, batches in the planned order.

Wiring only: the order is `smalti.order`'s, the bytes are `smalti.stream`'s. `smalti.torch` makes it a torch dataset.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats
from smalti.catalog import Manifest
from smalti.cursor import WINDOW, Cursor, MixedStream
from smalti.dataset.arguments import check_given, chosen_world, declared_streams, number_of_samples
from smalti.dataset.foresight import planned_ahead
from smalti.dataset.history import History
from smalti.dataset.mixing import MixingOptions, Sizes, begun
from smalti.dataset.passes import DEFAULT_SEED, Opened, OrderOptions, Pass, Progress
from smalti.dataset.reading import Planned, Reading, cursor_after, reading_world
from smalti.dataset.resuming import at_epoch, first_cursor, saved_cursor
from smalti.dataset.tagged import as_saved
from smalti.errors import SmaltiError
from smalti.format.indexing import pick
from smalti.format.sizes import parse_byte_count
from smalti.order import Division, GlobalOrder, StepBatch
from smalti.stream import OpenStreams, Stream, open_streams
from smalti.world import World, detect_world

_Dataset = TypeVar("_Dataset", bound="StreamingDataset")

_MOST_TOLD = 64  # sample ids in a message


class StreamingDataset:
    """Samples of a shard set, or of a mixture of several, in an elastic, deterministic order; iterate it, or ask by id.

    Construction opens nothing. The order depends only on the data set's version, seed, epoch, canonical nodes and
    these options: not on ranks, workers, cache or timing. Each iteration is one epoch, or after `load_state_dict` the
    rest of one.

    Args:
        streams: shard sets to mix, each with its weight; instead of `remote` and `local`. What one of them leaves open
            is as it is given here. Sample ids count over all of them, laid end to end.
        remote: URL or folder of the data set's root (`s3://`, `gs://`, `abfs://`, `dbfs:/Volumes/`, or a path).
        local: folder for fetched shards; by default the user's cache folder. Without `remote`, the data set itself.
        split: split to read, such as `train`.
        version: version to read; by default the newest when first used.
        tag: name of the version to read, instead of its number: the version that has it when first used. A state that
            was saved when the tag named another version is gone on with in that one, with a warning.
        epoch_size: samples of an epoch, such as 64000, "64k" or "1.5M"; by default what the streams' weights take.
        batch_size: samples per rank and step; needed to iterate.
        shuffle: whether to shuffle; otherwise samples come in stored order.
        shuffle_algo: `window`, our order, or for runs that were begun with MosaicML Streaming one of its own, bit for
            bit: `py1e`, `py1br`, `py1s`, `py2s`, `naive`. Its defaults then hold for what is not given.
        shuffle_seed: base seed, in [0, 2^63).
        num_canonical_nodes: runs that the order is woven from; by default 64, fewer for small sets.
        partition_algo: how MosaicML's orders are dealt to hosts: `relaxed` or `orig`.
        shuffle_block_size: samples within which shuffling mixes; by default 2^20 over all runs, at least 4,096 each.
        tail: an incomplete last step is filled with marked repeats (`pad`), left `short`, or left out (`drop`); by
            default `pad`, and `short` with MosaicML's orders.
        replication: consecutive ranks that read the same samples, as tensor or sequence parallelism needs it.
        sampling_method: of a stream that an epoch takes a part of, `balanced` goes on where the last epoch stopped,
            `fixed` takes the same part each time.
        sampling_granularity: samples that are drawn from a shard together, from 1.
        batching_method: `random` mixes all streams; `stratified` gives each global batch the same number of each;
            `per_stream` and `device_per_stream` take each global batch, or each rank's, from one stream.
        change_weights: continue a state that was saved with other weights, and record that; otherwise it is refused.
        download_retry: attempts per shard.
        download_timeout: seconds with less than 64 KiB of progress after which fetching a shard fails; in all, it may
            take this long and the time of its size at 64 KiB/s.
        predownload: samples to look ahead when fetching; by default 8 batches or four shards.
        validate_hash: hash that every file must have in the index; all hashes that are there are checked anyway.
        cache_limit: bytes that the copies of these shards may take here, such as "100gb" (units of 1024), whoever made
            them; what is needed last is removed first. By default there is no bound.
        keep_zip: keep compressed shards in the cache after decompressing.
        transform: called with each sample; with an attribute `on_batches = True`, with each batch of columns.
        include_ids: adds `_sample_id` and `_position` (place in the epoch's global order, -1 for a repeat), and with
            several streams `_stream`, the number of the sample's.
        rank: number of this reader among `num_ranks`, such as the data-parallel coordinate of a device mesh.
        num_ranks: how many readers divide the epoch; each counts as a host of its own.
        world: ranks and hosts, instead of these two; by default what the launcher's environment says.
        storage_options: passed to fsspec's file system.
        allow_unsafe_types: read `pkl` columns, which can run code.
        logical: give values as what they stand for (dates, truth values, nulls: docs/types.md), not as they are stored.
    """

    def __init__(  # noqa: PLR0913 - a border: MosaicML's wide constructor, turned into option objects at once
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
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
        partition_algo: str = "relaxed",
        tail: str | None = None,
        replication: int | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        batching_method: str = "random",
        change_weights: bool = False,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        predownload: int | None = None,
        validate_hash: str | None = None,
        cache_limit: int | str | None = None,
        keep_zip: bool = False,
        transform: Callable[[Any], Any] | None = None,
        include_ids: bool = False,
        rank: int | None = None,
        num_ranks: int | None = None,
        world: World | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_unsafe_types: bool = False,
        logical: bool = True,
    ) -> None:
        check_given(batch_size=batch_size, num_canonical_nodes=num_canonical_nodes, predownload=predownload)
        check_given(shuffle_block_size=shuffle_block_size, download_retry=download_retry, shuffle_seed=shuffle_seed)
        check_given(replication=replication, rank=rank, num_ranks=num_ranks, sampling_granularity=sampling_granularity)
        check_given(tail="pad" if tail is None else tail, shuffle_algo=shuffle_algo, partition_algo=partition_algo)
        check_given(sampling_method=sampling_method, batching_method=batching_method)
        self.streams = declared_streams(streams, remote=remote, local=local, version=version, tag=tag)
        """The shard sets, as they were declared."""
        self._stream_options = tuple(
            stream.options(
                split=split,
                download_retry=download_retry,
                download_timeout=download_timeout,
                validate_hash=validate_hash,
                keep_zip=keep_zip,
                storage_options=dict(storage_options or {}),
                allow_unsafe_types=allow_unsafe_types,
                logical=logical,
            )
            for stream in self.streams
        )
        self._mixing = MixingOptions(
            weights=tuple(stream.weight for stream in self.streams),
            epoch_size=number_of_samples("epoch_size", epoch_size),
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            batching_method=batching_method,
            change_weights=change_weights,
        )
        self._order_options = OrderOptions(
            shuffle=shuffle,
            seed=shuffle_seed,
            canonical_nodes=num_canonical_nodes,
            block_size=shuffle_block_size,
            tail=tail,
            algorithm=shuffle_algo,
            partition=partition_algo,
            replication=replication or 1,
        )
        self.batch_size = batch_size
        self.predownload = predownload
        self.transform = transform
        self.include_ids = include_ids
        self._cache_limit = None if cache_limit is None else parse_byte_count(cache_limit, what="`cache_limit`")
        self._world = chosen_world(rank, num_ranks, world)
        self._opened = Opened()
        self._history = History()
        self._progress = Progress()
        # Of the latest two passes, such as the one that is read and the next one, whose length a loader is asked for:
        # with batches of streams in MosaicML's orders, only planning the epoch tells it.
        self._known_divisions: tuple[tuple[Any, Division], ...] = ()

    # ------------------------------------------------------------------ what there is

    @property
    def stream(self) -> OpenStreams:
        """The opened shard sets, as one run of samples; the first use opens them."""
        stream = self._opened.stream
        if stream is None:
            options, closed = self._stream_options, self._opened.closed
            stream = self._opened.stream = open_streams(options, closed, cache_limit=self._cache_limit)
        return stream

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The version that is read of each stream: number, digest, schema, shards, lineage."""
        return tuple(each.manifest for each in self.stream.sets)

    @property
    def manifest(self) -> Manifest:
        """The same of the only stream.

        Raises:
            SmaltiError: there are several.
        """
        if len(self.streams) > 1:
            raise SmaltiError(f"this dataset reads {len(self.streams)} streams, each with a manifest: `manifests`.")
        return self.manifests[0]

    @property
    def size(self) -> int:
        """Samples of all streams, each once."""
        return len(self.stream)

    num_samples = size
    """The same, under MosaicML's name."""

    @property
    def epoch_size(self) -> int:
        """Samples of the next iteration's epoch: what the streams' weights take."""
        return self.cursor().epoch_size

    @property
    def num_streams(self) -> int:
        """Shard sets that are mixed."""
        return len(self.streams)

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return len(self.stream.shards)

    def __len__(self) -> int:
        """Samples per rank and epoch."""
        return math.ceil(self.epoch_size / reading_world(self.world, self._order_options).num_ranks)

    @property
    def world(self) -> World:
        """Ranks and hosts that share the epoch, those included that read the same samples."""
        return self._world if self._world is not None else detect_world()

    @property
    def replication(self) -> int:
        """Consecutive ranks that read the same samples."""
        return self._order_options.replication

    def __getitem__(self, at: Any) -> Any:
        """The sample with this id, transformed, or lists of samples for a slice, a list (maybe of lists) or an array.

        Negative ids count from the end. A subclass may override this, or `get_item`; loaders honour it.

        Raises:
            IndexError: no such sample.
            ValueError: `at` is none of these.
        """
        if type(at) is int and at >= 0:  # the common case, in the fewest steps
            return self.get_item(at)
        return pick(at, self.size, self.get_item, self.stream.root)

    def get_item(self, sample_id: int) -> Any:
        """One sample, transformed; `sample_id` in [0, size), else an IndexError."""
        stream = self._opened.stream or self.stream
        if not 0 <= sample_id < len(stream):
            raise IndexError(f"sample {sample_id} of {stream.root}: it has samples 0 to {len(stream) - 1}.")
        sample = stream.sample(sample_id)
        return sample if self.transform is None or self._transforms_batches else self.transform(sample)

    # ------------------------------------------------------------------ epochs and cursors

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration reads, counting from 0."""
        return self._progress.next_epoch if self._progress.resume is None else self._progress.resume.epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration read `epoch` from its start."""
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"`epoch` must be a whole number from 0, found {epoch!r}.")
        self._progress.next_epoch, self._progress.resume, self._progress.begun = epoch, None, None
        self._progress.set_by_user = True

    def cursor(self) -> Cursor:
        """Where the next iteration begins."""
        if self._progress.resume is not None:
            return self._progress.resume
        return self._fresh_cursor(self._progress.next_epoch)

    def cursor_at_start(self) -> Cursor:
        """The start of the next iteration's epoch."""
        return self._fresh_cursor(self.next_epoch)

    @property
    def is_placed(self) -> bool:
        """Whether no iteration began since a state was loaded or an epoch chosen, or at all."""
        return self._progress.begun is None

    def state_dict(self, num_samples: int = 0, from_beginning: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - MosaicML's signature
        """The state after `num_samples` global samples of the epoch at hand; loaders count for you.

        The epoch at hand is that of the latest iteration, or before the first one that of the next.

        Args:
            num_samples: samples that all ranks together consumed, those of ranks that replicate others not counted.
            from_beginning: counted from the epoch's start; otherwise from where the iteration began.
        """
        cursor = self._progress.begun or self.cursor()
        before = cursor.samples if from_beginning else 0
        return cursor.advanced(num_samples - before).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where `state` was saved, on any world, worker count or batch size.

        With one of MosaicML's orders, a state that MosaicML Streaming saved is continued as well, in its order and
        within its limits: `docs/resume.md`.

        Raises:
            CursorError: the state is damaged, or was saved for another data set, version, split, seed or order.
        """
        options = self._order_options
        readers = reading_world(self.world, options)
        if not self._history.begun:  # else loader workers may hold what is open
            self._opened.stream = as_saved(self._stream_options, self.stream, state, self._cache_limit)
        cursor = saved_cursor(
            state,
            self._first_cursor(),
            options,
            num_ranks=readers.num_ranks,
            sizes=self._sizes,
            change_weights=self._mixing.change_weights,
        )
        if self.batch_size is not None:
            begun(cursor, readers, self.batch_size)  # what it would refuse then is refused now
        self._progress.resume = self._progress.adopted = cursor
        self._progress.begun = None

    def begin_pass(self, batch_size: int | None = None) -> Pass:
        """Settles where an iteration begins, and counts its epoch as begun.

        Args:
            batch_size: samples per rank and step, if the dataset has no batch size of its own.
        """
        readers = reading_world(self.world, self._order_options)
        start = begun(self.cursor(), readers, self.batch_size or batch_size)
        self._progress.resume, self._progress.begun = None, start
        self._progress.next_epoch = start.epoch + 1
        this_pass = Pass(start, self.world)
        if size := self.batch_size or batch_size:
            self._history.begin(Reading(this_pass, self._sizes, size, self._order_options), self.stream)
        return this_pass

    def cursor_after(self, this_pass: Pass, steps: int) -> Cursor:
        """Where the run stands after so many steps of a pass; after all of them, the start of the next epoch."""
        return cursor_after(this_pass.start, self.division(this_pass), steps)

    @property
    def _sizes(self) -> Sizes:
        return [each.shard_sizes for each in self.stream.sets]

    def _first_cursor(self) -> Cursor:
        sets = self.stream.sets
        mixed = [MixedStream(each.manifest.digest, each.options.split, each.num_samples) for each in sets]
        world = reading_world(self.world, self._order_options)
        return first_cursor(self._order_options, world, mixed, self._sizes, self._mixing)

    def _fresh_cursor(self, epoch: int) -> Cursor:
        return at_epoch(self._progress.adopted or self._first_cursor(), epoch, self._sizes)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        """Samples of one epoch (or the rest of one), this rank's and worker's part, one by one."""
        for batch in self._batches(self.begin_pass(), columns=False):
            yield from batch

    def batches(self) -> Iterator[Any]:
        """The same as whole batches: columns where nothing stands in the way, else lists of samples."""
        return self._batches(self.begin_pass(), columns=self.reads_columns)

    @property
    def reads_columns(self) -> bool:
        """Whether batches can be read as columns: no per-sample transform, no overridden way to a sample."""
        own = all(getattr(type(self), way) is getattr(StreamingDataset, way) for way in ("__getitem__", "get_item"))
        return own and (self.transform is None or self._transforms_batches)

    @property
    def _transforms_batches(self) -> bool:
        return bool(getattr(self.transform, "on_batches", False))

    def _worker(self) -> tuple[int, int]:
        """Number of this loader worker, and how many there are."""
        return 0, 1

    def _batches(self, this_pass: Pass, *, columns: bool) -> Iterator[Any]:
        for step, ids in self.planned(this_pass, *self._worker()):
            yield self.read(step, ids, columns=columns)

    def planned(
        self, this_pass: Pass, worker: int = 0, num_workers: int = 1, *, num_readers: int = 1
    ) -> Iterator[Planned]:
        """The steps of one loader worker and the sample ids to read at each; shards are fetched as it goes.

        Args:
            this_pass: which part of which epoch.
            worker: number of the worker; it takes steps worker, worker + num_workers, ...
            num_workers: workers that share the rank's steps.
            num_readers: threads that read this worker's steps at once, each of which looks ahead.
        """
        place = {"worker": worker, "num_workers": num_workers, "num_readers": num_readers}
        return planned_ahead(self.reading(this_pass), self.stream, predownload=self.predownload, **place)

    def read(self, step: StepBatch, ids: NDArray[np.int64], *, columns: bool) -> Any:
        """One batch, transformed: columns, or a list of samples. Thread-safe where the transform is."""
        return self._read_columns(step, ids) if columns else self._read_samples(step, ids)

    def division(self, this_pass: Pass) -> Division:
        """Who reads what in a pass: which positions of the order this rank takes at which step."""
        asked, known = (this_pass, self.batch_size, self._order_options), self._known_divisions  # threads replace it
        for of, division in known:
            if of == asked:
                return division
        division = self.reading(this_pass).division
        self._known_divisions = ((asked, division), *known[:1])
        return division

    def plan(self, this_pass: Pass) -> GlobalOrder:
        """The global order of a pass's epoch."""
        return self.reading(this_pass).plan

    def reading(self, this_pass: Pass) -> Reading:
        """One rank's part of a pass: its steps and their sample ids; pure."""
        if self.batch_size is None:
            raise ValueError(
                "`batch_size` is needed to iterate a StreamingDataset: who reads what depends on it. Give it to the "
                "dataset, or use StreamingDataLoader(dataset, batch_size=...)."
            )
        return Reading(this_pass, self._sizes, self.batch_size, self._order_options)

    def _read_columns(self, step: StepBatch, ids: NDArray[np.int64]) -> Any:
        columns = self.stream.batch(ids)
        if self.include_ids:
            columns |= self._ids(step, ids)
        if self.transform is None:
            return columns
        try:
            return self.transform(columns)
        except Exception as error:
            more = ", ..." if len(ids) > _MOST_TOLD else ""
            self._note(error, f"transforming a batch of samples {', '.join(map(str, ids[:_MOST_TOLD].tolist()))}{more}")
            raise

    def _read_samples(self, step: StepBatch, ids: NDArray[np.int64]) -> list[Any]:
        samples = [self._noted_sample(sample_id) for sample_id in ids.tolist()]
        if self.include_ids:
            marks = {name: values.tolist() for name, values in self._ids(step, ids).items()}
            for at, sample in enumerate(samples):
                sample |= {name: values[at] for name, values in marks.items()}
        return samples

    def _noted_sample(self, sample_id: int) -> Any:
        try:
            return self[sample_id]
        except Exception as error:
            self._note(error, f"reading sample {sample_id}")
            raise

    def _note(self, error: Exception, doing: str) -> None:
        """Says what an error of the user's own code was about, in its traceback."""
        told = isinstance(error, SmaltiError) and "sample_id" in error.facts
        if not told and hasattr(error, "add_note"):  # from Python 3.11 on
            digests = ", ".join(manifest.digest[:12] for manifest in self.manifests)
            error.add_note(f"while {doing} of {self.stream.root}, version digest {digests}")

    def _ids(self, step: StepBatch, ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        marks = {"_sample_id": ids, "_position": step.positions}
        return marks | {"_stream": self.stream.stream_of(ids)} if len(self.streams) > 1 else marks

    def stats(self, *, least: bool = True) -> CacheStats:
        """What reading has cost, here and in loader workers; `least`: with the least it can, counted from the order."""
        return self._history.stats(self.stream, least=least)

    def close(self) -> None:
        """Lets go of open shards and fetching threads; when used again, the dataset opens the same versions."""
        if self._opened.stream is not None:
            self._opened.stream.close()
            self._opened.stream, self._opened.closed = None, self._opened.stream

    def view(self: _Dataset) -> _Dataset:
        """A copy that shares the opened shard set and the progress, for a loader to change."""
        return copy.copy(self)
