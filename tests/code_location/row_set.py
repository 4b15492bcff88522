"""A declared data set of rows, its runs, and the table that it is made of."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from smalti.dataset import StreamingDataset
from smalti.storage import open_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from tests.code_location.declared import define
from tests.code_location.events import op_config


class NoSpark(SparkResource):
    """Spark that is away."""

    def session(self, report: Any = None) -> Any:
        raise ConnectionError("Spark is away")


class Rows:
    """A data set `sales` below a folder, and what its runs say."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, **attributes: Any) -> None:
        self.instance, self.storage = instance, storage
        self.declared = Declaration(name="sales", **attributes)
        self.place = open_store(storage.url("sales/shards"))

    def run(
        self,
        *,
        fails: bool = False,
        spark: SparkResource | None = None,
        parent: dg.DagsterRun | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        """One run of all stages, a re-execution of another one if that is given; what each stage then says."""
        run = self.instance.create_run_for_job(
            self._job(spark),
            run_config=op_config(config, "sales"),
            parent_run_id=parent.run_id if parent is not None else None,
            root_run_id=parent.run_id if parent is not None else None,
        )
        done = execute_run(InMemoryJob(self._job(spark)), run, self.instance, raise_on_error=False)
        assert done.success is not fails
        return {stage: self.facts(stage) for stage in self.declared.stages}

    def run_raw(self) -> dg.ExecuteInProcessResult:
        """One run of the first stage alone."""
        return self._job(None).execute_in_process(
            instance=self.instance, asset_selection=[self.declared.key("raw")], raise_on_error=False
        )

    def train(self, run_root: Path) -> dict[str, Any]:
        """One run of the training, with its folder below another one; what the model then says."""
        trainer = TrainerResource(run_root=str(run_root))
        assert self._job(None, "train", trainer=trainer).execute_in_process(instance=self.instance).success
        return self.facts("model")

    def last_run(self) -> dg.DagsterRun:
        return self.instance.get_runs(limit=1)[0]

    def _job(self, spark: SparkResource | None, kind: str = "reshard", **resources: Any) -> dg.JobDefinition:
        spark = spark or SparkResource(master="local[2,2]")
        here = dg.Definitions(executor=dg.in_process_executor)
        defs = dg.Definitions.merge(define(self.declared, storage=self.storage, spark=spark, **resources), here)
        return defs.resolve_job_def(f"sales_{kind}_job")

    def facts(self, stage: str) -> dict[str, Any]:
        event = latest(self.instance, dg.AssetKey(["sales", stage]))
        return facts_of(event) if event is not None else {}

    def stored(self, split: str) -> list[dict[str, Any]]:
        """The rows of a split of the newest version, in order of their first column."""
        dataset = StreamingDataset(remote=self.storage.url("sales/shards"), split=split, shuffle=False)
        return sorted((dict(dataset[at]) for at in range(len(dataset))), key=lambda row: str(next(iter(row.values()))))


def write(folder: Path, *numbers: int, name: str = "part.parquet") -> None:
    folder.mkdir(exist_ok=True)
    rows = {"number": list(numbers), "kind": ["even" if number % 2 == 0 else "odd" for number in numbers]}
    pq.write_table(pa.table(rows), folder / name)
