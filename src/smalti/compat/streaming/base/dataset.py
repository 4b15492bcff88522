"""StreamingDataset with MosaicML Streaming's arguments, defaults, attributes and orders.

The attributes are plain: their values at the beginning of an epoch determine its order. The streams are opened by
`opening`, the order is from `batching`.

The place of a dataset in its epochs is counted as MosaicML Streaming counts it: an epoch that was read to its end is
not the next one yet, and a state that was saved there continues with an empty rest.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from math import ceil
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from smalti.catalog.table.shard_table import bytes_of
from smalti.compat.paths import with_parameters
from smalti.compat.streaming.base import batching
from smalti.compat.streaming.base.array import Array, Spanner, check_sample_id
from smalti.compat.streaming.base.constant import DEFAULT_TIMEOUT
from smalti.compat.streaming.base.format import readers_of
from smalti.compat.streaming.base.format.base import Reader
from smalti.compat.streaming.base.opening import log_that_nothing_was_evicted, max_shard_bytes, open_streams_of
from smalti.compat.streaming.base.registry_utils import construct_from_registry
from smalti.compat.streaming.base.stream import Stream, streams_registry
from smalti.compat.streaming.base.util import bytes_to_int, number_abbrev_to_int
from smalti.compat.streaming.base.world import World
from smalti.compat.streaming.errors import in_mosaicmls_words, mosaicmls_words
from smalti.compat.streaming.order.partition import PARTITIONS
from smalti.compat.streaming.order.planning import default_mosaic_nodes
from smalti.compat.streaming.order.shuffles import SHUFFLES
from smalti.cursor import WINDOW
from smalti.dataset.lookahead import planned_ahead
from smalti.dataset.resume import RunPlace, RunTracker
from smalti.errors import ChecksumMismatch, CursorError, ShardNotFound
from smalti.order.mixture.planning import BATCHINGS, SAMPLINGS
from smalti.torch.shared_progress import SharedProgress
from smalti.torch.worker_processes import end_with_program

_KEYS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
_OF_MIXTURES = ("sampling_method", "sampling_granularity", "batching_method")


@dataclass(frozen=True)
class Position:
    """A place in an epoch."""

    epoch: int
    """Number of the epoch, from 0; -1 in a state that was saved before the first one."""
    samples: int
    """Samples of the epoch that all ranks together have read."""
    state: Mapping[str, Any] | None = None
    """The loaded state, for a place that was loaded."""

    def to_state(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"epoch": self.epoch, "sample_in_epoch": self.samples, "state": self.state}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Position":
        """Return the position that `to_state` wrote."""
        return cls(state["epoch"], state["sample_in_epoch"], state["state"])


class EpochProgress(SharedProgress):
    """The position of a dataset, shared with its copies in loader workers.

    The loaded state is the place's `adopted` one: it applies to its epoch whenever that is read.
    """

    cursor_type = Position

    def _begin_alone(self, settle: Callable[[RunPlace], Position]) -> tuple[Position, bool]:  # type: ignore[override]
        """Begin an iteration of a dataset that was made in a loader worker, which counts its epochs alone."""
        return cast("tuple[Position, bool]", RunTracker.begin(self, cast("Any", settle)))


def start_of(place: RunPlace) -> Position:
    """Return the start of the next iteration: in the loaded state, unless that is of an earlier epoch."""
    loaded: Any = place.adopted
    if loaded is None or loaded.epoch < place.next_epoch:
        return Position(place.next_epoch, 0)
    return Position(loaded.epoch, loaded.samples)


def loaded_position(state: Mapping[str, Any]) -> Position:
    """Return the position of a saved state: of MosaicML Streaming, or of Smalti in one of MosaicML's orders.

    Raises:
        CursorError: a key is missing, or the state was saved in Smalti's own order.
        TypeError: the state has a value that JSON cannot hold.
    """
    try:
        json.dumps(state)
    except TypeError as error:
        raise TypeError(f"saved state: {error}; give what `state_dict` returned, also after JSON.") from error
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise CursorError(
            f"saved state: no {', '.join(map(repr, missing))} in it, found {', '.join(map(repr, state)) or 'nothing'}; "
            "give what `state_dict` returned.",
            missing=missing,
        )
    own = state.get("smalti")
    if isinstance(own, Mapping) and own.get("algorithm") == WINDOW:
        raise CursorError(
            "saved state: it was saved in Smalti's `window` order, which MosaicML Streaming does not have: continue it "
            "with `smalti.StreamingDataset`."
        )
    return Position(int(state["epoch"]), int(state["sample_in_epoch"]), dict(state))


def check_engine_state(state: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse a state of `smalti.StreamingDataset` that would continue in another order.

    Earlier releases of Smalti had MosaicML's orders in that class, too, and their states say which; MosaicML's own do
    not. `options` has the dataset's values, by argument.

    Raises:
        CursorError: the order of the state is not that of the dataset.
    """
    own = state.get("smalti")
    if not isinstance(own, Mapping):
        return
    saved = {"shuffle": own.get("shuffle")}
    if own.get("shuffle"):
        saved["shuffle_algo"] = own.get("algorithm")
        if own.get("algorithm") in {"py1e", "py1br"}:  # the others do not use it
            saved["shuffle_block_size"] = own.get("shuffle_block_size")
    mixture = own.get("mixture")
    if isinstance(mixture, Mapping):
        saved |= {name: mixture.get(name) for name in _OF_MIXTURES}
    for name, value in saved.items():
        here = options[name]
        if value != here and not (name == "shuffle_block_size" and here is None):
            raise CursorError(
                f"saved state: it was saved with `{name}={value!r}`, and this dataset has {here!r}: give the former to "
                "continue that run.",
                what=name,
                saved=value,
                found=here,
            )


