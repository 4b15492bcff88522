"""Checks of images that are alike: near-duplicates, and held-out images that a model has seen in training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from smalti.catalog.verify import find_leaked_rows
from smalti.spark.prepared.alike import Alike, AlikePair, find_alike
from smalti.spark.prepared.rows import read_images
from smalti.spark.prepared.table import PreparedTable
from smalti_dagster.checks.check import CheckInput, DataCheck, declared_check, prepared_rows
from smalti_dagster.checks.version import VersionInput, of_version, said_before
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import CONTENT, content_digest
from smalti_dagster.reports.gallery import gallery, thumbnails
from smalti_dagster.reports.tables import Value, table

_SHOWN_PAIRS = 12
_SHOWN_CHARACTERS = 200


def build_likeness_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of images that are alike, and of rows that are equal.

    Those of images compare hashes that were taken when images were prepared.
    """
    if declared.source.kind == "rows":
        text = (
            "Few held-out rows are equal to rows that are trained on (`checks.max_split_leakage`): what a model says "
            "of them proves nothing. If there are more, remove them from the source, or declare `split.key`."
        )
        return declared_check(declared, "shards", "no_split_leakage", text, of_version(_no_equal_rows))
    near = (
        "Few images are copies of others, or look like them (`checks.max_near_duplicates`). If there are more, keep "
        "one of each pair that is shown; a pair of two classes has at least one wrong label."
    )
    leaks = (
        "Few held-out images are copies of images that are trained on, or look like them (`checks.max_split_leakage`): "
        "accuracy on them says nothing. If there are more, remove one image of each pair that is shown."
    )
    return [
        *declared_check(declared, "shards", "few_near_duplicates", near, of_version(_few_near_duplicates)),
        *declared_check(declared, "shards", "no_split_leakage", leaks, of_version(_no_split_leakage)),
    ]


@dataclass(frozen=True)
class _Finding:
    """Images or rows that are like others."""

    count: int
    of: int
    what: str
    """Images or rows."""
    alike: str
    """The text that follows `are` in the description of the result."""
    numbers: Mapping[str, int]
    shown: Mapping[str, Any]


def _few_near_duplicates(given: VersionInput) -> dg.AssetCheckResult:
    def find() -> _Finding:
        found = given.step.once(_find_alike)
        other = f", {found.of_other_class} of them like one of another class" if found.of_other_class else ""
        more = {"equal_images": found.equal, "like_one_of_another_class": found.of_other_class}
        return _Finding(
            found.alike,
            found.rows,
            what="images",
            alike=f"near-duplicates{other}",
            numbers={"near_duplicates": found.alike},
            shown={**more, **_shown(given.step.once(prepared_rows), found, found.pairs)},
        )

    return _few(given, given.step.declared.checks.max_near_duplicates, _hashes_of(given), find)


def _no_split_leakage(given: VersionInput) -> dg.AssetCheckResult:
    def find() -> _Finding:
        found = given.step.once(_find_alike)
        return _Finding(
            found.leaked,
            found.held_out,
            what="held-out images",
            alike="near-duplicates of images that are trained on",
            numbers={"held_out_images": found.held_out, "like_one_that_is_trained_on": found.leaked},
            shown=_shown(given.step.once(prepared_rows), found, found.leaks),
        )

    return _few(given, given.step.declared.checks.max_split_leakage, _hashes_of(given), find)


def _no_equal_rows(given: VersionInput) -> dg.AssetCheckResult:
    """Compare the rows of all shards, once for each content, unless a hash of each row has chosen its split."""
    declared = given.step.declared
    if declared.split.column is None and declared.function is None:
        return dg.AssetCheckResult(passed=True, description="Equal rows are in one split: a hash of them chooses it.")

    def find() -> _Finding:
        found = find_leaked_rows(given.place.store(), given.manifest)
        rows: list[dict[str, Value]] = [
            {"split": each.split, "shard": each.shard, "sample": each.sample, "row": str(each.row)[:_SHOWN_CHARACTERS]}
            for each in found.examples
        ]
        return _Finding(
            found.leaked,
            found.held_out,
            what="held-out rows",
            alike=f"equal to rows of {found.trained_on}",
            numbers={"held_out_rows": found.held_out, "equal_to_one_that_is_trained_on": found.leaked},
            shown={"rows": table(rows)} if rows else {},
        )

    return _few(given, declared.checks.max_split_leakage, given.manifest.digest, find)


def _few(given: VersionInput, most: float, rows: str, find: Callable[[], _Finding]) -> dg.AssetCheckResult:
    """Return whether no more than a share is like others; what was said of the same rows and share is repeated.

    Args:
        given: Input of the check.
        most: The share.
        rows: What names the rows and how they are compared.
        find: Reads and compares them.
    """
    content = f"{rows} {most}"
    if said := said_before(given.step, content):
        return said
    found = find()
    share = found.count / max(found.of, 1)
    text = f"{found.count} of {found.of} {found.what} ({share:.2%}) are {found.alike}; at most {most:.2%} may be."
    return dg.AssetCheckResult(
        passed=share <= most,
        description=None if share <= most else text,
        metadata={CONTENT: content_digest(content), **found.numbers, "share": round(share, 4), **found.shown},
    )


def _hashes_of(given: VersionInput) -> str:
    """Return what the comparison of images depends on."""
    return f"{given.step.facts['table']} {given.step.declared.checks.near_duplicate_bits}"


def _find_alike(step: CheckInput) -> Alike:
    return find_alike(step.once(prepared_rows), max_bits=step.declared.checks.near_duplicate_bits)


def _shown(prepared: PreparedTable, found: Alike, pairs: Sequence[AlikePair]) -> dict[str, Any]:
    """Return a table of pairs, and the pictures of the first few."""
    unknown = {"images_without_a_hash": found.unknown} if found.unknown else {}
    incomplete = {} if found.is_complete else {"not_all_compared": "so many images are alike that there may be more"}
    if not pairs:
        return {**unknown, **incomplete}
    rows: list[dict[str, Value]] = [
        {
            "image": pair.paths[0],
            "is like": pair.paths[1],
            "bits": pair.bits,
            "splits": " and ".join(dict.fromkeys(pair.splits)),
            "classes": " and ".join(dict.fromkeys(pair.classes)),
        }
        for pair in pairs
    ]
    shown = pairs[:_SHOWN_PAIRS]
    images = read_images(prepared, {path for pair in shown for path in pair.paths})
    groups = {" = ".join(pair.paths): thumbnails([images[path] for path in pair.paths]) for pair in shown}
    return {
        "pairs": table(rows),
        "pictures": dg.MetadataValue.md(gallery(groups)),
        "below": prepared.manifest.lineage.get("folder", ""),
        **unknown,
        **incomplete,
    }
