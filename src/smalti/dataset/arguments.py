"""Arguments of StreamingDataset: where those of earlier releases are now, and checks of the others."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any

from smalti.attributes import whole_or_none
from smalti.dataset.order import OrderOptions
from smalti.errors import ArgumentError, ArgumentTypeError
from smalti.stream import MOVED_TO_CACHE, Stream, StreamOptions
from smalti.world import World

MOVED = {
    **MOVED_TO_CACHE,
    **{name: f"is now in cache=CacheOptions({name}=...)" for name in ("cache_limit", "predownload")},
    **{entry.name: f"is now in order=OrderOptions({entry.name}=...)" for entry in fields(OrderOptions)},
    "rank": "is now in world=World.flat(rank, num_ranks)",
    "num_ranks": "is now in world=World.flat(rank, num_ranks)",
    "shuffle_algo": "is gone: shuffle=True is the `window` order, and MosaicML's (py1e, py1br, py1s, py2s, naive) are "
    "those of smalti.compat.streaming.StreamingDataset, which continues their runs",
    "partition_algo": "is of MosaicML's orders: use smalti.compat.streaming.StreamingDataset",
}
"""By argument of an earlier release: where it is now."""
MAX_VERSION = (1 << 62) - 1
_ABBREVIATIONS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_ABBREVIATED = re.compile(r"(\d+(?:\.\d+)?) *([kmbt]?)", re.IGNORECASE)


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


def checked_world(world: Any) -> World | None:
    """Return the world that the user chose; None without a choice.

    Raises:
        TypeError: it is no World.
    """
    if world is not None and not isinstance(world, World):
        raise ArgumentTypeError(
            f"`world` must be a smalti.World, found {world!r:.80}; see World.flat(rank, num_ranks)."
        )
    return world


def declared_streams(
    streams: Sequence[Stream] | None, *, remote: Any, version: int | None, tag: str | None
) -> tuple[Stream, ...]:
    """Return the streams that the user gave, or the single stream at `remote`.

    Raises:
        ValueError: both are given, or neither, or an empty list; or both a version and a tag.
        TypeError: `streams` holds something other than streams.
    """
    if streams is None:
        return (Stream(remote=remote, version=version, tag=tag),)
    if any(value is not None for value in (remote, version, tag)):
        raise ArgumentError(
            "give either `streams`, each with its `remote` and `version` or `tag`, or these for one set."
        )
    given: object = streams
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ArgumentTypeError(f"`streams` must be a list of smalti.Stream objects, found {type(given).__name__}.")
    chosen = tuple(streams)
    for stream in chosen:
        if not isinstance(stream, Stream):
            raise ArgumentTypeError(f"`streams` must hold smalti.Stream objects, found {type(stream).__name__}.")
    if not chosen:
        raise ArgumentError("`streams` must hold at least one Stream, found none.")
    return chosen
