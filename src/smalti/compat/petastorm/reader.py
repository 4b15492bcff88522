"""make_batch_reader: Petastorm's arguments turned into option objects, and the refused make_reader."""

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from smalti.attributes import check_choice, whole_number, whole_or_none
from smalti.compat.petastorm.reading.batch_reader import BatchReader
from smalti.compat.petastorm.reading.parquet import UNISCHEMA_KEY, ParquetSet, open_set
from smalti.compat.petastorm.reading.rows import DiskCache, ReaderOptions, RowReader, kept_rows
from smalti.compat.petastorm.transform import TransformSpec, transform_of
from smalti.compat.petastorm.unischema import UnischemaField, chosen_columns
from smalti.conversion.sources.parquet import read_footer
from smalti.cursor import MAX_BLOCK, MAX_CANONICAL_NODES, MAX_SEED
from smalti.dataset import DEFAULT_SEED
from smalti.dataset.order import RunOrder
from smalti.errors import FormatError, StoreNotFound, WorldMismatch
from smalti.order import TAILS
from smalti.redaction import redact_address
from smalti.world import World, detect_ranks

LOCAL_DISK_CACHE = "local-disk"
NULL_CACHE = "null"
Reader = BatchReader
"""Petastorm's name, for annotations and `isinstance`; `make_batch_reader` makes one."""
_log = logging.getLogger(__name__)
_HELD_BYTES = 1 << 30
_TIMEOUT_SECONDS = 600.0


