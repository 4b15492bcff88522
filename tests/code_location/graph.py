"""The three stages up to the shard set, run on a declared folder of photos, and what they said."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np

from assets.drawing import draw_flower
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.verify import open_checked
from smalti.storage import open_store
from smalti_dagster.declaration import Declaration, Image, Prepare, Shards, Source, Split
from smalti_dagster.lineage import CHECKED_IN, facts_of, latest
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage, StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.runs.process import process_tags
from tests.code_location.declared import declare, define
from tests.code_location.events import op_config

CLASSES = ("daisy", "roses")


def draw(photos: Path, name: str, *, number: int) -> None:
    """A drawn photo at `<class>/<file>`; another number is another picture."""
    path = photos / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw_flower(name.split("/", maxsplit=1)[0], number=number, size=(40, 32)))


def draw_all(photos: Path, *, per_class: int) -> None:
    """So many of each class, numbered from 0."""
    for kind in CLASSES:
        for number in range(per_class):
            draw(photos, f"{kind}/{number:02}.jpg", number=number)


@dataclass
class Graph:
    """A data root, a folder of photos that is declared as a data set, and an instance that remembers."""

    instance: dg.DagsterInstance
    photos: Path
    data: Path
    checks_made: set[str] = field(default_factory=set)
    """Names of those of the last run that did not point to an earlier run."""
    decoded: int | None = None
    """Images that the last run's checks decoded; None if they pointed to an earlier run."""

    @property
    def storage(self) -> StorageResource:
        return LocalStorage(root=str(self.data))

    @property
    def declared(self) -> Declaration:
        """Small images, and shards of a few of them."""
        return declare(
            source=Source(folder=str(self.photos)),
            prepare=Prepare(image=Image(size=16)),
            split=Split(validation=0.25),
            shards=Shards(size_limit="3kb"),
        )

    def defs(self, spark: Any = None) -> dg.Definitions:
        return define(
            self.declared,
            storage=self.storage,
            spark=spark or SparkResource(master="local[2]"),
            trainer=TrainerResource(run_root=str(self.data / "runs")),
        )

    def run(
        self,
        *,
        run_id: str | None = None,
        spark: Any = None,
        **shards: Any,
    ) -> dict[str, dict[str, Any]]:
        """One run of `flowers_reshard_job`, with overrides of the shards' configuration; what each stage then says."""
        done = (
            self.defs(spark)
            .resolve_job_def("flowers_reshard_job")
            .execute_in_process(
                instance=self.instance,
                run_config=op_config({"shards": shards}),
                run_id=run_id,
                tags=process_tags(run_id) if run_id is not None else None,
            )
        )
        checks = done.get_asset_check_evaluations()
        assert all(check.passed for check in checks)
        self.checks_made = {check.check_name for check in checks if CHECKED_IN not in check.metadata}
        decoded = [
            check.metadata["rows_read_in_this_run"].value
            for check in checks
            if "rows_read_in_this_run" in check.metadata
        ]
        self.decoded = sum(map(int, decoded)) if decoded else None
        return {name: self.facts(name) for name in ("raw", "prepared", "shards")}

    def facts(self, stage: str) -> dict[str, Any]:
        event = latest(self.instance, dg.AssetKey(["flowers", stage]))
        assert event is not None
        return facts_of(event)

    @property
    def place(self) -> Path:
        return self.data / "flowers" / "shards"

    @property
    def manifest(self) -> Manifest:
        return load_manifest(open_store(self.place))

    def rows(self) -> dict[str, tuple[str | None, int, str]]:
        """Return the rows of the newest version: path to split, label and digest of the image."""
        store, found = open_store(self.place), {}
        for info in self.manifest.shards:
            with open_checked(store, info) as shard:
                batch = shard.batch(np.arange(len(shard)))
                for path, label, image in zip(batch["path"], batch["label"].tolist(), batch["image"], strict=True):
                    assert path not in found
                    found[path] = (info.partition, label, hashlib.sha256(image).hexdigest())
        return found
