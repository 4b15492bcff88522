"""`smalti cp|sync SOURCE TARGET`: copies of versions between stores."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from smalti.cli.faults import ExitCode
from smalti.cli.options import CommonOptions, SplitChoice, argument, flag, option
from smalti.cli.output import Column, progress, write, write_json, write_table
from smalti.cli.registration import CHANGE, command
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.exchange import CopyOptions, CopyReport
    from smalti.storage import Store

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


@command(
    "cp",
    panel=CHANGE,
    examples=["smalti cp ./flowers s3://bucket/flowers", "smalti cp s3://bucket/flowers ./flowers --tag best"],
)
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
    """Copy one version to another store, verified on both sides; a repeated call continues."""
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


@command(
    "sync",
    panel=CHANGE,
    examples=[
        "smalti sync ./flowers s3://bucket/mirror --history --tags",
        "smalti sync s3://one/set gs://two/set --from-option requester_pays=true --dry-run",
    ],
)
def run_sync(
    source: Source,
    target: Target,
    *,
    history: Annotated[bool, flag("All versions (default: the newest).")] = False,
    tags: Annotated[bool, flag("All tags, and the versions that have them.")] = False,
    copying: Copying,
    common: BothStores,
) -> ExitCode:
    """Copy to a mirror the versions that it lacks; nothing is removed there."""
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
    columns = [Column(title, is_number=True) for title in ("source", "target", "samples")]
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
    write_table([*columns, "digest", "state"], rows)
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
