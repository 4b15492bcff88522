"""Which files of a folder are data, and what their folders' names say; decided by names alone."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from smalti.errors import FormatError
from smalti.storage import ObjectInfo

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def data_files(infos: Iterable[ObjectInfo], where: str) -> list[ObjectInfo]:
    """The files that Spark would read: not those whose name, or a folder's, begins with `_` or `.`.

    Raises:
        FormatError: it is a Delta or Iceberg table: its folder also holds files that are no longer part of it.
    """
    infos = list(infos)
    for kind, is_sign in (("Delta", _is_delta), ("Iceberg", _is_iceberg)):
        if any(is_sign(info.key) for info in infos):
            raise FormatError(
                f"{where} is a {kind} table: its folder also holds files that are no longer part of it, or hides rows "
                f'of those that are. Read it with Spark (spark.read.format("{kind.lower()}").load(...)) and give '
                "the DataFrame to make_spark_converter, or give the list of its live files.",
                where=where,
            )
    return [info for info in infos if not any(part[0] in "_." for part in info.key.split("/"))]


def _is_delta(key: str) -> bool:
    return key.startswith("_delta_log/")


def _is_iceberg(key: str) -> bool:
    return key.startswith("metadata/") and key.endswith(".metadata.json")


def partition_values(keys: list[str], where: str) -> list[dict[str, int | str | None]]:
    """What the folders `name=value` of each file say; a column of whole numbers only becomes numbers.

    Raises:
        FormatError: some files have other such folders than others.
    """
    told = [_told(key) for key in keys]
    names = [tuple(each) for each in told]
    for key, found in zip(keys, names, strict=True):
        if found != names[0]:
            raise FormatError(
                f"{where}: {key} lies in folders for {', '.join(found) or 'no column'}, and {keys[0]} in folders for "
                f"{', '.join(names[0]) or 'no column'}; all files of a data set are partitioned alike.",
                where=where,
            )
    values: list[dict[str, int | str | None]] = [{} for _ in told]
    for name in names[0] if names else ():
        texts = [each[name] for each in told]
        whole = all(text is None or _WHOLE.fullmatch(text) for text in texts)
        for into, text in zip(values, texts, strict=True):
            into[name] = int(text) if whole and text is not None else text
    return values


def _told(key: str) -> dict[str, str | None]:
    pairs = (part.partition("=") for part in key.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, _, value in pairs}
