"""Petastorm's interface over Parquet files: the Spark converter, the batch reader, and loaders for torch and tf.data.

Modules, names and defaults are Petastorm's; rows are read in Smalti's order, with row groups as shards. Data sets with
a pickled Unischema and NGram are refused: their names can be imported, and raise when used (`refused`). Torch, Spark
and TensorFlow are imported on first use. docs/petastorm.md lists what is equal, improved and refused. `reading/` and
`refused` have no counterpart in Petastorm. Read `reader.py` first.
"""

from smalti.compat.paths import lazy_package
from smalti.compat.petastorm.refused import provide_modules

_HOMES = {
    "BatchReader": "reading.batch_reader",
    "BatchedDataLoader": "pytorch",
    "DataLoader": "pytorch",
    "FilesNotAvailable": "errors",
    "InMemBatchedDataLoader": "pytorch",
    "NoDataAvailableError": "errors",
    "PredicateBase": "predicates",
    "SparkDatasetConverter": "spark",
    "TransformSpec": "transform",
    "edit_field": "transform",
    "in_intersection": "predicates",
    "in_lambda": "predicates",
    "in_negate": "predicates",
    "in_pseudorandom_split": "predicates",
    "in_reduce": "predicates",
    "in_set": "predicates",
    "make_batch_reader": "reader",
    "make_reader": "reader",
    "make_spark_converter": "spark",
    "register_delete_dir_handler": "spark",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 -- a list of strings
__getattr__, __dir__ = lazy_package(__name__, _HOMES)
provide_modules()
