"""A page that shows a version in a browser: images, texts, tables, class balance, sizes; one HTML file, no network.

The values on the page may be hostile. The parts that are HTML, in `preview.html`, are escaped here; rows are JSON that
`preview.js` puts into the page as text. A content security policy, with the digest of that script, keeps the browser
from running or loading anything else.
"""

import base64
import hashlib
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from smalti.attributes import whole_number
from smalti.errors import BadImageError, SchemaError, StoreError
from smalti.format import parse_byte_count, parse_encoding
from smalti.images import decode_rgb
from smalti.images.header import exif_orientation
from smalti.images.pixels import turn_upright
from smalti.inspection.column_stats import column_texts
from smalti.inspection.distributions import Distribution, Histogram, class_picture, histogram_picture, shortened
from smalti.inspection.info import MAX_ROWS, choose_rows
from smalti.inspection.reading import Ids, VersionRows
from smalti.inspection.stats import OnRows, Stats, stats_of
from smalti.inspection.values import IMAGE_LISTS, image_files, is_image, summarize_image, summarize_images, value_text
from smalti.storage import LocalStore, Place
from smalti.texts import byte_count

DEFAULT_ROWS = 200
DEFAULT_MAX_BYTES = 20 << 20
LOOKED_AT = 2000
"""Rows that the statistics of a page are of, unless more are shown."""
THUMBNAIL = 200
"""Longest side of a thumbnail in pixels."""
MAX_TEXT_CHARS = 2000
"""Characters of a text that the page holds."""
MAX_COLUMNS = 60
"""Columns that the page shows."""
_MAX_LIST = 50  # classes that a list offers
_MAX_LISTS = 3
_MAX_CAPTIONS = 2
_COMPRESSED_SHARDS = 20  # of which rows are read, more if they are small: their beginnings alone are cheap to read
_READ_AT_ONCE = 64  # rows in memory with their images
_MIN_BYTES = 64 << 10


