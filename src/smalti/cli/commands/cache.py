"""`smalti cache ls|verify|scrub|clear`: the copies of shards on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smalti.cli.faults import ExitCode, point_out
from smalti.cli.options import Output, StoreOptions, Url, VersionChoice
from smalti.cli.output import Column, byte_count, write, write_json, write_table
from smalti.cli.registration import MACHINE, command, group

if TYPE_CHECKING:
    from smalti.cache import inspect
    from smalti.catalog import Manifest
    from smalti.format import ShardInfo
    from smalti.storage import Store

Local = Annotated[
    Path | None, typer.Option("--local", metavar="FOLDER", help="The cache folder (default: the user's own).")
]
Digest = Annotated[
    str,
    typer.Option("--digest", metavar="HEX", help="Only data sets whose digest starts with this.", show_default=False),
]


group("cache", "The copies of shards on this machine; safe beside running jobs.", panel=MACHINE)


@command("cache ls", examples=["smalti cache ls"])
def list_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """List the copies, by data set."""
    from smalti.cache import inspect

    found = inspect.list_copies(_folder(local), digest)
    if output.as_json:
        write_json([asdict(each) for each in found])
        return
    numbers = [Column(name, is_number=True) for name in ("files", "size", "in flight", "readers", "left over")]
    write_table(
        ["folder", *numbers],
        [
            (
                each.folder,
                each.shards,
                byte_count(each.num_bytes),
                each.in_flight,
                each.readers,
                f"{each.left:,} ({byte_count(each.left_bytes)})" if each.left else 0,
            )
            for each in found
        ],
    )
    write(f"{len(found):,} data sets, {byte_count(sum(each.num_bytes for each in found))}")


@command("cache verify", examples=["smalti cache verify s3://bucket/flowers --remove"])
def verify_cache(
    url: Url,
    version: VersionChoice,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove copies that are damaged.")] = False,
    local: Local = None,
    stores: StoreOptions,
    output: Output,
) -> ExitCode:
    """Compare every copy of a version with its manifest.

    The exit status is 3 if a copy is damaged.
    """
    from smalti.cache import inspect

    store = stores.open(url)
    manifest = version.open(store)
    good = 0
    problems: list[tuple[str, str]] = []
    for digest, shards in _with_columns(store, manifest):
        found, wrong = inspect.verify_copies(_folder(local), digest, store.url, list(shards))
        good, problems = good + found, [*problems, *wrong]
    removed = [inspect.discard(Path(path)) for path, _ in problems] if remove else []
    if output.as_json:
        rows = [{"file": path, "problem": text} for path, text in problems]
        write_json({"digest": manifest.digest, "good": good, "problems": rows, "removed": len(removed)})
    else:
        for _, text in problems:
            point_out(text)
        state = f"{len(problems):,} damaged, {len(removed):,} removed" if problems else "all good"
        write(f"version {manifest.version}: {good:,} copies as declared: {state}")
    return ExitCode.NOT_VERIFIED if problems else ExitCode.OK


def _with_columns(store: "Store", manifest: "Manifest") -> "Iterator[tuple[str, Sequence[ShardInfo]]]":
    """Yield the shards of a version and of its added columns, with the digest that names their cache folder."""
    from smalti.catalog.sidecars import aligned_shards, columns_of

    yield manifest.digest, manifest.shards
    for entry in columns_of(manifest.sidecars):
        yield entry.digest, aligned_shards(store, entry, manifest.shards)


@command("cache scrub", examples=["smalti cache scrub"])
def scrub_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """Remove leftovers of killed processes, and files that failed verification."""
    from smalti.cache import inspect

    _write_removed(inspect.scrub(_folder(local), digest), output)


@command("cache clear", examples=["smalti cache clear --digest 4f1d"])
def clear_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """Remove all copies; running jobs fetch again what they do not have open."""
    from smalti.cache import inspect

    _write_removed(inspect.clear(_folder(local), digest), output)


def _write_removed(removed: "Sequence[inspect.Removed]", output: Output) -> None:
    if output.as_json:
        write_json([asdict(each) for each in removed])
        return
    for each in removed:
        write(f"{each.folder}: {each.files:,} files removed, {byte_count(each.num_bytes)}")
    if not removed:
        write("nothing to remove")


def _folder(local: Path | None) -> Path:
    from smalti.cache.sources import detect_cache_folder

    return detect_cache_folder() if local is None else local.expanduser()
