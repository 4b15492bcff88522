"""`smalti doctor [URL]`, `smalti benchmark URL`, `smalti cache ls|verify|scrub|clear`: this machine.

What does not work on it, how fast it reads, and the copies of shards that it has.
"""

import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smalti.cli.faults import ExitCode, UsageFault, point_out
from smalti.cli.options import CommonOptions, Output, Url, VersionChoice, argument, flag, option
from smalti.cli.output import duration, exact_bytes, progress, show, write, write_table
from smalti.cli.registration import MACHINE, command, group
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.cache import inspect
    from smalti.diagnosis import Diagnosis, ReadingSpeeds

_COLOURS = {"ok": "green", "warning": "yellow", "fault": "red", "skipped": "bright_black"}

Local = Annotated[Path | None, option("FOLDER", "The cache folder (default: the user's own).", "--local")]
Digest = Annotated[str, option("HEX", "Only data sets whose digest starts with this.", "--digest")]

_DAY = 86_400.0
_MAX_THREADS = 1024


@command("doctor", panel=MACHINE)
def doctor(
    *,
    url: Annotated[str | None, argument("[URL]", "URL or folder to check as well, with or without a set.")] = None,
    write_probe: Annotated[
        bool, flag("Also try to write: a small object is put, and removed again.", "--write")
    ] = False,
    local: Local = None,
    seconds: Annotated[float, option("N", "Time limit of each check.", min=1, max=_DAY)] = 60.0,
    common: CommonOptions,
) -> ExitCode:
    """Check this machine, and a place: what does not fit or work, and what to do about it.

    Looks at packages, Java, GPUs, shared memory, credentials, rights, the data set, and the cache folder, for
    faults that no error reports. Nothing is changed. The exit status is 3 if there is a fault; warnings do not count.

    Examples:
        smalti doctor
        smalti doctor s3://bucket/flowers
        smalti doctor s3://bucket/flowers --write
    """
    from smalti.diagnosis import diagnose

    options = None if url is None else common.for_address(url)
    with progress(common, "checks done") as on_check:
        found = diagnose(
            url, storage_options=options, local=local, write=write_probe, seconds=seconds, on_check=on_check
        )
    show(common, found, lambda: _write_findings(found))
    return ExitCode.OK if found.ok else ExitCode.NOT_VERIFIED


def _write_findings(found: "Diagnosis") -> None:
    width = max(len(each.check) for each in found.findings)
    for each in found.findings:
        # The state, the check and the fact, and below it what to do; wrapped on a terminal.
        state, indent = f"{each.state.value:9}", " " * (9 + width + 2)
        lines = [each.found] + ([f"to do: {each.to_do}"] if each.to_do else [])
        if sys.stdout.isatty():
            room = max(30, shutil.get_terminal_size().columns - len(indent))
            lines = [
                line
                for text in lines
                for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
            ]
            if "NO_COLOR" not in os.environ:
                state = typer.style(state, fg=_COLOURS[each.state.value], bold=each.state.value == "fault")
        write(f"{state}{each.check:{width}}  {lines[0]}")
        for line in lines[1:]:
            write(f"{indent}{line}")
    counts = [
        f"{number:,} {state}{'s' if number > 1 and state in {'warning', 'fault'} else ''}"
        for state, number in found.counts.items()
        if number
    ]
    write(f"\n{', '.join(counts)}; took {duration(found.seconds)}")


@command("benchmark", panel=MACHINE)
def benchmark(
    *,
    url: Url,
    version: VersionChoice,
    seconds: Annotated[float, option("N", "Time for all together.", min=0.1, max=_DAY)] = 30.0,
    threads: Annotated[str, option("N,...", "Threads that read at once.")] = "1,4,16",
    local: Annotated[str | None, option("FOLDER", "Folder on the disk to read through (default: the cache's).")] = None,
    common: CommonOptions,
) -> None:
    """Measure how fast this machine reads a set: cold and warm, beside the plain link.

    `link` are ranged requests for the same objects and nothing else: no other reading can be faster. `cold` are
    samples with an empty cache, `warm` the same ones again. Existing copies in the cache are neither read nor changed.

    Examples:
        smalti benchmark ./flowers
        smalti benchmark s3://bucket/flowers --seconds 60 --threads 1,8
    """
    from smalti.diagnosis import measure_reading

    parts = threads.split(",")
    if not all(part.strip().isdecimal() and len(part) <= 4 and 1 <= int(part) <= _MAX_THREADS for part in parts):
        raise UsageFault(f"--threads: expected numbers such as 1,4,16, up to {_MAX_THREADS:,}, found {threads!r:.80}")
    with progress(common, "measured") as on_progress:
        numbers = itertools.count()

        def count(_: object = None) -> None:
            if on_progress is not None:
                on_progress(next(numbers), 3 * len(parts))

        count()
        found = measure_reading(
            url,
            version=version.at,
            tag=version.tag,
            storage_options=common.for_address(url),
            seconds=seconds,
            threads=tuple(map(int, parts)),
            local=local,
            on_speed=count,
        )
    show(common, found, lambda: _write_speeds(found))


