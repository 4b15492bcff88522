"""`smalti delete URL`: samples that match leave a new version; with --purge older versions that hold them go too."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from smalti.cli.faults import ExitCode, UsageFault, point_out
from smalti.cli.options import CommonOptions, Url, flag, option
from smalti.cli.output import progress, show, write, write_facts
from smalti.cli.registration import CHANGE, command
from smalti.regular_files import read_regular_text
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.writer import DeletionReport, PurgeReport
    from smalti.writer.purge import OnProgress


@dataclass(frozen=True)
class Choice:
    """The samples to delete."""

    where: Annotated[
        list[str] | None,
        option("COLUMN=VALUE", "Such as user_id=17; also != < <= > >=. Repeated, all must hold. See docs/deletion.md."),
    ] = None
    ids: Annotated[Path | None, option("FILE", "File of ids, one on each line; - reads stdin.")] = None
    column: Annotated[str | None, option("NAME", "Column of the ids (default: they are sample positions).")] = None
    at: Annotated[int | None, option("N", "Version of sample positions (default: the newest).", min=1)] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `delete`.

        Raises:
            UsageFault: not exactly one way to choose was given, or a comparison is malformed.
        """
        if bool(self.where) == (self.ids is not None):
            raise UsageFault("give either --where or --ids, which choose the samples")
        if self.where and (self.column is not None or self.at is not None):
            raise UsageFault("--column and --at belong to --ids")
        if self.column is not None and self.at is not None:
            raise UsageFault("--at is the version of sample positions; ids of a --column are looked up in the newest")
        if self.where:
            from smalti.errors import SchemaError
            from smalti.writer.predicate import parse_filters

            try:
                return {"where": parse_filters(self.where)}
            except SchemaError as fault:
                raise UsageFault(f"--where: {fault}") from None
        try:
            text = sys.stdin.read() if str(self.ids) == "-" else read_regular_text(str(self.ids), "utf-8-sig")
        except UnicodeDecodeError as fault:
            raise UsageFault(f"--ids {self.ids}: byte {fault.start} is not UTF-8") from None
        ids = [line.strip() for line in text.splitlines() if line.strip()]
        if not ids:
            raise UsageFault(f"--ids {self.ids}: there is no id in it")
        return {"ids": ids, "column": self.column, "version": self.at}


@dataclass(frozen=True)
class PurgeChoice:
    """Options of a purge."""

    PANEL: ClassVar[str] = "Purge"

    purge: Annotated[bool, flag("Also remove older versions that hold the samples, at once.")] = False
    tags: Annotated[
        Literal["refuse", "remove", "move"], typer.Option(help="What to do with tags of versions that have to go.")
    ] = "refuse"
    all_versions: Annotated[bool, flag("Remove every older version.")] = False
    unsafe_ttl: Annotated[
        bool, flag("Also remove what unfinished writers of the last seven days left; safe only if none is running.")
    ] = False
    bucket_versions: Annotated[bool, flag("Also remove what a versioned bucket keeps of removed objects.")] = False
    cache: Annotated[Path | None, option("FOLDER", "Cache to clear (default: your own).")] = None

    def options(self) -> Any:
        """Return the argument `purge` of `delete`.

        Raises:
            UsageFault: an option of a purge was given without --purge.
        """
        from smalti.writer import PurgeOptions

        if not self.purge:
            if self != PurgeChoice():
                raise UsageFault("--tags, --all-versions, --unsafe-ttl, --bucket-versions and --cache need --purge")
            return False
        return PurgeOptions(
            tags=self.tags,
            all_versions=self.all_versions,
            unsafe_ttl=self.unsafe_ttl,
            bucket_versions=self.bucket_versions,
            cache=True if self.cache is None else self.cache,
        )


