"""The third stage: the rows as Mosaic Data Shards, published as one new version of the shard set."""

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from assets.lineage import upstream
from assets.preprocessed_images import preprocessed_images
from assets.reconcile import SplitSums, sums_of_shards, sums_of_table
from assets.rendering import Value, table
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.catalog import Manifest, history, load_manifest, new_write_id, rollback, verify
from smalti.errors import StoreNotFound
from smalti.spark import dataframe_to_mds, read_prepared

SHARDS = "shards"
"""The shard set, below the storage root."""

COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
_CODE_VERSION = "1"  # raise it when the same rows and options would give other shards


class ShardsConfig(dg.Config):
    """How rows become shards."""

    compression: str = Field(
        default="", description="zstd or zstd:<level>; none by default, because JPEG does not get smaller."
    )
    hashes: list[str] = Field(
        default=["xxh3_64"], description="Checksums kept for every shard: xxh3_64, xxh64, sha1, sha256."
    )
    size_limit: str = Field(default="16mb", description="Largest shard before compression, such as 64mb.")
    rewrite: bool = Field(
        default=False, description="Write a new version even if these very rows and options have one already."
    )

    def write_id(self, rows: str) -> str:
        """Names the write; the same rows and options have the same name, so that a repeated run changes nothing."""
        facts = [_CODE_VERSION, rows, self.compression, sorted(self.hashes), self.size_limit, COLUMNS]
        return new_write_id() if self.rewrite else hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@dg.asset(
    group_name="shards",
    kinds={"mds", "pyspark"},
    deps=[preprocessed_images],
    pool="spark",
    code_version=_CODE_VERSION,
)
def mds_shards(
    context: dg.AssetExecutionContext, config: ShardsConfig, storage: StorageResource, spark: SparkResource
) -> dg.MaterializeResult[Any]:
    """A version of the shard set, with the splits `train` and `validation`; the digest names its content."""
    rows = upstream(context, "preprocessed_images")
    begin, before = time.monotonic(), newest_version(storage)
    with spark.session(context.log.info) as session:
        frame = read_prepared(session, storage.url(rows["place"]), storage_options=storage.options())
        manifest = _write(frame, config, storage, {**rows, "run": context.run_id})
    if manifest.version < before:  # the images went back to what they were; so does the set, to the same shards
        manifest = rollback(storage.store(SHARDS), manifest.version)
    seconds = time.monotonic() - begin
    news = "published" if manifest.version > before else "nothing changed since"
    context.log.info(
        "%s version %d: %d samples in %d shards", news, manifest.version, manifest.rows, len(manifest.shards)
    )
    return dg.MaterializeResult(
        data_version=dg.DataVersion(manifest.digest), metadata=_metadata(manifest, storage, seconds)
    )


def newest_version(storage: StorageResource) -> int:
    """Number of the newest version of the shard set; 0 if there is none."""
    try:
        return max((version.version for version in history(storage.store(SHARDS))), default=0)
    except StoreNotFound:
        return 0


def _write(frame: Any, config: ShardsConfig, storage: StorageResource, rows: Mapping[str, Any]) -> Manifest:
    return dataframe_to_mds(
        frame,
        storage.url(SHARDS),
        columns=COLUMNS,
        compression=config.compression or None,
        hashes=tuple(config.hashes),
        size_limit=config.size_limit,
        partition_by="split",
        mode="overwrite",
        write_id=config.write_id(rows["digest"]),
        lineage={"preprocessed_images": rows["digest"], "place": rows["place"], "run": rows["run"]},
        metadata={name: rows[name] for name in ("classes", "counts", "image_size")},
        storage_options=storage.options(),
    )


def _metadata(manifest: Manifest, storage: StorageResource, seconds: float) -> dict[str, Any]:
    shards: list[dict[str, Value]] = [
        {
            "split": str(shard.partition),
            "samples": shard.samples,
            "bytes": shard.stored.num_bytes,
            "shard": "/".join(shard.stored.basename.split("/")[-2:]),  # below the split and the write id
        }
        for shard in manifest.shards
    ]
    return {
        "version": manifest.version,
        "digest": manifest.digest,
        "shards": len(shards),
        "samples": manifest.rows,
        "shard table": table(shards),
        "splits": ", ".join(manifest.partitions),
        "columns": dg.MetadataValue.json(manifest.schema.columns()),
        "images_per_second": round(manifest.rows / seconds, 1),
        "megabytes_per_second": round(manifest.num_bytes / seconds / 1e6, 2),
        "dagster/uri": storage.url(SHARDS),
        "dagster/row_count": manifest.rows,
        "dagster/size_bytes": manifest.num_bytes,
    }


def _pinned(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Manifest:
    """The version that was materialised: a newer one may have been published since."""
    return load_manifest(storage.store(SHARDS), version=int(upstream(context, "mds_shards")["version"]))


@dg.asset_check(
    asset=mds_shards,
    blocking=True,
    pool="spark",
    description="Every row of the DataFrame is in the shards, byte for byte and once, and every image decodes.",
)
def every_row_is_in_the_shards(
    context: dg.AssetCheckExecutionContext, storage: StorageResource, spark: SparkResource
) -> dg.AssetCheckResult:
    """Compares the number of rows and the sum of their hashes, split by split."""
    manifest = _pinned(context, storage)
    with spark.session(context.log.info) as session:
        place = storage.url(manifest.lineage["place"])
        wanted = sums_of_table(read_prepared(session, place, storage_options=storage.options()))
    found = sums_of_shards(storage.store(SHARDS), manifest)
    rows = [_compare(split, wanted.get(split), found.get(split)) for split in sorted({*wanted, *found})]
    unreadable = [path for part in found.values() for path in part.unreadable]
    return dg.AssetCheckResult(
        passed=all(row["equal"] for row in rows) and not unreadable,
        metadata={
            "rows": sum(part.rows for part in found.values()),
            "splits": table(rows),
            **({"unreadable": unreadable} if unreadable else {}),
        },
    )


def _compare(split: str, wanted: SplitSums | None, found: SplitSums | None) -> dict[str, Value]:
    wanted, found = wanted or SplitSums(), found or SplitSums()
    equal = (wanted.rows, wanted.hash_sum) == (found.rows, found.hash_sum)
    return {"split": split, "in the table": wanted.rows, "in the shards": found.rows, "equal": equal}


@dg.asset_check(asset=mds_shards, blocking=True, description="Every shard has the size and the hashes of its entry.")
def hashes_verify(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """Reads every object again."""
    report = verify(storage.store(SHARDS), version=_pinned(context, storage).version, deep=True)
    problems = [{"shard": problem.key, "kind": problem.kind, "what": problem.message} for problem in report.problems]
    return dg.AssetCheckResult(
        passed=report.ok,
        description=report.summary(),
        metadata={"shards": report.num_shards, **({"problems": table(problems)} if problems else {})},
    )


@dg.asset_check(asset=mds_shards, description="Every class of the raw images is in every split of the shards.")
def no_class_vanished(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """Counts the labels that are really in the shards."""
    manifest = _pinned(context, storage)
    found = sums_of_shards(storage.store(SHARDS), manifest)
    names = manifest.metadata["classes"]
    rows: list[dict[str, Value]] = [
        {"class": name, **{split: part.labels[label] for split, part in sorted(found.items())}}
        for label, name in enumerate(names)
    ]
    missing = [f"{row['class']} in {split}" for row in rows for split in sorted(found) if not row[split]]
    return dg.AssetCheckResult(
        passed=not missing, metadata={"classes": table(rows), **({"missing": missing} if missing else {})}
    )
