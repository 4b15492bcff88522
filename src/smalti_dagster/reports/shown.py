"""Images and numbers of a materialisation as metadata: made anew, or taken over from the materialisation before."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from smalti.inspection.distributions import Histogram
from smalti.spark.profile import ImageSizes, RowsProfile
from smalti_dagster.reports.gallery import gallery, image_teaser, thumbnails
from smalti_dagster.reports.pictures import block_bars, class_bars, histograms
from smalti_dagster.reports.tables import Value, table, table_of_ends

Metadata = dict[str, dg.MetadataValue | str | int | float]

IMAGES = ("samples", "gallery")
"""Keys of what `show_images` returns."""

ROWS = ("profiled_rows", "first_rows", "column_profile", "column_profile_picture")
"""Keys of what `show_rows` returns."""

_SHOWN_COLUMNS = 30  # that have a histogram in the picture
_SHOWN_IN_ROW = 12  # columns of the table of first rows


def show_images(examples: Mapping[str, Sequence[bytes]]) -> Metadata:
    """Return a teaser, and a gallery with images of every class, given by class."""
    flat = thumbnails([image for images in examples.values() for image in images])
    groups, at = {}, 0
    for name, images in examples.items():
        groups[name], at = flat[at : at + len(images)], at + len(images)
    return {
        "samples": dg.MetadataValue.md(image_teaser([images[0] for images in groups.values() if images])),
        "gallery": dg.MetadataValue.md(gallery(groups)),
    }


def shown_again(facts: Mapping[str, Any], names: Sequence[str] = IMAGES) -> Metadata:
    """Return what a materialisation of the same data shows under these keys; empty if it lacks one of them."""
    if any(name not in facts for name in names):
        return {}
    return {name: dg.MetadataValue.md(each) if isinstance(each := facts[name], str) else each for name in names}


def show_classes(counts: Mapping[str, Mapping[str, int]]) -> Metadata:
    """Return the balance of classes as a table, and as a picture with every class.

    Args:
        counts: Number of images of each class, by part, such as a split.
    """
    parts, total = sorted({part for each in counts.values() for part in each}), 0
    ordered = sorted(counts.items(), key=lambda item: -sum(item[1].values()))
    total = max(1, sum(sum(each.values()) for each in counts.values()))
    rows: list[dict[str, Value]] = [
        {"class": name, **{part: each.get(part, 0) for part in parts}, "share": f"{sum(each.values()) / total:.2%}"}
        for name, each in ordered
    ]
    return {
        "class_balance": table_of_ends(rows),
        "class_balance_picture": dg.MetadataValue.md(class_bars(counts)),
    }


def show_sizes(num_bytes: Sequence[int], sizes: ImageSizes) -> Metadata:
    """Return the sizes of images as a table with small histograms, and as a picture; empty if none is known."""
    found = {
        "file (kB)": Histogram.of([each / 1000 for each in num_bytes]),
        "width (pixels)": Histogram.of(sizes.widths),
        "height (pixels)": Histogram.of(sizes.heights),
        "width / height": Histogram.of(sizes.widths / sizes.heights),
    }
    known = {name: each for name, each in found.items() if each is not None}
    return _sizes(known) if known else {}


def _sizes(known: Mapping[str, Histogram]) -> Metadata:
    rows: list[dict[str, Value]] = [
        {
            "of": name,
            "smallest": _short(each.low),
            "median": _short(each.median),
            "largest": _short(each.high),
            "histogram": block_bars(each.counts),
        }
        for name, each in known.items()
    ]
    return {"image_sizes": table(rows), "image_sizes_picture": dg.MetadataValue.md(histograms(known))}


def show_rows(profile: RowsProfile) -> Metadata:
    """Return the statistics of columns as a table with small histograms, their picture, and the first rows."""
    columns: list[dict[str, Value]] = [
        {
            "column": each.name,
            "type": each.type,
            "null": f"{each.nulls:.1%}",
            "smallest": each.low,
            "largest": each.high,
            "range": _range_of(each.measure, each.histogram),
            "histogram": block_bars(each.histogram.counts) if each.histogram is not None else "",
        }
        for each in profile.columns
    ]
    pictured = {
        f"{each.name}{' (length)' if each.measure == 'length' else ''}": each.histogram
        for each in profile.columns
        if each.histogram is not None
    }
    first: list[dict[str, Value]] = [dict(list(row.items())[:_SHOWN_IN_ROW]) for row in profile.first]
    picture = histograms(dict(list(pictured.items())[:_SHOWN_COLUMNS])) if pictured else "no column has numbers"
    return {
        "profiled_rows": f"{'all' if profile.is_complete else 'the first'} {profile.rows} rows",
        "first_rows": table(first or [{"": "no rows"}]),
        "column_profile": table(columns, total=len(columns) + profile.columns_left_out),
        "column_profile_picture": dg.MetadataValue.md(picture),
    }


def _range_of(measure: str, found: Histogram | None) -> str:
    if found is None or measure != "length":
        return ""
    return f"length {found.low:.0f} to {found.high:.0f}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def throughput(rows: int, num_bytes: int, seconds: float) -> Metadata:
    """Return the rows and megabytes per second of what a stage has read or written; empty if that is nothing."""
    totals = {"rows_per_second": rows, "megabytes_per_second": num_bytes / 1e6}
    return {name: round(total / max(seconds, 1e-6), 3) for name, total in totals.items() if total}
