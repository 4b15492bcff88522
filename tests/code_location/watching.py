"""The watch sensor of a data set `flowers` on a folder, evaluated as the daemon does it, without a daemon."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from smalti.spark import list_images
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Automation, Declaration, Source, Watch
from smalti_dagster.lineage import DATA_SET_TAG, READS_TAG, reads
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stages.source import file_mark, watched_fact
from tests.code_location.declared import declare
from tests.code_location.events import end, materialise, new_run
from tests.code_location.shipped import defs

SUCCESS = dg.DagsterRunStatus.SUCCESS


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watcher:
    """A folder, the sensor that looks at it, and what the daemon keeps: cursor, observations, runs by key."""

    def __init__(
        self, instance: dg.DagsterInstance, storage: StorageResource, folder: Path, address: str = "", **watch: Any
    ) -> None:
        self.instance, self.storage, self.folder, self.address = instance, storage, folder, address or str(folder)
        self.clock, self.cursor, self.options = Clock(), None, Watch(**watch)
        self.declared: Declaration = declare(
            source=Source(folder=self.address), automation=Automation(watch=self.options)
        )
        self.sensor = build_watch_sensor(self.declared, self.options, clock=self.clock)
        self.by_key: dict[str, dg.DagsterRun] = {}

    def add(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def materialize(self, run: dg.DagsterRun | None = None, *, shards: bool = True) -> None:
        """Report that the raw images and the shards were made, in a run that succeeds unless one is given."""
        mark = file_mark(self.declared, self.address, self.storage)
        seen = list_images(self.address, storage_options=self.storage.options_for(self.address))
        made_by = run or new_run(self.instance)
        self.instance.add_run_tags(made_by.run_id, {DATA_SET_TAG: self.declared.name, READS_TAG: reads(self.address)})
        facts = {"folder": seen.source, "digest": seen.digest, "source": self.address}
        materialise(self.instance, "raw", {**facts, **watched_fact(self.declared, seen, mark)}, made_by)
        if shards:
            materialise(self.instance, "shards", {}, made_by)
        if run is None:
            end(self.instance, made_by, SUCCESS)

    def evaluate(self, *, cursor: str | None = None) -> dg.SensorResult:
        """One evaluation, of which nothing is kept: the daemon died, or evaluates the same tick again."""
        with dg.build_sensor_context(
            instance=self.instance,
            definitions=defs,
            cursor=cursor or self.cursor,
            resources={"smalti_storage": self.storage},
        ) as context:
            return self.sensor.evaluate_tick(context)

    def tick(self, *, after: float = 30.0) -> dg.SensorResult:
        """One tick, of which cursor and observations are kept."""
        self.clock.now += after
        result = self.evaluate()
        self.cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def launch(self, result: Any) -> list[dg.DagsterRun]:
        """Create the runs of the requests, as the daemon does: none for a key that was used."""
        made = []
        for request in result.run_requests or []:
            if request.run_key not in self.by_key:
                tags: Mapping[str, str] = request.tags
                self.by_key[request.run_key] = new_run(self.instance, tags=dict(tags))
                made.append(self.by_key[request.run_key])
        return made

    def follow(self, ticks: int, *, after: float = 30.0, reads: bool = True) -> int:
        """So many ticks, and the runs that they request, each of which has ended before the next; their number."""
        made = 0
        for _ in range(ticks):
            for run in self.launch(self.tick(after=after)):
                if reads:
                    self.materialize(run)
                end(self.instance, run, SUCCESS)
                made += 1
        return made
