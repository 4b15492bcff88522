"""Checks of images that are alike: near-duplicates, and held-out images that a model has seen in training."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from assets.checks.check import Check, declared_check
from assets.checks.version import VersionInput, of_version, said_before
from assets.declaration import Declaration
from assets.reports.gallery import gallery, thumbnails
from assets.reports.tables import Value, table
from assets.shards import prepared_table
from smalti.catalog.leakage import find_leaked_rows
from smalti.spark.prepared.alike import Alike, AlikePair, find_alike
from smalti.spark.prepared.rows import read_images
from smalti.spark.prepared.table import PreparedTable

_SHOWN_PAIRS = 12
_SHOWN_CHARACTERS = 200


def build_likeness_checks(declared: Declaration) -> list[Check]:
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


def _few_near_duplicates(given: VersionInput) -> dg.AssetCheckResult:
    most = given.step.declared.checks.max_near_duplicates
    content = _content(given, most)
    if said := said_before(given.step, content):
        return said
    prepared, found = _find(given)
    share = found.alike / max(found.rows, 1)
    other = f", {found.of_other_class} of them like one of another class" if found.of_other_class else ""
    return dg.AssetCheckResult(
        passed=share <= most,
        description=None
        if share <= most
        else f"{found.alike} of {found.rows} images ({share:.2%}) are near-duplicates{other}; at most {most:.2%} may "
        "be.",
        metadata={
            "content": content,
            "near_duplicates": found.alike,
            "share": round(share, 4),
            "equal_images": found.equal,
            "like_one_of_another_class": found.of_other_class,
            **_shown(prepared, found, found.pairs),
        },
    )


def _no_split_leakage(given: VersionInput) -> dg.AssetCheckResult:
    most = given.step.declared.checks.max_split_leakage
    content = _content(given, most)
    if said := said_before(given.step, content):
        return said
    prepared, found = _find(given)
    share = found.leaked / max(found.held_out, 1)
    return dg.AssetCheckResult(
        passed=share <= most,
        description=None
        if share <= most
        else f"{found.leaked} of {found.held_out} held-out images ({share:.2%}) are near-duplicates of images that are "
        f"trained on; at most {most:.2%} may be.",
        metadata={
            "content": content,
            "held_out_images": found.held_out,
            "like_one_that_is_trained_on": found.leaked,
            "share": round(share, 4),
            **_shown(prepared, found, found.leaks),
        },
    )


def _no_equal_rows(given: VersionInput) -> dg.AssetCheckResult:
    """Compare the rows of all shards, once for each content, unless a hash of each row has chosen its split."""
    declared = given.step.declared
    if declared.split.column is None and declared.function is None:
        return dg.AssetCheckResult(passed=True, description="Equal rows are in one split: a hash of them chooses it.")
    most = declared.checks.max_split_leakage
    content = f"{given.manifest.digest} {most}"
    if said := said_before(given.step, content):
        return said
    found = find_leaked_rows(given.place.store(), given.manifest)
    share = found.leaked / max(found.held_out, 1)
    rows: list[dict[str, Value]] = [
        {"split": each.split, "shard": each.shard, "sample": each.sample, "row": str(each.row)[:_SHOWN_CHARACTERS]}
        for each in found.examples
    ]
    return dg.AssetCheckResult(
        passed=share <= most,
        description=None
        if share <= most
        else f"{found.leaked} of {found.held_out} held-out rows ({share:.2%}) are equal to rows of {found.trained_on}; "
        f"at most {most:.2%} may be.",
        metadata={
            "content": content,
            "held_out_rows": found.held_out,
            "equal_to_one_that_is_trained_on": found.leaked,
            "share": round(share, 4),
            **({"rows": table(rows)} if rows else {}),
        },
    )


def _content(given: VersionInput, most: float) -> str:
    """Return what the result depends on: unchanged, it is repeated without reading anything."""
    return f"{given.step.facts['table']} {given.step.declared.checks.near_duplicate_bits} {most}"


def _find(given: VersionInput) -> tuple[PreparedTable, Alike]:
    step = given.step
    prepared = prepared_table(step.declared, step.facts, step.storage)
    return prepared, find_alike(prepared, max_bits=step.declared.checks.near_duplicate_bits)


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
