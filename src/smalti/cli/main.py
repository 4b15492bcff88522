"""Arguments in, library calls, lines out; a fault is one line to a person and exit status 1."""

import argparse
import sys
from collections.abc import Sequence

from smalti import __version__
from smalti.catalog import history, load_manifest, rollback, verify
from smalti.cli.cache import add_cache_commands
from smalti.cli.ledger import add_ledger_commands
from smalti.cli.plan import add_plan_command
from smalti.errors import SmaltiError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 for success, 1 for a fault, 2 for a wrong call."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except SmaltiError as fault:
        print(f"smalti: {fault}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smalti", description="Versioned, verified shard sets.")
    parser.add_argument("--version", action="version", version=f"smalti {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("show", _show, "what a version holds: columns, splits, shards, bytes, digest"),
        ("history", _history, "all versions, oldest first"),
        ("verify", _verify, "check every shard of a version: there, whole, with the declared hashes and counts"),
        ("rollback", _rollback, "publish an earlier version again, as the newest"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("url", help="URL or folder of the shard set")
        if name != "history":
            needed = name == "rollback"
            command.add_argument("--at", type=int, required=needed, help="version (default: the newest)", metavar="N")
        command.set_defaults(run=run)
    add_cache_commands(commands)
    add_ledger_commands(commands)
    add_plan_command(commands)
    return parser


def _show(chosen: argparse.Namespace) -> int:
    manifest = load_manifest(chosen.url, version=chosen.at)
    print(f"version  {manifest.version}, published {manifest.created or 'by another writer'}")
    print(f"digest   {manifest.digest}")
    print(f"samples  {manifest.rows:,} in {len(manifest.shards):,} shards, {manifest.num_bytes:,} bytes stored")
    for split in manifest.partitions:
        shards = manifest.select(split)
        print(f"split    {split}: {sum(shard.samples for shard in shards):,} samples in {len(shards):,} shards")
    for column, encoding in manifest.schema.columns().items():
        print(f"column   {column}: {encoding}")
    return 0


def _history(chosen: argparse.Namespace) -> int:
    for info in history(chosen.url):
        print(f"{info.version:>6}  {info.created}  {info.rows:>12,} samples  {info.digest[:16]}  {info.write_id}")
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    report = verify(chosen.url, version=chosen.at)
    for problem in report.problems:
        print(problem.message, file=sys.stderr)
    state = f"{len(report.problems)} problems" if report.problems else "all good"
    print(f"version {report.version}: {report.num_shards:,} shards, {report.rows:,} samples: {state}")
    return 1 if report.problems else 0


def _rollback(chosen: argparse.Namespace) -> int:
    manifest = rollback(chosen.url, chosen.at)
    print(f"version {manifest.version} now holds what version {chosen.at} held, digest {manifest.digest[:16]}")
    return 0