def _write_speeds(found: "ReadingSpeeds") -> None:
    write(
        f"version {found.version}: {found.samples:,} samples in {found.shards:,} shards, {exact_bytes(found.num_bytes)}"
    )
    if found.is_read_in_place:
        write("read in place: the files may be in the memory of the kernel")
    write(f"round trip {_milliseconds(found.round_trip.median)}, 90 % within {_milliseconds(found.round_trip.p90)}\n")
    titles = ("threads", "reading", "bytes/s", "of link", "samples/s", "median", "99 %", "longest")
    rows = []
    for each in found.speeds:
        share = found.share_of_link(each.threads) if each.work == "cold" else None
        rows.append(
            (
                each.threads,
                each.work,
                byte_count(each.bytes_per_second),
                "" if share is None else f"{share:.0%}",
                f"{each.samples_per_second:,.0f}",
                _milliseconds(each.latency.median),
                _milliseconds(each.latency.p99),
                _milliseconds(each.latency.longest),
            )
        )
    write_table(titles, rows, numbers=set(titles) - {"reading"})


def _milliseconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds * 1000:,.{2 if seconds < 0.01 else 0}f} ms"


group("cache", "The copies of shards on this machine; safe beside running jobs.", panel=MACHINE)


@command("cache ls")
def list_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """List the copies, by data set.

    Examples:
        smalti cache ls
    """
    from smalti.cache import inspect

    found = inspect.list_copies(_folder(local), digest)
    show(output, [asdict(each) for each in found], lambda: _write_copies(found))


def _write_copies(found: "Sequence[inspect.Copies]") -> None:
    numbers = ("files", "size", "in flight", "readers", "left over")
    rows = []
    for copies in found:
        left = f"{copies.left:,} ({byte_count(copies.left_bytes)})" if copies.left else 0
        size = byte_count(copies.num_bytes)
        rows.append((copies.folder, copies.shards, size, copies.in_flight, copies.readers, left))
    write_table(["folder", *numbers], rows, numbers=numbers)
    write(f"{len(found):,} data sets, {byte_count(sum(each.num_bytes for each in found))}")


@command("cache verify")
def verify_cache(
    url: Url,
    version: VersionChoice,
    *,
    remove: Annotated[bool, flag("Remove copies that are damaged.")] = False,
    local: Local = None,
    common: CommonOptions,
) -> ExitCode:
    """Compare every copy of a version with its manifest.

    The exit status is 3 if a copy is damaged.

    Examples:
        smalti cache verify s3://bucket/flowers --remove
    """
    from smalti.cache import inspect
    from smalti.catalog.sidecars import aligned_shards, columns_of

    store = common.open(url)
    manifest = version.open(store)
    good = 0
    problems: list[tuple[str, str]] = []
    # The shards of added columns have a cache folder of their own, named by their digest.
    parts = [(manifest.digest, manifest.shards)]
    parts += [(added.digest, aligned_shards(store, added, manifest.shards)) for added in columns_of(manifest.sidecars)]
    for digest, shards in parts:
        found, wrong = inspect.verify_copies(_folder(local), digest, store.url, list(shards))
        good, problems = good + found, [*problems, *wrong]
    removed = [inspect.discard(Path(path)) for path, _ in problems] if remove else []
    rows = [{"file": path, "problem": text} for path, text in problems]
    for _, text in problems if not common.as_json else ():
        point_out(text)
    state = f"{len(problems):,} damaged, {len(removed):,} removed" if problems else "all good"
    facts = {"digest": manifest.digest, "good": good, "problems": rows, "removed": len(removed)}
    show(common, facts, f"version {manifest.version}: {good:,} copies as declared: {state}")
    return ExitCode.NOT_VERIFIED if problems else ExitCode.OK


@command("cache scrub")
def scrub_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """Remove leftovers of killed processes, and files that failed verification.

    Examples:
        smalti cache scrub
    """
    from smalti.cache import inspect

    _write_removed(inspect.scrub(_folder(local), digest), output)


@command("cache clear")
def clear_cache(*, local: Local = None, digest: Digest = "", output: Output) -> None:
    """Remove all copies; running jobs fetch again what they do not have open.

    Examples:
        smalti cache clear --digest 4f1d
    """
    from smalti.cache import inspect

    _write_removed(inspect.clear(_folder(local), digest), output)


def _write_removed(removed: "Sequence[inspect.Removed]", output: Output) -> None:
    lines = [f"{each.folder}: {each.files:,} files removed, {byte_count(each.num_bytes)}" for each in removed]
    show(output, [asdict(each) for each in removed], "\n".join(lines) or "nothing to remove")


def _folder(local: Path | None) -> Path:
    from smalti.cache.sources import detect_cache_folder

    return detect_cache_folder() if local is None else local.expanduser()
