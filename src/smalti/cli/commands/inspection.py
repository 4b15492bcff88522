"""`smalti info|head|stats|preview URL`: what is in a shard set."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from smalti.cli.options import CommonOptions, SplitChoice, Url, flag, option
from smalti.cli.output import exact_bytes, progress, show, write, write_facts, write_table
from smalti.cli.registration import LOOK, command
from smalti.texts import byte_count

if TYPE_CHECKING:
    from smalti.inspection import Head, Info, Stats
    from smalti.inspection.distributions import Distribution

Columns = Annotated[str | None, option("A,B", "Columns, separated by commas (default: all).", "--columns")]
Seed = Annotated[int, option("N", "Number that determines the random rows.", "--seed", min=0)]

_MAX_LINE = 300  # characters of lineage and metadata; --json prints all of it
_MIN_CELL = 8  # characters of a column of a table that is still read
_SHOWN_CLASSES = 8


@command("info", panel=LOOK)
def show_info(url: Url, version: SplitChoice, *, common: CommonOptions) -> None:
    """Show what is at an address: who wrote it, versions, sizes, columns, splits, and how to open it.

    Examples:
        smalti info ./flowers
        smalti info s3://bucket/flowers --tag best
    """
    from smalti.inspection import info

    found = info(common.open(url), **version.arguments())
    show(common, found, lambda: _write_info(found))


def _write_info(found: "Info") -> None:
    packed = f"; {', '.join(found.compression)}" if found.compression else "; not compressed"
    facts: list[tuple[str, object]] = [
        ("address", found.url),
        ("written by", f"{found.written_by}, format {found.format}{'' if found.version else '; it has no versions'}"),
    ]
    if found.version:
        when = f", published {found.created[:19].replace('T', ' ')} UTC" if found.created else ""
        by = f" by {found.operation}" if found.operation else ""
        facts.append(("version", f"{found.version} of {found.newest}{when}{by}"))
    facts.append(("digest", found.digest))
    if found.tags is None:
        facts.append(("tags", "these credentials do not list them"))
    elif found.tags:
        facts.append(("tags", ", ".join(f"{name} (version {number})" for name, number in found.tags.items())))
    facts += [
        ("samples", f"{found.rows:,} in {found.num_shards:,} shard{'' if found.num_shards == 1 else 's'}"),
        ("stored", f"{exact_bytes(found.num_bytes)}{packed}"),
        ("raw", exact_bytes(found.raw_bytes)),
        ("checksums", ", ".join(found.hashes) or "none: only sizes are compared"),
    ]
    facts += [("made of", f"{found.source_files:,} source files")] if found.source_files is not None else []
    facts += [("lineage", _short(found.lineage))] if found.lineage else []
    facts += [("metadata", _short(found.metadata))] if found.metadata else []
    write_facts([*facts, ("open with", found.open_with)])
    write()
    marks = {True: "yes", False: ""}
    rows = [
        (each.name, each.encoding, _short(each.logical), marks[each.is_nullable], marks[each.is_added])
        for each in found.columns
    ]
    write_table(["column", "encoding", "logical type", "nulls", "added"], rows)
    if found.splits:
        write()
        sizes = [(each.name, each.rows, each.num_shards, byte_count(each.num_bytes)) for each in found.splits]
        numbers = ("samples", "shards", "stored")
        write_table(["split", *numbers], sizes, numbers=numbers)


@command("head", panel=LOOK)
def show_head(
    url: Url,
    version: SplitChoice,
    *,
    rows: Annotated[int, option("N", "Number of rows.", "--rows", "-n", min=0, max=10_000)] = 10,
    offset: Annotated[int, option("N", "Number of the first row.", min=0)] = 0,
    sample: Annotated[bool, flag("Random rows in place of the first ones.")] = False,
    seed: Seed = 0,
    columns: Columns = None,
    common: CommonOptions,
) -> None:
    """Show rows as a table: the first ones, those from a place on, or random ones.

    Only these rows are read of uncompressed shards, and the beginnings of compressed ones. Long values are cut where
    stdout is a terminal, and nowhere else.

    Examples:
        smalti head ./flowers
        smalti head ./flowers -n 5 --offset 1000 --columns label,path
        smalti head s3://bucket/flowers --sample --split train --json
    """
    from smalti.inspection import head

    found = head(
        common.open(url),
        rows,
        **version.arguments(),
        columns=_names(columns),
        offset=offset,
        sample=sample,
        seed=seed,
    )
    none = f"no rows from {offset:,} on: there are {found.num_rows:,}"
    show(common, found, (lambda: _write_rows(found)) if found.rows else none)


def _write_rows(found: "Head") -> None:
    """Write rows as a table, or one below the other where a terminal has no room for the columns."""
    from smalti.inspection.values import value_text

    is_terminal = sys.stdout.isatty()
    limit = 1000 if is_terminal else None
    cells = [[value_text(row[name], found.columns[name], limit) for name in found.columns] for row in found.rows]
    room = shutil.get_terminal_size().columns - 3 * len(found.columns) - len(f"{found.numbers[-1]:,}") - 4
    if is_terminal and room < _MIN_CELL * len(found.columns):
        for number, row in zip(found.numbers, cells, strict=True):
            room = shutil.get_terminal_size().columns - max(map(len, found.columns)) - 2
            write_facts([("row", f"{number:,}"), *zip(found.columns, (_fit(text, room) for text in row), strict=True)])
            write()
        return
    titles = list(found.columns)
    if is_terminal:
        widths = column_widths([max(map(_width, texts)) for texts in zip(titles, *cells, strict=True)], room)
        cells = [[_fit(text, width) for text, width in zip(row, widths, strict=True)] for row in cells]
        titles = [_fit(text, width) for text, width in zip(titles, widths, strict=True)]
    rows = [(number, *row) for number, row in zip(found.numbers, cells, strict=True)]
    write_table(["row", *titles], rows, numbers=("row",))


def column_widths(wanted: Sequence[int], room: int) -> list[int]:
    """Return the width of each column: what it wants, except that the widest share the room that is left. Pure."""
    widths, left = [0] * len(wanted), room
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    for place, at in enumerate(order):
        widths[at] = min(wanted[at], left // (len(order) - place))
        left -= widths[at]
    return widths


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _fit(text: str, width: int) -> str:
    """Return a text cut to a width on a terminal."""
    from rich.cells import set_cell_size

    return text if _width(text) <= width else f"{set_cell_size(text, max(1, width - 1)).rstrip()}…"


@command("stats", panel=LOOK)
def show_stats(
    url: Url,
    version: SplitChoice,
    *,
    samples: Annotated[int | None, option("N", "Number of random rows to look at (default: all rows).", min=0)] = None,
    seed: Seed = 0,
    columns: Columns = None,
    decode: Annotated[
        bool, flag("Decode the pixels of images, or read their headers alone.", "--decode/--no-decode")
    ] = True,
    common: CommonOptions,
) -> None:
    """Show statistics of each column: nulls, ranges, classes, image sizes, distinct values; and sizes of shards.

    All rows are read unless --samples is given; memory is bounded either way. Damaged images are counted.

    Examples:
        smalti stats ./flowers
        smalti stats s3://bucket/flowers --samples 10000 --split train
    """
    from smalti.inspection import stats

    with progress(common, "rows read") as shown:
        found = stats(
            common.open(url),
            **version.arguments(),
            columns=_names(columns),
            samples=samples,
            seed=seed,
            decode=decode,
            on_rows=shown,
        )
    show(common, found, lambda: _write_stats(found))


def _write_stats(found: "Stats") -> None:
    from smalti.inspection.column_stats import column_texts
    from smalti.inspection.values import value_text

    of = "all" if not found.is_sampled else f"{found.looked_at:,} random ones of"
    write(f"{of} {found.num_rows:,} rows, version {found.version}")
    write()
    rows: list[tuple[object, ...]] = []
    for column in found.columns:
        kind, *texts = column_texts(column)
        rows.append((column.name, kind, column.nulls, *texts))
    titles = ["column", "encoding", "nulls", "distinct", "range", "mean"]
    write_table(titles, rows, numbers=("nulls", "distinct"))
    write()
    facts: list[tuple[str, object]] = []
    for each in found.columns:
        first = list((each.classes or {}).items())[:_SHOWN_CLASSES]
        more = len(each.classes or ()) - len(first)
        shown = ", ".join(f"{value_text(name, 'str', 40)} {count:,}" for name, count in first)
        facts += [(f"classes of {each.name}", f"{shown}{f', and {more:,} more' if more else ''}")] if first else []
    sizes, stored = found.sample_bytes, found.shard_bytes
    if sizes.count:
        facts.append(("samples", f"{_ends(sizes, byte_count)}, mean {byte_count(sizes.mean)}"))
    if stored.count:
        samples_each = _ends(found.shard_rows, lambda number: f"{number:,.0f}")
        facts.append(("shards", f"{stored.count:,} of {_ends(stored, byte_count)} stored, {samples_each} samples"))
    for each in found.columns:
        if each.images is not None and each.images.undecodable:
            some = ", ".join(f"{row:,}" for row in each.images.undecodable_rows)
            facts.append(("damaged", f"{each.images.undecodable:,} images of {each.name} do not decode; rows {some}"))
    if found.equal_samples.count:
        pairs = ", ".join(f"{first_row:,} and {row:,}" for first_row, row in found.equal_samples.examples[:3])
        about = "" if found.equal_samples.is_exact else "about "
        facts.append(("equal", f"{about}{found.equal_samples.count:,} rows are equal to an earlier one: {pairs}"))
    write_facts(facts)


def _ends(found: "Distribution", shown: Callable[[float], str]) -> str:
    """Return the smallest and the largest number, or one of them if they are equal."""
    return " to ".join(dict.fromkeys([shown(found.min), shown(found.max)]))


@command("preview", panel=LOOK)
def write_preview(  # noqa: PLR0913
    url: Url,
    version: SplitChoice,
    *,
    out: Annotated[
        Path | None, option("FILE", "File to write (default: the name of the set, and .html).", "--out", "-o")
    ] = None,
    rows: Annotated[int, option("N", "Number of random rows.", min=0, max=10_000)] = 200,
    max_bytes: Annotated[str, option("SIZE", "Largest size of the file, such as 10mb.")] = "20mb",
    seed: Seed = 0,
    columns: Columns = None,
    open_page: Annotated[bool, flag("Open the page in a browser.", "--open")] = False,
    common: CommonOptions,
) -> None:
    """Write a page that shows random rows and statistics in a browser: one HTML file that needs no network.

    Examples:
        smalti preview ./flowers
        smalti preview ./flowers -o page.html --rows 500 --max-bytes 10mb
    """
    from smalti.inspection import preview

    store = common.open(url)
    path = out if out is not None else Path(f"{store.url.rstrip('/').rpartition('/')[2] or 'preview'}.html")
    with progress(common, "rows read") as shown:
        made = preview(
            store,
            path,
            rows=rows,
            max_bytes=max_bytes,
            **version.arguments(),
            columns=_names(columns),
            seed=seed,
            on_rows=shown,
        )
    if open_page:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    left_out = f"; {made.left_out:,} more did not fit" if made.left_out else ""
    text = f"{made.path}: {made.rows:,} of {made.num_rows:,} rows, {exact_bytes(made.num_bytes)}{left_out}"
    show(common, made, text)


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name for name in columns.split(",") if name]


def _short(value: Any) -> str:
    """Return JSON on one line, cut after a few hundred characters, without characters that a terminal interprets."""
    from smalti.inspection.values import value_text

    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value_text(text, "str", _MAX_LINE)
