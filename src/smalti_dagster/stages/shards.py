"""The third stage: the rows as Mosaic Data Shards, published as one new version of the shard set."""

import time
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.catalog.diff import compare
from smalti.catalog.manifest import stored_bytes
from smalti.spark.prepared.rows import Resharded, Sharding, Target, find_version, look_at, reshard_prepared
from smalti.spark.prepared.table import PreparedTable
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.configuration import overrides, with_defaults
from smalti_dagster.places import Place, prepared_table, shards_of
from smalti_dagster.reports.shown import throughput
from smalti_dagster.reports.versions import HISTORY, show_history, show_shards
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.row_shards import WriteRows, publish_partitions, publish_rows
from smalti_dagster.sources.rows import read_again
from smalti_dagster.stage import Facts, StageInput, StageResult, stage_spec
from smalti_dagster.stages.prepared import rows_digest

_CODE_VERSION = "1"


class ShardsConfig(dg.Config):
    """Options by which rows become shards."""

    compression: str = Field(default="", description="zstd, zstd:<level> or auto (if it helps); none by default.")
    hashes: list[str] = Field(
        default=["xxh3_64"], description="Checksums kept for every shard: xxh3_64, xxh64, sha1, sha256."
    )
    size_limit: str = Field(default="16mb", description="Largest shard before compression, such as 64mb.")
    rewrite: bool = Field(
        default=False, description="Write a new version even if these very rows and options have one already."
    )
    accept_removed: list[str] = Field(
        default=[],
        description="What this run may remove since the last version whose blocking checks passed: names of classes, "
        "rows (more than max_row_loss), or * for both.",
    )
    max_row_loss: float = Field(
        default=0.1, ge=0, le=1, description="Share of the rows that may go from one checked version to the next."
    )


def shards_spec(declared: Declaration) -> dg.AssetSpec:
    """Return the specification of the asset of a data set's shards."""
    before = declared.stages[declared.stages.index("shards") - 1]
    return stage_spec(
        declared,
        "shards",
        code=_CODE_VERSION,
        kinds={"mds", "pyspark"},
        deps=[declared.key(before)],
        description="A version of the shard set; the digest names its content.\n\nOf images only new and changed ones "
        "are written. When nothing changed, the version is the same.",
    )


def shards_config(declared: Declaration) -> type[dg.Config]:
    """Return the configuration with the values of a declaration."""
    return with_defaults(
        ShardsConfig,
        compression=declared.shards.compression,
        hashes=declared.shards.hashes,
        size_limit=declared.shards.size_limit,
        max_row_loss=declared.checks.max_row_loss,
    )


def shards_stage(step: StageInput, config: ShardsConfig, storage: StorageResource, spark: SparkResource) -> StageResult:
    """Publish the rows as a version of the shard set, unless one has them."""
    declared = step.declared
    rows = _rows_before(step)
    place, begin = shards_of(declared, storage), time.monotonic()
    target = look_at(place.url, storage_options=place.storage_options)
    facts: dict[str, Any] = {}
    if declared.source.kind == "images":
        prepared = prepared_table(declared, rows, storage)
        facts |= {"table": prepared.name, "prepared_version": prepared.manifest.version}
        done = _publish_images(step, config, prepared, spark, rows, target)
    else:
        done = _publish_rows(step, config, storage, spark, target)
    news = describe_version(done, target.version)
    step.log.info(news)
    return StageResult(
        data_version=done.manifest.digest,
        tags={"version": done.manifest.version, "digest": done.manifest.digest},
        metadata={
            "what_was_done": news,
            **_metadata(done, target, place, time.monotonic() - begin),
            HISTORY: _history(step, done, place),
            **facts,
            "source": rows.get("source", ""),
            "accept_removed": config.accept_removed,
            "max_row_loss": config.max_row_loss,
            **overrides(config),
        },
    )


def _publish_images(
    step: StageInput,
    config: ShardsConfig,
    prepared: PreparedTable,
    spark: SparkResource,
    rows: Facts,
    target: Target,
) -> Resharded:
    """Publish the rows of prepared images unless a version has them; no Spark is started for nothing."""
    sharding = Sharding(
        step.declared.columns or {},
        compression=config.compression or None,
        hashes=tuple(config.hashes),
        size_limit=config.size_limit,
    )
    manifest = None if config.rewrite else find_version(prepared, target, sharding)
    if manifest is not None:
        return Resharded(manifest, converted=0, kept_shards=len(manifest.shards))
    with spark.lazy_session(step.log.info) as start:
        return reshard_prepared(
            start,
            prepared,
            target,
            sharding,
            rewrite=config.rewrite,
            lineage={"prepared": prepared.name, **_origin(step, rows)},
            metadata={"classes": rows["classes"], "counts": prepared.counts, "image_size": rows["image_size"]},
        )


