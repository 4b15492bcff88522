"""The second stage: every image decoded, cut square, scaled and split on Spark, and kept as Parquet."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from assets.inventory import load_inventory
from assets.lineage import facts_of, latest, upstream
from assets.raw_images import raw_images
from assets.rendering import Value, gallery, image_teaser, table
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.spark import ImageFolder, PrepareOptions
from smalti.spark.prepared.adopt import adopt_prepared
from smalti.spark.prepared.rows import first_rows
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.prepared.update import PreparedUpdate, show_again, update_prepared

PLACE = "preprocessed_images"
"""The tables of prepared images and their Parquet parts, below the storage root."""

_CODE_VERSION = "1"  # raise it when the same images and options would give other rows
_SHOWN_ROWS = 48
_BAD_SHARE = 0.01  # more bad images than this are worth a look


class OnBadImage(Enum):
    """What a file that is no usable image does."""

    fail = "fail"
    skip = "skip"


class PreprocessConfig(dg.Config):
    """How photos become training images."""

    image_size: int = Field(default=96, ge=8, le=4096, description="Side of the square, in pixels.")
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality.")
    validation_fraction: float = Field(default=0.2, ge=0, lt=1, description="Share of every class that is held out.")
    on_bad_image: OnBadImage = Field(
        default=OnBadImage.fail, description="fail: name all bad files and stop; skip: leave them out and count them."
    )
    seed: int = Field(default=0, ge=0, description="Chooses what is held out, and the order of the rows.")

    def options(self) -> PrepareOptions:
        """The library's options."""
        return PrepareOptions(
            size=self.image_size,
            quality=self.quality,
            validation_fraction=self.validation_fraction,
            on_bad_image=self.on_bad_image.value,
            seed=self.seed,
        )


@dg.asset(
    group_name="tables", kinds={"pyspark", "parquet"}, deps=[raw_images], pool="spark", code_version=_CODE_VERSION
)
def preprocessed_images(
    context: dg.AssetExecutionContext, config: PreprocessConfig, storage: StorageResource, spark: SparkResource
) -> dg.MaterializeResult[Any]:
    """A Spark DataFrame, kept as Parquet: image (JPEG), label, class_name, width, height, split, path.

    Only new and changed files are read and decoded; when there are none, no Spark is started.
    """
    raw = upstream(context, "raw_images")
    inventory = raw["inventory"]
    folder = load_inventory(storage, inventory)
    name, begin = name_of(folder.digest, config), time.monotonic()
    adopt_last(context, config, storage)
    done = _already_there(folder, name, config, storage)
    if done is None:
        with spark.session(context.log.info) as session:
            done = update_prepared(session, folder, name=name, options=config.options(), **place_of(storage))
    seconds = time.monotonic() - begin
    context.log.info(describe_update(done))
    facts: dict[str, Any] = {"place": PLACE, "digest": name, "inventory": inventory, "classes": list(folder.classes)}
    facts |= {"image_size": config.image_size, "source": raw.get("source", "")}
    return dg.MaterializeResult(
        data_version=dg.DataVersion(name), metadata=_metadata(done, _examples(done.table, storage), seconds) | facts
    )


def place_of(storage: StorageResource) -> dict[str, Any]:
    """Where tables of prepared images lie, as the library's arguments."""
    return {"path": storage.url(PLACE), "storage_options": storage.options()}


def name_of(source: str, config: PreprocessConfig) -> str:
    """Return a digest of everything that decides the rows, which names the table.

    `on_bad_image` is no part of it: it decides whether a table with bad images is accepted, not what is in it.
    """
    facts = [_CODE_VERSION, source, config.model_dump(mode="json", exclude={"on_bad_image"})]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _already_there(
    folder: ImageFolder, name: str, config: PreprocessConfig, storage: StorageResource
) -> PreparedUpdate | None:
    table = show_again(folder, name=name, options=config.options(), **place_of(storage))
    return PreparedUpdate(table, prepared=0, kept=len(folder.files), removed=0) if table is not None else None


