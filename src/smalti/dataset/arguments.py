"""Checks of StreamingDataset's arguments: numbers, choices, abbreviated sizes, streams and world."""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from smalti.attributes import whole_or_none
from smalti.cursor import MAX_BLOCK, MAX_CANONICAL_NODES, MAX_SEED
from smalti.dataset.resume import ALGORITHMS
from smalti.errors import ArgumentError, ArgumentTypeError
from smalti.order import TAILS
from smalti.order.mixture import BATCHINGS, SAMPLINGS
from smalti.order.mosaic import PARTITIONS
from smalti.stream import Stream, StreamOptions
from smalti.world import World

_ABBREVIATIONS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MAX_COUNT = (1 << 31) - 1
"""Samples of a batch, and ranks: products of two such numbers are 64-bit integers."""
_RANGES: dict[str, tuple[int, int | None]] = {
    "batch_size": (1, _MAX_COUNT),
    "num_canonical_nodes": (1, MAX_CANONICAL_NODES),
    "shuffle_block_size": (1, MAX_BLOCK),
    "predownload": (0, _MAX_COUNT),
    "shuffle_seed": (0, MAX_SEED),
    "replication": (1, _MAX_COUNT),
    "rank": (0, _MAX_COUNT),
    "num_ranks": (1, _MAX_COUNT),
    "sampling_granularity": (1, (1 << 62) - 1),
    "version": (0, (1 << 62) - 1),
}
_CHOICES: dict[str, Sequence[str]] = {
    "tail": TAILS,
    "shuffle_algo": ALGORITHMS,
    "partition_algo": PARTITIONS,
    "sampling_method": SAMPLINGS,
    "batching_method": BATCHINGS,
}
_ABBREVIATED = re.compile(r"(\d+(?:\.\d+)?) *([kmbt]?)", re.IGNORECASE)


def checked(**arguments: Any) -> Any:
    """Return the arguments checked: whole numbers as Python integers, choices unchanged, None as None.

    Returns:
        A tuple in the order of the arguments, or the value itself where there is one.

    Raises:
        ValueError: a number is out of its range, or a choice is not among the allowed ones.
    """
    checked_values = []
    for name, value in arguments.items():
        if name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
            checked_values.append(value)
        else:
            checked_values.append(whole_or_none(name, value, *_RANGES[name]))
    return tuple(checked_values) if len(checked_values) > 1 else checked_values[0]


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check that the value of an argument is one of those allowed.

    Raises:
        ValueError: it is not.
    """
    if value not in allowed:
        raise ArgumentError(f"`{name}` must be one of {', '.join(allowed)}, found {value!r}.")


def number_of_samples(name: str, value: int | str | None) -> int | None:
    """Parse a number such as 64000, "64000", "64k", "1.5M", "2b" or "1t"; units are decimal, as in MosaicML Streaming.

    Raises:
        ValueError: it is not a number, or not a whole number from 1.
    """
    if isinstance(value, str):
        match = _ABBREVIATED.fullmatch(value.strip())
        number = Decimal(match[1]) * _ABBREVIATIONS[match[2].lower()] if match else Decimal("0.5")
        if number != int(number):
            raise ArgumentError(f"`{name}` must be a whole number such as 64000, '64k' or '1.5M', found {value!r}.")
        value = int(number)
    return whole_or_none(name, value, 1, (1 << 62) - 1)


def chosen_world(rank: int | None, num_ranks: int | None, world: World | None) -> World | None:
    """Return the world that the user chose, by rank and number of ranks or as a whole; None without a choice.

    Raises:
        ValueError: both are given, or one of `rank` and `num_ranks`.
        WorldMismatch: there is no such rank.
    """
    if rank is None and num_ranks is None:
        return world
    if rank is None or num_ranks is None or world is not None:
        raise ArgumentError("give `rank` and `num_ranks` together, or `world` alone, or none of them.")
    return World.flat(rank, num_ranks)


def check_transform(transform: Any, streams: Iterable[StreamOptions]) -> None:
    """Check that the columns to read include those that the transform names in an attribute `needed_columns`, if any.

    Raises:
        ValueError: they do not.
    """
    needed = getattr(transform, "needed_columns", None) or ()
    for options in streams:
        missing = [name for name in needed if options.columns is not None and name not in options.columns]
        if missing:
            raise ArgumentError(
                f"the transform {type(transform).__name__} needs the column {missing[0]!r}, and `columns` of "
                f"{options.root} names only {', '.join(options.columns or ())}: add it to `columns`, or leave it out "
                "of the transform."
            )


def declared_streams(
    streams: Sequence[Stream] | None, *, remote: Any, local: Any, version: int | None, tag: str | None
) -> tuple[Stream, ...]:
    """Return the streams that the user gave, or the single stream at `remote` or `local`.

    Raises:
        ValueError: both are given, or neither, or an empty list; or both a version and a tag.
        TypeError: `streams` holds something other than streams.
    """
    if streams is None:
        return (Stream(remote=remote, local=local, version=version, tag=tag),)
    if any(each is not None for each in (remote, local, version, tag)):
        raise ArgumentError(
            "give either `streams`, each with its `remote`, `local` and `version` or `tag`, or these for one set."
        )
    value: object = streams
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise ArgumentTypeError(f"`streams` must be a list of smalti.Stream objects, found {type(value).__name__}.")
    chosen = tuple(streams)
    for stream in chosen:
        if not isinstance(stream, Stream):
            raise ArgumentTypeError(f"`streams` must hold smalti.Stream objects, found {type(stream).__name__}.")
    if not chosen:
        raise ArgumentError("`streams` must hold at least one Stream, found none.")
    return chosen
