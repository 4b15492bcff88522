"""The second stage: every image decoded, cropped, scaled and split, and kept as Parquet; or a function of rows.

Images are prepared into a store of their own, and only new and changed files are decoded. The function of a row source
runs while shards are written, so that no copy of its rows is kept; this stage shows what it gives for the first rows.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from assets.configuration import overrides, with_defaults
from assets.declaration import Declaration
from assets.lineage import facts_of, latest, tag_run, upstream
from assets.places import Place, place_of
from assets.reports.gallery import gallery, image_teaser
from assets.reports.tables import Value, table
from assets.sources.inventory import load_inventory
from assets.sources.rows import function_digest, preview_function, read_again, require_same
from assets.stage import stage_asset
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.spark import ImageFolder, PrepareOptions
from smalti.spark.prepared.rows import first_rows
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.prepared.update import PreparedUpdate, show_again, update_prepared

_CODE_VERSION = "1"  # raise it when the same images and options would give other rows
_SHOWN_ROWS = 48


class OnBadImage(Enum):
    """The policy for files that are no usable images."""

    fail = "fail"
    skip = "skip"


class PreparedConfig(dg.Config):
    """Options by which photos become training images."""

    image_size: int = Field(default=96, ge=8, le=4096, description="Side of the square, in pixels.")
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality.")
    validation_fraction: float = Field(default=0.2, ge=0, lt=1, description="Share of every class that is held out.")
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
            on_bad_image=self.on_bad_image.value,
            seed=self.seed,
        )


def build_prepared(declared: Declaration) -> dg.AssetsDefinition:
    """Return the asset of a data set's preprocessed rows."""
    return _build_images(declared) if declared.source.kind == "images" else _build_rows(declared)


def _build_images(declared: Declaration) -> dg.AssetsDefinition:
    config_type = with_defaults(
        PreparedConfig,
        image_size=declared.image.size,
        quality=declared.image.quality,
        validation_fraction=declared.split.validation,
        on_bad_image=OnBadImage(declared.image.on_bad_image),
        seed=declared.split.seed,
    )

    @stage_asset(
        declared,
        "prepared",
        code=_CODE_VERSION,
        config=config_type,
        kinds={"pyspark", "parquet"},
        deps=[declared.key("raw")],
        pool="spark",
    )
    def prepared(
        context: dg.AssetExecutionContext, config: PreparedConfig, storage: StorageResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        """A Spark DataFrame, kept as Parquet: image (JPEG), label, class_name, width, height, split, path.

        Only new and changed files are read and decoded; when there are none, no Spark is started.
        """
        source = upstream(context, declared.key("raw"))
        folder = load_inventory(declared, storage, source["inventory"])
        place, name, begin = prepared_of(declared, storage), name_of(folder.digest, config), time.monotonic()
        done = _already_there(folder, name, config, place)
        if done is None:
            with spark.session(context.log.info) as session:
                done = update_prepared(session, folder, name=name, options=config.options(), **place.arguments())
        seconds = time.monotonic() - begin
        context.log.info(describe_update(done))
        tag_run(context, declared)
        facts: dict[str, Any] = {"digest": name, "inventory": source["inventory"], "classes": list(folder.classes)}
        facts |= {"image_size": config.image_size, "source": source.get("source", "")}
        return dg.MaterializeResult(
            data_version=dg.DataVersion(name),
            metadata=_metadata(done, _examples(done.table, place), seconds) | facts | overrides(config),
        )

    return prepared


def _build_rows(declared: Declaration) -> dg.AssetsDefinition:
    function = str(declared.function)

    @stage_asset(
        declared,
        "prepared",
        code=_CODE_VERSION,
        kinds={"pyspark", "arrow"},
        deps=[declared.key("raw")],
        pool="spark",
        description=f"What `{function}` makes of the rows. It runs while shards are written; these are its columns and "
        "its first rows.",
    )
    def prepared(context: dg.AssetExecutionContext, spark: SparkResource) -> dg.MaterializeResult[Any]:
        source = upstream(context, declared.key("raw"))
        digest = hashlib.sha256(f"{source['digest']}|{function_digest(function)}".encode()).hexdigest()
        shown = _shown_before(context, declared, digest)
        if shown is None:
            with spark.session(context.log.info) as session:
                frame, found = read_again(session, declared, source)
                require_same(found, source, declared)
                schema, rows = preview_function(frame, function)
            shown = {"first rows": table(rows), "dagster/column_schema": schema}
        tag_run(context, declared)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(digest),
            metadata={"function": function, "digest": digest, "source": source.get("source", ""), **shown},
        )

    return prepared


def _shown_before(context: dg.AssetExecutionContext, declared: Declaration, digest: str) -> dict[str, Any] | None:
    """Return what the last materialisation shows of the rows, if it was of these: then no Spark is started."""
    event = latest(context.instance, declared.key("prepared"))
    facts = facts_of(event) if event is not None else {}
    names = ("first rows", "dagster/column_schema")
    return {name: facts[name] for name in names} if facts.get("digest") == digest and facts.keys() >= {*names} else None


def prepared_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the tables of prepared images and their Parquet parts."""
    return place_of(declared, storage, "prepared")


def name_of(source: str, config: PreparedConfig) -> str:
    """Return a digest of everything that decides the rows, which names the table.

    `on_bad_image` is no part of it: it decides whether a table with bad images is accepted, not what is in it.
    """
    facts = [_CODE_VERSION, source, config.model_dump(mode="json", exclude={"on_bad_image"})]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _already_there(folder: ImageFolder, name: str, config: PreparedConfig, place: Place) -> PreparedUpdate | None:
    made = show_again(folder, name=name, options=config.options(), **place.arguments())
    return PreparedUpdate(made, prepared=0, kept=len(folder.files), removed=0) if made is not None else None


def describe_update(done: PreparedUpdate) -> str:
    """Say how much was prepared and how much was there."""
    gone = f", {done.removed} gone" if done.removed else ""
    if not done.prepared and not done.removed:
        return f"nothing changed: all {done.kept} files were prepared before"
    return f"{done.prepared} new or changed files prepared, {done.kept} kept as they were{gone}"


def _examples(table: PreparedTable, place: Place) -> dict[str, list[bytes]]:
    """Return some of the rows, by class; rows are mixed over classes, so that there are some of most."""
    examples: dict[str, list[bytes]] = {}
    for row in first_rows(table, _SHOWN_ROWS, storage_options=place.storage_options):
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
