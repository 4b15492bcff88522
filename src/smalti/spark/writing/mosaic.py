"""MosaicML's `dataframe_to_mds`, by its own arguments and with its own answer, written and published our way.

What is the same: `mds_kwargs` are the arguments of its writer, `udf_iterable` makes samples of pandas DataFrames, and
(local, remote) comes back. What differs, on purpose: nothing is visible before everything is there; signed columns keep
their sign; an index of the whole set is published, never a folder scanned for indexes; no executor's disk keeps a copy;
a set that is there already is replaced by a new version only with `exist_ok`. `mode` of Smalti's writer is taken too.
"""

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.header import INDEX
from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, emit_index
from smalti.spark.tasks import Answers, Attempt, run_pandas_tasks
from smalti.spark.writing.job import arrange, draft_plan, run_arrow, write_frame
from smalti.spark.writing.options import Mode, WriteOptions
from smalti.spark.writing.progress import reporting
from smalti.spark.writing.task import TaskWriter, WritePlan, collect_parts
from smalti.storage import Store, open_store
from smalti.writer import UploadOptions
from smalti.writer.version import WriterOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Udf = Callable[..., Iterable[Mapping[str, Any]]]

_KWARGS = (
    "out", "columns", "compression", "hashes", "size_limit", "keep_local", "progress_bar", "max_workers", "retry",
    "exist_ok", "mode",
)  # fmt: skip


def write_as_peer(
    df: "DataFrame",
    merge_index: bool,  # noqa: FBT001  its place in MosaicML's call
    mds_kwargs: Mapping[str, Any] | None,
    udf_iterable: Udf | None,
    udf_kwargs: Mapping[str, Any] | None,
) -> tuple[str, str]:
    """The local and the remote path, as MosaicML's function gives them; "" for one that is not used.

    Raises:
        ValueError: an argument that its writer does not have, or one that it needs and has not got.
        DatasetExists: there is a set already, and no `exist_ok`; a FileExistsError, as there.
        SchemaError: the frame is empty, or a value does not fit; a ValueError, as there.
    """
    given = dict(mds_kwargs or {})
    unknown = sorted(set(given) - set(_KWARGS))
    if unknown:
        raise ValueError(f"`mds_kwargs` has {', '.join(unknown)}; its writer takes {', '.join(_KWARGS)}")
    local, remote = _places(given.get("out"))
    if udf_iterable is not None and not given.get("columns"):
        raise ValueError("`udf_iterable` makes columns of its own: name them, with their encodings, in `columns`")
    if udf_kwargs is not None and udf_iterable is None:
        raise ValueError("`udf_kwargs` are for `udf_iterable`, which was not given")
    store = open_store(remote or local)
    plan, options = _plan(df, store, given, udf_iterable)
    run = run_arrow if udf_iterable is None else functools.partial(_run_udf, udf_iterable, dict(udf_kwargs or {}))
    if not merge_index:
        _write_loose(df, plan, options, run)
    else:
        manifest = write_frame(df, plan, options, run=run)
        if remote and given.get("keep_local"):
            _copy(store, manifest, open_store(local))
    return local, remote


def _places(out: Any) -> tuple[str, str]:
    if isinstance(out, str | Path):
        return ("", str(out)) if "://" in str(out) or str(out).startswith("dbfs:/") else (str(out), "")
    if isinstance(out, tuple | list) and len(out) == 2:
        return str(out[0] or ""), str(out[1] or "")
    raise ValueError(f"`out` in `mds_kwargs`: expected a path, a URL, or (local, remote), found {out!r}")


def _plan(
    df: "DataFrame", store: Store, given: dict[str, Any], udf_iterable: Udf | None
) -> tuple[WritePlan, WriteOptions]:
    hashes = given.get("hashes")
    options = WriteOptions(
        columns=given.get("columns"),
        compression=given.get("compression", "zstd"),
        hashes=("xxh3_64",) if hashes is None else tuple(hashes),
        size_limit=given.get("size_limit", 1 << 26) or None,
        mode=_mode(given),
        progress="always" if given.get("progress_bar") else False,
    )
    if udf_iterable is None:
        plan = draft_plan(df, store, options)
    else:
        schema = Schema.from_columns(given["columns"])
        # What a function gives is not known by its name: every call is a write of its own.
        options = replace(options, write_id=new_write_id())
        plan = WritePlan(store, "", schema, options.shard_options, reads=tuple(df.columns))
    ShardBuilder(plan.schema or Schema.from_columns({"x": "int"}), options.shard_options)
    return replace(plan, uploads=_uploads(given)), options


def _mode(given: Mapping[str, Any]) -> Mode:
    return WriterOptions("", exist_ok=bool(given.get("exist_ok")), mode=given.get("mode")).chosen_mode()


def _uploads(given: dict[str, Any]) -> UploadOptions:
    default = UploadOptions()
    workers, attempts = given.get("max_workers"), given.get("retry", default.attempts)
    if (workers is not None and workers < 1) or attempts < 1:
        raise ValueError(f"`max_workers` and `retry` are at least 1, found {workers} and {attempts}")
    return UploadOptions(workers or default.max_workers, attempts=attempts, hash_rows=True)


def _run_udf(udf: Udf, kwargs: dict[str, Any], df: "DataFrame", plan: WritePlan) -> Answers:
    return run_pandas_tasks(df, functools.partial(write_samples, plan, udf, kwargs))


def write_samples(
    plan: WritePlan, udf: Udf, kwargs: dict[str, Any], frames: Iterator[Any], attempt: Attempt
) -> dict[str, Any]:
    """What each task does: the samples that `udf` makes of its rows as shards in the store.

    Keys that are no columns are left out, as MosaicML's writer does.
    """
    names = frozenset(plan.schema.names if plan.schema is not None else ())
    with TaskWriter(plan, attempt) as writer:
        for frame in frames:
            frame.columns = list(plan.needed())
            samples = udf(frame, **kwargs)
            if not isinstance(samples, Iterable):
                raise SchemaError(f"`udf_iterable` gave {type(samples).__name__}, expected an iterable of dicts")
            for sample in samples:
                writer.write({name: value for name, value in sample.items() if name in names})
        return writer.finish()


def _write_loose(df: "DataFrame", plan: WritePlan, options: WriteOptions, run: Any) -> None:
    """A folder per Spark partition, with its own index, right below the root; no version, and no index of all."""
    plan = replace(plan, write_id=new_write_id(), is_loose=True)
    with reporting(df.sparkSession, plan.store.url, options.progress):
        answers = run(arrange(df, plan), plan)
    parts = collect_parts(answers)
    if not parts:
        raise SchemaError("the DataFrame has no rows; nothing was written")
    for part in parts:
        folder = part.tail.raw.basename.rpartition("/")[0]
        shards = [info.with_names(lambda name: name.rpartition("/")[2]) for info in part.shards()]
        plan.store.put(f"{folder}/{INDEX}", emit_index(shards))


def _copy(store: Store, manifest: Manifest, local: Store) -> None:
    """The set's files and its index, as other machines' readers find them, in a folder of this machine."""
    keys = [file.basename for info in manifest.shards for file in info.stored_files]
    for key in (*keys, INDEX):  # the index last
        with tempfile.TemporaryDirectory(prefix="smalti-copy-") as folder:
            file = Path(folder) / "object"
            with file.open("wb") as out:
                store.fetch(key, out)
            local.put_file(key, file)
