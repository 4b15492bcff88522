"""`smalti vacuum|compact URL`: the removal of old versions, and the merging of small shards."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from smalti.cli.options import Output, StoreOptions, Url
from smalti.cli.output import Column, byte_count, write, write_json, write_table
from smalti.cli.progress import progress
from smalti.cli.registration import CHANGE, VERSIONS, command

if TYPE_CHECKING:
    from smalti.catalog.retention.vacuum import VacuumReport
    from smalti.storage import UnfinishedUpload

_UNFINISHED = {True: "a temporary file that was never completed", False: "an upload that was never completed"}


def add_retention_commands(app: typer.Typer) -> None:
    """Add `vacuum` and `compact`."""
    command(
        app,
        "vacuum",
        panel=VERSIONS,
        examples=["smalti vacuum ./flowers", "smalti vacuum ./flowers --older-than 30d --remove"],
    )(run_vacuum)
    command(
        app, "compact", panel=CHANGE, examples=["smalti compact ./flowers", "smalti compact ./flowers --below 32mb"]
    )(run_compact)


def run_vacuum(
    url: Url,
    *,
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Such as 7d, 36h.")] = "7d",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the listed files.")] = False,
    unsafe_ttl: Annotated[
        bool,
        typer.Option("--unsafe-ttl", help="Allow less than seven days; safe only if no job reads or writes the set."),
    ] = False,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Remove old versions and leftovers of killed writers; without --remove, only list them."""
    from smalti.catalog import vacuum

    store = stores.open(url)
    with progress(output, "objects removed" if remove else "looking for objects to remove") as on_remove:
        report = vacuum(store, older_than=older_than, dry_run=not remove, unsafe_ttl=unsafe_ttl, on_remove=on_remove)
    if output.as_json:
        write_json(_facts(report))
    else:
        _write_report(report)


def _facts(report: "VacuumReport") -> dict[str, Any]:
    removed = [{"key": each.key, "num_bytes": each.num_bytes, "why": each.why.value} for each in report.removed]
    return (
        {"dry_run": report.dry_run, "version": report.version, "expired": report.expired, "removed": removed}
        | {"num_bytes": report.num_bytes, "kept": dict(report.kept)}
        | {"uploads": None if report.uploads is None else [_upload_facts(each) for each in report.uploads]}
    )


def _upload_facts(upload: "UnfinishedUpload") -> dict[str, Any]:
    return {"key": upload.key, "num_bytes": upload.num_bytes, "upload_id": upload.upload_id}


def _write_report(report: "VacuumReport") -> None:
    rows = [(each.key, byte_count(each.num_bytes), each.why.value) for each in report.removed]
    for upload in report.uploads or ():
        size = "" if upload.num_bytes is None else byte_count(upload.num_bytes)
        rows.append((upload.key, size, _UNFINISHED[upload.is_temporary]))
    write_table(["object", Column("size", is_number=True), "why"], rows)
    if report.uploads is None:
        write("uncompleted uploads: the store does not list them for these credentials")
    for why, count in report.kept.items():
        write(f"kept {count:,} objects: {why}")
    write(report.summary())
    if report.dry_run and (report.removed or report.uploads):
        write("nothing was removed; give --remove to remove it")


def run_compact(
    url: Url,
    *,
    below: Annotated[
        str | None,
        typer.Option("--below", metavar="BYTES", help="Shards to merge, such as 32mb (default: half a shard)."),
    ] = None,
    size_limit: Annotated[
        str | None,
        typer.Option("--size-limit", metavar="BYTES", help="Maximal size of a merged shard (default: as now)."),
    ] = None,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Merge small shards, in a new version."""
    from smalti.catalog import load_manifest
    from smalti.writer import compact

    store = stores.open(url)
    before = load_manifest(store)
    with progress(output, "shards read") as on_shard:
        made = compact(store, below=below, size_limit=size_limit, on_shard=on_shard)
    shards = len(before.shards), len(made.shards)
    if output.as_json:
        write_json({"version": made.version, "from": before.version, "shards": shards})
    elif made.version == before.version:
        write(f"version {made.version}: {shards[1]:,} shards, none to merge")
    else:
        write(f"version {made.version}: {shards[1]:,} shards in place of {shards[0]:,}")