def adopt_last(context: dg.AssetExecutionContext, config: PreprocessConfig, storage: StorageResource) -> None:
    """Takes over the rows of the last time if they lie in a folder of their own, as they did in earlier releases."""
    event = latest(context.instance, "preprocessed_images")
    facts = facts_of(event) if event is not None else {}
    _, _, below = str(facts.get("place", "")).partition(f"{PLACE}/")
    if not below:
        return
    folder = load_inventory(storage, facts["inventory"])
    if name_of(folder.digest, config) != facts["digest"]:  # made with other options, so of no use now
        return
    name, options = facts["digest"], replace(config.options(), on_bad_image="skip")  # it was accepted then
    there = show_again(folder, name=name, options=options, **place_of(storage))
    if there is None and adopt_prepared(folder, below=below, name=name, options=options, **place_of(storage)):
        context.log.info("the rows of the last time were taken over; their images were not decoded again")


def describe_update(done: PreparedUpdate) -> str:
    """How much was prepared and how much was there, in a sentence."""
    gone = f", {done.removed} gone" if done.removed else ""
    if not done.prepared and not done.removed:
        return f"nothing changed: all {done.kept} files were prepared before"
    return f"{done.prepared} new or changed files prepared, {done.kept} kept as they were{gone}"


def _examples(table: PreparedTable, storage: StorageResource) -> dict[str, list[bytes]]:
    """Some of the rows, by class; rows are mixed over classes, so that there are some of most."""
    examples: dict[str, list[bytes]] = {}
    for row in first_rows(table, _SHOWN_ROWS, storage_options=storage.options()):
        examples.setdefault(row["class_name"], []).append(row["image"])
    return dict(sorted(examples.items()))


def _metadata(done: PreparedUpdate, examples: Mapping[str, Sequence[bytes]], seconds: float) -> dict[str, Any]:
    made = done.table
    classes = sorted({name for counts in made.counts.values() for name in counts})
    rows: list[dict[str, Value]] = [
        {"class": name, **{split: c.get(name, 0) for split, c in made.counts.items()}} for name in classes
    ]
    bad = [{"path": path, "reason": reason} for path, reason in made.bad]
    return {
        "what was done": describe_update(done),
        "prepared": done.prepared,
        "kept": done.kept,
        "removed": done.removed,
        "samples": dg.MetadataValue.md(image_teaser([images[0] for images in examples.values()])),
        "gallery": dg.MetadataValue.md(gallery(examples)),
        "images by class and split": table(rows),
        "bad_images": len(bad),
        **({"bad images": table(bad)} if bad else {}),
        **({"images_per_second": round(done.prepared / seconds, 1)} if done.prepared else {}),
        "counts": dg.MetadataValue.json(made.counts),
        "parquet parts": len(made.parts),
        "dagster/uri": made.url,
        "dagster/row_count": made.rows,
        "dagster/size_bytes": made.num_bytes,
        "dagster/column_schema": dg.TableSchema(
            columns=[
                dg.TableColumn("image", "binary", description="JPEG, square, upright, RGB"),
                dg.TableColumn("label", "int", description="index of the class"),
                dg.TableColumn("class_name", "string"),
                dg.TableColumn("width", "int", description="pixels"),
                dg.TableColumn("height", "int", description="pixels"),
                dg.TableColumn("split", "string", description="train or validation"),
                dg.TableColumn("path", "string", description="relative to the source"),
            ]
        ),
    }


@dg.asset_check(asset=preprocessed_images, description="At most 1 % of the files were left out as bad images.")
def few_images_were_left_out(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """A warning: which files they are stands in the asset's metadata."""
    facts = upstream(context, "preprocessed_images")
    bad, rows = int(facts["bad_images"]), int(facts["dagster/row_count"])
    share = bad / (bad + rows)
    return dg.AssetCheckResult(
        passed=share <= _BAD_SHARE,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"left out": bad, "share": share},
    )
