"""`smalti plan URL`: the cost of an epoch, computed before machines are rented."""

import argparse
import json
import re
from contextlib import closing
from dataclasses import asdict
from typing import Any

from smalti.cli.version_choice import add_version_choice
from smalti.dataset import open_dataset
from smalti.dataset.forecast import Forecast, ReaderSetup, Shards, forecast
from smalti.errors import SchemaError
from smalti.format.sizes import parse_byte_count
from smalti.world import World

_WORLD = re.compile(r"(\d+)x(\d+)")


def add_plan_command(commands: Any) -> None:
    """Add `plan` to the parser."""
    text = "the cost of an epoch on a world: steps, padding, traffic, cache, memory, mixing"
    command = commands.add_parser("plan", help=text, description=text)
    command.add_argument("url", help="URL or folder of the shard set")
    add_version_choice(command)
    command.add_argument("--split", help="split to read (default: all)")
    command.add_argument("--world", type=_world, default=(1, 1), help="hosts and ranks of each, such as 2x8")
    command.add_argument("--batch", type=_count, required=True, help="samples per rank and step")
    command.add_argument("--workers", type=_count_or_none, default=0, help="loader workers of a rank")
    command.add_argument("--cache", type=_bytes, help="size of the cache on each host, such as 50GB (default: enough)")
    command.add_argument("--canonical-nodes", type=_count, metavar="N")
    command.add_argument("--shuffle-block-size", type=_count, metavar="N")
    command.add_argument("--no-shuffle", action="store_true")
    command.add_argument("--tail", choices=("pad", "short", "drop"), default="pad")
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.set_defaults(run=_plan)


def _plan(chosen: argparse.Namespace) -> int:
    hosts, ranks = chosen.world
    dataset = open_dataset(
        chosen.url,
        version=chosen.at,
        tag=chosen.tag,
        split=chosen.split,
        shuffle=not chosen.no_shuffle,
        num_canonical_nodes=chosen.canonical_nodes,
        shuffle_block_size=chosen.shuffle_block_size,
        world=World.of_blocks(0, hosts * ranks, hosts),
    )
    reader = ReaderSetup(hosts, ranks, chosen.batch, chosen.workers, chosen.cache, chosen.tail)
    with closing(dataset):
        sizes = dataset.stream.sets[0].num_bytes_each
        found = forecast(dataset.cursor(), Shards(dataset.stream.shard_sizes, sizes.stored, sizes.raw), reader)
    if chosen.json:
        print(json.dumps(asdict(found) | {"cold_bytes": found.cold_bytes, "warm_bytes": found.warm_bytes}, indent=2))
    else:
        _print_forecast(found, reader)
    return 0


def _print_forecast(found: Forecast, reader: ReaderSetup) -> None:
    most = max(found.hosts, key=lambda host: host.cold_bytes)
    held = max(host.window_bytes for host in found.hosts)
    print(f"set      {found.samples:,} samples in {found.shards:,} shards, {_size(found.stored_bytes)}")
    print(
        f"epoch    {found.steps:,} steps of {found.global_batch:,} samples, {found.repeats:,} repeats in the last one"
    )
    print(f"host     reads {most.shards:,} shards, {_size(most.cold_bytes)} in the first epoch")
    whole = _size(most.cache_bytes)
    print(
        f"cache    {_size(held)} for the shards that are mixed at once and those that come next, {whole} to fetch "
        "nothing again"
    )
    print(
        f"traffic  {_size(found.cold_bytes)} over all hosts in the first epoch, {_size(found.warm_bytes)} in later ones"
    )
    room, in_use = reader.cache_bytes, max(host.in_use_bytes for host in found.hosts)
    if room is not None and room < in_use:
        print(
            f"         a cache of {_size(room)} is too small for what is mixed, {_size(in_use)}: shards are fetched "
            "several times. Give more, or a smaller --shuffle-block-size."
        )
    elif room is not None and room < held:
        print(f"         a cache of {_size(room)} holds what is mixed, and not what comes next: readers wait for that.")
    print(f"memory   {_size(found.plan_bytes)} for the order, {_size(found.batch_bytes)} for a rank's batches ahead")
    print(
        f"mixing   {found.window_samples:,} samples at once; a window of a run mixes {found.window_shards:,.1f} shards"
    )


def _size(num_bytes: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} bytes"


def _world(text: str) -> tuple[int, int]:
    match = _WORLD.fullmatch(text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise argparse.ArgumentTypeError(f"expected hosts x ranks of each, such as 2x8, found {text!r}")
    return int(match[1]), int(match[2])


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return int(text)


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _bytes(text: str) -> int:
    try:
        return parse_byte_count(text, what="--cache")
    except SchemaError as error:
        raise argparse.ArgumentTypeError(f"expected bytes, such as 50GB, found {text!r}") from error