def _publish_rows(
    step: StageInput, config: ShardsConfig, storage: StorageResource, spark: SparkResource, target: Target
) -> Resharded:
    """Publish the rows of the source unless a version has them; no Spark is started for nothing.

    Raises:
        dg.Failure: `prepared` is of other rows than `raw`, or of another function.
    """
    declared, source, rows = step.declared, step.upstream["raw"], _rows_before(step)
    if declared.function is not None and rows["digest"] != rows_digest(source, declared.function):
        prepared = declared.key("prepared").to_user_string()
        raise dg.Failure(
            f"{prepared} was not made from the rows and the function that there are now: materialise it first",
            allow_retries=False,
        )
    write = WriteRows(
        declared, str(rows["digest"]), config.compression or None, tuple(config.hashes), config.size_limit
    )
    manifest = None if config.rewrite else write.find(target)
    if manifest is not None:
        return Resharded(manifest, converted=0, kept_shards=len(manifest.shards))
    with spark.session(step.log.info) as session:
        if declared.partitions is not None:
            origin = _origin(step, rows)
            manifest = publish_partitions(
                session, write, target, source, storage, lineage=origin, is_rewrite=config.rewrite
            )
        else:
            frame = read_again(session, declared, source, storage)
            manifest = publish_rows(frame, write, target, lineage=_origin(step, rows), is_rewrite=config.rewrite)
    before = {shard.stored.basename for shard in target.newest.shards} if target.newest is not None else set()
    fresh = [shard for shard in manifest.shards if shard.stored.basename not in before]
    return Resharded(manifest, sum(shard.samples for shard in fresh), len(manifest.shards) - len(fresh))


def _rows_before(step: StageInput) -> Facts:
    """Return the facts of the stage before, whose rows are published."""
    stages = step.declared.stages
    return step.upstream[stages[stages.index("shards") - 1]]


def _origin(step: StageInput, rows: Facts) -> dict[str, Any]:
    """Return what a version's manifest says about the run that wrote it."""
    return {
        "data_set": step.declared.name,
        "declaration": step.declared.digest(),
        "run": step.run_id,
        "source": rows.get("source", ""),
    }


def describe_version(done: Resharded, before: int) -> str:
    """Say in a sentence what was published."""
    manifest = done.manifest
    holds = f"{manifest.rows} samples in {len(manifest.shards)} shards"
    if manifest.version <= before:
        return f"nothing changed since version {manifest.version}: {holds}"
    if "rolled_back_to" in manifest.metadata:
        number = manifest.metadata["rolled_back_to"]
        return f"published version {manifest.version}, the same as version {number}: {holds}"
    kept = f", {done.kept_shards} of them kept as they were" if done.kept_shards else ""
    return f"published version {manifest.version}: {holds}{kept}; {done.converted} rows written"


def _history(step: StageInput, done: Resharded, place: Place) -> dg.MetadataValue[Any]:
    """Return the table of versions; the one of the materialisation before if that has shown this version."""
    last, version = step.last, done.manifest.version
    if HISTORY in last and (last.get("version"), last.get("dagster/uri")) == (version, place.url):
        shown: dg.MetadataValue[Any] = last[HISTORY]
        return shown
    return show_history(place.store(), done.manifest, last if last.get("dagster/uri") == place.url else {})


def _metadata(done: Resharded, target: Target, place: Place, seconds: float) -> dict[str, Any]:
    manifest = done.manifest
    added = compare(target.newest, manifest).added if target.newest is not None else manifest.shards
    run = str(manifest.lineage.get("run", ""))
    return {
        "version": manifest.version,
        "digest": manifest.digest,
        **({"published_by": dg.MetadataValue.dagster_run(run)} if run else {}),
        "shards": len(manifest.shards),
        "shards_kept": done.kept_shards,
        "rows_written": done.converted,
        "samples": manifest.rows,
        "shard_table": show_shards(manifest, added),
        "splits": ", ".join(manifest.partitions),
        "columns": dg.MetadataValue.json(manifest.schema.columns()),
        **throughput(done.converted, sum(map(stored_bytes, added)), seconds),
        "dagster/uri": place.url,
        "dagster/row_count": manifest.rows,
        "dagster/size_bytes": manifest.num_bytes,
    }
