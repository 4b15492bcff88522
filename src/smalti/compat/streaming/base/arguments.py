"""The arguments that the dataset classes of `vision`, `text` and `multimodal` share, with MosaicML's defaults.

These defaults are older than those of `StreamingDataset`: `py1s` and `orig`, with blocks of 2^18 samples.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from smalti.compat.paths import with_parameters
from smalti.compat.streaming.base.dataset import StreamingDataset

_LATER = {
    "streams", "sampling_method", "sampling_granularity", "batching_method", "allow_unsafe_types", "replication",
    "stream_name", "stream_config",
}  # fmt: skip
"""Arguments of `StreamingDataset` that these classes do not take."""
_OLDER = {"download_timeout": 60, "partition_algo": "orig", "shuffle_algo": "py1s", "shuffle_block_size": 1 << 18}
_TAKEN = {
    name: parameter.replace(default=_OLDER.get(name, parameter.default))
    for name, parameter in signature(StreamingDataset).parameters.items()
    if name not in _LATER
}


def with_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `StreamingDataset`, completed by the defaults of these classes.

    Raises:
        TypeError: These classes take no such argument.
    """
    unknown = sorted(arguments.keys() - _TAKEN.keys())
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}; expected one of {', '.join(_TAKEN)}")
    return {name: arguments.get(name, parameter.default) for name, parameter in _TAKEN.items()}


with_signature = with_parameters(_TAKEN.values())
"""Decorator of an `__init__` that takes these arguments as `**arguments`."""
