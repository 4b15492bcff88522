"""The third stage: the rows as Mosaic Data Shards, published as one new version of the shard set."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from assets.lineage import CHECKED_IN, Passes, entered_config, passes_of, upstream
from assets.preprocessed_images import PLACE, place_of, preprocessed_images
from assets.reconcile import SplitSums, class_counts, find_losses, not_in, sums_of_shards, sums_of_table
from assets.rendering import Value, table
from assets.shard_tags import CHECKED, SHARDS, checked_version, conclude, release_ended_trainings
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.catalog import Manifest, load_manifest, verify
from smalti.catalog.header import Header
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.spark.prepared.reshard import Resharded, Sharding, Target, find_version, look_at, reshard_prepared
from smalti.spark.prepared.table import PreparedTable, find_table

COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
_CODE_VERSION = "1"


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

    accept_removed: list[str] = Field(
        default=[],
        description="What this run may remove since the last version whose blocking checks passed: names of classes, "
        "rows (more than max_row_loss), or * for both. Automation does not repeat it.",
    )
    max_row_loss: float = Field(
        default=0.1, ge=0, le=1, description="Share of the rows that may go from one checked version to the next."
    )

    def sharding(self) -> Sharding:
        """The library's options."""
        return Sharding(
            COLUMNS, compression=self.compression or None, hashes=tuple(self.hashes), size_limit=self.size_limit
        )

    def former_write_id(self, rows: str) -> str:
        """What earlier releases named the write of these rows; the versions that they wrote are found by it."""
        facts = [_CODE_VERSION, rows, self.compression, sorted(self.hashes), self.size_limit, COLUMNS]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


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
    """A version of the shard set, with the splits `train` and `validation`; the digest names its content.

    Only new and changed rows are written; when there are none, no Spark is started and the version is the same.
    """
    rows = upstream(context, "preprocessed_images")
    prepared = prepared_table(rows, storage)
    begin, target = time.monotonic(), look_at(storage.url(SHARDS), storage_options=storage.options())
    done = _already_there(prepared, rows, config, target)
    if done is None:
        with spark.session(context.log.info) as session:
            done = reshard_prepared(
                session,
                prepared,
                target,
                config.sharding(),
                rewrite=config.rewrite,
                lineage={
                    "preprocessed_images": prepared.name,
                    "run": context.run.run_id,
                    "source": rows.get("source", ""),
                },
                metadata={"classes": rows["classes"], "counts": prepared.counts, "image_size": rows["image_size"]},
            )
    release_ended_trainings(context, storage.store(SHARDS))
    news = describe_version(done, target.version)
    context.log.info(news)
    facts = _metadata(done, storage, time.monotonic() - begin)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(done.manifest.digest),
        metadata={
            "what was done": news,
            **facts,
            "table": prepared.name,
            "source": rows.get("source", ""),
            "accept_removed": config.accept_removed,
            "max_row_loss": config.max_row_loss,
        },
    )


def prepared_table(facts: Mapping[str, Any], storage: StorageResource) -> PreparedTable:
    """The table that a materialisation names.

    Raises:
        dg.Failure: it is gone, or was made by an earlier release.
    """
    name = str(facts.get("table") or facts["digest"])
    found = find_table(name=name, **place_of(storage))
    if found is None:
        raise dg.Failure(
            f"{storage.url(PLACE)} has no table {name[:16]} any more: materialise preprocessed_images again",
            allow_retries=False,
        )
    return found


def _already_there(
    prepared: PreparedTable, rows: Mapping[str, Any], config: ShardsConfig, target: Target
) -> Resharded | None:
    if config.rewrite:
        return None
    former = config.former_write_id(rows["digest"])
    manifest = find_version(prepared, target, config.sharding(), write_id=former)
    return Resharded(manifest, converted=0, kept_shards=len(manifest.shards)) if manifest is not None else None


def describe_version(done: Resharded, before: int) -> str:
    """What became of the set, in a sentence."""
    manifest = done.manifest
    holds = f"{manifest.rows} samples in {len(manifest.shards)} shards"
    if manifest.version <= before:
        return f"nothing changed since version {manifest.version}: {holds}"
    if "rolled_back_to" in manifest.metadata:
        number = manifest.metadata["rolled_back_to"]
        return f"published version {manifest.version}, the same as version {number}: {holds}"
    kept = f", {done.kept_shards} of them kept as they were" if done.kept_shards else ""
    return f"published version {manifest.version}: {holds}{kept}; {done.converted} images written"


