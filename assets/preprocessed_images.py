"""The second stage: every image decoded, cut square, scaled and split on Spark, and kept as Parquet."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from assets.inventory import load_inventory
from assets.lineage import upstream
from assets.raw_images import raw_images
from assets.rendering import Value, gallery, image_teaser, table
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.spark import PreparedReport, PrepareOptions, prepare_images, read_prepared, write_prepared

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
    """A Spark DataFrame, kept as Parquet: image (JPEG), label, class_name, width, height, split, path."""
    inventory = upstream(context, "raw_images")["inventory"]
    folder = load_inventory(storage, inventory)
    digest = _digest(folder.digest, config)
    place = f"preprocessed_images/{digest[:16]}"
    begin = time.monotonic()
    with spark.session(context.log.info) as session:
        frame = prepare_images(session, folder, config.options())
        report = write_prepared(frame, storage.url(place), storage_options=storage.options())
        seconds = time.monotonic() - begin
        examples = _examples(read_prepared(session, storage.url(place), storage_options=storage.options()))
    context.log.info(
        "%d images prepared, %d left out, %.0f images/s", report.rows, len(report.bad), report.rows / seconds
    )
    facts = {"place": place, "digest": digest, "inventory": inventory, "classes": list(folder.classes)}
    facts["image_size"] = config.image_size
    return dg.MaterializeResult(
        data_version=dg.DataVersion(digest), metadata=_metadata(report, examples, seconds) | facts
    )


def _digest(source: str, config: PreprocessConfig) -> str:
    """Of everything that decides the rows."""
    facts = [_CODE_VERSION, source, config.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _examples(frame: Any) -> dict[str, list[bytes]]:
    """The first rows, by class; rows are mixed over classes, so that there are some of most."""
    examples: dict[str, list[bytes]] = {}
    for row in frame.select("class_name", "image").limit(_SHOWN_ROWS).collect():
        examples.setdefault(row["class_name"], []).append(bytes(row["image"]))
    return dict(sorted(examples.items()))


def _metadata(report: PreparedReport, examples: Mapping[str, Sequence[bytes]], seconds: float) -> dict[str, Any]:
    classes = sorted({name for counts in report.counts.values() for name in counts})
    rows: list[dict[str, Value]] = [
        {"class": name, **{split: c.get(name, 0) for split, c in report.counts.items()}} for name in classes
    ]
    bad = [{"path": path, "reason": reason} for path, reason in report.bad]
    return {
        "samples": dg.MetadataValue.md(image_teaser([images[0] for images in examples.values()])),
        "gallery": dg.MetadataValue.md(gallery(examples)),
        "images by class and split": table(rows),
        "bad_images": len(report.bad),
        **({"bad images": table(bad)} if bad else {}),
        "images_per_second": round(report.rows / seconds, 1),
        "counts": dg.MetadataValue.json({split: dict(counts) for split, counts in report.counts.items()}),
        "parquet": report.parquet,
        "dagster/row_count": report.rows,
        "dagster/size_bytes": report.num_bytes,
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