__all__ = ["StreamingDataset"]

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))


class StreamingDataset(Array, IterableDataset[Any]):
    """Samples of one stream or a mixture of several, by id or iterated in one of MosaicML Streaming's orders.

    Each iteration is one epoch, or after `load_state_dict` the rest of one. Everything is opened in the constructor.
    A subclass may override `__getitem__` and `get_item`, and may have any attributes of its own.

    Args:
        streams: streams to mix; instead of `remote` and `local`.
        remote: URL or folder of the set; None to read `local` in place.
        local: folder for fetched shards; by default a temporary one.
        split: folder of the split, below both.
        download_retry: attempts for one shard.
        download_timeout: seconds without progress after which fetching a shard fails.
        validate_hash: hash that the index must have for every file; all hashes that it has are checked in any case.
        keep_zip: keep compressed shards after unpacking.
        epoch_size: samples of an epoch, such as 64000 or "64k", with relative weights or none.
        predownload: samples that a worker looks ahead; by default as `predownload` of `smalti.CacheOptions`.
        cache_limit: bytes that local copies may take, such as "100gb".
        sampling_method: `balanced` or `fixed`, for a stream of which an epoch takes a part.
        sampling_granularity: samples that are drawn from a shard together.
        partition_algo: `relaxed` or `orig`.
        num_canonical_nodes: runs that the order is woven from; None for 64 times the nodes with `py1s` and `py2s`, else
            as many as nodes.
        batch_size: samples per rank and step; needed to iterate.
        shuffle: shuffle the samples.
        shuffle_algo: `py1e`, `py1br`, `py1s`, `py2s` or `naive`.
        shuffle_seed: base seed, from 0.
        shuffle_block_size: samples within which a canonical node is shuffled; None for max(4,000,000 / canonical nodes,
            2^18).
        batching_method: `random`, `stratified`, `per_stream` or `device_per_stream`.
        allow_unsafe_types: read `pkl` columns, which can run code.
        replication: consecutive ranks that read the same samples.
        stream_name: name in `streams_registry` of the class that `remote` and `local` are given to.
        stream_config: further arguments for that class.

    Raises:
        ValueError: an argument is out of range, or contradicts others or the data.
        RuntimeError: a stream has no samples, or no index file.
        FileNotFoundError: a remote stream has no index file.
    """

    def __init__(  # noqa: PLR0913 - MosaicML's signature
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = DEFAULT_TIMEOUT,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: dict[str, Any] | None = None,
    ) -> None:
        self.sampling_method = sampling_method
        self.sampling_granularity = sampling_granularity
        self.partition_algo = partition_algo
        self.num_canonical_nodes = num_canonical_nodes
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.shuffle_algo = shuffle_algo
        self.shuffle_seed = shuffle_seed
        self.shuffle_block_size = shuffle_block_size
        self.batching_method = batching_method
        self.allow_unsafe_types = allow_unsafe_types
        self.replication = replication
        self.initial_physical_nodes: int | None = None
        self.epoch_seed_change = shuffle and sampling_method == "balanced"
        if bool(streams) == (bool(remote) or bool(local)):
            raise ValueError("You must provide either `streams` or `remote`/`local`, but not both.")
        self._smalti_check_options()
        self.predownload = _checked_predownload(predownload, batch_size)
        self._smalti_chooses_lookahead = predownload is None
        size = None if not epoch_size else number_abbrev_to_int(epoch_size)
        if size is not None and size < 0:
            raise ValueError(f"Epoch size cannot be negative. Received {size}.")
        # The worlds in which this process is a rank: as it is, and with replica groups as ranks.
        world = self._unique_rank_world = self._unique_worker_world = World.detect()
        self._parallel_rank_world = world.copy() if replication is None else world.replicate(replication)
        self._parallel_worker_world = self._parallel_rank_world
        default = {
            "remote": remote,
            "local": local,
            "split": split,
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": keep_zip,
        }
        if streams:
            for stream in streams:
                stream.apply_default(default)
        else:
            config = (stream_config or {}) | default
            streams = [construct_from_registry(stream_name, streams_registry, partial_function=False, kwargs=config)]
        Stream.validate_weights(streams)
        self.streams = streams
        self.num_streams = len(streams)
        limit = bytes_to_int(cache_limit) if isinstance(cache_limit, str) else cache_limit
        self.cache_limit = limit
        self._smalti_open(limit)
        self.epoch_size = Stream.apply_weights(self.streams, self.samples_per_stream, size, shuffle_seed)
        self.length = ceil(self.epoch_size / self._parallel_rank_world.num_ranks)
        self._smalti_progress = EpochProgress()

    def _smalti_check_options(self) -> None:
        """Check the options that need no data.

        Raises:
            ValueError: one of them is out of range.
        """
        _check_name("sampling method", self.sampling_method, SAMPLINGS)
        if self.sampling_granularity <= 0:
            raise ValueError(
                f"`sampling_granularity` must be a positive integer, but got: {self.sampling_granularity}."
            )
        _check_name("batching method", self.batching_method, BATCHINGS)
        if self.shuffle_seed < 0:
            raise ValueError(f"`shuffle_seed` must be a non-negative integer, but got: {self.shuffle_seed}.")
        _check_name("partition algorithm", self.partition_algo, PARTITIONS)
        if self.shuffle:
            _check_name("shuffle algorithm", self.shuffle_algo, SHUFFLES)

    def _smalti_open(self, limit: int | None) -> None:
        """Open the streams, and set all attributes that follow from their indexes.

        Raises:
            ValueError: the cache limit is too low, or two streams have one local folder.
        """
        self._smalti_opened = open_streams_of(self.streams, limit or None, unsafe=self.allow_unsafe_types)
        sizes = [np.asarray(each.shard_sizes, np.int64) for each in self._smalti_opened.sets]
        self.samples_per_shard = np.concatenate(sizes)
        self.sample_offset_per_shard = self.samples_per_shard.cumsum() - self.samples_per_shard
        self.shards_per_stream = np.array([each.size for each in sizes], np.int64)
        self.shard_offset_per_stream = self.shards_per_stream.cumsum() - self.shards_per_stream
        self.samples_per_stream = np.array([each.sum() for each in sizes], np.int64)
        self.sample_offset_per_stream = self.samples_per_stream.cumsum() - self.samples_per_stream
        self.stream_per_shard = np.repeat(np.arange(self.num_streams, dtype=np.int64), self.shards_per_stream)
        self.num_shards = self.samples_per_shard.size
        self.num_samples = int(self.samples_per_shard.sum())
        self.spanner = Spanner(self.samples_per_shard)
        if limit:
            self.max_shard_size_across_all_streams = np.int64(max_shard_bytes(self._smalti_opened.sets))

    # ------------------------------------------------------------------ samples and shards

    @property
    def size(self) -> int:
        """Samples of all streams, each counted once."""
        return self.num_samples

    def __len__(self) -> int:
        """Return the samples per rank and epoch."""
        return self.length

    def __getitem__(self, at: Any) -> Any:
        """Return the sample with an id, negative ones from the end; else a list of samples, as the ids are nested.

        Raises:
            IndexError: there is no such sample.
            ValueError: `at` is no id, slice, list or array.
        """
        if type(at) is int and at >= 0:  # the usual case
            return self.get_item(at)
        return super().__getitem__(at)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:  # noqa: ARG002 - MosaicML's signature
        """Return one sample, whose shard is fetched if it is not local.

        Args:
            sample_id: id of the sample, in [0, size).
            retry: has no effect; `download_retry` is the number of attempts.

        Raises:
            IndexError: there is no such sample.
            RuntimeError: its shard is gone.
        """
        check_sample_id(sample_id, self.num_samples)
        try:
            return self._smalti_opened.sample(int(sample_id))
        except (ChecksumMismatch, ShardNotFound) as error:
            raise in_mosaicmls_words(error) from error

    @cached_property
    def shards(self) -> list[Reader]:
        """The shards of all streams; made when they are first asked for, as iteration does not need them."""
        readers: list[Reader] = []
        for stream, each in zip(self.streams, self._smalti_opened.sets, strict=True):
            if stream._overrides("get_shards"):
                readers += stream.get_shards(self._unique_rank_world, self.allow_unsafe_types)
            else:
                readers += readers_of(each, stream.local, stream.split)
        return readers

    @property
    def cache_usage(self) -> int:
        """Bytes of the shards and index files that are local, whichever process fetched them."""
        total = self._smalti_opened.cache.kept_bytes()
        for stream, each in zip(self.streams, self._smalti_opened.sets, strict=True):
            total += stream.get_index_size()
            if not stream._is_fetched:
                total += int(bytes_of(each.shards).raw.sum())
        return total

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - MosaicML's
        """Fetch a shard.

        Args:
            shard_id: number of the shard over all streams.
            blocking: has no effect: a shard that another process is fetching is waited for in any case.
        """
        with mosaicmls_words():
            self._smalti_opened.cache.shard(int(shard_id))

    def evict_shard(self, shard_id: int) -> None:
        """Remove the local copies of a shard; a shard of a set that is read where it lies stays."""
        stream = self.streams[self.stream_per_shard[shard_id]]
        if not self._smalti_opened.cache.evict(int(shard_id)) and not stream._is_fetched:
            log_that_nothing_was_evicted()

    def evict_coldest_shard(self) -> None:
        """Remove the local copies of the shard that is needed last.

        Raises:
            ValueError: no shard is local.
        """
        if not self._smalti_opened.cache.evict_last_needed():
            raise ValueError(
                "Attempted shard eviction, but there are no shards present locally to evict. Your cache limit may be "
                "too low."
            )

    # ------------------------------------------------------------------ epochs and states

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration reads, unless a loaded state is of a later one."""
        return self._smalti_progress.get().next_epoch

    @next_epoch.setter
    def next_epoch(self, next_epoch: int) -> None:
        self._smalti_progress.set(replace(self._smalti_progress.get(), next_epoch=int(next_epoch)))

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # noqa: FBT001 - MosaicML's signature
        """Return the state after `num_samples` samples of the current epoch, counted over all ranks.

        Args:
            num_samples: samples that all ranks together have read; each replica group counts as one rank.
            from_beginning: count from the epoch's start; otherwise from where this iteration began.
        """
        world = self._parallel_rank_world
        epoch, offset = self._resume(world, self.next_epoch - 1)
        nodes = self.initial_physical_nodes
        return {
            "epoch": epoch,
            "sample_in_epoch": num_samples if from_beginning else offset + num_samples,
            "num_canonical_nodes": self.num_canonical_nodes,
            "shuffle_seed": self.shuffle_seed,
            "initial_physical_nodes": world.num_nodes if nodes is None else nodes,
        }

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Make the next iteration continue from a saved state, also one of MosaicML Streaming.

        A state of an epoch before `next_epoch` has no effect, as in MosaicML; set `next_epoch` to go back.

        A state that an earlier release's `smalti.StreamingDataset` saved in one of MosaicML's orders continues, too.

        Raises:
            CursorError: `obj` is no such state, or was saved in another order.
            TypeError: `obj` has a value that JSON cannot hold.
        """
        loaded: Any = loaded_position(obj)
        place = self._smalti_progress.get()
        check_engine_state(obj, vars(self))
        if loaded.epoch < place.next_epoch and loaded.epoch >= 0:
            logger.warning(
                "The loaded state is of epoch %d, and this dataset is at epoch %d: it has no effect. To go back, set "
                "`next_epoch` first.",
                loaded.epoch,
                place.next_epoch,
            )
        self._smalti_progress.set(replace(place, adopted=loaded))

    def _resume(self, world: World, epoch: int) -> tuple[int, int]:
        """Return epoch and sample at which to be, `epoch` or that of the loaded state, whose options are taken over.

        Options that were not given get their defaults for `world`.
        """
        place = self._smalti_progress.get()
        start = start_of(replace(place, next_epoch=epoch))
        loaded: Any = place.adopted
        if loaded is not None and loaded.epoch >= epoch:
            self.num_canonical_nodes = loaded.state["num_canonical_nodes"]
            self.shuffle_seed = loaded.state["shuffle_seed"]
            self.initial_physical_nodes = loaded.state.get("initial_physical_nodes")
        elif not self.num_canonical_nodes:
            if self.shuffle_algo not in {"py1s", "py2s"} and not world.worker_of_rank:
                logger.log(
                    logging.INFO if loaded is None else logging.WARNING,
                    "Because `num_canonical_nodes` was not specified, and `shuffle_algo` is %s, it will default to be "
                    "equal to physical nodes.",
                    self.shuffle_algo,
                )
            self.num_canonical_nodes = default_mosaic_nodes(self.shuffle_algo, world.num_nodes)
        if self.shuffle_block_size is None:
            if not world.worker_of_rank:
                logger.info(
                    "Because `shuffle_block_size` was not specified, it will default to max(4_000_000 // "
                    "num_canonical_nodes, 1 << 18) if num_canonical_nodes is not None, otherwise 262144."
                )
            nodes = self.num_canonical_nodes
            self.shuffle_block_size = 1 << 18 if nodes is None else max(4_000_000 // nodes, 1 << 18)
        return start.epoch, start.samples

    def resample_streams(self, epoch: int, stream_id: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what an epoch takes of the streams; an override does not change what the dataset reads.

        Args:
            epoch: number of the epoch.
            stream_id: number of the only stream to take; None for all.

        Returns:
            Sizes of the shards and parts of shards, and the sample id of each sample; both int64.
        """
        taken = batching.sampling_of(self).resampled(epoch, stream_id)
        ids = taken.sample_ids(np.arange(len(taken), dtype=np.int64))
        return taken.units.astype(np.int64), ids.astype(np.int64)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this rank and worker, for one epoch or the rest of one."""
        number = None
        if get_worker_info() is not None:
            end_with_program()
            number = self._smalti_progress.enter()
        return self._smalti_each_sample(number)

    def _smalti_each_sample(self, iteration: int | None) -> Iterator[Any]:
        self._unique_worker_world = self._unique_rank_world.detect_workers()
        self._parallel_worker_world = self._parallel_rank_world.detect_workers()
        settle: Any = start_of
        start, _ = self._smalti_progress.begin(settle, iteration)
        epoch, sample_in_epoch = self._resume(self._parallel_worker_world, start.epoch)
        if not isinstance(self.batch_size, int):
            raise ValueError(  # noqa: TRY004 - MosaicML's class
                "Please pass `batch_size` to StreamingDataset. It should be set the same as the DataLoader, and is the "
                "number of samples per batch, for each device."
            )
        world = self._parallel_worker_world
        run = batching.run_of(self, world)
        if self._unique_worker_world.is_local_leader:
            if self.replication is not None and self.replication > 1:
                logger.warning(
                    "The `replication` arg has been set to %d and training is resuming from sample %d. Make sure you "
                    "are accounting for sample replication when using StreamingDataset's `state_dict` method for "
                    "deterministic resumption: each replica group counts as one rank.",
                    self.replication,
                    sample_in_epoch,
                )
            batching.warn_of(run, epoch, sample_in_epoch)
        reading = batching.reading_of(run, world, epoch, sample_in_epoch)
        ahead = None if self._smalti_chooses_lookahead else self.predownload
        steps = planned_ahead(
            reading,
            self._smalti_opened,
            worker=world.worker_of_rank,
            num_workers=world.workers_per_rank,
            num_readers=1,
            predownload=ahead,
        )
        for _, ids in steps:
            for sample_id in ids.tolist():
                yield self[sample_id]


def _check_name(what: str, name: str, allowed: Any) -> None:
    if name not in allowed:
        *others, last = (f"`{each}`" for each in allowed)
        names = f"{', '.join(others)}{',' if len(others) > 1 else ''} or {last}"
        raise ValueError(f"Invalid {what}: {name}. Must be one of {names}.")


def _checked_predownload(predownload: int | None, batch_size: int | None) -> int:
    """Return the samples to look ahead, with a warning where they are less than a batch."""
    if predownload is None:
        logger.info(
            "Because `predownload` was not specified, it will default to 8*batch_size if batch_size is not None, "
            "otherwise 64."
        )
        return 64 if batch_size is None else 8 * batch_size
    if batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload < batch_size ({predownload} < {batch_size}). This may result in slower batch time. "
            "Recommendation is to set predownload to at-least batch_size.",
            stacklevel=3,
        )
    return predownload


_LATER = {
    "streams", "sampling_method", "sampling_granularity", "batching_method", "allow_unsafe_types", "replication",
    "stream_name", "stream_config",
}  # fmt: skip
"""Arguments of `StreamingDataset` that the dataset classes of `vision`, `text` and `multimodal` do not take."""
_OLDER = {"download_timeout": 60, "partition_algo": "orig", "shuffle_algo": "py1s", "shuffle_block_size": 1 << 18}
"""Their defaults, as MosaicML has them, which are older than those of `StreamingDataset`."""
_TAKEN = {
    name: parameter.replace(default=_OLDER.get(name, parameter.default))
    for name, parameter in signature(StreamingDataset).parameters.items()
    if name not in _LATER
}


def with_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `StreamingDataset`, completed by the defaults of `vision`, `text` and `multimodal`.

    Raises:
        TypeError: These classes take no such argument.
    """
    unknown = sorted(arguments.keys() - _TAKEN.keys())
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}; expected one of {', '.join(_TAKEN)}")
    return {name: arguments.get(name, parameter.default) for name, parameter in _TAKEN.items()}


with_signature = with_parameters(_TAKEN.values())
"""Decorator of an `__init__` that takes these arguments as `**arguments`."""
