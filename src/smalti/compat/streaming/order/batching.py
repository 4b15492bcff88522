"""MosaicML's batches of several streams, as places in the streams' own sequences; bit for bit.

`random` uses nothing of this: it mixes all streams as one. The other methods each assemble steps, of global batch B,
from sequences that were partitioned and shuffled stream by stream. With streams a and b, 2 ranks and batches of 2:

    stratified            every step has the same number of each         [a0 a1 a2 b0] [a3 a4 a5 b1] ...
    per_stream            a step is of one stream                        [b0 b1 b2 b3] [a0 a1 a2 a3] ...
    device_per_stream     a rank's batch is of one stream                [a0 a1|b0 b1] [b2 b3|a2 a3] ...

Only complete batches are kept, and the remaining samples are not read in this epoch: as in MosaicML, these methods are
not permutations of the epoch's samples.

A row lists a step as MosaicML does, host by host, rank by rank, sample by sample; -1 is empty.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.order.partition import WorldShape
from smalti.compat.streaming.order.shuffles import Ints
from smalti.errors import WorldMismatch


def in_position_order(rows: Ints, shape: WorldShape) -> Ints:
    """Return rows of steps in position order: sample by sample, rank by rank, host by host; shape (rows.size,)."""
    cut = rows.reshape(-1, shape.hosts, shape.ranks_on_host, shape.batch_size)
    return cut.transpose(0, 3, 2, 1).reshape(-1)


def stratified_rows(lengths: Sequence[int], proportions: Sequence[float], global_batch: int) -> Ints:
    """Return steps that each hold every stream in the same numbers; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end. The epoch ends when one stream is used up.

    Raises:
        WorldMismatch: a stream would have no sample in a step.
    """
    portions = stream_portions(proportions, global_batch)
    for stream, portion in enumerate(portions.tolist()):
        if portion < 1:
            raise WorldMismatch(
                f"Number of samples for stream {stream} is {portion} because the portion of this stream in the global "
                f"batch, which is of size {global_batch}, is too low (batching 'stratified'). Please increase the "
                "global batch size or increase the stream's proportion.",
                stream=stream,
                global_batch=global_batch,
            )
    steps = min(length // portion for length, portion in zip(lengths, portions.tolist(), strict=True))
    begins = np.cumsum(lengths) - lengths
    parts = [
        begin + np.arange(steps * portion, dtype=np.int64).reshape(steps, portion)
        for begin, portion in zip(begins.tolist(), portions.tolist(), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def stream_portions(proportions: Sequence[float], global_batch: int) -> Ints:
    """Return how many samples of each stream a `stratified` step holds; int64, shape (streams,)."""
    parts = np.array(proportions)
    portions = np.array([int(part * global_batch) for part in proportions], dtype=np.int64)
    lacking = global_batch - int(portions.sum())
    if lacking:
        nearest_first = np.flip(np.argsort(global_batch * parts - portions))
        portions[nearest_first[:lacking]] += 1
    return portions


def per_stream_places(
    lengths: Sequence[int], full_steps: Sequence[int], global_batch: int, rng: np.random.Generator
) -> Ints:
    """Return steps that each hold one stream, in an order that `rng` draws; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end, of the given lengths and numbers of full steps. Rows
    keep the sequences' own order: positions if the sequences hold positions.

    Raises:
        WorldMismatch: a stream has too few samples for one step.
    """
    for stream, steps in enumerate(full_steps):
        _check_batches(stream, steps, f"a complete global batch of size {global_batch}")
    begins = np.cumsum(lengths) - lengths
    starts = [begin + np.arange(steps) * global_batch for begin, steps in zip(begins, full_steps, strict=True)]
    return _mixed(starts, rng)[:, None] + np.arange(global_batch, dtype=np.int64)


def device_per_stream_rows(
    lengths: Sequence[int], canonical_nodes: int, shape: WorldShape, rng: np.random.Generator
) -> Ints:
    """Return steps in which every rank's batch holds one stream; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end, each of them in the position order of a world with
    as many hosts as there are canonical nodes; -1 is padding. MosaicML lists the hosts' batches in turn and divides
    that list by host and rank, so that with several ranks a host also gets batches of other hosts' samples.

    Raises:
        WorldMismatch: the hosts do not divide the canonical nodes, or a host has too few samples of a stream for one
            batch.
    """
    if canonical_nodes % shape.hosts:
        raise WorldMismatch(
            "For `device_per_stream` batching, num_canonical_nodes must be divisible by physical nodes. Got "
            f"{canonical_nodes} canonical nodes and {shape.hosts} physical nodes (hosts); choose another number of "
            "either.",
            canonical_nodes=canonical_nodes,
            hosts=shape.hosts,
        )
    begins = (np.cumsum(lengths) - lengths).tolist()
    hosts = []
    for number in range(shape.hosts):
        batches = []
        for stream, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
            places = begin + _host_places(length, number, canonical_nodes, shape)
            full = places.size // shape.batch_size
            _check_batches(stream, full, f"even a single device batch of size {shape.batch_size} on every host")
            batches.append(places[: full * shape.batch_size].reshape(full, shape.batch_size))
        hosts.append(_mixed(batches, rng))
    longest = max(len(host) for host in hosts)
    # MosaicML pads to the next multiple of the ranks, even if the number is a multiple already.
    rows = longest + shape.num_ranks - longest % shape.num_ranks
    listed = np.full((rows, shape.hosts, shape.batch_size), -1, dtype=np.int64)
    for place, host in enumerate(hosts):
        listed[: len(host), place] = host
    return listed.reshape(-1, shape.global_batch)


def _host_places(length: int, host: int, canonical_nodes: int, shape: WorldShape) -> Ints:
    """Return a stream's places in one host's canonical nodes: turn by turn, node by node, rank by rank."""
    nodes = canonical_nodes // shape.hosts
    places = np.arange(length, dtype=np.int64).reshape(-1, shape.ranks_on_host, canonical_nodes)
    return places[:, :, host * nodes : (host + 1) * nodes].transpose(0, 2, 1).reshape(-1)


def _mixed(parts: Sequence[Ints], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the streams' parts, joined in a random order that keeps each stream's own order."""
    origins = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rng.shuffle(origins)
    joined = np.concatenate(parts)
    mixed = np.empty_like(joined)
    mixed[np.argsort(origins, kind="stable")] = joined
    return mixed


def _check_batches(stream: int, count: int, batch: str) -> None:
    if not count:
        raise WorldMismatch(
            f"Stream with index {stream} does not have an adequate number of samples to construct {batch}. Choose a "
            "smaller batch, or take more of that stream.",
            stream=stream,
        )
