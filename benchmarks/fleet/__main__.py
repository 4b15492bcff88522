"""The fleet simulator's command line.

python -m benchmarks.fleet --samples 1e9 --hosts 8,64 --cache 2TB         one set, some fleets
python -m benchmarks.fleet --sweep benchmarks/results/DATE-NAME.json      what docs/scale.md shows: a few minutes
python -m benchmarks.fleet --picture benchmarks/results/DATE-NAME.json    the picture and the tables of docs/scale.md
"""

import argparse
import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from benchmarks.fleet.picture import draw_page
from benchmarks.fleet.report import report_of, table_of
from benchmarks.fleet.setting import DataSet, Fleet, Order, Store
from benchmarks.fleet.simulation import simulate
from benchmarks.fleet.sweep import Entry, all_entries
from smalti.format.sizes import parse_byte_count
from smalti.order import fitted_canonical_nodes

_STORE = {field.name: field.default for field in fields(Store)}


def main(arguments: list[str] | None = None) -> None:
    """Simulate what the arguments say."""
    options = _parser().parse_args(arguments)
    if options.picture:
        draw_page(options.picture)
    elif options.sweep:
        _sweep(options.sweep, small=options.small, every=options.every)
    else:
        print(table_of([entry.to_dict() for entry in _chosen(options)]))


def _sweep(path: Path, *, small: bool, every: bool) -> None:
    begin, found = time.monotonic(), []
    for entry in all_entries(small=small, every=every):
        found.append(entry.to_dict())
        fleet = entry.found.fleet
        told = f"{entry.part}: {entry.found.data.name}, {fleet.hosts} hosts, {entry.label}"
        print(f"{time.monotonic() - begin:6.0f} s  {told}", file=sys.stderr, flush=True)
    path.write_text("[\n" + ",\n".join(json.dumps(each) for each in found) + "\n]\n")
    path.with_suffix(".md").write_text(report_of(found))


def _chosen(options: argparse.Namespace) -> list[Entry]:
    data = DataSet(f"{options.samples:,.0f}", int(options.samples), options.sample_bytes, options.shard_samples)
    store = Store(**{name: getattr(options, name) for name in _STORE})
    found = []
    for hosts in options.hosts:
        fleet = Fleet(
            hosts, options.ranks, options.batch_size, options.workers, 2 * options.workers, options.samples_per_s,
            options.cache, options.predownload,
        )  # fmt: skip
        nodes = options.canonical_nodes or (fitted_canonical_nodes(hosts) if options.fitted else None)
        window = Order("window", nodes, options.block_size, options.affinity)
        for label, order in (("window", window), ("MosaicML", Order("mosaicml"))):
            if label == "window" or not options.no_mosaicml:
                outcome = simulate(data, fleet, order, store, epochs=options.epochs, max_hosts=options.simulated)
                found.append(Entry("chosen", label, replace(outcome)))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, metavar="JSON", help="run all of docs/scale.md, and write its results")
    parser.add_argument("--small", action="store_true", help="with --sweep: a few runs that take seconds")
    parser.add_argument("--every", action="store_true", help="with --sweep: every set from one host on; hours")
    parser.add_argument("--picture", type=Path, metavar="JSON", help="draw the picture of docs/scale.md from results")
    group = parser.add_argument_group("set and fleet")
    group.add_argument("--samples", type=float, default=1e8)
    group.add_argument("--sample-bytes", type=int, default=41_000)
    group.add_argument("--shard-samples", type=int, default=1_600)
    group.add_argument("--hosts", type=_numbers, default=[8], help="one or several, such as 8,64,1024")
    group.add_argument("--ranks", type=int, default=Fleet.ranks, help="of each host")
    group.add_argument("--batch-size", type=int, default=Fleet.batch_size, help="of each rank")
    group.add_argument("--workers", type=int, default=Fleet.workers, help="of each rank")
    group.add_argument("--samples-per-s", type=float, default=Fleet.samples_per_s, help="that a rank trains on")
    group.add_argument("--cache", type=_bytes, help="of each host, such as 2TB; no limit by default")
    group.add_argument("--predownload", type=int, help="samples that a rank looks ahead for each worker")
    group.add_argument("--epochs", type=int, default=2)
    group.add_argument("--simulated", type=int, default=3, help="hosts that are simulated one by one")
    group = parser.add_argument_group("order")
    group.add_argument("--canonical-nodes", type=int)
    group.add_argument("--fitted", action="store_true", help="as many canonical nodes as fit the hosts")
    group.add_argument("--block-size", type=int)
    group.add_argument("--affinity", type=float, default=1.0)
    group.add_argument("--no-mosaicml", action="store_true", help="leave out MosaicML's order")
    group = parser.add_argument_group("store")
    for name, value in _STORE.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _bytes(text: str) -> int:
    return parse_byte_count(text, what="--cache")


if __name__ == "__main__":
    main()
