"""`smalti export URL TO --format FORMAT`: a version as files of another format."""

from typing import Annotated, Any

import typer

from smalti.cli.faults import UsageFault
from smalti.cli.options import Output, Split, StoreOptions, Url, VersionChoice
from smalti.cli.output import byte_count, write, write_json
from smalti.cli.progress import progress
from smalti.cli.registration import CHANGE, command


def add_export_commands(app: typer.Typer) -> None:
    """Add `export`."""
    command(
        app,
        "export",
        panel=CHANGE,
        examples=[
            "smalti export ./flowers ./tars --format webdataset --name image=jpg --name label=cls",
            "smalti export s3://bucket/set s3://bucket/rows --format parquet --split train --column id",
        ],
    )(run_export)


def run_export(  # noqa: PLR0913  one parameter for each option
    url: Url,
    to: Annotated[str, typer.Argument(metavar="TO", help="Empty folder or URL for the files.", show_default=False)],
    *,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="webdataset or parquet.", show_default=False)],
    version: VersionChoice,
    split: Split = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME", help="Column; may be repeated (default: all).")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="COLUMN=ENDING", help="Ending of a column's members in tar files."),
    ] = None,
    size_limit: Annotated[
        str, typer.Option("--size-limit", metavar="BYTES", help="Bytes of samples in a file, before compression.")
    ] = "512mb",
    compression: Annotated[
        str | None, typer.Option("--compression", metavar="CODEC", help="Of Parquet (default: zstd); or none.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Files at a time (default: one per core).", show_default=False
        ),
    ] = None,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Write a version as WebDataset tar files or as Parquet, with the same values.

    Called again after an interruption, it writes only the files that are missing.
    """
    from smalti.exporting import export

    options: dict[str, Any] = {
        "format": format,
        "version": version.at,
        "tag": version.tag,
        "split": split,
        "columns": column or None,
        "names": _names(name),
        "size_limit": size_limit,
        "compression": compression,
        "workers": workers,
    }
    with progress(output, "files written") as on_file:
        report = export(stores.open(url), stores.open(to), **options, on_file=on_file)
    if output.as_json:
        write_json(report.to_dict())
        return
    before = f", {report.num_reused:,} of them were there" if report.num_reused else ""
    write(
        f"version {report.version}: {report.num_samples:,} samples in {report.num_files:,} files of "
        f"{byte_count(report.num_bytes)}{before}"
    )


def _names(pairs: list[str] | None) -> dict[str, str]:
    names = {}
    for text in pairs or ():
        column, equals, ending = text.partition("=")
        if not (column and equals and ending):
            raise UsageFault(f"--name: expected COLUMN=ENDING, such as image=jpg, found {text!r}")
        names[column] = ending
    return names
