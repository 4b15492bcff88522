"""`smalti convert SOURCE URL`: rows and files as a version, without Spark.

`smalti export URL TO --format FORMAT`: a version as files of another format.
`smalti cp|sync SOURCE TARGET`: copies of versions between stores.
"""

import json
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from smalti.cli.faults import ExitCode, UsageFault
from smalti.cli.options import CommonOptions, SplitChoice, Url, argument, flag, option, parse_storage_option
from smalti.cli.output import progress, show, write, write_json, write_table
from smalti.cli.registration import CHANGE, command
from smalti.errors import SourceWarning
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.exchange import CopyOptions, CopyReport
    from smalti.storage import Store


@command("convert", panel=CHANGE)
def run_convert(  # noqa: PLR0913  one parameter for each option
    source: Annotated[str, argument("SOURCE", "File, folder, pattern or URL.")],
    url: Url,
    *,
    format: Annotated[str | None, option("NAME", "Such as parquet, images, csv (default: by the files).")] = None,
    column: Annotated[
        list[str] | None, option("NAME[=ENCODING]", "Column to store; may be repeated (default: all).")
    ] = None,
    nulls: Annotated[str, option("POLICY", "reject, mask, or JSON by column; see docs/types.md.")] = "reject",
    split_by: Annotated[str | None, option("COLUMN", "Column whose values become splits.")] = None,
    mode: Annotated[str, option("MODE", "create a set, append to it, or overwrite it.")] = "create",
    compression: Annotated[str, option("CODEC", "Such as auto, zstd, zstd:9, snappy, or none.")] = "auto",
    size_limit: Annotated[str, option("BYTES", "Largest shard before compression.")] = "64mb",
    hash: Annotated[list[str] | None, option("NAME", "Checksum of files; may be repeated.")] = None,
    setting: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of the format; docs/sources.md lists them.")
    ] = None,
    write_id: Annotated[str | None, option("ID", "Name of this write: it is done once.")] = None,
    part_bytes: Annotated[str | None, option("BYTES", "Bytes that one task reads, about.")] = None,
    processes: Annotated[int | None, option("N", "Processes (default: one per core).", min=1)] = None,
    common: CommonOptions,
) -> None:
    """Write rows or files as a new version of a shard set, on all cores, without Spark.

    Reads Parquet, folders of images, and the other formats of docs/convert.md.

    Examples:
        smalti convert ./rows ./set
        smalti convert './2026-*.parquet' s3://bucket/set --column id --column text --nulls mask
        smalti convert ./photos ./set --split-by split --setting validation_fraction=0.1
    """
    from smalti.conversion import convert
    from smalti.sources.listing import describe_left_out

    policy: Any = nulls
    if nulls.startswith("{"):
        try:
            policy = json.loads(nulls)
        except ValueError as fault:
            raise UsageFault(f"--nulls: not valid JSON: {fault}") from None
    pairs = [text.partition("=") for text in column or ()]
    options: dict[str, Any] = {
        "format": format,
        "columns": {name: encoding or None for name, _, encoding in pairs} or None,
        "nulls": policy,
        "partition_by": split_by,
        "mode": mode,
        "compression": None if compression == "none" else compression,
        "size_limit": size_limit,
        "write_id": write_id,
        "part_bytes": part_bytes,
        "settings": dict(parse_storage_option(text, "--setting") for text in setting or ()),
        "source_storage_options": common.for_address(source) or None,
        "storage_options": common.for_address(url) or None,
    }
    if hash:
        options["hashes"] = tuple(hash)
    with progress(common, "converted", is_bytes=True) as on_bytes, warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)  # said below, with the rest that is left out
        if on_bytes is not None:
            options["on_progress"] = lambda state: on_bytes(state.num_bytes, state.total_bytes)
        made = convert(source, url, **options, processes=processes)
    num_bytes = sum(file.num_bytes for info in made.shards for file in info.stored_files)
    sources = made.lineage.get("sources")
    left_out = {}
    if isinstance(sources, list) and len(sources) == 1 and isinstance(sources[0], dict):
        left_out = dict(sources[0].get("left_out") or {})
    facts = {"version": made.version, "rows": made.rows, "shards": len(made.shards), "num_bytes": num_bytes}
    shards = "1 shard" if len(made.shards) == 1 else f"{len(made.shards):,} shards"
    text = f"version {made.version}: {made.rows:,} rows in {shards} of {byte_count(num_bytes)}"
    if left_out:
        text += f"\nleft out: {describe_left_out(left_out)}"
    show(common, {**facts, "write_id": made.write_id, "left_out": left_out}, text)


