"""Small shard sets of drawn squares, published and checked without Spark."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa

from smalti.catalog import Draft, Manifest, new_write_id, publish
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.images import encode_jpeg
from smalti.spark.prepared.table import FILES, SCHEMA, PreparedTable, store_files
from smalti.storage import Store
from smalti.writer import ShardUploader
from smalti_dagster.checks.shards import build_shard_checks
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import prepared_of, shards_of
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stages.data import build_data
from tests.code_location.declared import FLOWERS
from tests.code_location.events import materialise

Rows = Sequence[Mapping[str, Any]]
CLASSES = ["daisy", "roses"]
COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
ALL_CHECKS = tuple(check.spec.name for check in build_shard_checks(FLOWERS))
DATA = build_data(FLOWERS)


def shards(storage: StorageResource) -> Store:
    """The shard set of the flowers."""
    return shards_of(FLOWERS, storage).store()


def picture(number: int) -> bytes:
    return encode_jpeg(np.full((8, 8, 3), number, dtype=np.uint8), 90)


def row(number: int) -> dict[str, object]:
    return {"image": picture(number), "label": number % 2, "path": f"{CLASSES[number % 2]}/{number}.jpg"}


def rows_of(*counts: int) -> list[dict[str, object]]:
    """So many rows of each class."""
    return [
        {"image": picture(label), "label": label, "path": f"{label}/{number}.jpg"}
        for label, count in enumerate(counts)
        for number in range(count)
    ]


def publish_set(
    storage: StorageResource,
    splits: Mapping[str, Rows],
    *,
    classes: Sequence[str] = CLASSES,
    source: str = "",
) -> Manifest:
    """A version with these rows, below the storage root."""
    return publish_rows(shards(storage), splits, classes=classes, source=source)


def publish_rows(
    store: Store, splits: Mapping[str, Rows], *, classes: Sequence[str] = CLASSES, source: str = ""
) -> Manifest:
    """A version with these rows."""
    schema, written, write_id = Schema.from_columns(COLUMNS), [], new_write_id()
    for split, rows in splits.items():
        uploader = ShardUploader(store, f"{split}/{write_id}", ShardBuilder(schema, ShardOptions()), partition=split)
        for sample in rows:
            uploader.write(sample)
        written += uploader.finish()
    counts = {split: Counter(classes[row["label"]] for row in rows) for split, rows in splits.items()}
    facts = {"classes": list(classes), "counts": counts, "image_size": 8}
    return publish(
        store, Draft(write_id, schema, written, metadata=facts, lineage={"source": source}), mode="overwrite"
    )


def table_of(storage: StorageResource, splits: Mapping[str, Rows], name: str = "table") -> PreparedTable:
    """A version of prepared images with these rows, as tasks tell them; without parts."""
    rows = [
        {
            "path": row["path"],
            "label": row["label"],
            "split": split,
            "digest": hashlib.sha256(row["image"]).hexdigest(),  # type: ignore[arg-type]
            "part": "part",
        }
        for split, part in splits.items()
        for row in part
    ]
    store, write_id, files = prepared_of(FLOWERS, storage).store(), new_write_id(), pa.Table.from_pylist(rows, FILES)
    entry = store_files(store, write_id, files, "recipe")
    draft = Draft(write_id, SCHEMA, (), lineage={"images": name}, sidecars=(entry,))
    return PreparedTable(store, publish(store, draft, mode="overwrite"), files)


def make_version(
    instance: dg.DagsterInstance,
    storage: StorageResource,
    splits: Mapping[str, Rows],
    *,
    classes: Sequence[str] = CLASSES,
    run: dg.DagsterRun | None = None,
    **facts: Any,
) -> Manifest:
    """Publish a version of prepared rows with its materialisation, as the asset of the shards does."""
    manifest = publish_set(storage, splits, classes=classes, source=facts.get("source", ""))
    made = table_of(storage, splits, f"table{manifest.version}")
    known = {"version": manifest.version, "digest": manifest.digest, "table": made.name}
    known |= {"prepared_version": made.manifest.version}
    materialise(instance, "shards", {**known, **facts}, run)
    return manifest


def execute_checks(
    instance: dg.DagsterInstance,
    storage: StorageResource,
    *names: str,
    run_config: Mapping[str, Any] | None = None,
    declared: Declaration = FLOWERS,
) -> dict[str, dg.AssetCheckEvaluation]:
    """Execute checks of the newest version as a person does, and return their results; all checks by default."""
    keys = [dg.AssetCheckKey(FLOWERS.key("shards"), name) for name in names or ALL_CHECKS]
    job = dg.define_asset_job("check_job", selection=dg.AssetSelection.checks(*keys))
    data = DATA if declared is FLOWERS else build_data(declared)
    here = dg.Definitions(
        assets=[data], jobs=[job], resources={"smalti_storage": storage, "smalti_spark": SparkResource()}
    )
    done = here.resolve_job_def("check_job").execute_in_process(
        instance=instance, raise_on_error=False, run_config=run_config
    )
    assert not done.get_asset_materialization_events()
    return {evaluation.check_name: evaluation for evaluation in done.get_asset_check_evaluations()}
