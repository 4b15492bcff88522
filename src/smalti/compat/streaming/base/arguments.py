"""The arguments that the dataset classes of `vision`, `text` and `multimodal` share, with MosaicML's defaults.

These defaults are older than those of `StreamingDataset`: `py1s` and `orig`, with blocks of 2^18 samples.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypedDict, get_type_hints

P = ParamSpec("P")


class VisionArguments(TypedDict, total=False):
    """Keyword arguments that are handed on to `StreamingDataset`, but for `batch_size`, which a class may require."""

    remote: str | None
    local: str | None
    split: str | None
    download_retry: int
    download_timeout: float
    validate_hash: str | None
    keep_zip: bool
    epoch_size: int | str | None
    predownload: int | None
    cache_limit: int | str | None
    partition_algo: str
    num_canonical_nodes: int | None
    shuffle: bool
    shuffle_algo: str
    shuffle_seed: int
    shuffle_block_size: int


class DatasetArguments(VisionArguments, total=False):
    """Keyword arguments that are handed on to `StreamingDataset`."""

    batch_size: int | None


DEFAULTS = DatasetArguments(
    remote=None,
    local=None,
    split=None,
    download_retry=2,
    download_timeout=60,
    validate_hash=None,
    keep_zip=False,
    epoch_size=None,
    predownload=None,
    cache_limit=None,
    partition_algo="orig",
    num_canonical_nodes=None,
    batch_size=None,
    shuffle=False,
    shuffle_algo="py1s",
    shuffle_seed=9176,
    shuffle_block_size=1 << 18,
)


def with_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `StreamingDataset`, completed by the defaults of these classes.

    Raises:
        TypeError: These classes take no such argument.
    """
    unknown = sorted(arguments.keys() - DEFAULTS.keys())
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}; expected one of {', '.join(DEFAULTS)}")
    return {**DEFAULTS, **arguments}


def with_signature(init: Callable[P, None]) -> Callable[P, None]:
    """Give an `__init__` that takes `**arguments` the signature with every argument, which tools read."""
    hints = get_type_hints(DatasetArguments)
    first, *own = inspect.signature(init).parameters.values()
    shared = {name: _keyword(name, hints[name], default) for name, default in DEFAULTS.items()}
    taken = {each.name: each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY}
    signature = inspect.Signature([first, *(shared | taken).values()], return_annotation=None)
    vars(init)["__signature__"] = signature
    return init


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
