"""The fewest bytes that a row of shards can cost under a limit. Pure."""

from collections.abc import Sequence
from heapq import heappop, heappush

from smalti.cache.agenda import NEVER


def least_bytes(
    needed: Sequence[int], held: Sequence[int], costs: Sequence[int], limit: int | None, *, is_warm: bool = False
) -> int:
    """Bytes fetched when each time what is needed last makes room (Belady).

    Exact for shards of one size; where sizes differ nobody can compute the least quickly, and this is the measure
    that is used for it.

    Args:
        needed: Shards, in the order in which they are needed.
        held: By shard, the bytes that it takes here.
        costs: By shard, the bytes that it takes to fetch.
        limit: Bytes that may be held; a single shard is held however large it is.
        is_warm: Whether the best that the limit allows is there already: what is needed first. Otherwise nothing is.
    """
    if limit is None and is_warm:
        return 0
    if limit is None:
        return sum(costs[shard] for shard in set(needed))
    following = [NEVER] * len(needed)
    seen: dict[int, int] = {}
    for place in range(len(needed) - 1, -1, -1):
        following[place] = seen.get(needed[place], NEVER)
        seen[needed[place]] = place
    next_use: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    used = total = 0
    for shard, place in reversed(seen.items()) if is_warm else ():
        if used + held[shard] > limit:
            break
        next_use[shard] = place
        heappush(latest, (-place, shard))
        used += held[shard]
    for place, shard in enumerate(needed):
        if shard not in next_use:
            total += costs[shard]
            while next_use and used + held[shard] > limit:
                use, victim = heappop(latest)
                if next_use.get(victim) == -use:
                    del next_use[victim]
                    used -= held[victim]
            used += held[shard]
        next_use[shard] = following[place]
        heappush(latest, (-following[place], shard))
    return total