def make_batch_reader(  # noqa: PLR0913, PLR0917 -- Petastorm's signature
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: Sequence[str | UnischemaField] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int = 4,
    results_queue_size: int | None = None,
    seed: int | None = None,
    shuffle_rows: bool | None = None,  # noqa: FBT001 -- Petastorm's signature, here and below
    shuffle_row_groups: bool = True,  # noqa: FBT001, FBT002
    shuffle_row_drop_partitions: int = 1,
    predicate: Any = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | os.PathLike[str] | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs",  # noqa: ARG001 -- accepted and ignored
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,  # noqa: ARG001, FBT001, FBT002
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,  # noqa: ARG001, FBT001, FBT002
    *,
    batch_size: int = 1024,
    tail: str | None = None,
    epoch: int | None = None,
    num_canonical_nodes: int | None = None,
    shuffle_block_size: int | None = None,
    transform_per: str = "batch",
    held_bytes: int = _HELD_BYTES,
    world: World | None = None,
    include_ids: bool = False,
    timeout: float = _TIMEOUT_SECONDS,
    file_wait_seconds: float = 0.0,
) -> BatchReader:
    """Return a reader of Parquet files in Smalti's `window` order, with row groups as shards.

    Petastorm's arguments come first, Smalti's from `batch_size` on. Footers, and the columns that `predicate` and
    `filters` use, are read at once; rows are read on demand.

    Args:
        dataset_url_or_urls: a folder, a file, or a list of files of one scheme.
        schema_fields: regular expressions, of which one must match the full name of a column, or UnischemaFields.
        reader_pool_type: `thread`, or `dummy` for the caller's own thread; `process` is treated as `thread`.
        workers_count: threads that read and transform.
        results_queue_size: pieces of work (a batch, or about a thousand small rows) to read ahead; by default
            twice the number of threads.
        seed: with one, each reader starts at epoch 0. Without one, the seed is a constant, and each reader of the same
            data in a process continues with the next epoch.
        shuffle_rows: whether to shuffle rows as well; by default if row groups are shuffled. False keeps the order of
            the rows within a row group.
        shuffle_row_groups: False reads in stored order.
        shuffle_row_drop_partitions: ignored: rows of many row groups are mixed anyway.
        predicate: a selection of rows, such as `in_lambda`; evaluated now, so that steps are counted exactly.
        rowgroup_selector: refused.
        num_epochs: None repeats without end.
        cur_shard: rank of this reader among `shard_count`; without both, all rows are read.
        shard_count: number of ranks that divide an epoch.
        shard_seed: ignored.
        cache_type: `local-disk` caches row groups as Arrow files.
        cache_location: folder of that cache.
        cache_size_limit: maximal bytes of that cache.
        cache_row_size_estimate: bytes of a row, to reject a limit that is too low.
        cache_extra_settings: `{"cleanup": True}` removes the folder when the reader's context is left.
        hdfs_driver: ignored: pyarrow uses libhdfs.
        transform_spec: a function on a pandas DataFrame of rows, and the columns of its result.
        filters: pyarrow's (column, operator, value), in a list, or a list of lists; applied exactly, to each row.
        storage_options: credentials and endpoint, as for `open_store`.
        zmq_copy_buffers: ignored.
        filesystem: a pyarrow file system, instead of `storage_options`.
        convert_early_to_numpy: ignored: threads make arrays anyway.
        batch_size: rows of a batch, per rank; a loader made from the reader sets its own.
        tail: an incomplete last step is left `short`, filled with repeats (`pad`) or left out (`drop`); by default
            `short`, and `pad` with `num_epochs=None`.
        epoch: the first epoch, from 0.
        num_canonical_nodes: number of runs that are interleaved; fewer keep fewer row groups open.
        shuffle_block_size: rows of a run that are mixed.
        transform_per: whether the transform gets a `batch`, or a `row_group`, whose result is cached.
        held_bytes: limit in bytes for row groups in memory.
        world: ranks and hosts, instead of `cur_shard` and `shard_count`.
        include_ids: add the columns `_sample_id`, the number of the row, and `_position`, its position in the order, -1
            for padding.
        timeout: seconds to wait for a batch.
        file_wait_seconds: how long to wait for listed files to appear.

    Raises:
        ValueError: an argument is out of range, or is not supported.
        WorldMismatch: `cur_shard` is not the rank that the launcher gave this process.
        StoreNotFound: there are no files.
        FormatError: a file is not a Parquet file, or is damaged.
        SchemaError: files have different columns, or a requested column does not exist.
        NoDataAvailableError: there are no rows.

    Examples:
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, batch_size=5) as reader:
        ...     sum(len(batch.id) for batch in reader)
        10
    """
    check_choice("reader_pool_type", reader_pool_type, ("thread", "process", "dummy"))
    check_choice("cache_type", cache_type or NULL_CACHE, (NULL_CACHE, LOCAL_DISK_CACHE))
    if shuffle_rows and not shuffle_row_groups:
        raise ValueError(
            "shuffle_rows=True with shuffle_row_groups=False is not supported: give shuffle_row_groups=True, which "
            "shuffles both, or False for both."
        )
    if rowgroup_selector is not None:
        raise ValueError(
            "`rowgroup_selector` is not supported: its indexes are pickles. Use `filters`, which are exact and need "
            "no index."
        )
    workers_count = whole_number("workers_count", workers_count, 1, 1024)
    results_queue_size = whole_or_none("results_queue_size", results_queue_size, 1)
    seed = whole_or_none("seed", seed, 0, MAX_SEED)
    whole_or_none("shuffle_row_drop_partitions", shuffle_row_drop_partitions, 1)
    num_epochs = whole_or_none("num_epochs", num_epochs, 1)
    batch_size = whole_number("batch_size", batch_size, 1)
    epoch = whole_or_none("epoch", epoch, 0, 1 << 62)
    num_canonical_nodes = whole_or_none("num_canonical_nodes", num_canonical_nodes, 1, MAX_CANONICAL_NODES)
    shuffle_block_size = whole_or_none("shuffle_block_size", shuffle_block_size, 1, MAX_BLOCK)
    held_bytes = whole_number("held_bytes", held_bytes, 1)
    check_choice("tail", tail or "pad", TAILS)
    check_choice("transform_per", transform_per, ("batch", "row_group"))
    transform = None if transform_spec is None else transform_of(transform_spec)
    if world is not None and (cur_shard is not None or shard_count is not None):
        raise ValueError("give `cur_shard` and `shard_count`, or `world`, not both.")
    chosen = world or _chosen_world(cur_shard, shard_count)
    cache = None
    if cache_type == LOCAL_DISK_CACHE:
        removes_folder = bool((cache_extra_settings or {}).get("cleanup", False))
        cache = DiskCache(cache_location, cache_size_limit, cache_row_size_estimate, removes_folder=removes_folder)
    for name, is_used in (("shard_seed", shard_seed), ("reader_pool_type='process'", reader_pool_type == "process")):
        if is_used:
            _log.info("%s is ignored: see docs/petastorm.md", name)
    found = open_set(dataset_url_or_urls, storage_options, filesystem, wait_seconds=file_wait_seconds)
    _warn_about_codecs(found)
    columns = chosen_columns(found.schema.names, schema_fields)
    kept = kept_rows(found, predicate=predicate, filters=filters, num_threads=workers_count)
    threads = 0 if reader_pool_type == "dummy" else workers_count
    options = ReaderOptions(
        columns=tuple(columns),
        cache=cache,
        transform=transform,
        per_row_group=transform_per == "row_group",
        held_bytes=held_bytes,
        order=RunOrder(
            shuffle=shuffle_row_groups,
            seed=DEFAULT_SEED if seed is None else seed,
            num_canonical_nodes=num_canonical_nodes,
            shuffle_block_size=1 if shuffle_rows is False and shuffle_row_groups else shuffle_block_size,
            tail=tail or ("pad" if num_epochs is None else "short"),
        ),
        world=chosen,
        batch_size=batch_size,
        num_epochs=num_epochs,
        first_epoch=0 if epoch is None and seed is not None else epoch,
        num_threads=threads,
        num_ahead=results_queue_size or 2 * max(1, threads),
        timeout=timeout,
        include_ids=include_ids,
    )
    return BatchReader(RowReader(found, kept, options))


