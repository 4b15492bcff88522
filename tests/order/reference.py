"""Reference implementation of the `window` order, version 2: sample by sample, with lists, from its description."""

from fractions import Fraction

import numpy as np

SHARDS, PLACES, PIECES, WINDOW, COHORT = 1, 2, 3, 4, 10


def permutation(count, purpose, seed, epoch=0, run=0, window=0):
    raw = np.random.Philox(counter=[0, window, run, purpose], key=[seed, epoch]).random_raw(count).tolist()
    return sorted(range(count), key=lambda i: (raw[i], i))


def layout(shard_sizes, seed, epoch, canonical_nodes, affinity):
    """Return the shards as they are laid end to end; `affinity` is a text."""
    count = len(shard_sizes)
    if affinity == "1":
        return permutation(count, SHARDS, seed)
    cohorts = 1
    while cohorts * 2 <= min(64, count // canonical_nodes):
        cohorts *= 2
    placed = []
    for cohort in range(cohorts):
        members = range(cohort, count, cohorts)
        generation = int(epoch * (1 - Fraction(affinity)) + Fraction(cohort, cohorts))
        total, before = sum(shard_sizes[shard] for shard in members), 0
        for k in permutation(len(members), COHORT, seed, generation, cohort):
            size = shard_sizes[members[k]]
            inside = size * (Fraction(cohort, cohorts) + Fraction(1, 2 * cohorts))
            placed.append(((before + inside) / max(1, total), members[k]))
            before += size
    return [shard for _, shard in sorted(placed)]


def reference_order(shard_sizes, seed, epoch, canonical_nodes, block_size, affinity="1"):
    """Return every sample id of the epoch, in order."""
    shards, first = [], 0
    for size in shard_sizes:
        shards.append(list(range(first, first + size)))
        first += size
    total = first
    order = layout(shard_sizes, seed, epoch, canonical_nodes, affinity)
    laid_out = [(shard, i) for shard in order for i in shards[shard]]
    runs = []
    for run in range(canonical_nodes):
        part = laid_out[run * total // canonical_nodes : (run + 1) * total // canonical_nodes]
        pieces = []
        for shard, sample in part:
            if pieces and pieces[-1][0] == shard:
                pieces[-1][1].append(sample)
            else:
                pieces.append((shard, [sample]))
        mixed = [sample for k in permutation(len(pieces), PIECES, seed, epoch, run) for sample in pieces[k][1]]
        shuffled = []
        for window, begin in enumerate(range(0, len(mixed), block_size)):
            block = mixed[begin : begin + block_size]
            shuffled += [block[k] for k in permutation(len(block), WINDOW, seed, epoch, run, window)]
        runs.append(shuffled)
    places = permutation(canonical_nodes, PLACES, seed)
    longest = max((len(run) for run in runs), default=0)
    return [runs[run][row] for row in range(longest) for run in places if row < len(runs[run])]
