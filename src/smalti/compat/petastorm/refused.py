"""Petastorm's names for data sets with a pickled schema: they can be imported, and raise where they are used."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
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


_REFUSED: dict[str, dict[str, str]] = {
    "etl": {},
    "etl.dataset_metadata": {
        "materialize_dataset": WRITE_INSTEAD,
        "load_row_groups": READ_INSTEAD,
        "get_schema": READ_INSTEAD,
        "get_schema_from_dataset_url": READ_INSTEAD,
        "infer_or_load_unischema": READ_INSTEAD,
    },
    "ngram": {"NGram": WINDOWS_INSTEAD},
    "selectors": dict.fromkeys(
        ("RowGroupSelectorBase", "SingleIndexSelector", "IntersectIndexSelector", "UnionIndexSelector"), FILTERS_INSTEAD
    ),
    "spark_utils": {"dataset_as_rdd": READ_INSTEAD},
    "weighted_sampling_reader": {"WeightedSamplingReader": MIX_INSTEAD},
}
"""The names of Petastorm's modules of which everything is refused, with the advice; classes have capital letters."""


class PetastormMetadataError(Exception):
    """Petastorm's error for a data set without a schema; never raised here."""

    __module__ = f"{__package__}.etl.dataset_metadata"


class PetastormMetadataGenerationError(Exception):
    """Petastorm's error for a schema that cannot be written; never raised here."""

    __module__ = f"{__package__}.etl.dataset_metadata"


def provide_modules() -> None:
    """Make the modules of which everything is refused importable; they have no files."""
    for path, names in _REFUSED.items():
        module = module_from_spec(ModuleSpec(f"{__package__}.{path}", None))
        for name, advice in names.items():
            is_class = name[0].isupper()
            value = refused_class(name, module.__name__, advice) if is_class else refused_function(name, advice)
            setattr(module, name, value)
        sys.modules[module.__name__] = module
        parent, _, short = module.__name__.rpartition(".")
        setattr(sys.modules[parent], short, module)
    for error in (PetastormMetadataError, PetastormMetadataGenerationError):
        setattr(sys.modules[error.__module__], error.__name__, error)


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
