"""Petastorm's names for data sets with a pickled schema: they can be imported, and raise where they are used."""

from collections.abc import Callable
from typing import Any, NoReturn

_PICKLE = (
    "Petastorm stores the schema of its own data sets as a pickle, which Smalti never loads, because unpickling can "
    "run arbitrary code."
)
READ_INSTEAD = (
    f"{_PICKLE} The rows are plain Parquet: read them with make_batch_reader, and decode columns in a TransformSpec "
    "with the `codec` of their UnischemaField, as docs/petastorm.md shows."
)
WRITE_INSTEAD = (
    f"{_PICKLE} Write arrays and images with smalti.dataframe_to_mds or MDSWriter, or a DataFrame of plain columns "
    "with df.write.parquet, and read that with make_batch_reader."
)
SCHEMA_INSTEAD = (
    "It needs a data set of pyarrow's old interface. The `schema` of make_batch_reader(url) is a Unischema."
)
WINDOWS_INSTEAD = (
    "Windows of rows are not made while reading. Make them in Spark (`lead` and `lag` over a window) or as arrays of "
    "consecutive rows: they are then shuffled and divided over ranks as samples (docs/petastorm.md)."
)
FILTERS_INSTEAD = "Indexes of row groups are pickles. Use `filters` of make_batch_reader, which are exact."
MIX_INSTEAD = (
    "Mixtures are a feature of shard sets: convert the data with smalti.dataframe_to_mds, and give "
    "StreamingDataset(streams=[Stream(url, proportion=...), ...]) (docs/mixtures.md)."
)


def refused_function(name: str, advice: str) -> Callable[..., Any]:
    """Return a function that raises NotImplementedError with the advice."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not supported. {advice}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise NotImplementedError: {advice}"
    return refuse


def refused_class(name: str, module: str, advice: str) -> type[Any]:
    """Return a class whose instances cannot be made: the constructor raises NotImplementedError with the advice."""
    body = {"__init__": refused_function(name, advice), "__module__": module, "__doc__": f"Not supported. {advice}"}
    return type(name, (), body)
