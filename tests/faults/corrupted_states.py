"""States that nobody saved: sound ones with one to three things in them changed, by seed."""

import copy
import math

FIELDS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")
EDGES = (0, 1, 2, 21, 22, 23, 24, 25, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, 1 << 62)
HUGE = ((1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 10**400)
MANY_NODES = ((1 << 20) - 1, 1 << 20, (1 << 20) + 1)
ODD = (True, False, None, math.nan, math.inf, -math.inf, -0.0, 1.0, 1.5, 1e300, 2j, "", "7", "-5", "nan", "x" * 5000)
OTHERS = (b"7", bytearray(3), (1, 2), [], [0], {}, {"epoch": 0}, {1: 2}, set(), object(), range(3), int, "\ud800", "\0")
ORDERS = ("window", "py1e", "py1br", "py1s", "py2s", "naive", "WINDOW", "window ")


def junk(rng, depth=0):
    """Any value."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(EDGES) * rng.choice([1, 1, 1, -1])
    if kind < 0.4:
        return rng.choice(HUGE) * rng.choice([1, -1])
    if kind < 0.41:
        return rng.choice(MANY_NODES)
    if kind < 0.5:
        return rng.randint(-30, 60)
    if kind < 0.75:
        return rng.choice(ODD)
    if kind < 0.8:
        return rng.choice(ORDERS)
    if kind < 0.9 or depth > 3:
        return rng.choice(OTHERS)
    if rng.random() < 0.5:
        return [junk(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(FIELDS): junk(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def mutated(sound, rng):
    """A sound state with one to three changes; rarely something else altogether."""
    if rng.random() < 0.01:
        return junk(rng)
    state = copy.deepcopy(sound)
    for _ in range(rng.randint(1, 3)):
        place = state
        while True:  # down into a nested mapping, now and then
            below = [value for value in place.values() if isinstance(value, dict) and value]
            if not below or rng.random() < 0.4:
                break
            place = rng.choice(below)
        key = rng.choice(sorted(place, key=str)) if place and rng.random() < 0.95 else rng.choice(["new", 3, None])
        change = rng.random()
        if change < 0.15:
            place.pop(key, None)
        elif change < 0.9:
            place[key] = junk(rng)
        else:
            place[key] = copy.deepcopy(state)  # nested in itself
    return state
