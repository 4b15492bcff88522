"""`dataframe_to_mds` with MosaicML's arguments, columns, checks and shards, over `smalti.spark`; needs pyspark.

As in MosaicML's function, every Spark partition ends a shard, the set has the partitions in order, and shards have no
hashes unless they are asked for, so that the same rows have the same order after any shuffle. Unlike in MosaicML's, one
version of the whole set appears at the end, and shards go from the executors to the store directly: nothing stays on
an executor's disk.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.manifest import FOLDER, INDEX
from smalti.compat.paths import serve
from smalti.errors import DatasetExists, MissingDependency, SchemaError, StoreNotFound
from smalti.format import emit_index
from smalti.spark.tasks import require_bounded
from smalti.spark.writing.dataframe import write_folders, write_frame
from smalti.storage import Store, open_store
from smalti.storage.opening import service_of
from smalti.storage.schemes import SCHEME_BY_NAME
from smalti.writer import UploadOptions
from smalti.writer.tables.plan import Answers, SampleFunction, WriteOptions
from smalti.writer.tables.versions import collect_parts
from smalti.writer.writers import WriterOptions

try:
    from pyspark.sql import types
except ImportError as error:
    raise MissingDependency(
        "dataframe_to_mds needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
    ) from error

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

logger = logging.getLogger("streaming.base.converters.dataframe_to_mds")

__all__ = ["SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"]

SPARK_TO_MDS: dict[types.DataType, str | None] = {
    types.ByteType(): "uint8",
    types.ShortType(): "uint16",
    types.IntegerType(): "int32",
    types.LongType(): "int64",
    types.FloatType(): "float32",
    types.DoubleType(): "float64",
    types.DecimalType(): "str_decimal",
    types.StringType(): "str",
    types.BinaryType(): "bytes",
    types.BooleanType(): None,
    types.TimestampType(): None,
    types.TimestampNTZType(): None,
    types.DateType(): None,
    types.DayTimeIntervalType(): None,
    types.ArrayType(types.IntegerType()): "ndarray:int32",
    types.ArrayType(types.ShortType()): "ndarray:int16",
    types.ArrayType(types.LongType()): "ndarray:int64",
    types.ArrayType(types.FloatType()): "ndarray:float32",
    types.ArrayType(types.DoubleType()): "ndarray:float64",
}
"""MDS encoding of each Spark type; None for those that `dataframe_to_mds` refuses."""

_OF_BINARY = ("pil", "png", "jpeg", "pkl")
"""Encodings that a binary column may have instead: bytes are stored as they are; those of images are checked first."""
_BY_SAMPLE = ("pil", "pkl")
"""Encodings for which rows are written one by one: the columnar writer does not know them."""
_EMPTY = "Input dataframe is None or Empty!"
_JSON_LEAVES = (types.StringType, types.IntegerType, types.FloatType, types.BooleanType, types.NullType)
_FLOATS = ("float16", "float32", "float64")
_KWARGS = (
    "out", "columns", "compression", "hashes", "size_limit", "keep_local", "progress_bar", "max_workers", "retry",
    "exist_ok", "mode",
)  # fmt: skip
"""The arguments of MosaicML's writer; `mode` of Smalti's writer is accepted too."""


def is_json_compatible(data_type: Any) -> bool:
    """Return whether a Spark type can be stored as `json`: strings, ints, floats, booleans, nulls, and nests of them.

    As in MosaicML's function, these are 32 bit numbers; long and double columns are not compatible.
    """
    if isinstance(data_type, types.StructType):
        return all(is_json_compatible(field.dataType) for field in data_type.fields)
    if isinstance(data_type, types.ArrayType):
        return is_json_compatible(data_type.elementType)
    if isinstance(data_type, types.MapType):
        return is_json_compatible(data_type.keyType) and is_json_compatible(data_type.valueType)
    return isinstance(data_type, _JSON_LEAVES)


def infer_dataframe_schema(
    dataframe: "DataFrame", user_defined_cols: dict[str, Any] | None = None
) -> dict[str, str] | None:
    """Return the encoding of every column, or check those of the user.

    Args:
        dataframe: A DataFrame of Spark.
        user_defined_cols: Encoding by name of the columns to store; None derives all from the schema.

    Returns:
        Encoding by column; None if the user's were checked.

    Raises:
        ValueError: A type cannot be stored, or the user's encoding does not fit the column.
    """
    if user_defined_cols is None:
        return {field.name: _encoding_of(field.dataType) for field in dataframe.schema}
    for name, encoding in user_defined_cols.items():
        if name not in dataframe.columns:
            raise ValueError(f"{name} is not a column of input dataframe: {dataframe.columns}")
        _check_encoding(name, encoding, dataframe.schema[name].dataType)
    return None


def _encoding_of(kind: types.DataType) -> str:
    key: types.DataType = kind
    if isinstance(kind, types.DecimalType):
        key = types.DecimalType()
    elif isinstance(kind, types.ArrayType):
        key = types.ArrayType(kind.elementType)  # whether there may be nulls is decided by the values
    encoding = SPARK_TO_MDS.get(key)
    if encoding is None:
        raise SchemaError(
            f"{kind} is not supported by dataframe_to_mds: cast the column, leave it out, or name its encoding in "
            "`columns`"
        )
    return encoding


def _check_encoding(name: str, encoding: str, kind: types.DataType) -> None:
    plain = ":".join(encoding.split(":")[:2]) if encoding.startswith("ndarray:") else encoding  # without a shape
    if plain in SPARK_TO_MDS.values():
        if plain != (expected := _encoding_of(kind)):
            raise ValueError(
                f"Mismatched types: column name `{name}` is `{expected}` in DataFrame but `{plain}` in "
                "user_defined_cols"
            )
    elif plain == "json":
        if not is_json_compatible(kind):
            raise ValueError(
                f"{name} can not be encoded by MDS JSON: expected strings, 32 bit numbers, booleans, or structs, "
                f"arrays and maps of them, found {kind.simpleString()}"
            )
    elif plain in _OF_BINARY:
        if not isinstance(kind, types.BinaryType):
            raise ValueError(f"Non-binary col {name} cannot encode as {plain}: found {kind.simpleString()}")
    else:
        raise ValueError(f"{plain} is not supported by dataframe_to_mds, for column {name}")


def dataframe_to_mds(
    dataframe: "DataFrame",
    merge_index: bool = True,  # noqa: FBT001, FBT002  MosaicML's signature
    mds_kwargs: dict[str, Any] | None = None,
    udf_iterable: Callable[..., Any] | None = None,
    udf_kwargs: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a DataFrame as MDS; blocks until that is done.

    Args:
        dataframe: A DataFrame of Spark.
        merge_index: True publishes one set. False makes a folder of every Spark partition that has rows, with an index
            of its own, which `merge_index` of `base.util` can join later.
        mds_kwargs: Arguments of `MDSWriter`; `out` is required, compression is zstd by default.
        udf_iterable: Maps a pandas DataFrame, a batch of a partition, and `udf_kwargs` to any number of dicts, each a
            sample of the columns in `mds_kwargs`.
        udf_kwargs: Keyword arguments of `udf_iterable`.

    Returns:
        Local and remote path of the set; "" for the remote path if there is none.

    Raises:
        ValueError: The DataFrame has no rows, `out` is missing, or the columns do not fit it.
        FileExistsError: The local folder is not empty, and `exist_ok` is not set.
        SmaltiError: A value cannot be stored, or the store failed.
    """
    if dataframe is None:
        raise ValueError(f"{_EMPTY} Expected a DataFrame of Spark.")
    require_bounded(dataframe, "`dataframe`")
    kwargs = dict(mds_kwargs or {})
    if "out" not in kwargs:
        raise ValueError("`out` and `columns` need to be specified in `mds_kwargs`: `out` is missing")
    local, remote = _places(kwargs["out"])
    samples = _samples_of(dataframe, kwargs, udf_iterable, udf_kwargs)
    (options, uploads), keeps_local = _parsed(kwargs, local, remote, samples), kwargs.get("keep_local")
    if not local:
        local = tempfile.mkdtemp(prefix="smalti-")
        if not keeps_local:
            Path(local).rmdir()  # only the name is returned
    store = open_store(remote or local)
    try:
        if not merge_index:
            _put_folder_indexes(store, write_folders(dataframe, store, options, samples, uploads))
        else:
            manifest = write_frame(dataframe, store, options, samples, uploads)
            if remote and keeps_local:
                _copy_set(store, manifest, open_store(local))
    except SchemaError as error:
        if not dataframe.isEmpty():
            raise
        raise SchemaError(f"{_EMPTY} It has no rows; nothing was written.", **error.facts) from error
    return local, remote


