"""The world of a reader: `cur_shard` of `shard_count`, compared with the launcher's environment variables."""

import warnings

from smalti.errors import WorldMismatch
from smalti.whole import whole_number
from smalti.world import World, detect_ranks


def chosen_world(cur_shard: int | None, shard_count: int | None) -> World:
    """Return the world of a reader; a world of one rank without `cur_shard` and `shard_count`.

    Raises:
        ValueError: only one of the two is given, or they are not the number of a shard.
        WorldMismatch: there are as many shards as the launcher has ranks, but `cur_shard` is not this rank.
    """
    launched = detect_ranks()
    if cur_shard is None and shard_count is None:
        if launched is not None and launched[1] > 1:
            warnings.warn(
                f"the launcher started {launched[1]} ranks, but this reader has no `cur_shard` and `shard_count`: "
                f"each rank reads all rows. Give cur_shard={launched[0]}, shard_count={launched[1]} to divide it.",
                stacklevel=4,
            )
        return World()
    try:
        numbers = whole_number("cur_shard", cur_shard, 0), whole_number("shard_count", shard_count, 1)
        world = World.flat(*numbers)
    except ValueError as error:
        raise ValueError(
            f"`cur_shard` and `shard_count` must be given together, as integers with 0 <= cur_shard < shard_count; "
            f"found {cur_shard!r} and {shard_count!r}."
        ) from error
    if launched is not None and launched != numbers:
        rank, num_ranks = launched
        both = f"cur_shard={cur_shard}, shard_count={shard_count}, and the launcher says rank {rank} of {num_ranks}"
        if num_ranks == shard_count:
            raise WorldMismatch(
                f"{both}: some rows would be read twice and others not at all. Give the rank, or give `world` if "
                "another assignment of shards is intended.",
                rank=rank,
                num_ranks=num_ranks,
            )
        warnings.warn(f"{both}: correct only if several ranks read the same rows.", stacklevel=4)
    return world