@command("export", panel=CHANGE)
def run_export(  # noqa: PLR0913  one parameter for each option
    url: Url,
    to: Annotated[str, argument("TO", "Empty folder or URL for the files.")],
    *,
    format: Annotated[str, option("NAME", "webdataset or parquet.")],
    version: SplitChoice,
    column: Annotated[list[str] | None, option("NAME", "Column; may be repeated (default: all).")] = None,
    name: Annotated[list[str] | None, option("COLUMN=ENDING", "Ending of a column's members in tar files.")] = None,
    size_limit: Annotated[str, option("BYTES", "Bytes of samples in a file, before compression.")] = "512mb",
    compression: Annotated[str | None, option("CODEC", "Of Parquet (default: zstd); or none.")] = None,
    workers: Annotated[int | None, option("N", "Files at a time (default: one per core).", min=1)] = None,
    common: CommonOptions,
) -> None:
    """Write a version as WebDataset tar files or as Parquet, with the same values.

    Called again after an interruption, it writes only the files that are missing.

    Examples:
        smalti export ./flowers ./tars --format webdataset --name image=jpg --name label=cls
        smalti export s3://bucket/set s3://bucket/rows --format parquet --split train --column id
    """
    from smalti.exporting import export

    endings = {}
    for text in name or ():
        of_column, equals, ending = text.partition("=")
        if not (of_column and equals and ending):
            raise UsageFault(f"--name: expected COLUMN=ENDING, such as image=jpg, found {text!r}")
        endings[of_column] = ending
    options: dict[str, Any] = {
        "format": format,
        **version.arguments(),
        "columns": column or None,
        "names": endings,
        "size_limit": size_limit,
        "compression": compression,
        "workers": workers,
    }
    with progress(common, "files written") as on_file:
        report = export(common.open(url), common.open(to), **options, on_file=on_file)
    before = f", {report.num_reused:,} of them were there" if report.num_reused else ""
    show(
        common,
        report,
        f"version {report.version}: {report.num_samples:,} samples in {report.num_files:,} files of "
        f"{byte_count(report.num_bytes)}{before}",
    )


Source = Annotated[str, argument("SOURCE", "URL or folder to copy from.")]
Target = Annotated[str, argument("TARGET", "URL or folder to copy to.")]


@dataclass(frozen=True)
class BothStores(CommonOptions):
    """Settings of both stores, and of one of them."""

    from_option: Annotated[list[str] | None, option("KEY=VALUE", "As --storage-option, of SOURCE alone.")] = field(
        default=None, repr=False
    )
    to_option: Annotated[list[str] | None, option("KEY=VALUE", "As --storage-option, of TARGET alone.")] = field(
        default=None, repr=False
    )

    def open_both(self, source: str, target: str) -> "tuple[Store, Store]":
        """Return both stores, opened with the settings of each."""
        shared = self.storage_option or []
        one = replace(self, storage_option=[*shared, *(self.from_option or ())])
        other = replace(self, storage_option=[*shared, *(self.to_option or ())])
        return one.open(source), other.open(target)


