"""`smalti show|history|diff|verify|rollback|tag|tags|untag|merge-index|write-index URL`: versions of a shard set.

`smalti vacuum|compact URL`: the removal of old versions, and the merging of small shards.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from smalti.cli.faults import ExitCode, point_out
from smalti.cli.options import CommonOptions, Url, VersionChoice, argument, flag, option
from smalti.cli.output import exact_bytes, progress, show, write, write_facts, write_json, write_table
from smalti.cli.registration import CHANGE, LOOK, VERSIONS, command
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.catalog.retention.vacuum import VacuumReport


@command("show", panel=LOOK)
def show_version(url: Url, version: VersionChoice, common: CommonOptions) -> None:
    """Show what a version holds: columns, splits, shards, bytes, digest.

    Examples:
        smalti show ./flowers
        smalti show s3://bucket/flowers --tag best
    """
    from smalti.catalog.table.shard_table import samples_of

    store = common.open(url)
    manifest = version.open(store)
    splits = {split: manifest.select(split) for split in manifest.partitions}
    counted = {split: {"samples": samples_of(shards), "shards": len(shards)} for split, shards in splits.items()}
    if common.as_json:
        names = ("version", "parent", "created", "digest", "row_hash", "rows", "num_bytes", "write_id")
        write_json(
            {name: getattr(manifest, name) for name in names}
            | {"num_shards": len(manifest.shards), "splits": counted, "columns": manifest.schema.columns()}
            | {"lineage": dict(manifest.lineage), "metadata": dict(manifest.metadata)}
        )
        return
    facts = [
        ("version", f"{manifest.version}, published {manifest.created or 'by another writer'}"),
        ("digest", manifest.digest),
        ("samples", f"{manifest.rows:,} in {len(manifest.shards):,} shards, {exact_bytes(manifest.num_bytes)} stored"),
    ]
    facts += [
        ("split", f"{name}: {each['samples']:,} samples in {each['shards']:,} shards") for name, each in counted.items()
    ]
    facts += [("column", f"{column}: {encoding}") for column, encoding in manifest.schema.columns().items()]
    write_facts(facts)


@command("history", panel=VERSIONS)
def show_history(url: Url, common: CommonOptions) -> None:
    """List all versions, oldest first.

    Examples:
        smalti history ./flowers
    """
    from smalti.catalog import history, tags

    store = common.open(url)
    versions, named = history(store), tags(store)
    names = {info.version: [name for name, version in named.items() if version == info.version] for info in versions}
    if common.as_json:
        write_json([asdict(info) | {"tags": names[info.version]} for info in versions])
        return
    rows = []
    for info in versions:
        notes = ["(removed by a vacuum)"] if info.is_expired else []
        notes = [f"(cannot be read: {info.problem})"] if info.problem else notes
        remarks = "  ".join([*names[info.version], *notes])
        rows.append((info.version, info.created, info.rows, info.digest[:16], info.write_id, info.operation, remarks))
    titles = ["version", "published", "samples", "digest", "write id", "operation", "tags"]
    write_table(titles, rows, numbers=("version", "samples"), only_piped=("write id",))


@command("diff", panel=VERSIONS)
def show_diff(
    url: Url,
    a: Annotated[str, argument("A", "Version or tag.")],
    b: Annotated[str | None, argument("B", "Version or tag (default: the newest).")] = None,
    *,
    common: CommonOptions,
) -> ExitCode:
    """Show what changed from one version to another; a tag can stand for a version.

    The exit status is 4 if they differ.

    Examples:
        smalti diff ./flowers 1
        smalti diff ./flowers best 3 --json
    """
    from smalti.catalog import diff

    found = diff(common.open(url), _version_or_tag(a), None if b is None else _version_or_tag(b))
    status = ExitCode.OK if found.is_equal else ExitCode.DIFFERS
    added, removed = ([shard.stored.basename for shard in shards] for shards in (found.added, found.removed))
    if common.as_json:
        names = ("a", "b", "num_kept", "rows", "num_bytes", "same_rows", "rows_added", "rows_removed", "bytes_added")
        columns = ("columns_added", "columns_removed", "columns_changed", "lineage")
        facts = {name: getattr(found, name) for name in (*names, *columns)}
        write_json(facts | {"added": added, "removed": removed})
        return status
    write(found.summary())
    for sign, keys in (("+", added), ("-", removed)):
        for key in keys:
            write(f"{sign} {key}")
    for name, kind in found.columns_added.items():
        write(f"+ column {name}: {kind}")
    for name, kind in found.columns_removed.items():
        write(f"- column {name}: {kind}")
    for name, (before, after) in found.columns_changed.items():
        write(f"! column {name}: {before} to {after}")
    return status


@command("verify", panel=LOOK)
def verify_version(
    url: Url,
    version: VersionChoice,
    *,
    sizes: Annotated[bool, flag("Compare only sizes, without reading shards.")] = False,
    common: CommonOptions,
) -> ExitCode:
    """Check every shard of a version: it exists, is complete, and has the declared hashes and samples.

    The exit status is 3 if one does not.

    Examples:
        smalti verify ./flowers
        smalti verify ./flowers --at 1 --sizes --json
    """
    from smalti.catalog import verify

    store = common.open(url)
    with progress(common, "shards checked") as on_shard:
        report = verify(store, version=version.at, tag=version.tag, deep=not sizes, on_shard=on_shard)
    status = ExitCode.OK if report.ok else ExitCode.NOT_VERIFIED
    if common.as_json:
        write_json(asdict(report) | {"ok": report.ok})
        return status
    for problem in report.problems:
        point_out(problem.message)
    state = f"{len(report.problems)} problems" if report.problems else "all good"
    write(f"version {report.version}: {report.num_shards:,} shards, {report.rows:,} samples: {state}")
    if report.row_hash:
        state = "as declared" if report.declared_row_hash == report.row_hash else "none declared"
        state = state if report.declared_row_hash in {"", report.row_hash} else "differs from the declared one"
        write(f"row hash {report.row_hash}: {state}")
    return status


@command("rollback", panel=VERSIONS)
def roll_back(url: Url, *, at: Annotated[int, option("N", "Version.", min=1)], common: CommonOptions) -> None:
    """Publish an earlier version again, as the newest.

    Examples:
        smalti rollback ./flowers --at 1
    """
    from smalti.catalog import rollback

    manifest = rollback(common.open(url), at)
    facts = {"version": manifest.version, "rolled_back_to": at, "digest": manifest.digest}
    text = f"version {manifest.version} now has the contents of version {at}, digest {manifest.digest[:16]}"
    show(common, facts, text)


@command("tag", panel=VERSIONS)
def set_tag(
    url: Url,
    name: Annotated[str, argument("NAME", "Letters, digits and . _ -")],
    *,
    at: Annotated[int | None, option("N", "Version (default: the newest).", min=1)] = None,
    move: Annotated[bool, flag("Move the name from the version that has it.")] = False,
    common: CommonOptions,
) -> None:
    """Name a version; vacuum keeps it.

    Examples:
        smalti tag ./flowers best --at 1
        smalti tag ./flowers best --move
    """
    from smalti.catalog import tag

    version = tag(common.open(url), name, at, move=move)
    show(common, {"tag": name, "version": version}, f"{name}: version {version}")


@command("tags", panel=VERSIONS)
def show_tags(url: Url, common: CommonOptions) -> None:
    """List all tags and their versions.

    Examples:
        smalti tags ./flowers
    """
    from smalti.catalog.opening import read_tags

    found = read_tags(common.open(url))
    if common.as_json:
        write_json({name: each.version for name, each in found.items()})
        return
    for name, each in found.items():
        write(f"{name}: version {each.version}")
        for key, value in each.metadata.items():
            write(f"    {key}: {value if isinstance(value, str) else json.dumps(value)}")


@command("untag", panel=VERSIONS)
def remove_tag(url: Url, name: Annotated[str, argument("NAME", "The tag.")], *, common: CommonOptions) -> None:
    """Remove a tag; its version stays until a vacuum.

    Examples:
        smalti untag ./flowers best
    """
    from smalti.catalog import untag

    untag(common.open(url), name)
    show(common, {"tag": name, "version": None}, f"{name}: tag removed")


@command("merge-index", panel=CHANGE)
def merge_indexes(
    url: Url,
    parts: Annotated[
        list[str] | None, argument("INDEX...", "Index files below URL, in this order (default: all).")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Write one index file for a set that several writers wrote below one root, each with its own index file.

    Examples:
        smalti merge-index ./parts
        smalti merge-index ./parts ./parts/0/index.json ./parts/1/index.json
    """
    from smalti.catalog import load_manifest, merge_index

    merge_index(index_file_urls=parts or None, out=url, storage_options=common.for_address(url))
    made = load_manifest(common.open(url))
    facts = {"url": url, "rows": made.rows, "num_shards": len(made.shards), "num_bytes": made.num_bytes}
    text = f"{url}: {made.rows:,} samples in {len(made.shards):,} shards, {byte_count(made.num_bytes)}"
    show(common, facts, text)


