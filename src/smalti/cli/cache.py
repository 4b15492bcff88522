"""`smalti cache ls|verify|scrub|clear`: the copies of shards on this machine."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smalti.cache import inspect
from smalti.cache.sources import detect_cache_folder
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.sidecars import aligned_shards, columns_of
from smalti.catalog.tags import chosen_version
from smalti.cli.version_choice import add_version_choice
from smalti.format import ShardInfo
from smalti.storage import Store, open_store


def add_cache_commands(commands: Any) -> None:
    """Add `cache` and its subcommands to the parser."""
    text = "the copies of shards on this machine; safe beside running jobs"
    below = commands.add_parser("cache", help=text, description=text).add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("ls", _ls, "list the copies, by data set"),
        ("verify", _verify, "compare every copy of a version with its manifest"),
        ("scrub", _scrub, "remove leftovers of killed processes, and files that failed verification"),
        ("clear", _clear, "remove all copies; running jobs fetch again what they do not have open"),
    ):
        command = below.add_parser(name, help=text, description=text)
        if name == "verify":
            command.add_argument("url", help="URL or folder of the shard set")
            add_version_choice(command)
            command.add_argument("--remove", action="store_true", help="remove copies that are damaged")
        else:
            command.add_argument("--digest", default="", help="only data sets whose digest starts with this")
        command.add_argument("--local", type=Path, help="the cache folder (default: the user's own)", metavar="FOLDER")
        command.add_argument("--json", action="store_true", help="print one JSON document")
        command.set_defaults(run=run)


def _ls(chosen: argparse.Namespace) -> int:
    found = inspect.list_copies(_local(chosen), chosen.digest)
    if chosen.json:
        return _print_json(found)
    for each in found:
        print(
            f"{each.folder}: {each.shards:,} files, {each.num_bytes:,} bytes; {each.in_flight:,} in flight, "
            f"{each.readers:,} readers under a limit, {each.left:,} left over ({each.left_bytes:,} bytes)"
        )
    print(f"{len(found):,} data sets, {sum(each.num_bytes for each in found):,} bytes")
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    store = open_store(chosen.url)
    manifest = load_manifest(store, version=chosen_version(store, chosen.at, chosen.tag))
    good = 0
    problems: list[tuple[str, str]] = []
    for digest, shards in _with_columns(store, manifest):
        found, wrong = inspect.verify_copies(_local(chosen), digest, store.url, list(shards))
        good, problems = good + found, [*problems, *wrong]
    removed = [inspect.discard(Path(path)) for path, _ in problems] if chosen.remove else []
    if chosen.json:
        rows = [{"file": path, "problem": text} for path, text in problems]
        print(
            json.dumps({"digest": manifest.digest, "good": good, "problems": rows, "removed": len(removed)}, indent=2)
        )
        return 1 if problems else 0
    for _, text in problems:
        print(text, file=sys.stderr)
    state = f"{len(problems):,} damaged, {len(removed):,} removed" if problems else "all good"
    print(f"version {manifest.version}: {good:,} copies as declared: {state}")
    return 1 if problems else 0


def _with_columns(store: Store, manifest: Manifest) -> Iterator[tuple[str, Sequence[ShardInfo]]]:
    """Yield the shards of a version and of its added columns, with the digest that names their cache folder."""
    yield manifest.digest, manifest.shards
    for entry in columns_of(manifest.sidecars):
        yield entry.digest, aligned_shards(store, entry, manifest.shards)


def _scrub(chosen: argparse.Namespace) -> int:
    return _print_removed(chosen, inspect.scrub(_local(chosen), chosen.digest))


def _clear(chosen: argparse.Namespace) -> int:
    return _print_removed(chosen, inspect.clear(_local(chosen), chosen.digest))


def _print_removed(chosen: argparse.Namespace, removed: Sequence[inspect.Removed]) -> int:
    if chosen.json:
        return _print_json(removed)
    for each in removed:
        print(f"{each.folder}: {each.files:,} files removed, {each.num_bytes:,} bytes")
    return 0


def _print_json(found: Sequence[Any]) -> int:
    print(json.dumps([asdict(each) for each in found], indent=2))
    return 0


def _local(chosen: argparse.Namespace) -> Path:
    return detect_cache_folder() if chosen.local is None else Path(chosen.local).expanduser()