def _chosen_world(cur_shard: int | None, shard_count: int | None) -> World:
    """Return the world of a reader; a world of one rank without `cur_shard` and `shard_count`."""
    launched = detect_ranks()
    if cur_shard is None and shard_count is None:
        if launched is not None and launched[1] > 1:
            warnings.warn(
                f"the launcher started {launched[1]} ranks, but this reader has no `cur_shard` and `shard_count`: "
                f"each rank reads all rows. Give cur_shard={launched[0]}, shard_count={launched[1]} to divide it.",
                stacklevel=4,
            )
        return World()
    try:
        numbers = whole_number("cur_shard", cur_shard, 0), whole_number("shard_count", shard_count, 1)
        world = World.flat(*numbers)
    except ValueError as error:
        raise ValueError(
            f"`cur_shard` and `shard_count` must be given together, as integers with 0 <= cur_shard < shard_count; "
            f"found {cur_shard!r} and {shard_count!r}."
        ) from error
    if launched is not None and launched != numbers:
        rank, num_ranks = launched
        both = f"cur_shard={cur_shard}, shard_count={shard_count}, and the launcher says rank {rank} of {num_ranks}"
        if num_ranks == shard_count:
            raise WorldMismatch(
                f"{both}: some rows would be read twice and others not at all. Give the rank, or give `world` if "
                "another assignment of shards is intended.",
                rank=rank,
                num_ranks=num_ranks,
            )
        warnings.warn(f"{both}: correct only if several ranks read the same rows.", stacklevel=4)
    return world


def make_reader(dataset_url: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError, always.

    Raises:
        NotImplementedError: Petastorm stores its Unischema as a pickle, and unpickling can run arbitrary code.
    """
    raise NotImplementedError(
        f"{redact_address(str(dataset_url))}: make_reader is not supported. A data set of Petastorm's "
        "materialize_dataset has its schema in a pickle, which Smalti never loads, because unpickling can run "
        "arbitrary code. The rows are plain Parquet: read them with make_batch_reader, and decode columns in a "
        "TransformSpec: columns of CompressedImageCodec contain PNG or JPEG, those of NdarrayCodec .npy bytes "
        "(numpy.load(io.BytesIO(value), allow_pickle=False)). docs/petastorm.md has an example, and the replacement "
        "for NGram."
    )


def _warn_about_codecs(found: ParquetSet) -> None:
    """Warn if Petastorm wrote the files: columns may hold encoded arrays or images."""
    name = "_common_metadata"
    try:
        footer = read_footer(found.source, name, found.source.size(name))
    except (StoreNotFound, FormatError):
        return
    if UNISCHEMA_KEY in (footer.metadata.metadata or {}):
        warnings.warn(
            f"{found.source.url} was written by Petastorm's materialize_dataset. Its schema is a pickle and is not "
            "loaded: columns are returned as they are stored, arrays and images as encoded bytes; decode them in a "
            "TransformSpec (docs/petastorm.md).",
            stacklevel=3,
        )