@command("delete", panel=CHANGE)
def run_delete(
    url: Url,
    choice: Choice,
    purge: PurgeChoice,
    *,
    dry_run: Annotated[bool, flag("Only search, and say what would be done.")] = False,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
    allow_empty: Annotated[bool, flag("Allow a version without samples.")] = False,
    report: Annotated[Path | None, option("FILE", "Write the whole report to this file, as JSON.")] = None,
    common: CommonOptions,
) -> ExitCode:
    """Delete samples: publish a version without those that match comparisons, or a list of ids.

    Only the shards that hold them are written again. Older versions still hold the samples; --purge removes those
    versions, and then reads all that is left to show that no sample matches. The exit status is 3 if one does.

    Examples:
        smalti delete ./people --where user_id=17 --dry-run
        smalti delete ./people --ids erase.txt --column user_id --purge --report erased.json
    """
    from smalti.writer import delete

    if report is not None and not report.absolute().parent.is_dir():
        raise UsageFault(f"--report {report}: there is no such folder")
    store, options = common.open(url), purge.options()
    arguments = {**choice.arguments(), "purge": options, "allow_empty": allow_empty}
    if not dry_run and not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or common.as_json:
            raise UsageFault("there is nobody to ask whether to delete: look with --dry-run first, then give --yes")
        with _phases(common) as shown:
            planned = delete(store, **arguments, dry_run=True, on_progress=shown)
        point_out(planned.summary())
        if planned.num_deleted or (planned.purge is not None and planned.purge.retired):
            typer.confirm("Delete them?", abort=True, err=True)
    with _phases(common) as shown:
        found = delete(store, **arguments, dry_run=dry_run, on_progress=shown)
    if report is not None:
        report.write_text(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    show(common, found, lambda: _write_report(found))
    return ExitCode.OK if found.ok else ExitCode.NOT_VERIFIED


@contextmanager
def _phases(common: CommonOptions) -> "Iterator[OnProgress]":
    """Yield the callback of `delete`: a progress bar for each kind of work."""
    with ExitStack() as stack:
        current: list[Any] = [None, None]

        def shown(what: str, done: int, total: int) -> None:
            if current[0] != what:
                stack.close()
                unit = "objects" if what == "removed" else "shards"
                current[:] = [what, stack.enter_context(progress(common, f"{unit} {what}"))]
            if current[1] is not None:
                current[1](done, total)

        yield shown


def _write_report(found: "DeletionReport") -> None:
    if not found.num_deleted:
        write(f"version {found.base_version}: none of {found.rows_before:,} samples matches; no version was published")
    else:
        share = f"{found.num_deleted:,} of {found.rows_before:,} samples of version {found.base_version}"
        shards = f"{found.shards_concerned:,} of {found.num_shards:,}"
        sizes = f"{byte_count(found.bytes_concerned)} of {byte_count(found.bytes_total)}"
        written = "" if found.dry_run else f", written again as {byte_count(found.bytes_written)}"
        facts = [
            ("would go" if found.dry_run else "deleted", share),
            *(("split", f"{name}: {count:,}") for name, count in found.deleted_by_split.items()),
            *(("emptied", f"split {name} is not in the new version") for name in found.emptied_splits),
            ("shards", f"{shards} concerned, {sizes}{written}"),
        ]
        if not found.dry_run:
            facts.append(("version", f"{found.version}, digest {str(found.digest)[:16]}"))
        write_facts(facts)
    if found.missing_ids:
        write(f"ids without a sample: {found.missing_ids:,}")
    if found.purge is not None:
        _write_purge(found.purge, dry_run=found.dry_run)
    elif found.num_deleted and not found.dry_run:
        write("older versions still hold them; --purge removes those versions")
    if found.dry_run:
        write("nothing was changed; this was a dry run")


def _write_purge(purge: "PurgeReport", *, dry_run: bool) -> None:
    versions = ", ".join(str(each.version) for each in purge.retired) or "none"
    facts = [
        ("older versions that would go" if dry_run else "older versions removed", versions),
        ("objects", f"{'at least ' if dry_run else ''}{len(purge.objects):,}, {byte_count(purge.num_bytes)}"),
        *(("tag", f"{name}: {what}") for name, what in purge.tags.items()),
    ]
    if purge.cache_files:
        facts.append(("cache", f"{purge.cache_files:,} files removed on this machine"))
    if purge.scan is not None:
        scan = purge.scan
        left = sum(each.num_samples for each in scan.matches)
        state = f"{left:,} SAMPLES STILL MATCH" if left else "no sample matches"
        facts.append(("scan", f"{scan.num_shards:,} shards with {scan.num_samples:,} samples read: {state}"))
    write_facts(facts)
    for match in purge.scan.matches if purge.scan is not None else ():
        point_out(f"version {match.version}: {match.num_samples:,} matching samples in {match.key}")
    if purge.scan is not None and purge.scan.matches:
        point_out("others have published them during the call; call again")
    kept = purge.bucket_versions
    if kept is None:
        write("old contents in the bucket: this store does not tell whether it keeps any")
    elif kept.num_versions and not kept.removed:
        size = byte_count(kept.num_bytes)
        write(f"the bucket keeps {kept.num_versions:,} old contents, {size}; --bucket-versions removes them")
    elif kept.num_versions:
        write(f"{kept.num_versions:,} old contents in the bucket removed, {byte_count(kept.num_bytes)}")
    if purge.num_uploads is None:
        write("unfinished uploads: the store does not list them for these credentials")
    for each in purge.pending:
        size = byte_count(each.num_bytes)
        write(f"write {each.write_id} is not published, and may be running: {each.num_objects:,} objects, {size} stay")
    if purge.pending:
        write("call again once these writers have ended, or with --unsafe-ttl if none of them is running")