def _places(out: Any) -> tuple[str, str]:
    """Return the local and the remote place, "" for one that is not given.

    Raises:
        ValueError: it is no place and no pair of them, or has an unknown scheme.
        StoreNotFound: it is empty.
    """
    is_pair = isinstance(out, tuple | list)
    if not (len(out) == 2 if is_pair else isinstance(out, str | Path)):
        raise ValueError(
            "Invalid `out` argument. It is either a string of local/remote directory or a list of two strings with "
            f"[local, remote]: expected a path, a URL or a pair of them, found {out!r}"
        )
    if not any(out if is_pair else [out]):
        raise StoreNotFound("`out` is empty: expected a path, a URL or a pair of them")
    scheme = service_of(str(out[1] if is_pair else out))
    if scheme and scheme not in SCHEME_BY_NAME:
        raise ValueError(
            f"Invalid Cloud provider prefix: {scheme}. Expected a path or one of {', '.join(sorted(SCHEME_BY_NAME))}"
        )
    if is_pair:
        return str(out[0] or ""), str(out[1] or "")
    return ("", str(out)) if "://" in str(out) or str(out).startswith("dbfs:/") else (str(out), "")


def _samples_of(
    dataframe: "DataFrame", kwargs: dict[str, Any], function: Callable[..., Any] | None, arguments: Any
) -> SampleFunction | None:
    """Return the function that makes the samples, if the rows are not stored by column; `kwargs` gets the columns."""
    given = kwargs.get("columns")
    if function is not None:
        if "columns" not in kwargs:
            raise ValueError("If udf_iterable is specified, user must provide correct `columns` in the mds_kwargs")
        logger.warning("With udf_iterable defined, it's up to the user's discretion to provide mds_kwargs[columns]'")
        floats = {name: np.dtype(encoding).type for name, encoding in (given or {}).items() if encoding in _FLOATS}
        return partial(_narrowed, function, floats, **dict(arguments or {}))
    if given is None:
        logger.warning("User's discretion required: columns arg is missing from mds_kwargs. Will be auto-inferred")
        kwargs["columns"] = infer_dataframe_schema(dataframe) or {}
        logger.warning("Auto inferred schema: %s", kwargs["columns"])
    else:
        infer_dataframe_schema(dataframe, given)
    is_by_sample = not set(_BY_SAMPLE).isdisjoint(kwargs["columns"].values())
    return _records if is_by_sample else None


