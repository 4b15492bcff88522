"""The data set that is measured, and the calls of the library that give the same versions without Dagster."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from smalti.sources.image_folder import list_images
from smalti.spark import PrepareOptions, dataframe_to_mds
from smalti.spark.prepared.reshard import Sharding, find_version, look_at, reshard_prepared
from smalti.spark.prepared.table import prepared_files
from smalti.spark.prepared.update import update_prepared
from smalti_dagster import build_definitions
from smalti_dagster.declaration import Declaration, Source
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pictures"
STAGES = ("raw", "prepared", "shards")


def declare(folder: Path) -> Declaration:
    """Return the declaration of a data set of the pictures in a folder; everything else is as by default."""
    return Declaration(name=NAME, source=Source(folder=str(folder)))


def graph_job(folder: Path, root: Path) -> dg.JobDefinition:
    """Return the job that brings the data set below a storage root up to date."""
    resources = {"smalti_storage": LocalStorage(root=str(root)), "smalti_spark": SparkResource()}
    defs = dg.Definitions.merge(build_definitions(declare(folder)), dg.Definitions(resources=resources))
    return defs.resolve_job_def(f"{NAME}_reshard_job")


@dataclass(frozen=True)
class PlainCalls:
    """The library's calls, with the options that the declaration gives to the graph."""

    folder: Path
    root: Path
    declared: Declaration

    def run(self, session: "SparkSession") -> dict[str, float]:
        """Bring everything up to date; return the seconds by stage."""
        seconds: dict[str, float] = {}

        def timed(name: str, work: Callable[[], Any]) -> Any:
            begin = time.perf_counter()
            result = work()
            seconds[name] = time.perf_counter() - begin
            return result

        options, prepared = self._options(), self.root / "prepared"
        found = timed("raw", lambda: list_images(str(self.folder)))
        done = timed("prepared", lambda: update_prepared(session, found, prepared, options=options))
        timed("shards", lambda: self._shards(session, done.table))
        return seconds

    def write_whole(self, session: "SparkSession", out: Path) -> float:
        """Write all prepared images into another set, as Spark itself reads their Parquet; return the seconds."""
        begin = time.perf_counter()
        shards, files = self._sharding(), prepared_files(self.root / "prepared")
        labels = session.read.parquet(files.labels).select("path", "label", "split")
        dataframe_to_mds(
            session.read.parquet(*files.images).join(labels, "path"),
            str(out),
            columns=shards.columns,
            compression=shards.compression,
            hashes=shards.hashes,
            size_limit=shards.size_limit,
            partition_by="split",
            progress=False,
        )
        return time.perf_counter() - begin

    def _shards(self, session: "SparkSession", table: Any) -> None:
        target, sharding = look_at(self.root / "shards"), self._sharding()
        if find_version(table, target, sharding) is None:
            reshard_prepared(session, table, target, sharding)

    def _options(self) -> PrepareOptions:
        image, split = self.declared.image, self.declared.split
        return PrepareOptions(
            size=image.size,
            quality=image.quality,
            validation_fraction=split.validation,
            on_bad_image=image.on_bad_image,
            seed=split.seed,
        )

    def _sharding(self) -> Sharding:
        shards = self.declared.shards
        return Sharding(
            self.declared.columns or {},
            compression=shards.compression or None,
            hashes=tuple(shards.hashes),
            size_limit=shards.size_limit,
        )