def _metadata(done: Resharded, storage: StorageResource, seconds: float) -> dict[str, Any]:
    manifest = done.manifest
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
        "shards_kept": done.kept_shards,
        "images_written": done.converted,
        "samples": manifest.rows,
        "shard table": table(shards),
        "splits": ", ".join(manifest.partitions),
        "columns": dg.MetadataValue.json(manifest.schema.columns()),
        **({"images_per_second": round(done.converted / seconds, 1)} if done.converted else {}),
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
    description="Every prepared row is in the shards, byte for byte and once, and every image decodes.",
)
def every_row_is_in_the_shards(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """Compares the number of rows and the sum of their hashes, split by split, with what Spark prepared.

    Images of shards that an earlier version has too, which passed, are not decoded again.
    """
    manifest = _pinned(context, storage)
    prepared = prepared_table(upstream(context, "mds_shards"), storage)
    content = f"{manifest.digest} {prepared.digest}"
    passes = passes_of(context)
    if run := passes.run_for(content):
        return conclude(context, storage, manifest, _known(run, content))
    wanted = sums_of_table(prepared)
    found = sums_of_shards(storage.store(SHARDS), manifest, decodes=not_in(_passed_last(passes, storage)))
    rows = [_compare(split, wanted.get(split), found.get(split)) for split in sorted({*wanted, *found})]
    unreadable = [path for part in found.values() for path in part.unreadable]
    result = dg.AssetCheckResult(
        passed=all(row["equal"] for row in rows) and not unreadable,
        metadata={
            "content": content,
            "rows": sum(part.rows for part in found.values()),
            "decoded": sum(part.decoded for part in found.values()),
            "splits": table(rows),
            **({"unreadable": unreadable} if unreadable else {}),
        },
    )
    return conclude(context, storage, manifest, result)


def _passed_last(passes: Passes, storage: StorageResource) -> Manifest | None:
    """The version for which this check passed the last time; None if there is none, or it is not there any more."""
    facts = passes.last_made
    if facts is None or "version" not in facts:
        return None
    try:
        manifest = load_manifest(storage.store(SHARDS), version=int(facts["version"]))
    except (StoreNotFound, VersionNotFound):  # vacuumed since, or another data root
        return None
    return manifest if manifest.digest == facts["digest"] else None


def _known(run: str, content: str) -> dg.AssetCheckResult:
    """The same content passed before; that its bytes are still the same is what `hashes_verify` reads them for."""
    return dg.AssetCheckResult(
        passed=True,
        description="This very content passed before.",
        metadata={"content": content, CHECKED_IN: dg.MetadataValue.dagster_run(run)},
    )


def _compare(split: str, wanted: SplitSums | None, found: SplitSums | None) -> dict[str, Value]:
    wanted, found = wanted or SplitSums(), found or SplitSums()
    equal = (wanted.rows, wanted.hash_sum) == (found.rows, found.hash_sum)
    return {"split": split, "in the table": wanted.rows, "in the shards": found.rows, "equal": equal}


@dg.asset_check(asset=mds_shards, blocking=True, description="Every shard has the size and the hashes of its entry.")
def hashes_verify(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """Reads every object again."""
    manifest = _pinned(context, storage)
    report = verify(storage.store(SHARDS), version=manifest.version, deep=True)
    problems = [{"shard": problem.key, "kind": problem.kind, "what": problem.message} for problem in report.problems]
    result = dg.AssetCheckResult(
        passed=report.ok,
        description=report.summary(),
        metadata={"shards": report.num_shards, **({"problems": table(problems)} if problems else {})},
    )
    return conclude(context, storage, manifest, result)


@dg.asset_check(
    asset=mds_shards,
    blocking=True,
    description="No class, and no more than a share of the rows, is gone since the newest version whose blocking "
    "checks passed. A warning: a class of the raw images is missing from a split.",
)
def no_class_vanished(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """Count the labels that are really in the shards, once for each content."""
    manifest, facts = _pinned(context, storage), upstream(context, "mds_shards")
    names, base = manifest.metadata["classes"], _base_of(manifest, storage)
    content = f"{manifest.digest} {','.join(names)}"
    run = passes_of(context).run_for(content)
    found = sums_of_shards(storage.store(SHARDS), manifest, decodes=lambda _: False) if run is None else {}
    now = class_counts(found, names) if run is None else _counts_of(manifest, storage)
    before = _counts_of(base, storage) if base is not None else {}
    # A re-execution of the check alone may accept more than the run that wrote the version.
    accepted = {*facts.get("accept_removed", []), *entered_config(context.run, "mds_shards").get("accept_removed", [])}
    losses = find_losses(before, now, accepted=accepted, max_row_loss=float(facts.get("max_row_loss", 0.1)))
    if run is not None and not losses:
        return conclude(context, storage, manifest, _known(run, content))
    rows: list[dict[str, Value]] = [
        {"class": name, "before": before.get(name, 0), **{s: part.labels[label] for s, part in sorted(found.items())}}
        for label, name in enumerate(names)
    ]
    missing = [f"{row['class']} in {split}" for row in rows for split in sorted(found) if not row[split]]
    since = f"version {base.version}" if base is not None else "nothing: no earlier version was checked"
    result = dg.AssetCheckResult(
        passed=not losses and not missing,
        severity=dg.AssetCheckSeverity.ERROR if losses else dg.AssetCheckSeverity.WARN,
        description=_describe_losses(losses, since) if losses else None,
        metadata={
            "content": content,
            "compared with": since,
            "classes": table(rows),
            **({"gone": losses} if losses else {}),
            **({"missing": missing} if missing else {}),
        },
    )
    return conclude(context, storage, manifest, result)


def _base_of(manifest: Manifest, storage: StorageResource) -> Header | None:
    """Return the newest version whose blocking checks passed, if it came before this one."""
    base = checked_version(storage.store(SHARDS))
    return base if base is not None and base.version < manifest.version else None


def _counts_of(checked: Header | Manifest, storage: StorageResource) -> dict[str, int]:
    """Return how many rows of each class a version has, as it says itself; its checks have confirmed that."""
    counts: Counter[str] = Counter()
    for split in (checked.metadata.get("counts") or {}).values():
        counts.update(split)
    if counts:
        return dict(counts)
    store = storage.store(SHARDS)
    sums = sums_of_shards(store, load_manifest(store, version=checked.version), decodes=lambda _: False)
    return class_counts(sums, checked.metadata["classes"])


def _describe_losses(losses: Sequence[str], since: str) -> str:
    return (
        f"Since {since}, the newest whose blocking checks passed: {'; '.join(losses)}. The tag {CHECKED!r} stays "
        "there. If images were lost by mistake, put them back and run reshard_job again; if they are meant to go, "
        "run it with `accept_removed` in the configuration of mds_shards: names of classes, rows, or * for both."
    )
