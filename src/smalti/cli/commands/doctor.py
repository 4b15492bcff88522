"""`smalti doctor [URL]` and `smalti benchmark URL`: what does not work on this machine, and how fast it reads."""

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from smalti.cli.faults import ExitCode, UsageFault
from smalti.cli.options import Output, StoreOptions, Url, VersionChoice
from smalti.cli.output import Column, byte_count, duration, exact_bytes, progress, write, write_json, write_table
from smalti.cli.registration import MACHINE, command

if TYPE_CHECKING:
    from smalti.diagnosis import Finding, ReadingSpeeds

_COLOURS = {"ok": "green", "warning": "yellow", "fault": "red", "skipped": "bright_black"}

Place = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="URL or folder to check as well, with or without a set.", show_default=False),
]
Local = Annotated[
    str | None, typer.Option("--local", metavar="FOLDER", help="The cache folder (default: the user's own).")
]


_DAY = 86_400.0
_MAX_THREADS = 1024


@dataclass(frozen=True)
class Measurement:
    """The extent of a measurement."""

    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, max=_DAY, help="Time for all together.")
    ] = 30.0
    threads: Annotated[str, typer.Option("--threads", metavar="N,...", help="Threads that read at once.")] = "1,4,16"

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of threads.

        Raises:
            UsageFault: they are not whole numbers from 1 to 1024.
        """
        parts = self.threads.split(",")
        if not all(part.strip().isdecimal() and len(part) <= 4 and 1 <= int(part) <= _MAX_THREADS for part in parts):
            raise UsageFault(
                f"--threads: expected numbers such as 1,4,16, up to {_MAX_THREADS:,}, found {self.threads!r:.80}"
            )
        return tuple(map(int, parts))


@command(
    "doctor",
    panel=MACHINE,
    examples=["smalti doctor", "smalti doctor s3://bucket/flowers", "smalti doctor s3://bucket/flowers --write"],
)
def doctor(
    *,
    url: Place = None,
    write_probe: Annotated[
        bool, typer.Option("--write", help="Also try to write: a small object is put, and removed again.")
    ] = False,
    local: Local = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=1, max=_DAY, help="Time limit of each check.")
    ] = 60.0,
    stores: StoreOptions,
    output: Output,
) -> ExitCode:
    """Check this machine, and a place: what does not fit or work, and what to do about it.

    Looks at packages, Java, GPUs, shared memory, credentials, rights, the data set, and the cache folder, for
    faults that no error reports. Nothing is changed. The exit status is 3 if there is a fault; warnings do not count.
    """
    from smalti.diagnosis import diagnose

    options = None if url is None else stores.for_address(url)
    with progress(output, "checks done") as on_check:
        found = diagnose(
            url, storage_options=options, local=local, write=write_probe, seconds=seconds, on_check=on_check
        )
    code = ExitCode.OK if found.ok else ExitCode.NOT_VERIFIED
    if output.as_json:
        write_json(found.to_dict())
        return code
    width = max(len(each.check) for each in found.findings)
    for each in found.findings:
        _write_finding(each, width)
    counts = [_counted(number, state) for state, number in found.counts.items() if number]
    write(f"\n{', '.join(counts)}; took {duration(found.seconds)}")
    return code


def _counted(number: int, state: str) -> str:
    return f"{number:,} {state}{'s' if number > 1 and state in {'warning', 'fault'} else ''}"


def _write_finding(finding: "Finding", width: int) -> None:
    """Write the state, the check and the fact, and below it what to do; wrapped on a terminal."""
    state = finding.state.value
    indent = " " * (9 + width + 2)
    texts = [finding.found] + ([f"to do: {finding.to_do}"] if finding.to_do else [])
    lines: list[str] = []
    for text in texts:
        lines += _wrapped(text, len(indent))
    write(f"{_painted(state, 9)}{finding.check:{width}}  {lines[0]}")
    for line in lines[1:]:
        write(f"{indent}{line}")


def _wrapped(text: str, indent: int) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    room = max(30, shutil.get_terminal_size().columns - indent)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _painted(state: str, width: int) -> str:
    padded = f"{state:{width}}"
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return padded
    return typer.style(padded, fg=_COLOURS[state], bold=state == "fault")


@command(
    "benchmark",
    panel=MACHINE,
    examples=["smalti benchmark ./flowers", "smalti benchmark s3://bucket/flowers --seconds 60 --threads 1,8"],
)
def benchmark(
    *,
    url: Url,
    version: VersionChoice,
    measurement: Measurement,
    local: Annotated[
        str | None,
        typer.Option("--local", metavar="FOLDER", help="Folder on the disk to read through (default: the cache's)."),
    ] = None,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Measure how fast this machine reads a set: cold and warm, beside the plain link.

    `link` are ranged requests for the same objects and nothing else: no other reading can be faster. `cold` are
    samples with an empty cache, `warm` the same ones again. Existing copies in the cache are neither read nor changed.
    """
    from smalti.diagnosis import measure_reading

    threads = measurement.numbers()
    done = 0
    with progress(output, "measured") as on_progress:

        def count(_: object) -> None:
            nonlocal done
            done += 1
            if on_progress is not None:
                on_progress(done, 3 * len(threads))

        if on_progress is not None:
            on_progress(0, 3 * len(threads))
        found = measure_reading(
            url,
            version=version.at,
            tag=version.tag,
            storage_options=stores.for_address(url),
            seconds=measurement.seconds,
            threads=threads,
            local=local,
            on_speed=count,
        )
    if output.as_json:
        write_json(found.to_dict())
    else:
        _write_speeds(found)


def _write_speeds(found: "ReadingSpeeds") -> None:
    write(
        f"version {found.version}: {found.samples:,} samples in {found.shards:,} shards, {exact_bytes(found.num_bytes)}"
    )
    if found.is_read_in_place:
        write("read in place: the files may be in the memory of the kernel")
    write(f"round trip {_milliseconds(found.round_trip.median)}, 90 % within {_milliseconds(found.round_trip.p90)}\n")
    columns = [
        Column("threads", is_number=True),
        Column("reading"),
        Column("bytes/s", is_number=True),
        Column("of link", is_number=True),
        Column("samples/s", is_number=True),
        Column("median", is_number=True),
        Column("99 %", is_number=True),
        Column("longest", is_number=True),
    ]
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
    write_table(columns, rows)


def _milliseconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds * 1000:,.{2 if seconds < 0.01 else 0}f} ms"