def _parsed(
    kwargs: dict[str, Any], local: str, remote: str, samples: SampleFunction | None
) -> tuple[WriteOptions, UploadOptions]:
    """Return the options of the write and its uploads by the arguments of MosaicML's writer; check its local folder.

    Raises:
        ValueError: MosaicML's writer has no such argument, or one has an unusable value.
        DatasetExists: the local folder has files, and `exist_ok` is not set.
    """
    unknown = sorted(set(kwargs) - set(_KWARGS))
    if unknown:
        raise ValueError(f"`mds_kwargs` has {', '.join(unknown)}; its writer takes {', '.join(_KWARGS)}")
    if samples is not None and not kwargs["columns"]:
        raise ValueError("`udf_iterable` makes columns of its own: name them, with their encodings, in `columns`")
    root = Path(local)
    if local and not kwargs.get("exist_ok"):
        # A marker that a failed write has left is no content.
        files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        if any(FOLDER not in path.parts for path in files):
            raise DatasetExists(
                f"Directory is not empty: {local}; choose another folder, or give exist_ok=True to replace the set "
                "there by a new version",
                url=local,
            )
    hashes = tuple(kwargs.get("hashes") or ())
    workers = kwargs.get("max_workers")
    shared = WriterOptions(
        "",
        exist_ok=bool(kwargs.get("exist_ok")),
        mode=kwargs.get("mode"),
        max_workers=UploadOptions.max_workers if workers is None else workers,
        retry=kwargs.get("retry", WriterOptions.retry),
        row_hash=True,
    )
    mode = shared.chosen_mode()
    options = WriteOptions(
        columns=kwargs["columns"],
        compression=kwargs.get("compression", "zstd") or None,
        hashes=hashes,
        unlisted_hashes=() if hashes else ("xxh3_64",),
        size_limit=kwargs.get("size_limit", 1 << 26) or None,
        mode="overwrite" if remote and "mode" not in kwargs else mode,  # MosaicML replaces the index of a remote set
        progress="always" if kwargs.get("progress_bar") else False,
        write_id=new_write_id(),
        joins_shards=False,
        allow_unsafe_types=True,
    )
    return options, shared.uploads()


def _records(frame: "pd.DataFrame") -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def _narrowed(
    function: Callable[..., Any], floats: Mapping[str, Any], frame: "pd.DataFrame", /, **arguments: Any
) -> Any:
    """Return what the user's function returns, with floats rounded to the types of their columns, as MosaicML does.

    Args:
        function: The user's function.
        floats: Numpy type by column.
        frame: A batch of a partition.
        arguments: Keyword arguments of the function.
    """
    samples = function(frame, **arguments)
    if not floats or not isinstance(samples, Iterable):
        return samples
    return (
        {**sample, **{name: kind(sample[name]) for name, kind in floats.items() if name in sample}}
        for sample in samples
    )


def _put_folder_indexes(store: Store, answers: Answers) -> None:
    """Store an index in the folder of each Spark partition that has rows.

    Raises:
        SchemaError: There are no rows.
    """
    parts = collect_parts(answers)
    if not parts:
        raise SchemaError("the DataFrame has no rows; nothing was written")
    for part in parts:
        folder = part.tail.raw.basename.rpartition("/")[0]
        shards = [info.with_names(lambda name: name.rpartition("/")[2]) for info in part.shards()]
        store.put(f"{folder}/{INDEX}", emit_index([shard.listed() for shard in shards]))


def _copy_set(store: Store, manifest: Manifest, local: Store) -> None:
    """Copy the files of a set and its index to a folder of this machine, for readers that know no versions."""
    keys = [file.basename for info in manifest.shards for file in info.stored_files]
    for key in (*keys, INDEX):  # the index last
        with tempfile.TemporaryDirectory(prefix="smalti-copy-") as folder:
            file = Path(folder) / "object"
            with file.open("wb") as out:
                store.fetch(key, out)
            local.put_file(key, file)


serve(__name__, "dataframe_to_mds")