@dataclass(frozen=True)
class Preview:
    """The page that was written."""

    path: str
    num_bytes: int
    url: str
    version: int
    digest: str
    rows: int
    """Rows on the page."""
    left_out: int
    """Rows that were asked for and did not fit into `max_bytes`."""
    looked_at: int
    """Rows that the statistics on the page are of."""
    num_rows: int
    """Rows of the version or split."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return asdict(self)


def preview(  # noqa: PLR0913
    place: Place,
    to: str | Path,
    *,
    rows: int = DEFAULT_ROWS,
    max_bytes: int | str = DEFAULT_MAX_BYTES,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    on_rows: OnRows | None = None,
) -> Preview:
    """Write a page with random rows of a version and statistics of up to 2,000 rows, as one HTML file.

    The rows are random ones of the whole version; of compressed sets, the first rows of random shards, 20 of them
    or as many as are needed.

    Args:
        place: The root of the set: a URL, folder or store.
        to: The file to write; replaced if it exists.
        rows: Number of rows to show, at most 10,000.
        max_bytes: Largest size of the file, at least 64 KiB; rows that do not fit are left out.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Split to read; None for the whole set.
        columns: Columns to show; None for all, up to 60.
        seed: Number that determines which rows are random.
        on_rows: Called with (rows looked at, rows in all) while statistics are computed.

    Raises:
        SmaltiError: the classes that `stats` names, and `StoreError` if the file cannot be written.
        ValueError: a number is out of range.

    Examples:
        >>> page = preview("s3://bucket/photos", "photos.html", rows=4, split="train")
        >>> page.rows, Path("photos.html").stat().st_size == page.num_bytes
        (4, True)
    """
    count = whole_number("`rows`", rows, 0, MAX_ROWS)
    limit = parse_byte_count(max_bytes, what="`max_bytes`")
    if limit < _MIN_BYTES:
        raise SchemaError(f"`max_bytes` is {limit}; expected at least {_MIN_BYTES}, 64 KiB")
    if not Path(to).parent.is_dir():  # before minutes of reading
        raise StoreError(f"cannot write {to}: the folder {Path(to).parent} does not exist", path=str(to))
    found = VersionRows(place, version=version, tag=tag, split=split)
    chosen = found.choose(columns)[: None if columns is not None else MAX_COLUMNS]
    numbers = spread_rows(found, max(count, LOOKED_AT), seed)
    measured = stats_of(found, chosen, None if len(numbers) == found.num_rows else numbers, on_rows=on_rows)
    shown = np.sort(np.random.default_rng(seed).permutation(numbers)[:count])
    text, num_shown = _Page(found, measured).text(shown, limit)
    data = text.encode("utf-8", "replace")
    if len(data) > limit:
        raise SchemaError(
            f"`max_bytes` is {limit}, and the page without rows takes {len(data)}; choose fewer `columns`"
        )
    LocalStore(Path(to).parent).put(Path(to).name, data)  # whole, or not at all
    manifest = found.set.manifest
    return Preview(
        path=str(to),
        num_bytes=len(data),
        url=found.store.url,
        version=manifest.version,
        digest=manifest.digest,
        rows=num_shown,
        left_out=len(shown) - num_shown,
        looked_at=measured.looked_at,
        num_rows=found.num_rows,
    )


def spread_rows(rows: VersionRows, count: int, seed: int) -> Ids:
    """Return sorted numbers of random rows; of compressed shards, of the first rows of some random shards."""
    shards, sizes = rows.set.shards, rows.set.shard_sizes
    if not len(shards) or shards[0].zip is None or rows.num_rows <= count:
        return choose_rows(0, rows.num_rows, count, seed=seed)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(sizes))
    each = np.minimum(sizes[order], -(-count // _COMPRESSED_SHARDS))
    chosen = order[: int(np.searchsorted(np.cumsum(each), count)) + 1]
    begins = rows.shard_ends - sizes
    parts = [begins[at] + np.arange(taken) for at, taken in sorted(zip(chosen.tolist(), each.tolist(), strict=False))]
    return np.concatenate(parts)[:count]


class _Page:
    """The HTML of one version."""

    def __init__(self, rows: VersionRows, measured: Stats) -> None:
        self._rows, self._stats = rows, measured
        self._columns = [column.name for column in measured.columns]
        self._kinds = {column.name: column.kind for column in measured.columns}
        names, label = rows.set.manifest.metadata.get("classes"), self._kinds.get("label")
        self._names: dict[str, dict[str, str]] = {}
        """Names of classes by column and number: of `label`, if the version lists its classes."""
        if isinstance(names, list) and all(isinstance(name, str) for name in names) and label == "number":
            self._names["label"] = {str(number): name for number, name in enumerate(names)}

    def text(self, numbers: Ids, limit: int) -> tuple[str, int]:
        """Return the page with as many of the rows as fit, and their number."""
        image = next((at for at, name in enumerate(self._columns) if self._kinds[name] in ("image", "images")), None)
        captions = list(self._names)  # below an image: classes first, then short texts
        lists: dict[str, list[str]] = {}  # texts of the values of columns that are offered in a list
        for at, column in enumerate(self._stats.columns):
            is_short = column.kind == "text" and column.lengths is not None and column.lengths.max <= 100
            if column.name not in self._names and (column.classes is not None or is_short):
                captions.append(column.name)
            if column.classes and len(column.classes) <= _MAX_LIST and len(lists) < _MAX_LISTS:
                lists[str(at)] = [self._names.get(column.name, {}).get(name, name) for name in column.classes]
        facts: dict[str, Any] = {
            "columns": self._columns,
            "numeric": [self._kinds[name] == "number" and name not in self._names for name in self._columns],
            "image": image,
            "captions": [self._columns.index(name) for name in captions[:_MAX_CAPTIONS]],
            "classes": lists,
            "rows": [],
        }
        values = self._values()
        page = Template(_resource("preview.html"))
        empty = page.substitute(values, left_out="", rows=_script_json(facts))
        used = len(empty.encode("utf-8", "replace")) + 1024
        shown: list[str] = []
        for begin in range(0, len(numbers), _READ_AT_ONCE):
            some = numbers[begin : begin + _READ_AT_ONCE]
            for number, cells in zip(some.tolist(), self._cells(some), strict=True):
                encoded = _script_json({"row": number, "cells": cells})
                used += len(encoded.encode("utf-8", "replace")) + 1
                if used > limit:
                    break
                shown.append(encoded)
            if used > limit:
                break
        left_out = len(numbers) - len(shown)
        note = f"<p class=faint>{left_out:,} more rows did not fit into the size of this page.</p>" if left_out else ""
        data = _script_json(facts).replace('"rows": []', f'"rows": [{",".join(shown)}]')
        return page.substitute(values, left_out=note, rows=data), len(shown)

    def _cells(self, numbers: Ids) -> list[list[Any]]:
        rows = self._rows.read(numbers, self._columns)
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="smalti-thumbnails") as pool:
            return list(
                pool.map(lambda row: [self._cell(name, row[name]) for name in self._columns], rows, timeout=600.0)
            )

    def _cell(self, name: str, value: Any) -> Any:
        encoding = self._rows.encodings[name]
        if value is None:
            return None
        if name in self._names:
            return self._names[name].get(str(value), str(value))
        if encoding in ("jpeg", "png", "pil") or is_image(value, encoding):
            return _thumbnail_cell(value, encoding)
        if encoding in IMAGE_LISTS:
            return _list_cell(value, encoding)
        if isinstance(value, str):
            more = f"\n… {len(value):,} characters in all" if len(value) > MAX_TEXT_CHARS else ""
            return value[:MAX_TEXT_CHARS] + more
        return value_text(value, encoding, MAX_TEXT_CHARS)

    def _values(self) -> dict[str, str]:
        """Return the values of `preview.html` except for the rows, as HTML."""
        measured, manifest = self._stats, self._rows.set.manifest
        root = measured.url.rstrip("/")
        title = root.rpartition("/")[2] or root
        code = _resource("preview.js")
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy = (
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'"
        )
        shards = self._rows.set.num_bytes_each
        facts = {
            "rows": f"{measured.num_rows:,}",
            ("shard" if len(self._rows.set.shards) == 1 else "shards"): f"{len(self._rows.set.shards):,}",
            "stored": byte_count(int(shards.stored.sum())),
            "uncompressed": byte_count(int(shards.raw.sum())),
            "columns": f"{len(self._rows.encodings):,}",
            **({"version": str(manifest.version)} if manifest.version else {}),
            **({"split": measured.split} if measured.split else {}),
        }
        published = f"published {manifest.created[:16].replace('T', ' ')} UTC, " if manifest.created else ""
        seen = f"{measured.looked_at:,} of {measured.num_rows:,} rows" if measured.is_sampled else "all rows"
        lines = ""
        for column in measured.columns:
            kind, *texts = column_texts(column)
            nulls = f"{column.nulls:,} ({column.nulls / column.count:.1%})" if column.nulls else "0"
            cells = "".join(f"<td>{_html(cell)}</td>" for cell in (column.name, kind, nulls, *texts))
            lines += f"<tr>{cells}</tr>"
        return {
            "policy": html.escape(policy),
            "title": _html(title),
            "style": _resource("preview.css"),
            "root": _html(root),
            "published": _html(published),
            "digest": _html(measured.digest[:16]),
            "seen": seen,
            "facts": "".join(f"<div><b>{_html(value)}</b>{_html(name)}</div>" for name, value in facts.items()),
            "pictures": self._pictures(),
            "columns": lines,
            "notes": self._notes(),
            "code": code,
        }

    def _notes(self) -> str:
        more, equal = len(self._rows.encodings) - len(self._columns), self._stats.equal_samples
        notes = f"<p class=faint>{more} more columns are not shown.</p>" if more else ""
        if equal.count:
            rows = ", ".join(f"{first:,} and {row:,}" for first, row in equal.examples[:3])
            about = "" if equal.is_exact else "about "
            notes += f"<p>{about}{equal.count:,} rows are equal to an earlier one, such as rows {rows}.</p>"
        return notes

    def _pictures(self) -> str:
        pictures = []
        for column in self._stats.columns:
            if column.classes and len(column.classes) > 1:
                names = self._names.get(column.name, {})
                counts = {names.get(name, name): {"rows": number} for name, number in column.classes.items()}
                picture = class_picture(counts, of="rows", background="")
                pictures.append(f"<h2>{_html(column.name)}: rows by value</h2>{picture}")
        histograms: dict[str, Histogram] = {}

        def add(name: str, values: Distribution | None) -> None:
            if values is not None and values.histogram is not None and values.min != values.max:
                histograms[name] = values.histogram

        for column in self._stats.columns:
            if column.images is not None:
                add(f"{column.name}: width", column.images.widths)
                add(f"{column.name}: height", column.images.heights)
            if column.name not in self._names and column.classes is None:
                add(column.name, column.values)
            if column.classes is None:
                add(f"{column.name}: {'characters' if column.kind == 'text' else 'bytes'}", column.lengths)
        add("bytes of a sample", self._stats.sample_bytes)
        shown = dict(list(histograms.items())[:24])
        distributions = f"<h2>Distributions</h2>{histogram_picture(shown, background='')}" if shown else ""
        return "".join(pictures[:4]) + distributions


def _thumbnail_cell(data: bytes, encoding: str) -> Mapping[str, Any]:
    """Return the cell of an encoded image, or of a raw one (`pil`): upright and small, or what is wrong with it."""
    found = summarize_image(data, encoding)
    if found.fault:
        return {"text": found.text(), "fault": True}
    out = io.BytesIO()
    try:
        if encoding == "pil":
            image = parse_encoding("pil").decode(data).convert("RGB")
        else:
            pixels = turn_upright(decode_rgb(data, min_size=THUMBNAIL), exif_orientation(data))
            image = Image.fromarray(np.ascontiguousarray(pixels))
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    except (BadImageError, OSError, ValueError) as error:
        return {"text": f"does not decode: {shortened(str(error), 200)}", "fault": True}
    image.save(out, "WEBP", quality=70, method=2)
    return {"src": f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}", "text": found.text()}


def _list_cell(data: bytes, encoding: str) -> Mapping[str, Any]:
    """Return the cell of a list of images: the first one that is sound, and whether others are damaged."""
    text = value_text(data, encoding, MAX_TEXT_CHARS)
    images = summarize_images(data, encoding)
    is_damaged = any(image.fault for image in images)
    sound = next((place for place, image in enumerate(images) if not image.fault), None)
    if sound is None:
        return {"text": text, "fault": True} if images else {"text": text}
    cell = _thumbnail_cell(image_files(data, encoding)[sound], IMAGE_LISTS[encoding])
    return {**cell, **({} if cell.get("fault") else {"text": text}), **({"fault": True} if is_damaged else {})}


def _html(text: str) -> str:
    return html.escape(shortened(text, 400))


def _script_json(value: Any) -> str:
    """Return JSON that can stand in a script element: no `<` that could end it."""
    text = json.dumps(value, ensure_ascii=False)
    for each in "<>&\u2028\u2029":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _resource(name: str) -> str:
    return files("smalti.inspection").joinpath(name).read_text(encoding="utf-8")
