"""The three stages up to the shard set, run on a folder of photos as `reshard_job`, and what they said."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np

from assets.flowers import draw_flower
from assets.lineage import CHECKED_IN, facts_of, latest
from pipelines.definitions import defs
from resources.backends import LocalBackend
from resources.spark import SparkResource
from resources.storage import StorageResource
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.verify import open_checked
from smalti.storage import open_store

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
    """A data root, a folder of photos and an instance that remembers."""

    instance: dg.DagsterInstance
    photos: Path
    data: Path
    checks_made: set[str] = field(default_factory=set)
    """Names of those of the last run that did not point to an earlier run."""
    decoded: int | None = None
    """Images that the last run's checks decoded; None if they pointed to an earlier run."""

    @property
    def storage(self) -> StorageResource:
        return StorageResource(backend=LocalBackend(root=str(self.data)))

    def config(self, **shards: Any) -> dict[str, Any]:
        """Small images and shards of a few of them."""
        return {
            "ops": {
                "raw_images": {"config": {"source": str(self.photos)}},
                "preprocessed_images": {"config": {"image_size": 16, "validation_fraction": 0.25}},
                "mds_shards": {"config": {"size_limit": "3kb", **shards}},
            }
        }

    def run(
        self,
        *,
        run_config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        spark: SparkResource | None = None,
    ) -> dict[str, dict[str, Any]]:
        """One run of `reshard_job`; what each stage then says of itself."""
        done = defs.resolve_job_def("reshard_job").execute_in_process(
            instance=self.instance,
            run_config=run_config or self.config(),
            tags=tags,
            resources={"storage": self.storage, "spark": spark or SparkResource(master="local[2]")},
        )
        checks = done.get_asset_check_evaluations()
        assert all(check.passed for check in checks)
        self.checks_made = {check.check_name for check in checks if CHECKED_IN not in check.metadata}
        decoded = [check.metadata["decoded"].value for check in checks if "decoded" in check.metadata]
        self.decoded = sum(map(int, decoded)) if decoded else None
        return {name: self.facts(name) for name in ("raw_images", "preprocessed_images", "mds_shards")}

    def facts(self, asset: str) -> dict[str, Any]:
        event = latest(self.instance, asset)
        assert event is not None
        return facts_of(event)

    @property
    def manifest(self) -> Manifest:
        return load_manifest(open_store(self.data / "shards"))

    def rows(self) -> dict[str, tuple[str | None, int, str]]:
        """What the newest version holds: path to split, label and digest of the image."""
        store, found = open_store(self.data / "shards"), {}
        for info in self.manifest.shards:
            with open_checked(store, info) as shard:
                batch = shard.batch(np.arange(len(shard)))
                for path, label, image in zip(batch["path"], batch["label"].tolist(), batch["image"], strict=True):
                    assert path not in found
                    found[path] = (info.partition, label, hashlib.sha256(image).hexdigest())
        return found