@dataclass(frozen=True)
class Copying:
    """The way of a copy."""

    dry_run: Annotated[bool, flag("Only list what would be copied; exit status 4 if there is something.")] = False
    read_back: Annotated[bool, flag("Read every object at TARGET again, and compare it.")] = False
    server_side: Annotated[bool, flag("Let the server copy, if both are on one; compares sizes, not hashes.")] = False
    jobs: Annotated[int, option("N", "Objects copied at the same time.", min=1)] = 8

    def options(self) -> "CopyOptions":
        """Return the library's options."""
        from smalti.exchange import CopyOptions

        return CopyOptions(max_workers=self.jobs, read_back=self.read_back, server_side=self.server_side)


@command("cp", panel=CHANGE)
def run_cp(
    source: Source,
    target: Target,
    *,
    choice: SplitChoice,
    overwrite: Annotated[bool, flag("Publish after the versions that TARGET has (default: refuse).")] = False,
    restore_erased: Annotated[bool, flag("Also if samples that were deleted at TARGET may come back.")] = False,
    copying: Copying,
    common: BothStores,
) -> ExitCode:
    """Copy one version to another store, verified on both sides; a repeated call continues.

    Examples:
        smalti cp ./flowers s3://bucket/flowers
        smalti cp s3://bucket/flowers ./flowers --tag best
    """
    from smalti.exchange import copy_version

    one, other = common.open_both(source, target)
    with progress(common, "bytes copied", is_bytes=True) as on_progress:
        report = copy_version(
            one,
            other,
            **choice.arguments(),
            mode="overwrite" if overwrite else "create",
            restore_erased=restore_erased,
            dry_run=copying.dry_run,
            options=copying.options(),
            on_progress=on_progress,
        )
    return _write_report(report, common)


@command("sync", panel=CHANGE)
def run_sync(
    source: Source,
    target: Target,
    *,
    history: Annotated[bool, flag("All versions (default: the newest).")] = False,
    tags: Annotated[bool, flag("All tags, and the versions that have them.")] = False,
    copying: Copying,
    common: BothStores,
) -> ExitCode:
    """Copy to a mirror the versions that it lacks; nothing is removed there.

    Examples:
        smalti sync ./flowers s3://bucket/mirror --history --tags
        smalti sync s3://one/set gs://two/set --from-option requester_pays=true --dry-run
    """
    from smalti.exchange import sync

    one, other = common.open_both(source, target)
    with progress(common, "bytes copied", is_bytes=True) as on_progress:
        report = sync(
            one,
            other,
            history=history,
            tags=tags,
            dry_run=copying.dry_run,
            options=copying.options(),
            on_progress=on_progress,
        )
    return _write_report(report, common)


def _write_report(report: "CopyReport", common: BothStores) -> ExitCode:
    status = ExitCode.DIFFERS if report.dry_run and not report.is_in_sync else ExitCode.OK
    if common.as_json:
        write_json(report.to_dict())
        return status
    did = "to copy" if report.dry_run else "copied"
    rows = [
        (
            each.source,
            "-" if each.target is None else each.target,
            each.rows,
            each.digest[:12],
            "there" if each.was_present else f"{did}, expired" if each.is_placeholder else did,
        )
        for each in report.versions
    ]
    numbers = ("source", "target", "samples")
    write_table([*numbers, "digest", "state"], rows, numbers=numbers)
    for skipped in report.skipped:
        write(f"version {skipped.source} is skipped: {skipped.why}")
    for name, version in report.tags.items():
        write(f"tag {name}: version {version} of the source")
    if report.may_hold_deleted:
        versions = ", ".join(map(str, report.may_hold_deleted))
        write(
            f"versions of the target from before a deletion, which may hold the deleted samples: {versions}. Run "
            "`smalti delete` with --purge and the same condition at the target, or `smalti vacuum`"
        )
    write(f"{report.summary()} ({byte_count(report.num_bytes)})" if report.num_bytes else report.summary())
    return status
