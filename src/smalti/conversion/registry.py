"""The table of formats that `convert` reads: which module opens each, and how a format is recognised.

A further format is a name in `Format`, an entry in `FORMATS`, a place in `_BY_ENDING` and `_TABULAR` if it is
recognised by endings and has rows, and a module in `sources/` with two functions:

    recognises(place, names) -> bool
        Decides whether a place has this format. `place` is a path, a URL, a `Store`, or an object of another library;
        `names` are the keys of the files below it, some thousands at most; none if the place is such an object.
    open_source(place, options) -> Source
        Opens the place.
"""

import importlib
from typing import Any, Literal, cast, get_args

from smalti.conversion.files import list_files
from smalti.conversion.source import Source, SourceOptions
from smalti.errors import ArgumentError, ArgumentTypeError, SmaltiError
from smalti.redaction import redact_address
from smalti.storage import Store

Format = Literal["parquet", "images", "csv", "jsonl", "webdataset", "huggingface", "litdata", "mds"]
FORMATS: dict[str, str] = {
    "mds": "smalti.conversion.sources.mds",
    "huggingface": "smalti.conversion.sources.huggingface",
    "litdata": "smalti.conversion.sources.litdata",
    "parquet": "smalti.conversion.sources.parquet",
    "images": "smalti.conversion.sources.images",
    "webdataset": "smalti.conversion.sources.webdataset",
    "csv": "smalti.conversion.sources.delimited",
    "jsonl": "smalti.conversion.sources.json_lines",
}
"""By name of the format: its module. The first that recognises a place opens it: formats with marker files, then those
of most files, then those of `_BY_ENDING`."""
_BY_ENDING = ("webdataset", "csv", "jsonl")
"""Formats that are recognised by any file; those before them by marker files, or by most files."""
_BY_NAMES = ("parquet", "images", *_BY_ENDING)
"""Formats that are recognised by names alone; files that are of none of them, such as a README, do not count."""
_TABULAR = ("parquet", "webdataset", "csv", "jsonl")
"""Formats of files with rows; images may have such files beside them, which describe them."""
_MAX_NAMES = 4096


def open_source(place: Any, format: str | None = None, options: SourceOptions | None = None) -> Source:
    """Return the source at a place, in the format that is named or that its files show; a source itself unchanged.

    Raises:
        ValueError: There is no format of that name.
        SmaltiError: No format recognises the place.
    """
    if isinstance(place, Source):
        return place
    options = options or SourceOptions()
    if format is not None:
        if format not in get_args(Format):
            raise ArgumentError(f"`format`: expected one of {', '.join(get_args(Format))}, found {format!r}")
        return cast("Source", _module(format).open_source(place, options))
    names: list[str] = []
    left_out = ""
    is_place = isinstance(place, Store | str) or hasattr(place, "__fspath__")
    if is_place:
        found = list_files(place, options.storage_options)
        names = [file.key for file in found.files[:_MAX_NAMES]]
        left_out = f" (left out: {found.left_out})" if found.left_out.counts else ""

    def is_of(format: str, names: list[str]) -> bool:
        return bool(_module(format).recognises(place, names))

    data = [name for name in names if any(is_of(each, [name]) for each in _BY_NAMES)]
    matching = next((each for each in FORMATS if is_of(each, data if each in _BY_NAMES else names)), None)
    found_kinds = [each for each in _BY_NAMES if any(is_of(each, [name]) for name in data)]
    if len(found_kinds) > 1 and matching in _TABULAR:
        raise SmaltiError(
            f"{redact_address(str(place))[:200]}: there are files of several formats, and rows of the others would be "
            f"left out; name one: format={' or '.join(map(repr, found_kinds))}, or a pattern of files"
        )
    if matching is not None:
        return cast("Source", _module(matching).open_source(place, options))
    if not is_place:
        raise ArgumentTypeError(
            "`source`: expected a path, a URL, a pattern of files, a store or a dataset of the package datasets, found "
            f"{type(place).__name__}; several files are given by a pattern"
        )
    shown = redact_address(str(getattr(place, "url", place)))[:200]
    example = f", such as {names[0]}" if names else ""
    raise SmaltiError(
        f"{shown}: the files there{example}{left_out} are of no format that is recognised; name it: format="
        f"{' or '.join(map(repr, FORMATS))}",
        source=shown,
    )


def _module(name: str) -> Any:
    return importlib.import_module(FORMATS[name])
