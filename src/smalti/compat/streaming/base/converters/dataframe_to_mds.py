"""`dataframe_to_mds` with MosaicML's arguments, columns, checks and shards; the work is done by `smalti.spark`.

As in MosaicML's function, every Spark partition ends a shard, the set has the partitions in order, and shards have no
hashes unless they are asked for, so that the same rows have the same order after any shuffle. Unlike in MosaicML's, one
version of the whole set appears at the end, and shards go from the executors to the store directly: nothing stays on
an executor's disk.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog.header import FOLDER
from smalti.compat.streaming.base.converters.call import MosaicCall, copy_set, parse_call, put_folder_indexes
from smalti.errors import DatasetExists, MissingDependency, SchemaError, StoreNotFound
from smalti.spark.tasks import require_bounded
from smalti.spark.writing.dataframe import write_folders, write_frame
from smalti.storage import open_store
from smalti.storage.opening import service_of
from smalti.storage.schemes import SCHEME_BY_NAME

try:
    from pyspark.sql import types
except ImportError as error:
    raise MissingDependency(
        "dataframe_to_mds needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
    ) from error

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))

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
    _check_out(kwargs["out"])
    if udf_iterable is None:
        kwargs["columns"] = _columns_of(dataframe, kwargs.get("columns"))
        if not set(_BY_SAMPLE).isdisjoint(kwargs["columns"].values()):
            udf_iterable, udf_kwargs = _records, None
    elif "columns" not in kwargs:
        raise ValueError("If udf_iterable is specified, user must provide correct `columns` in the mds_kwargs")
    else:
        logger.warning("With udf_iterable defined, it's up to the user's discretion to provide mds_kwargs[columns]'")
        udf_iterable = _NarrowedSamples(udf_iterable, _float_types(kwargs["columns"]))
    call = _call_of(kwargs, udf_iterable, udf_kwargs)
    try:
        _do(dataframe, call, merges=merge_index)
    except SchemaError as error:
        if not dataframe.isEmpty():
            raise
        raise SchemaError(f"{_EMPTY} It has no rows; nothing was written.", **error.facts) from error
    return call.local, call.remote


def _do(dataframe: "DataFrame", call: MosaicCall, *, merges: bool) -> None:
    """Write the set, or a folder with an index of its own for each Spark partition."""
    store = open_store(call.remote or call.local)
    if not merges:
        put_folder_indexes(store, write_folders(dataframe, store, call.options, call.samples, call.uploads))
        return
    manifest = write_frame(dataframe, store, call.options, call.samples, call.uploads)
    if call.copy_to is not None:
        copy_set(store, manifest, open_store(call.copy_to))


def _check_out(out: Any) -> None:
    """Check the form of a place, as MosaicML's function does before Spark begins.

    Raises:
        ValueError: it is a tuple or list of another length than two, or has an unknown scheme.
        StoreNotFound: it is empty.
    """
    is_pair = isinstance(out, tuple | list)
    if is_pair and len(out) != 2:
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


def _columns_of(dataframe: "DataFrame", given: dict[str, str] | None) -> dict[str, str]:
    """Return the encodings of the columns, which are the given ones if they fit the DataFrame."""
    if given is not None:
        infer_dataframe_schema(dataframe, given)
        return given
    logger.warning("User's discretion required: columns arg is missing from mds_kwargs. Will be auto-inferred")
    inferred = infer_dataframe_schema(dataframe) or {}
    logger.warning("Auto inferred schema: %s", inferred)
    return inferred


def _call_of(
    kwargs: dict[str, Any], udf_iterable: Callable[..., Any] | None, udf_kwargs: Mapping[str, Any] | None
) -> MosaicCall:
    """Return the parsed call, with a local folder.

    Raises:
        DatasetExists: the local folder has files, and `exist_ok` is not set.
    """
    call = parse_call(kwargs, udf_iterable, udf_kwargs if udf_iterable else None)
    if call.local and not kwargs.get("exist_ok") and _has_files(call.local):
        raise DatasetExists(
            f"Directory is not empty: {call.local}; choose another folder, or give exist_ok=True to replace the set "
            "there by a new version",
            url=call.local,
        )
    return replace(call, local=call.local or _new_folder(keep=call.keeps_local))


def _has_files(folder: str) -> bool:
    """Return whether a folder has files, apart from the marker that a failed write leaves."""
    root = Path(folder)
    return any(path.is_file() and FOLDER not in path.relative_to(root).parts for path in root.rglob("*"))


def _new_folder(*, keep: bool) -> str:
    """Return a new temporary folder; its name alone, which nothing has, unless it is kept."""
    folder = tempfile.mkdtemp(prefix="smalti-")
    if not keep:
        Path(folder).rmdir()
    return folder


def _records(frame: "pd.DataFrame") -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def _float_types(columns: Mapping[str, str]) -> dict[str, Any]:
    return {name: np.dtype(encoding).type for name, encoding in columns.items() if encoding in _FLOATS}


@dataclass(frozen=True)
class _NarrowedSamples:
    """The user's function, with floats rounded to the types of their columns, as MosaicML's writer does."""

    function: Callable[..., Any]
    types: Mapping[str, Any]
    """Numpy type by column."""

    def __call__(self, frame: "pd.DataFrame", **kwargs: Any) -> Any:
        samples = self.function(frame, **kwargs)
        return map(self._narrow, samples) if self.types and isinstance(samples, Iterable) else samples

    def _narrow(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        floats = {name: kind(sample[name]) for name, kind in self.types.items() if name in sample}
        return {**sample, **floats}
