"""Measures how well orders shuffle, and draws docs/images/order-*.png; docs/order.md has an excerpt of its tables.

    .venv/bin/python tools/order_pictures.py            (about three minutes and 1.5 GB)

The set is the worst that a shuffle can get: stored sorted by class, 16 classes of equal size in shards of 2,048.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from smalti.compat.streaming.order.partition import WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun
from smalti.compat.streaming.order.sampling import weigh_streams
from smalti.order import plan_epoch

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SHARD = 2048
CLASSES = 16
BATCH = 256
SEED = 9176
PANEL = 250
INK, GREY, PAPER = (20, 24, 40), (120, 124, 136), (255, 255, 255)

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """One way to shuffle: a name, and the ids of an epoch of so many samples."""

    name: str
    epoch: Callable[..., Ids]
    """From the number of samples, the epoch and, where not `SHARD`, the samples of a shard."""


def window(nodes: int, block: int, affinity: float = 1.0) -> Order:
    """Smalti's order with so many canonical nodes and so large windows."""

    def ids(samples: int, epoch: int, shard: int = SHARD) -> Ids:
        sizes = np.full(samples // shard, shard)
        plan = plan_epoch(
            sizes, seed=SEED, epoch=epoch, canonical_nodes=nodes, shuffle_block_size=block, affinity=affinity
        )
        return plan.sample_ids(0, samples)

    return Order(f"window, {nodes} x {block:,}" + (f", affinity {affinity:g}" if affinity < 1 else ""), ids)


def mosaic(algorithm: str, nodes: int, block: int) -> Order:
    """The peer's order for one rank and batches of one: its canonical order, in which nodes take turns."""

    def ids(samples: int, epoch: int, shard: int = SHARD) -> Ids:
        options = MosaicOptions(nodes, seed=SEED, shuffle=True, shuffle_algo=algorithm, block_size=block)
        streams = weigh_streams([np.full(samples // shard, shard)])
        plan = MosaicRun(streams, WorldShape(), options).plan(epoch)
        return plan.sample_ids(0, samples)

    return Order(f"{algorithm}, {nodes} x {block:,}" if block else f"{algorithm}, {nodes} nodes", ids)


def full() -> Order:
    """A full permutation, what all others are held against."""

    def ids(samples: int, epoch: int, _shard: int = SHARD) -> Ids:
        return np.random.default_rng([SEED, epoch]).permutation(samples)

    return Order("full permutation", ids)


def stored() -> Order:
    """No shuffle."""
    return Order("stored order", lambda samples, _epoch, _shard=SHARD: np.arange(samples))


def label_run(labels: Ids) -> float:
    """Mean length of the runs of equal labels; 1.067 for 16 classes well mixed."""
    return float(labels.size / (1 + np.count_nonzero(np.diff(labels))))


def neighbour_distance(ids: Ids) -> float:
    """Mean distance of neighbours in stored order, as a part of the set; 1/3 for a full permutation."""
    return float(np.abs(np.diff(ids)).mean() / ids.size)


def same_shard(ids: Ids) -> float:
    """Neighbours of the same shard, as a multiple of what a full permutation has."""
    shards = ids // SHARD
    return float((np.diff(shards) == 0).mean() / ((SHARD - 1) / (ids.size - 1)))


def dispersion(labels: Ids, batch: int = BATCH) -> float:
    """Variation of classes from batch to batch, relative to chance: mean chi-square over its degrees of freedom."""
    batches = labels[: labels.size // batch * batch].reshape(-1, batch)
    counts = np.stack([(batches == label).sum(axis=1) for label in range(CLASSES)], axis=1)
    expected = batch / CLASSES
    return float((((counts - expected) ** 2).sum(axis=1) / expected).mean() / (CLASSES - 1))


def shard_spread(ids: Ids) -> float:
    """The middle 90 % of a shard's samples, as a part of the epoch, mean over shards; 0.9 for a full permutation."""
    positions = np.empty(ids.size, dtype=np.int64)
    positions[ids] = np.arange(ids.size)
    of_shards = np.sort(positions.reshape(-1, SHARD), axis=1)
    cut = SHARD // 20
    return float((of_shards[:, -cut - 1] - of_shards[:, cut]).mean() / ids.size)


def met_again(first: Ids, second: Ids) -> float:
    """Pairs that share a batch in two epochs, as a multiple of what two full permutations have."""
    batch_of = np.empty(first.size, dtype=np.int64)
    batch_of[second] = np.arange(first.size) // BATCH
    again = np.sort(batch_of[first].reshape(-1, BATCH), axis=1)
    pairs = 0
    for lag in range(1, BATCH):
        hits = int(np.count_nonzero(again[:, lag:] == again[:, :-lag]))
        if not hits:
            break
        pairs += hits
    expected = first.size // BATCH * (BATCH * (BATCH - 1) / 2) * (BATCH - 1) / (first.size - 1)
    return pairs / expected


def open_shards(ids: Ids) -> float:
    """The most shards that are begun and not yet finished at one time, as a part of all: what caches must hold."""
    positions = np.empty(ids.size, dtype=np.int64)
    positions[ids] = np.arange(ids.size)
    of_shards = positions.reshape(-1, SHARD)
    changes = np.zeros(ids.size + 1, dtype=np.int64)
    np.add.at(changes, of_shards.min(axis=1), 1)
    np.add.at(changes, of_shards.max(axis=1) + 1, -1)
    return float(np.cumsum(changes).max() / len(of_shards))


def uniformity(order: Order, samples: int, epochs: int) -> tuple[float, float]:
    """Places of samples over many epochs: mean chi-square over its degrees of freedom, and largest KS distance.

    Chi-square of every sample's positions in 8 bins of the epoch; Kolmogorov-Smirnov distance, times the root of the
    number of positions, of the positions that the first sample of every 64th shard has in all epochs.
    """
    shard = SHARD // 32
    bins = np.zeros((samples, 8), dtype=np.int32)
    followed = np.arange(0, samples, 64 * shard)
    found: list[Ids] = []
    for epoch in range(epochs):
        positions = np.empty(samples, dtype=np.int64)
        positions[order.epoch(samples, epoch, shard)] = np.arange(samples)
        bins[np.arange(samples), positions * 8 // samples] += 1
        found.append(positions[followed])
    expected = epochs / 8
    chi = (((bins - expected) ** 2).sum(axis=1) / expected).mean() / 7
    at = np.sort(np.concatenate(found)) / samples
    steps = np.arange(at.size + 1) / at.size
    distance = max(float((steps[1:] - at).max()), float((at - steps[:-1]).max()))
    return float(chi), distance * float(np.sqrt(at.size))


def measured(order: Order, samples: int) -> list[str]:
    """A row of the table."""
    first, second = order.epoch(samples, 0), order.epoch(samples, 1)
    labels = first // (samples // CLASSES)
    return [
        order.name,
        f"{label_run(labels):.3f}",
        f"{neighbour_distance(first):.3f}",
        f"{same_shard(first):.1f}",
        f"{dispersion(labels):.2f}",
        f"{shard_spread(first):.3f}",
        f"{met_again(first, second):.2f}",
        f"{open_shards(first):.1%}",
    ]


def exchange(order: Order, samples: int, epochs: int) -> list[str]:
    """The exchange of samples among hosts over epochs: of 8 hosts, and of batches of 16 samples woven from 64 runs.

    Pairs on one host in two epochs in succession, as a multiple of chance; the part of the set that a host has read
    after a third of the epochs and after all; the part of the pairs of samples that could have met in a batch, because
    they were in runs that share batches in some epoch.
    """
    hosts, group = 8, 16
    pairs = np.random.default_rng(SEED).integers(0, samples, (2, 1 << 16))
    seen, could_meet, together = np.zeros(samples, bool), np.zeros(pairs.shape[1], bool), []
    parts, before = [], np.zeros(0, np.int64)
    for epoch in range(epochs):
        places = np.empty(samples, dtype=np.int64)
        places[order.epoch(samples, epoch, SHARD // 32)] = np.arange(samples) % 64
        now = places % hosts
        seen |= now == 0
        could_meet |= places[pairs[0]] // group == places[pairs[1]] // group
        parts.append(float(seen.mean()))
        if epoch:
            both = np.bincount(before * hosts + now, minlength=hosts * hosts).astype(np.float64)
            together.append((both * (both - 1)).sum() / (hosts * (samples / hosts) * (samples / hosts - 1)) * hosts)
        before = now
    return [
        f"{np.mean(together):.2f}", f"{parts[epochs // 3 - 1]:.1%}", f"{parts[-1]:.1%}", f"{could_meet.mean():.1%}",
    ]  # fmt: skip


def print_affinities(samples: int) -> None:
    """Print the table of affinities: one epoch and two in succession, and 30 epochs of a set 32 times smaller."""
    print("\norder, dispersion, met again; pairs on a host again, read by a host after 10 and 30 epochs, could meet")
    affinities = [(window(64, 16384, each), window(64, 512, each)) for each in (1.0, 0.95, 0.8, 0.5, 0.0)]
    others = [(full(), full()), (mosaic("py1e", 8, 500_000), mosaic("py1e", 8, 15_625))]
    others.append((mosaic("py1e", 64, 262_144), mosaic("py1e", 64, 8_192)))
    for large, small in (*affinities, *others):
        first, second = large.epoch(samples, 5), large.epoch(samples, 6)
        found = [f"{dispersion(first // (samples // CLASSES)):.2f}", f"{met_again(first, second):.2f}"]
        print("| " + " | ".join([large.name, *found, *exchange(small, 1 << 19, 30)]) + " |", flush=True)


def cloud(ids: Ids, size: int) -> NDArray[np.float64]:
    """Samples of each part of the set (row) in each part of the epoch (column), 1 = evenly spread."""
    column = np.arange(ids.size) * size // ids.size
    row = ids * size // ids.size
    counts = np.bincount(row * size + column, minlength=size * size).reshape(size, size)
    return counts / (ids.size / (size * size))


def draw_clouds(orders: list[Order], samples: int, file: Path) -> None:
    """Panels: position in the epoch to the right, place in the stored set downwards."""
    gap, top, across = 22, 46, 4
    down = -(-len(orders) // across)
    page = Image.new("RGB", (across * (PANEL + gap) + gap, down * (PANEL + top + gap) + gap), PAPER)
    pen, font, small = ImageDraw.Draw(page), ImageFont.load_default(15), ImageFont.load_default(12)
    for number, order in enumerate(orders):
        left, upper = gap + number % across * (PANEL + gap), gap + number // across * (PANEL + top + gap)
        density = cloud(order.epoch(samples, 0), PANEL // 2)
        shade = np.clip(1 - np.sqrt(np.minimum(density, 16) / 16), 0, 1)
        pixels = Image.fromarray((255 * shade).astype(np.uint8)).resize((PANEL, PANEL), Image.Resampling.NEAREST)
        page.paste(pixels.convert("RGB"), (left, upper + top))
        pen.rectangle((left - 1, upper + top - 1, left + PANEL, upper + top + PANEL), outline=GREY)
        pen.text((left, upper + 4), order.name, fill=INK, font=font)
        pen.text((left, upper + 25), "right: position   down: stored id", fill=GREY, font=small)
    page.save(file, optimize=True)


def draw_batches(orders: list[Order], samples: int, file: Path) -> None:
    """Strips: batch after batch to the right, each column split by the classes of its samples."""
    wide, high, gap, left = 800, 90, 14, 210
    page = Image.new("RGB", (left + wide + gap, len(orders) * (high + gap) + gap), PAPER)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    colours = [Image.new("HSV", (1, 1), (label * 256 // CLASSES, 150, 225)) for label in range(CLASSES)]
    palette = np.array([colour.convert("RGB").getpixel((0, 0)) for colour in colours], dtype=np.uint8)
    for number, order in enumerate(orders):
        labels = order.epoch(samples, 0) // (samples // CLASSES)
        batches = np.sort(labels[: samples // BATCH * BATCH].reshape(-1, BATCH), axis=1)
        shown = batches[np.arange(wide) * len(batches) // wide][:, np.arange(high) * BATCH // high]
        upper = gap + number * (high + gap)
        page.paste(Image.fromarray(palette[shown.T]), (left, upper))
        pen.text((gap, upper + high // 2 - 10), order.name, fill=INK, font=font)
    page.save(file, optimize=True)


def rows_of(orders: list[Order], samples: int) -> Iterator[list[str]]:
    """The first table."""
    yield [
        "order", "label run", "neighbour distance", "same shard", "dispersion", "shard spread", "met again",
        "open shards",
    ]  # fmt: skip
    for order in orders:
        yield measured(order, samples)


def main() -> None:
    """Prints the tables and draws the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1 << 24, help="a multiple of 2^19")
    parser.add_argument("--affinity", action="store_true", help="print the table of affinities alone")
    options = parser.parse_args()
    samples = options.samples
    if options.affinity:
        print_affinities(samples)
        return
    full_order, default = full(), window(64, 16384)
    measured_orders = [
        full_order, window(64, 4096), default, window(64, 65536), window(8, 131072), window(8, 500_000),
        window(1, 1 << 20), mosaic("py1e", 8, 500_000), mosaic("py1e", 64, 262_144), mosaic("py1br", 8, 500_000),
        mosaic("py1s", 64, 0), mosaic("py1s", 8, 0), stored(),
    ]  # fmt: skip
    for row in rows_of(measured_orders, samples):
        print("| " + " | ".join(row) + " |", flush=True)
    print("\ndispersion in batches of 64, 256, 1024, 4096")
    for order in (full_order, default, window(64, 65536), window(8, 500_000), mosaic("py1e", 8, 500_000)):
        labels = order.epoch(samples, 0) // (samples // CLASSES)
        found = [f"{dispersion(labels, batch):.2f}" for batch in (64, 256, 1024, 4096)]
        print("| " + " | ".join([order.name, *found]) + " |", flush=True)
    small = 1 << 19
    print("\nover 64 epochs of 2^19 samples; shards, windows and blocks smaller by 32: chi-square, KS distance")
    for order in (full_order, window(64, 512), window(8, 4096), mosaic("py1e", 8, 15_625), mosaic("py1s", 8, 0)):
        chi, distance = uniformity(order, small, 64)
        print(f"| {order.name} | {chi:.2f} | {distance:.2f} |", flush=True)
    print_affinities(samples)
    clouds = [
        stored(), mosaic("py1s", 8, 0), mosaic("py1br", 8, 500_000), mosaic("py1e", 8, 500_000),
        window(64, 4096), default, window(8, 500_000), full_order,
    ]  # fmt: skip
    draw_clouds(clouds, samples, IMAGES / "order-clouds.png")
    strips = [mosaic("py1s", 8, 0), mosaic("py1e", 8, 500_000), window(64, 4096), default, full_order]
    draw_batches(strips, samples, IMAGES / "order-batches.png")


if __name__ == "__main__":
    main()
