"""Reference implementation of mixtures, version 1: sample by sample, with lists and Python's own integers."""

import math

import numpy as np

from tests.order.reference import reference_order

DRAWS, STREAMS, BATCHES = 6, 7, 8
ANGLE_BITS = 28
WORD = (1 << 64) - 1


def raw(count, purpose, seed, epoch=0, run=0):
    return np.random.Philox(counter=[0, 0, run, purpose], key=[seed, epoch]).random_raw(count).tolist()


def mixed(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def scattered(place, size, key):
    bits = (size - 1).bit_length()
    while True:
        left, right = bits // 2, bits - bits // 2
        for number in range(6):
            low, high = place % 2**right, place // 2**right
            stirred = mixed(((low + number * 0x9E3779B97F4A7C15) & WORD) ^ key)
            place = low * 2**left + (high ^ (stirred % 2**left))
            left, right = right, left
        if place < size:
            return place


def woven(lengths, keys, group=1):
    """Return (sequence, element) at every rank."""
    angles = []
    for sequence, (length, key) in enumerate(zip(lengths, keys, strict=True)):
        groups = math.ceil(length / group)
        for element in range(length):
            j = element // group
            u = mixed((key + j) & WORD) >> (64 - ANGLE_BITS)
            # The first whole angle that is greater than (j + u)/groups, less one.
            angle = -((-(j * 2**ANGLE_BITS + u + 1)) // groups) - 1
            angles.append((angle, sequence, element))
    return [(sequence, element) for _, sequence, element in sorted(angles)]


def units(sizes, taken, first_id, stream, seed, epoch, granularity):
    """Return lists of sample ids: copies of shards, and parts of them."""
    total = sum(sizes)
    shards = [list(range(first_id + sum(sizes[:s]), first_id + sum(sizes[: s + 1]))) for s in range(len(sizes))]
    copies, part = divmod(taken, total) if total else (1, 0)
    found = shards * copies
    if part:
        keys = raw(len(sizes), DRAWS, seed, run=stream)
        circle = woven(sizes, keys, granularity)
        drawn = [[] for _ in shards]
        for rank in range(epoch * part, (epoch + 1) * part):
            shard, place = circle[rank % total]
            drawn[shard].append(((rank // total), place, shards[shard][scattered(place, sizes[shard], keys[shard])]))
        found += [[sample for _, _, sample in sorted(chosen)] for chosen in drawn]
    return found


def ordered(parts, seed, epoch, nodes, block):
    samples = [sample for part in parts for sample in part]
    return [samples[place] for place in reference_order([len(part) for part in parts], seed, epoch, nodes, block)]


def reference_mixture(streams, taken, *, seed, epoch, nodes, block, granularity=1, fixed=False, batching=None):
    """Return every sample id of the epoch; `batching` is (method, global batch, local batch), or None for `random`."""
    parts, first_id = [], 0
    for stream, sizes in enumerate(streams):
        parts.append(units(sizes, taken[stream], first_id, stream, seed, 0 if fixed else epoch, granularity))
        first_id += sum(sizes)
    if batching is None or sum(count > 0 for count in taken) < 2:
        return ordered([unit for part in parts for unit in part], seed, epoch, nodes, block)
    seeds = [word >> 1 for word in raw(len(streams), STREAMS, seed)]
    queues = [ordered(part, own, epoch, nodes, block) for part, own in zip(parts, seeds, strict=True)]
    method, size, local = batching
    found = []
    if method == "stratified":
        (key,) = raw(1, BATCHES, seed, epoch, run=2)
        exact = [count * size / sum(taken) for count in taken]
        portions = [math.floor(share) for share in exact]
        losers = sorted(range(len(taken)), key=lambda s: (round(portions[s] - exact[s], 9), s))
        for stream in losers[: size - sum(portions)]:
            portions[stream] += 1
        batch = 0
        while all(len(queue) >= portion for queue, portion in zip(queues, portions, strict=True)):
            listed = [queues[s].pop(0) for s, portion in enumerate(portions) for _ in range(portion)]
            found += [listed[scattered(place, size, mixed((key + batch) & WORD))] for place in range(size)]
            batch += 1
    else:
        batch, readers = (local, size // local) if method == "device_per_stream" else (size, 1)
        whole = [count // batch for count in taken]
        owners = [stream for stream, _ in woven(whole, raw(len(streams), BATCHES, seed, epoch, run=0))]
        while len(owners) >= readers:
            step = [[queues[stream].pop(0) for _ in range(batch)] for stream in owners[:readers]]
            found += [step[reader][sample] for sample in range(batch) for reader in range(readers)]
            owners = owners[readers:]
    rest = woven([len(queue) for queue in queues], raw(len(streams), BATCHES, seed, epoch, run=1))
    return found + [queues[stream][place] for stream, place in rest]
