"""The second stage: every image decoded, cropped, scaled and split, and kept as Parquet; or a function of rows.

Images are prepared into a store of their own, and only new and changed files are decoded. The function of a row source
runs while shards are written, so that no copy of its rows is kept; this stage shows what it gives for the first rows.
"""

import hashlib
import time
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from assets.configuration import overrides, with_defaults
from assets.declaration import Declaration
from assets.places import Place, place_of
from assets.reports.shown import show_images, shown_again
from assets.reports.tables import Value, table
from assets.sources.functions import function_digest, preview_function
from assets.sources.inventory import load_inventory
from assets.sources.rows import read_again
from assets.stage import Facts, StageInput, StageResult, stage_spec
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.spark import PrepareOptions
from smalti.spark.prepared.rows import first_rows
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.prepared.update import PreparedUpdate, find_prepared, update_prepared

_CODE_VERSION = "1"  # raise it when the same images and options would give other rows
_SHOWN_ROWS = 48
_IMAGES = (
    "A Spark DataFrame, kept as Parquet: image (JPEG), label, class_name, width, height, split, path. Only new and "
    "changed files are read and decoded; when there are none, no Spark is started."
)
_ROWS = (
    "What `{function}` makes of the rows. It runs while shards are written; these are its columns and its first rows."
)


class OnBadImage(Enum):
    """The policy for files that are no usable images."""

    fail = "fail"
    skip = "skip"


class PreparedConfig(dg.Config):
    """Options by which photos become training images."""

    image_size: int = Field(default=96, ge=8, le=4096, description="Side of the square, in pixels.")
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality.")
    validation_fraction: float = Field(default=0.2, ge=0, lt=1, description="Share of every class that is held out.")
    test_fraction: float = Field(default=0.0, ge=0, lt=1, description="Share that is kept for a test after training.")
    fixed_splits: bool = Field(
        default=False, description="No file changes its split when others come or go; always so with test_fraction."
    )
    on_bad_image: OnBadImage = Field(
        default=OnBadImage.fail, description="fail: name all bad files and stop; skip: leave them out and count them."
    )
    seed: int = Field(default=0, ge=0, description="Chooses what is held out, and the order of the rows.")

    def options(self) -> PrepareOptions:
        """Return the library's options."""
        return PrepareOptions(
            size=self.image_size,
            quality=self.quality,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            fixed_splits=self.fixed_splits,
            on_bad_image=self.on_bad_image.value,
            seed=self.seed,
        )


def prepared_spec(declared: Declaration) -> dg.AssetSpec:
    """Return the specification of the asset of a data set's preprocessed rows."""
    is_images = declared.source.kind == "images"
    return stage_spec(
        declared,
        "prepared",
        code=_CODE_VERSION,
        kinds={"pyspark", "parquet" if is_images else "arrow"},
        deps=[declared.key("raw")],
        description=_IMAGES if is_images else _ROWS.format(function=declared.function),
    )


def prepared_config(declared: Declaration) -> type[dg.Config] | None:
    """Return the configuration with the values of a declaration; None where a function prepares the rows."""
    if declared.source.kind == "rows":
        return None
    return with_defaults(
        PreparedConfig,
        image_size=declared.image.size,
        quality=declared.image.quality,
        validation_fraction=declared.split.validation,
        test_fraction=declared.split.test,
        fixed_splits=declared.split.fixed,
        on_bad_image=OnBadImage(declared.image.on_bad_image),
        seed=declared.split.seed,
    )


def prepared_stage(step: StageInput, config: Any, storage: StorageResource, spark: SparkResource) -> StageResult:
    """Prepare new and changed images, or show what a function makes of the rows."""
    if step.declared.source.kind == "images":
        return _prepare_images(step, config, storage, spark)
    return _show_rows(step, storage, spark)


def _prepare_images(
    step: StageInput, config: PreparedConfig, storage: StorageResource, spark: SparkResource
) -> StageResult:
    declared, source = step.declared, step.upstream["raw"]
    folder = load_inventory(declared, storage, source["inventory"])
    place, begin = prepared_of(declared, storage), time.monotonic()
    done = find_prepared(folder, options=config.options(), **place.arguments())
    if done is None:
        with spark.session(step.log.info) as session:
            done = update_prepared(session, folder, options=config.options(), **place.arguments())
    seconds, name = time.monotonic() - begin, done.table.name
    step.log.info(describe_update(done))
    is_same = step.last.get("digest") == name
    facts: dict[str, Any] = {"digest": name, "version": done.table.manifest.version}
    facts |= {"inventory": source["inventory"], "classes": list(folder.classes)}
    facts |= {"image_size": config.image_size, "source": source.get("source", "")}
    facts |= (is_same and shown_again(step.last)) or show_images(_examples(done.table))
    return StageResult(data_version=name, metadata=_metadata(done, seconds) | facts | overrides(config))


def _show_rows(step: StageInput, storage: StorageResource, spark: SparkResource) -> StageResult:
    declared, source, function = step.declared, step.upstream["raw"], str(step.declared.function)
    digest, names = rows_digest(source, function), ("first rows", "dagster/column_schema")
    if step.last.get("digest") == digest and step.last.keys() >= {*names}:
        shown = {name: step.last[name] for name in names}  # no Spark is started for nothing
    else:
        with spark.session(step.log.info) as session:
            schema, rows = preview_function(read_again(session, declared, source, storage), function)
        shown = {"first rows": table(rows), "dagster/column_schema": schema}
    facts = {"function": function, "digest": digest, "source": source.get("source", "")}
    return StageResult(data_version=digest, metadata=facts | shown)


def rows_digest(source: Facts, function: str) -> str:
    """Return a digest of the rows that a function makes of those that `raw` has read."""
    return hashlib.sha256(f"{source['digest']}|{function_digest(function)}".encode()).hexdigest()


def prepared_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the tables of prepared images and their Parquet parts."""
    return place_of(declared, storage, "prepared")


def describe_update(done: PreparedUpdate) -> str:
    """Say how much was prepared and how much was there."""
    gone = f", {done.removed} gone" if done.removed else ""
    if not done.prepared and not done.removed:
        return f"nothing changed: all {done.kept} files were prepared before"
    return f"{done.prepared} new or changed files prepared, {done.kept} kept as they were{gone}"


def _examples(table: PreparedTable) -> dict[str, list[bytes]]:
    """Return some of the rows, by class; rows are mixed over classes, so that there are some of most."""
    examples: dict[str, list[bytes]] = {}
    for row in first_rows(table, _SHOWN_ROWS):
        examples.setdefault(row["class_name"], []).append(row["image"])
    return dict(sorted(examples.items()))


def _metadata(done: PreparedUpdate, seconds: float) -> dict[str, Any]:
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
                dg.TableColumn("split", "string", description="train, validation or test"),
                dg.TableColumn("path", "string", description="relative to the source"),
            ]
        ),
    }
