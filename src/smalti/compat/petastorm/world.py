"""Who reads: `cur_shard` of `shard_count`, compared with what launchers say in the environment."""

import os
import warnings

from smalti.errors import WorldMismatch
from smalti.whole import whole_number
from smalti.world import World

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def chosen_world(cur_shard: int | None, shard_count: int | None) -> World:
    """The world of a reader that is told its shard; alone where it is told none.

    Raises:
        ValueError: only one of the two is given, or they are no numbers of a shard.
        WorldMismatch: as many shards as the launcher has ranks, and another number than this rank's.
    """
    told = detect_launcher()
    if cur_shard is None and shard_count is None:
        if told is not None and told[1] > 1:
            warnings.warn(
                f"the launcher started {told[1]} ranks and this reader was given no `cur_shard` and `shard_count`: "
                f"each rank reads everything. Give cur_shard={told[0]}, shard_count={told[1]} to divide it.",
                stacklevel=4,
            )
        return World()
    try:
        numbers = whole_number("cur_shard", cur_shard, 0), whole_number("shard_count", shard_count, 1)
        world = World.flat(*numbers)
    except ValueError as error:
        raise ValueError(
            f"`cur_shard` and `shard_count` are given together, as whole numbers with 0 <= cur_shard < shard_count; "
            f"found {cur_shard!r} and {shard_count!r}."
        ) from error
    if told is not None and told != numbers:
        both = f"cur_shard={cur_shard}, shard_count={shard_count}, and the launcher says rank {told[0]} of {told[1]}"
        if told[1] == shard_count:
            raise WorldMismatch(
                f"{both}: some rows would be read twice and others by nobody. Give the rank, or give `world` if shards "
                "are meant to be dealt otherwise.",
                rank=told[0],
                num_ranks=told[1],
            )
        warnings.warn(f"{both}: right where several ranks read the same rows, and a mistake otherwise.", stacklevel=4)
    return world


def detect_launcher() -> tuple[int, int] | None:
    """Rank and number of ranks as torchrun, Horovod or MPI say in the environment; None where none does."""
    for rank, size in _LAUNCHERS:
        texts = os.environ.get(rank), os.environ.get(size)
        if texts[0] is not None and texts[1] is not None and all(text.isdigit() for text in texts if text):
            return int(texts[0]), int(texts[1])
    return None
