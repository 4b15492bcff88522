"""The first stage: what data there is. Names, sizes and a handful of images to show, or the identity of rows."""

from typing import Any

import dagster as dg

from assets.configuration import overrides
from assets.declaration import Declaration
from assets.lineage import facts_of, latest, tag_run
from assets.reports.gallery import gallery, image_teaser
from assets.reports.tables import table
from assets.sources.images import ImagesConfig, find_images, images_config
from assets.sources.inventory import inventories_of, load_inventory, save_inventory
from assets.sources.rows import RowsConfig, column_schema, read_source, rows_config, watched_digest
from assets.stage import stage_asset
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.errors import StoreNotFound
from smalti.spark import ImageFolder
from smalti.storage import open_store

_CODE_VERSION = "1"
_SHOWN_CLASSES = 10
_SHOWN_PER_CLASS = 8


def build_raw(declared: Declaration) -> dg.AssetsDefinition:
    """Return the asset of a data set's raw data."""
    return _build_images(declared) if declared.source.kind == "images" else _build_rows(declared)


def _build_images(declared: Declaration) -> dg.AssetsDefinition:
    @stage_asset(
        declared,
        "raw",
        code=_CODE_VERSION,
        config=images_config(declared),
        kinds={"jpeg"},
        description=_describe(
            declared, "The images to learn from: an inventory of names, labels, sizes and modification marks."
        ),
    )
    def raw(
        context: dg.AssetExecutionContext, config: ImagesConfig, storage: StorageResource
    ) -> dg.MaterializeResult[Any]:
        if not config.source:
            context.log.info("drawing %d flowers of each class, unless they are there", config.images_per_class)
        folder = find_images(declared, config, storage)
        context.log.info("%d images of %d classes in %s", len(folder.files), len(folder.classes), folder.source)
        news = describe_changes(_last_time(context, declared, storage), folder)
        context.log.info(news)
        tag_run(context, declared, source=folder.digest)
        examples = _examples(folder)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(folder.digest),
            metadata={
                "samples": dg.MetadataValue.md(image_teaser([images[0] for images in examples.values()])),
                "gallery": dg.MetadataValue.md(gallery(examples)),
                "images": len(folder.files),
                "since the last time": news,
                "classes": table([{"class": name, "images": count} for name, count in folder.counts.items()]),
                "folder": folder.source,
                "source": config.described,
                "digest": folder.digest,
                "inventory": save_inventory(inventories_of(declared, storage), folder),
                "dagster/size_bytes": folder.num_bytes,
                **overrides(config),
            },
        )

    return raw


def _build_rows(declared: Declaration) -> dg.AssetsDefinition:
    @stage_asset(
        declared,
        "raw",
        code=_CODE_VERSION,
        config=rows_config(declared),
        kinds={"pyspark"},
        pool="spark",
        description=_describe(declared, "The rows as Spark reads them: their columns, and a digest of what they are."),
    )
    def raw(
        context: dg.AssetExecutionContext, config: RowsConfig, storage: StorageResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        watched = watched_digest(declared, config, storage)  # before the rows are read, so that no change is missed
        with spark.session(context.log.info) as session:
            frame, found = read_source(session, declared, config)
            schema = column_schema(frame)
        tag_run(context, declared, source=found.digest)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(found.digest),
            metadata={
                "source": config.described,
                "form": config.form,
                "reads": config.source,
                "digest": found.digest,
                "how the source is identified": found.how,
                **({"watched": watched} if watched is not None else {}),
                **({"facts of the source": dg.MetadataValue.json(found.facts)} if found.facts else {}),
                **({"dagster/row_count": found.rows} if found.rows is not None else {}),
                "dagster/column_schema": schema,
                **overrides(config),
            },
        )

    return raw


def _describe(declared: Declaration, text: str) -> str:
    return f"{declared.description}\n\n{text}" if declared.description else text


def _last_time(
    context: dg.AssetExecutionContext, declared: Declaration, storage: StorageResource
) -> ImageFolder | None:
    """Return the inventory of the materialisation before this one, if it is there."""
    event = latest(context.instance, declared.key("raw"))
    inventory = facts_of(event).get("inventory") if event is not None else None  # none if it was reported by hand
    try:
        return load_inventory(declared, storage, inventory) if inventory is not None else None
    except StoreNotFound:
        return None


def describe_changes(before: ImageFolder | None, now: ImageFolder) -> str:
    """Say how many files came, changed and went."""
    if before is None:
        return "read for the first time"
    if before.source != now.source:
        return f"another folder than the last time, which was {before.source}"
    if before.digest == now.digest:
        return "nothing changed"
    old, new = ({file.path: (file.num_bytes, file.modified) for file in each.files} for each in (before, now))
    changed = sum(new[path] != mark for path, mark in old.items() if path in new)
    return f"{len(new.keys() - old.keys())} new, {changed} changed, {len(old.keys() - new.keys())} gone"


def _examples(folder: ImageFolder) -> dict[str, list[bytes]]:
    """Return the first few files of the first few classes."""
    store = open_store(folder.source, folder.storage_options)
    examples: dict[str, list[bytes]] = {name: [] for name in folder.classes[:_SHOWN_CLASSES]}
    for file in folder.files:
        images = examples.get(folder.classes[file.label])
        if images is not None and len(images) < _SHOWN_PER_CLASS:
            images.append(store.get(file.path))
    return examples
