"""The first stage: what data there is. Names, sizes and a handful of images to show, or the identity of rows."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg

from smalti.errors import StoreError, StoreNotFound
from smalti.spark import ImageFolder
from smalti.spark.lineage import TableState
from smalti.spark.profile import profile_rows
from smalti.spark.rows import identity_of
from smalti.storage import open_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.configuration import overrides
from smalti_dagster.lineage import reads
from smalti_dagster.reports.gallery import samples_per_class
from smalti_dagster.reports.shown import ROWS, show_classes, show_images, show_rows, shown_again, throughput
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.images import ImagesConfig, find_images, images_config
from smalti_dagster.sources.inventory import inventories_of, inventory_key, load_inventory, save_inventory
from smalti_dagster.sources.partitions import PARTITIONS, describe_partitions, read_partitions
from smalti_dagster.sources.rows import column_schema, identify_partitions, read_frame
from smalti_dagster.sources.rows_config import RowsConfig, rows_config
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE, certain_state, source_state
from smalti_dagster.stage import Facts, StageInput, StageResult, stage_spec
from smalti_dagster.stages.source import WATCHED, file_mark, source_config, watched_address, watched_fact

_CODE_VERSION = "1"
_IMAGES = "The images to learn from: an inventory of names, labels, sizes and modification marks."
_ROWS = "The rows as Spark reads them: their columns, and a digest of what they are."
_READS = 16  # images that are fetched at once
_OF_ROWS = ("digest", "how_identified", "source_facts", "dagster/row_count", "dagster/column_schema", UNCHANGED_WHILE)


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
    declared, last, begin = step.declared, step.last, time.monotonic()
    if not config.source:
        step.log.info("generating images by %s, unless they are there", declared.source.generate)
    address = watched_address(config, {})
    is_declared = config.described == source_config(declared).described  # no other source has the watched file
    is_marked = is_declared and address is not None
    mark = file_mark(declared, str(address), storage) if is_marked else None  # before the images are listed
    partitions: dict[str, str] = {}
    place = inventories_of(declared, storage)
    if step.partitions is None:
        folder = find_images(declared, config, storage)
    else:
        folder, read = read_partitions(declared, config.address, step.partitions, storage, last=last)
        step.log.info("%s", describe_partitions(read))
        partitions = {PARTITIONS: read.save(place)}
    seconds = time.monotonic() - begin
    step.log.info("%d images of %d classes in %s", len(folder.files), len(folder.classes), folder.source)
    left_out = str(folder.left_out)
    if left_out:
        step.log.info("left out: %s", left_out)
    key, is_same = inventory_key(folder), last.get("digest") == folder.digest and last.get("folder") == folder.source
    before = folder if is_same else _inventory_of(last, declared, storage)
    news = describe_changes(before, folder)
    step.log.info(news)
    if not is_same or not place.store().exists(key):
        save_inventory(place, folder)
    return StageResult(
        data_version=folder.digest,
        tags={"source": folder.digest, "reads": reads(config.described)},
        metadata={
            "what_was_done": news,
            **((is_same and shown_again(last)) or show_images(_examples(folder))),
            "images": len(folder.files),
            **show_classes({name: {"images": count} for name, count in folder.counts.items()}),
            **throughput(len(folder.files), 0, seconds),
            "folder": folder.source,
            "source": config.described,
            "digest": folder.digest,
            **watched_fact(declared, folder, mark),
            "inventory": key,
            **({"left_out": left_out} if left_out else {}),
            "dagster/size_bytes": folder.num_bytes,
            **partitions,
            **overrides(config),
        },
    )


def _identify_rows(step: StageInput, config: RowsConfig, storage: StorageResource, spark: SparkResource) -> StageResult:
    state = state_of(step, config, storage)  # before the rows are read, so that no change is missed
    is_known = state is not None and state.is_certain and step.last.get(UNCHANGED_WHILE) == state.digest
    if is_known and step.partitions is None and not overrides(config):
        news = "nothing changed: no rows were read, and no Spark was started"
        found = {name: step.last[name] for name in _OF_ROWS if name in step.last} | shown_again(step.last, ROWS)
    else:
        found = _read_rows(step, config, storage, spark)
        news = "read again: the same rows" if step.last.get("digest") == found["digest"] else "read: other rows"
        found |= state_facts(state, step, config, storage)
    step.log.info(news)
    digest = str(found["digest"])
    return StageResult(
        data_version=digest,
        tags={"source": digest, "reads": reads(config.described)},
        metadata={
            "what_was_done": news,
            "source": config.described,
            "form": config.form,
            "reads": config.source,
            **({WATCHED: state.digest} if state is not None else {}),
            **found,
            **overrides(config),
        },
    )


def state_facts(
    before: TableState | None, step: StageInput, config: RowsConfig, storage: StorageResource
) -> dict[str, str]:
    """Return what `raw` says about the state of its source, given that from before the rows were read."""
    if before is None:
        return {}
    is_same = before.is_certain and certain_state(step.declared, config, storage) == before.digest
    return {WATCHED: before.digest, **({UNCHANGED_WHILE: before.digest} if is_same else {})}


def state_of(step: StageInput, config: RowsConfig, storage: StorageResource) -> TableState | None:
    """Return the state of the source of rows; None if only Spark knows it."""
    try:
        return source_state(step.declared, config, storage)
    except StoreError as error:
        step.log.info("the source cannot be listed without Spark, so that its rows are read: %s", error)
        return None


def _read_rows(step: StageInput, config: RowsConfig, storage: StorageResource, spark: SparkResource) -> dict[str, Any]:
    """Return the identity and the columns of the rows as Spark reads them now."""
    declared, of_partitions = step.declared, {}
    with spark.session(step.log.info) as session:
        frame = read_frame(session, declared, config, storage)
        if step.partitions is None:
            found = identity_of(frame)
        else:
            found, read = identify_partitions(frame, declared, step.partitions)
            of_partitions = {PARTITIONS: read.save(inventories_of(declared, storage))}
            step.log.info("%s", describe_partitions(read))
        schema = column_schema(frame)
        is_same = step.last.get("digest") == found.digest
        shown = (is_same and shown_again(step.last, ROWS)) or show_rows(profile_rows(frame))
    return {
        "digest": found.digest,
        "how_identified": found.how,
        **({"source_facts": dg.MetadataValue.json(found.facts)} if found.facts else {}),
        **({"dagster/row_count": found.rows} if found.rows is not None else {}),
        "dagster/column_schema": schema,
        **shown,
        **of_partitions,
    }


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
    """Return the first files of every class; fewer of each where there are many classes."""
    store, most = open_store(folder.source, folder.storage_options), samples_per_class(len(folder.classes))
    chosen: dict[str, list[str]] = {name: [] for name in folder.classes}
    for file in folder.files:
        paths = chosen[folder.classes[file.label]]
        if len(paths) < most:
            paths.append(file.path)
    with ThreadPoolExecutor(_READS, thread_name_prefix="smalti-examples") as pool:
        images = iter(list(pool.map(store.get, [path for paths in chosen.values() for path in paths])))
    return {name: [next(images) for _ in paths] for name, paths in chosen.items()}
