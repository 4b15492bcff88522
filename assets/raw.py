"""The first stage: what data there is. Names, sizes and a handful of images to show, or the identity of rows."""

from typing import Any

import dagster as dg

from assets.configuration import overrides
from assets.declaration import Declaration
from assets.reports.shown import show_images, shown_again
from assets.reports.tables import table
from assets.source import WATCHED, file_mark, watched_address, watched_fact
from assets.sources.images import ImagesConfig, find_images, images_config
from assets.sources.inventory import inventories_of, inventory_key, load_inventory, save_inventory
from assets.sources.partitions import PARTITIONS, describe_partitions, read_partitions
from assets.sources.rows import (
    RowsConfig,
    column_schema,
    identify_partitions,
    read_frame,
    rows_config,
    watched_digest,
)
from assets.stage import Facts, StageInput, StageResult, stage_spec
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.errors import StoreNotFound
from smalti.spark import ImageFolder
from smalti.spark.rows import identity_of
from smalti.storage import open_store

_CODE_VERSION = "1"
_IMAGES = "The images to learn from: an inventory of names, labels, sizes and modification marks."
_ROWS = "The rows as Spark reads them: their columns, and a digest of what they are."
_SHOWN_CLASSES = 10
_SHOWN_PER_CLASS = 8


def raw_spec(declared: Declaration) -> dg.AssetSpec:
    """Return the specification of the asset of a data set's raw data."""
    is_images = declared.source.kind == "images"
    text = _IMAGES if is_images else _ROWS
    description = f"{declared.description}\n\n{text}" if declared.description else text
    kinds = {"jpeg"} if is_images else {"pyspark"}
    deps = [declared.source_key]
    return stage_spec(declared, "raw", code=_CODE_VERSION, kinds=kinds, deps=deps, description=description)


def raw_config(declared: Declaration) -> type[dg.Config]:
    """Return the configuration with the values of a declaration."""
    return images_config(declared) if declared.source.kind == "images" else rows_config(declared)


def raw_stage(step: StageInput, config: Any, storage: StorageResource, spark: SparkResource) -> StageResult:
    """List the images, or identify the rows, of the source."""
    if step.declared.source.kind == "images":
        return _list_images(step, config, storage)
    return _identify_rows(step, config, storage, spark)


def _list_images(step: StageInput, config: ImagesConfig, storage: StorageResource) -> StageResult:
    declared, last = step.declared, step.last
    if not config.source:
        step.log.info("drawing %d flowers of each class, unless they are there", config.images_per_class)
    address = watched_address(config, {})
    mark = file_mark(declared, address, storage) if address is not None else None  # before the images are listed
    partitions: dict[str, str] = {}
    place = inventories_of(declared, storage)
    if step.partitions is None:
        folder = find_images(declared, config, storage)
    else:
        folder, read = read_partitions(declared, config.address, step.partitions, storage)
        step.log.info("%s", describe_partitions(read))
        partitions = {PARTITIONS: read.save(place)}
    step.log.info("%d images of %d classes in %s", len(folder.files), len(folder.classes), folder.source)
    key, is_same = inventory_key(folder), last.get("digest") == folder.digest and last.get("folder") == folder.source
    before = folder if is_same else _inventory_of(last, declared, storage)
    news = describe_changes(before, folder)
    step.log.info(news)
    if not is_same or not place.store().exists(key):
        save_inventory(place, folder)
    return StageResult(
        data_version=folder.digest,
        tags={"source": folder.digest},
        metadata={
            **((is_same and shown_again(last)) or show_images(_examples(folder))),
            "images": len(folder.files),
            "since the last time": news,
            "classes": table([{"class": name, "images": count} for name, count in folder.counts.items()]),
            "folder": folder.source,
            "source": config.described,
            "digest": folder.digest,
            **watched_fact(declared, folder, mark),
            "inventory": key,
            "dagster/size_bytes": folder.num_bytes,
            **partitions,
            **overrides(config),
        },
    )


def _identify_rows(step: StageInput, config: RowsConfig, storage: StorageResource, spark: SparkResource) -> StageResult:
    declared = step.declared
    watched = watched_digest(declared, config, storage)  # before the rows are read, so that no change is missed
    with spark.session(step.log.info) as session:
        frame = read_frame(session, declared, config)
        of_partitions: dict[str, Any] = {}
        if step.partitions is None:
            found = identity_of(frame)
        else:
            found, read = identify_partitions(frame, declared, step.partitions)
            of_partitions = {PARTITIONS: read.save(inventories_of(declared, storage))}
            step.log.info("%s", describe_partitions(read))
        schema = column_schema(frame)
    return StageResult(
        data_version=found.digest,
        tags={"source": found.digest},
        metadata={
            "source": config.described,
            "form": config.form,
            "reads": config.source,
            "digest": found.digest,
            "how the source is identified": found.how,
            **({WATCHED: watched} if watched is not None else {}),
            **({"facts of the source": dg.MetadataValue.json(found.facts)} if found.facts else {}),
            **({"dagster/row_count": found.rows} if found.rows is not None else {}),
            "dagster/column_schema": schema,
            **of_partitions,
            **overrides(config),
        },
    )


def _inventory_of(facts: Facts, declared: Declaration, storage: StorageResource) -> ImageFolder | None:
    """Return the inventory of a materialisation, if it is there; one that was reported by hand has none."""
    try:
        return load_inventory(declared, storage, facts["inventory"]) if "inventory" in facts else None
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
