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

from smalti.spark import ImageFolder, PrepareOptions
from smalti.spark.prepared.rows import images_of_classes
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.prepared.update import PreparedUpdate, update_prepared
from smalti.spark.profile import image_sizes
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.configuration import overrides, with_defaults
from smalti_dagster.places import prepared_of
from smalti_dagster.reports.gallery import samples_per_class
from smalti_dagster.reports.shown import show_classes, show_images, show_sizes, shown_again, throughput
from smalti_dagster.reports.tables import Value, table
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import function_digest, preview_function
from smalti_dagster.sources.inventory import load_inventory
from smalti_dagster.sources.rows import read_again
from smalti_dagster.stage import Facts, StageInput, StageResult, stage_spec

_CODE_VERSION = "1"  # raise it when the same images and options would give other rows
_SIZES = ("image_sizes", "image_sizes_picture")
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
        default=OnBadImage.skip,
        description="skip: leave out files that are no images, up to max_bad_share; fail: stop if there is one.",
    )
    max_bad_share: float = Field(default=0.01, ge=0, le=1, description="Share of the files that may be left out.")
    seed: int = Field(default=0, ge=0, description="Chooses what is held out, and the order of the rows.")

    def options(self) -> PrepareOptions:
        """Return the library's options.

        Bad images are always left out: under either policy, a check stops the run if they are too many. So the good
        ones are kept, and a run that accepts the bad ones prepares nothing again.
        """
        return PrepareOptions(
            size=self.image_size,
            quality=self.quality,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            fixed_splits=self.fixed_splits,
            on_bad_image="skip",
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
        max_bad_share=declared.checks.max_bad_share,
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
    with spark.lazy_session(step.log.info) as start:
        done = update_prepared(start, folder, options=config.options(), **place.arguments())
    seconds, name = time.monotonic() - begin, done.table.name
    step.log.info(describe_update(done))
    is_same = step.last.get("digest") == name
    facts: dict[str, Any] = {"digest": name, "version": done.table.manifest.version}
    facts |= {"inventory": source["inventory"], "classes": list(folder.classes)}
    facts |= {"image_size": config.image_size, "source": source.get("source", "")}
    facts |= {"on_bad_image": config.on_bad_image.value, "max_bad_share": config.max_bad_share}
    shown = dict((is_same and shown_again(step.last)) or show_images(_examples(done.table)))
    shown |= (is_same and shown_again(step.last, _SIZES)) or _sizes(done.table, folder)
    metadata = {"what_was_done": describe_update(done), **shown, **_metadata(done, seconds), **facts}
    return StageResult(data_version=name, metadata=metadata | overrides(config))


def _show_rows(step: StageInput, storage: StorageResource, spark: SparkResource) -> StageResult:
    declared, source, function = step.declared, step.upstream["raw"], str(step.declared.function)
    digest, names = rows_digest(source, function), ("first_rows", "dagster/column_schema")
    if step.last.get("digest") == digest and step.last.keys() >= {*names}:
        shown = {name: step.last[name] for name in names}  # no Spark is started for nothing
    else:
        with spark.session(step.log.info) as session:
            schema, rows = preview_function(read_again(session, declared, source, storage), function)
        shown = {"first_rows": table(rows), "dagster/column_schema": schema}
    facts = {"function": function, "digest": digest, "source": source.get("source", "")}
    return StageResult(data_version=digest, metadata=facts | shown)


def rows_digest(source: Facts, function: str) -> str:
    """Return a digest of the rows that a function makes of those that `raw` has read."""
    return hashlib.sha256(f"{source['digest']}|{function_digest(function)}".encode()).hexdigest()


def describe_update(done: PreparedUpdate) -> str:
    """Say how much was prepared and how much was there."""
    gone = f", {done.removed} gone" if done.removed else ""
    if not done.prepared and not done.removed:
        return f"nothing changed: all {done.kept} files were prepared before"
    return f"{done.prepared} new or changed files prepared, {done.kept} kept as they were{gone}"


def _examples(table: PreparedTable) -> dict[str, list[bytes]]:
    """Return the first images of every class."""
    each = samples_per_class(len({name for counts in table.counts.values() for name in counts}))
    return images_of_classes(table, each)


def _sizes(table: PreparedTable, folder: ImageFolder) -> dict[str, Any]:
    """Return the sizes of the source images, which were noted when they were read."""
    good = set(table.good.column("path").to_pylist())
    return dict(show_sizes([file.num_bytes for file in folder.files if file.path in good], image_sizes(table)))


def _metadata(done: PreparedUpdate, seconds: float) -> dict[str, Any]:
    made = done.table
    by_class: dict[str, dict[str, int]] = {}
    for split, counts in made.counts.items():
        for name, count in counts.items():
            by_class.setdefault(name, {})[split] = count
    bad: list[dict[str, Value]] = [{"path": path, "reason": reason} for path, reason in made.bad]
    return {
        "prepared": done.prepared,
        "kept": done.kept,
        "removed": done.removed,
        **show_classes(by_class),
        "bad_images": len(bad),
        **({"bad_image_table": table(bad)} if bad else {}),
        **throughput(done.prepared, done.num_bytes, seconds),
        "counts": dg.MetadataValue.json(made.counts),
        "parquet_parts": len(made.parts),
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