@command("write-index", panel=CHANGE)
def list_shards(url: Url, *, common: CommonOptions) -> None:
    """List all shards of the newest version in index.json, for other readers; the next large version ends the list.

    Examples:
        smalti write-index ./flowers
    """
    from smalti.catalog import write_index

    made = write_index(common.open(url))
    facts = {"url": url, "version": made.version, "num_shards": len(made.shards)}
    show(common, facts, f"{url}: index.json lists the {len(made.shards):,} shards of version {made.version}")


def _version_or_tag(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


@command("vacuum", panel=VERSIONS)
def run_vacuum(
    url: Url,
    *,
    older_than: Annotated[str, option("AGE", "Such as 7d, 36h.")] = "7d",
    remove: Annotated[bool, flag("Remove the listed files.")] = False,
    unsafe_ttl: Annotated[
        bool, flag("Allow less than seven days; safe only if no job reads or writes the set.")
    ] = False,
    common: CommonOptions,
) -> None:
    """Remove old versions and leftovers of killed writers; without --remove, only list them.

    Examples:
        smalti vacuum ./flowers
        smalti vacuum ./flowers --older-than 30d --remove
    """
    from smalti.catalog import vacuum

    store = common.open(url)
    with progress(common, "objects removed" if remove else "looking for objects to remove") as on_remove:
        report = vacuum(store, older_than=older_than, dry_run=not remove, unsafe_ttl=unsafe_ttl, on_remove=on_remove)
    names = ("key", "num_bytes", "upload_id")
    uploads = [{name: getattr(each, name) for name in names} for each in report.uploads or ()]
    removed = [{"key": each.key, "num_bytes": each.num_bytes, "why": each.why.value} for each in report.removed]
    facts = (
        {"dry_run": report.dry_run, "version": report.version, "expired": report.expired, "removed": removed}
        | {"num_bytes": report.num_bytes, "kept": dict(report.kept)}
        | {"uploads": None if report.uploads is None else uploads}
    )
    show(common, facts, lambda: _write_report(report))


def _write_report(report: "VacuumReport") -> None:
    rows = [(each.key, byte_count(each.num_bytes), each.why.value) for each in report.removed]
    for upload in report.uploads or ():
        size = "" if upload.num_bytes is None else byte_count(upload.num_bytes)
        kind = "a temporary file" if upload.is_temporary else "an upload"
        rows.append((upload.key, size, f"{kind} that was never completed"))
    write_table(["object", "size", "why"], rows, numbers=("size",))
    if report.uploads is None:
        write("uncompleted uploads: the store does not list them for these credentials")
    for why, count in report.kept.items():
        write(f"kept {count:,} objects: {why}")
    write(report.summary())
    if report.dry_run and (report.removed or report.uploads):
        write("nothing was removed; give --remove to remove it")


@command("compact", panel=CHANGE)
def run_compact(
    url: Url,
    *,
    below: Annotated[str | None, option("BYTES", "Shards to merge, such as 32mb (default: half a shard).")] = None,
    size_limit: Annotated[str | None, option("BYTES", "Maximal size of a merged shard (default: as now).")] = None,
    common: CommonOptions,
) -> None:
    """Merge small shards, in a new version.

    Examples:
        smalti compact ./flowers
        smalti compact ./flowers --below 32mb
    """
    from smalti.catalog import load_manifest
    from smalti.writer import compact

    store = common.open(url)
    before = load_manifest(store)
    with progress(common, "shards read") as on_shard:
        made = compact(store, below=below, size_limit=size_limit, on_shard=on_shard)
    shards = len(before.shards), len(made.shards)
    change = ", none to merge" if made.version == before.version else f" in place of {shards[0]:,}"
    facts = {"version": made.version, "from": before.version, "shards": shards}
    show(common, facts, f"version {made.version}: {shards[1]:,} shards{change}")
