"""Exports of Smalti as sources: the record beside their files says which files there are.

`smalti.exporting` writes the record, and marks it as complete after the last file. A copy of an export may still lack
files, and the names of the files say how many there were.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from smalti.errors import ChecksumMismatch, FormatError, StoreError, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.storage import ObjectInfo, Store
from smalti.storage.store import check_key

RECORD = "_smalti_export.json"
NUMBERED = re.compile(
    r"(?P<begin>(?:.*[-./_])?)(?P<number>[0-9]{5,})-of-(?P<count>[0-9]{5,})(?P<ending>\.[^/]*)", re.DOTALL
)
"""Name of a file that has its number, and the number of files, as exports and many programs write."""

_log = logging.getLogger(__name__)


def read_export(store: Store) -> Mapping[str, Any] | None:
    """Return the record of a complete export; None if the store has none.

    Raises:
        FormatError: The export is not complete, or its record is damaged.
    """
    try:
        data = store.get_limited(RECORD, MAX_INDEX_BYTES)
    except StoreNotFound:
        return None
    loaded: Any = load_strict(data, where=store.locate(RECORD))
    record: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    if record.get("complete") is False:
        raise FormatError(
            f"{store.url}: this export is not complete; call `smalti export` again with the same arguments first",
            url=store.url,
        )
    files = record.get("files")
    if not isinstance(files, list) or not files or not record.get("complete") or not all(map(_is_entry, files)):
        raise damaged_record(store.locate(RECORD), "names and sizes of its files")
    return record


def damaged_record(where: str, expected: str) -> FormatError:
    """Return the error that the record of an export lacks what is expected."""
    return FormatError(
        f"{where}: expected the record of an export, with {expected}; it is damaged: copy it again, or export again to "
        "another folder",
        key=RECORD,
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or type(entry.get("bytes")) is not int:
        return False
    try:
        check_key(entry["name"])
    except StoreError:
        return False
    return True


def exported_files(
    store: Store, files: Sequence[ObjectInfo], export: Mapping[str, Any] | None, *, is_all: bool
) -> tuple[ObjectInfo, ...]:
    """Return the files of an export among those that were listed, after a check that none is missing or cut short.

    Args:
        store: The store that has them.
        files: The files that were listed.
        export: The record of the export; without one, nothing is checked.
        is_all: False if the caller chose some of the files.

    Raises:
        StoreNotFound: Files are missing.
        ChecksumMismatch: A file has another size than it was written with.
    """
    if export is None:
        return tuple(files)
    sizes = {entry["name"]: entry["bytes"] for entry in export["files"]}
    present = {file.key: file for file in files}
    if is_all:
        for name in sizes:
            # Listings leave it out if a name in it begins with `_` or `.`, as names of splits may.
            if name not in present and any(part.startswith(("_", ".")) for part in name.split("/")):
                with suppress(StoreNotFound):
                    present[name] = replace(store.info(name), key=name)
        if missing := [name for name in sizes if name not in present]:
            raise StoreNotFound(
                f"{store.url}: {len(missing)} of the {len(sizes)} files of this export are missing, such as "
                f"{missing[0]}; copy them again, or give a pattern such as 'part-*' to read only those that are there",
                url=store.url,
                key=missing[0],
            )
    for name, size in sizes.items():
        if name in present and present[name].num_bytes != size:
            raise ChecksumMismatch(
                f"{store.locate(name)}: expected {size} bytes, as {RECORD} says; found {present[name].num_bytes}: copy "
                "it again",
                key=name,
            )
    if not is_all:
        return tuple(files)
    endings = {name.rpartition(".")[2] for name in sizes}
    others = [key for key in present if key not in sizes and key.rpartition(".")[2] in endings]
    if others:
        message = "%s: %d files are not of this export by its %s and were left out, such as %s"
        _log.warning(message, store.url, len(others), RECORD, others[0])
    return tuple(present[key] for key in sorted(present.keys() - others))


def check_numbers(keys: Iterable[str], locate: Callable[[str], str]) -> None:
    """Return only if files named `x-00000-of-00002.tar` are all there, and no others with such names.

    Raises:
        StoreNotFound: Some are missing.
        FormatError: A number is larger than the number of files.
    """
    groups: dict[tuple[str, str, str], set[int]] = {}
    for key in keys:
        if match := NUMBERED.fullmatch(key):
            groups.setdefault((match["begin"], match["count"], match["ending"]), set()).add(int(match["number"]))
    for (begin, count, ending), numbers in groups.items():
        total = int(count)
        first = 1 if total in numbers and 0 not in numbers else 0  # some programs count from 1
        expected = range(first, first + total)
        missing = total - sum(number in expected for number in numbers)
        others = sorted(number for number in numbers if number not in expected)
        if missing:
            number = next(number for number in expected if number not in numbers)
            raise StoreNotFound(
                f"{locate(f'{begin}{number:0{len(count)}d}-of-{count}{ending}')}: {missing} of {total} files with such "
                "names are missing; fetch them, or give a pattern of files, which reads those that are there",
                missing=missing,
            )
        if others:
            raise FormatError(
                f"{locate(f'{begin}{others[0]:0{len(count)}d}-of-{count}{ending}')}: {len(others)} files with such "
                f"names have numbers above those of all {total} files; remove them, or give a pattern of files",
            )
