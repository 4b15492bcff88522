"""`smalti show|history|diff|verify|rollback|tag|tags|untag|vacuum|compact URL`: the versions of a shard set."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from smalti.catalog import diff, history, load_manifest, rollback, tag, tags, untag, vacuum, verify
from smalti.catalog.tags import chosen_version, read_tags
from smalti.cli.version_choice import add_version_choice
from smalti.storage import UnfinishedUpload, open_store
from smalti.writer import compact

Shown = Callable[[int, int], None]


def add_version_commands(commands: Any) -> None:
    """Add the commands that inspect and change versions to the parser."""
    show = _command(commands, "show", _show, "the contents of a version: columns, splits, shards, bytes, digest")
    add_version_choice(show)
    _command(commands, "history", _history, "all versions, oldest first")
    which = _command(commands, "diff", _diff, "what changed from one version to another; a tag can stand for a version")
    which.add_argument("a", help="version or tag", type=_version_or_tag)
    which.add_argument("b", help="version or tag (default: the newest)", type=_version_or_tag, nargs="?")
    check = _command(
        commands,
        "verify",
        _verify,
        "check every shard of a version: it exists, is complete, and has the declared hashes and samples",
    )
    add_version_choice(check)
    check.add_argument("--sizes", action="store_true", help="compare only sizes, without reading shards")
    back = _command(commands, "rollback", _rollback, "publish an earlier version again, as the newest")
    back.add_argument("--at", type=int, required=True, help="version", metavar="N")
    named = _command(commands, "tag", _tag, "name a version; vacuum keeps it")
    named.add_argument("name", help="letters, digits and . _ -")
    named.add_argument("--at", type=int, help="version (default: the newest)", metavar="N")
    named.add_argument("--move", action="store_true", help="move the name from the version that has it")
    _command(commands, "tags", _tags, "all tags and their versions")
    _command(commands, "untag", _untag, "remove a tag").add_argument("name")
    swept = _command(
        commands,
        "vacuum",
        _vacuum,
        "remove old versions and leftovers of killed writers; without --remove, only list them",
    )
    swept.add_argument("--older-than", default="7d", metavar="AGE", help="such as 7d, 36h (default: 7d)")
    swept.add_argument("--remove", action="store_true", help="remove the listed files")
    swept.add_argument(
        "--unsafe-ttl",
        action="store_true",
        help="allow less than seven days; safe only if no job reads or writes the set",
    )
    joined = _command(commands, "compact", _compact, "merge small shards, in a new version")
    joined.add_argument("--below", metavar="BYTES", help="shards to merge, such as 32mb (default: half a shard)")
    joined.add_argument("--size-limit", metavar="BYTES", help="maximal size of a merged shard (default: as now)")


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("url", help="URL or folder of the shard set")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=run)
    return command


def _show(chosen: argparse.Namespace) -> int:
    store = open_store(chosen.url)
    manifest = load_manifest(store, version=chosen_version(store, chosen.at, chosen.tag))
    splits = {split: manifest.select(split) for split in manifest.partitions}
    counted = {
        split: {"samples": sum(shard.samples for shard in shards), "shards": len(shards)}
        for split, shards in splits.items()
    }
    if chosen.json:
        names = ("version", "parent", "created", "digest", "row_hash", "rows", "num_bytes", "write_id")
        return _print_json(
            {name: getattr(manifest, name) for name in names}
            | {"num_shards": len(manifest.shards), "splits": counted, "columns": manifest.schema.columns()}
            | {"lineage": dict(manifest.lineage), "metadata": dict(manifest.metadata)}
        )
    print(f"version  {manifest.version}, published {manifest.created or 'by another writer'}")
    print(f"digest   {manifest.digest}")
    print(f"samples  {manifest.rows:,} in {len(manifest.shards):,} shards, {manifest.num_bytes:,} bytes stored")
    for split, found in counted.items():
        print(f"split    {split}: {found['samples']:,} samples in {found['shards']:,} shards")
    for column, encoding in manifest.schema.columns().items():
        print(f"column   {column}: {encoding}")
    return 0


def _history(chosen: argparse.Namespace) -> int:
    versions, named = history(chosen.url), tags(chosen.url)
    names = {info.version: [name for name, version in named.items() if version == info.version] for info in versions}
    if chosen.json:
        return _print_json([asdict(info) | {"tags": names[info.version]} for info in versions])
    for info in versions:
        marks = [*names[info.version], *(["(removed by a vacuum)"] if info.is_expired else [])]
        line = f"{info.version:>6}  {info.created}  {info.rows:>12,} samples  {info.digest[:16]}  {info.write_id}"
        print("  ".join([line, info.operation, *marks]))
    return 0


def _diff(chosen: argparse.Namespace) -> int:
    found = diff(chosen.url, chosen.a, chosen.b)
    added, removed = ([shard.stored.basename for shard in shards] for shards in (found.added, found.removed))
    if chosen.json:
        names = ("a", "b", "num_kept", "rows", "num_bytes", "same_rows", "rows_added", "rows_removed", "bytes_added")
        columns = ("columns_added", "columns_removed", "columns_changed", "lineage")
        facts = {name: getattr(found, name) for name in (*names, *columns)}
        return _print_json(facts | {"added": added, "removed": removed})
    print(found.summary())
    for sign, keys in (("+", added), ("-", removed)):
        for key in keys:
            print(f"{sign} {key}")
    for name, kind in found.columns_added.items():
        print(f"+ column {name}: {kind}")
    for name, kind in found.columns_removed.items():
        print(f"- column {name}: {kind}")
    for name, (before, after) in found.columns_changed.items():
        print(f"! column {name}: {before} to {after}")
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    with _progress(chosen, "shards checked") as shown:
        report = verify(chosen.url, version=chosen.at, tag=chosen.tag, deep=not chosen.sizes, on_shard=shown)
    if chosen.json:
        _print_json(asdict(report) | {"ok": report.ok})
        return 0 if report.ok else 1
    for problem in report.problems:
        print(problem.message, file=sys.stderr)
    state = f"{len(report.problems)} problems" if report.problems else "all good"
    print(f"version {report.version}: {report.num_shards:,} shards, {report.rows:,} samples: {state}")
    if report.row_hash:
        state = "as declared" if report.declared_row_hash == report.row_hash else "none declared"
        state = state if report.declared_row_hash in {"", report.row_hash} else "differs from the declared one"
        print(f"row hash {report.row_hash}: {state}")
    return 1 if report.problems else 0


def _rollback(chosen: argparse.Namespace) -> int:
    manifest = rollback(chosen.url, chosen.at)
    if chosen.json:
        return _print_json({"version": manifest.version, "rolled_back_to": chosen.at, "digest": manifest.digest})
    print(f"version {manifest.version} now has the contents of version {chosen.at}, digest {manifest.digest[:16]}")
    return 0


def _tag(chosen: argparse.Namespace) -> int:
    version = tag(chosen.url, chosen.name, chosen.at, move=chosen.move)
    if chosen.json:
        return _print_json({"tag": chosen.name, "version": version})
    print(f"{chosen.name}: version {version}")
    return 0


def _tags(chosen: argparse.Namespace) -> int:
    found = read_tags(chosen.url)
    if chosen.json:
        return _print_json({name: each.version for name, each in found.items()})
    for name, each in found.items():
        print(f"{name}: version {each.version}")
        for key, value in each.metadata.items():
            print(f"    {key}: {value if isinstance(value, str) else json.dumps(value)}")
    return 0


def _untag(chosen: argparse.Namespace) -> int:
    untag(chosen.url, chosen.name)
    if chosen.json:
        return _print_json({"tag": chosen.name, "version": None})
    print(f"{chosen.name}: tag removed")
    return 0


def _vacuum(chosen: argparse.Namespace) -> int:
    with _progress(chosen, "objects removed") as shown:
        report = vacuum(
            chosen.url,
            older_than=chosen.older_than,
            dry_run=not chosen.remove,
            unsafe_ttl=chosen.unsafe_ttl,
            on_remove=shown,
        )
    if chosen.json:
        removed = [{"key": each.key, "num_bytes": each.num_bytes, "why": each.why.value} for each in report.removed]
        return _print_json(
            {"dry_run": report.dry_run, "version": report.version, "expired": report.expired, "removed": removed}
            | {"num_bytes": report.num_bytes, "kept": dict(report.kept)}
            | {"uploads": None if report.uploads is None else [_upload_facts(each) for each in report.uploads]}
        )
    for each in report.removed:
        print(f"{each.key}: {each.num_bytes:,} bytes, {each.why.value}")
    for upload in report.uploads or ():
        what = "a temporary file" if upload.is_temporary else "an upload"
        size = "" if upload.num_bytes is None else f"{upload.num_bytes:,} bytes, "
        print(f"{upload.key}: {size}{what} that was never completed")
    if report.uploads is None:
        print("uncompleted uploads: the store does not list them for these credentials")
    for why, count in report.kept.items():
        print(f"kept {count:,} objects: {why}")
    print(report.summary())
    if report.dry_run and (report.removed or report.uploads):
        print("nothing was removed; give --remove to remove it")
    return 0


def _upload_facts(upload: UnfinishedUpload) -> dict[str, Any]:
    return {"key": upload.key, "num_bytes": upload.num_bytes, "upload_id": upload.upload_id}


def _compact(chosen: argparse.Namespace) -> int:
    before = load_manifest(chosen.url)
    with _progress(chosen, "shards read") as shown:
        made = compact(chosen.url, below=chosen.below, size_limit=chosen.size_limit, on_shard=shown)
    if chosen.json:
        return _print_json(
            {"version": made.version, "from": before.version, "shards": [len(before.shards), len(made.shards)]}
        )
    if made.version == before.version:
        print(f"version {made.version}: {len(made.shards):,} shards, none to merge")
    else:
        print(f"version {made.version}: {len(made.shards):,} shards in place of {len(before.shards):,}")
    return 0


class _progress:  # noqa: N801 -- used as a function
    """A counter on stderr, shown on a terminal."""

    def __init__(self, chosen: argparse.Namespace, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty() and not chosen.json

    def __enter__(self) -> Shown | None:
        return self._show if self._is_shown else None

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr)

    def _show(self, done: int, total: int) -> None:
        if done == total or done % 16 == 1:
            print(f"\r{done:,} of {total:,} {self._what}", end="", file=sys.stderr, flush=True)


def _version_or_tag(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _print_json(found: Any) -> int:
    print(json.dumps(found, indent=2))
    return 0
