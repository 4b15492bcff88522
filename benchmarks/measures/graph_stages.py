"""The stages of a data set in Dagster's graph beside the library's own calls.

Both ways work on the same files, in turn and in one process with one Spark session, each with versions of its own: so a
ratio holds whatever else the machine does, and no JVM starts while the clock runs. The graph's seconds are those
between the events that Dagster records; the checks of an asset count for its stage.
"""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.graph.pictures import PictureFolder
from benchmarks.task import Figures, Task

if TYPE_CHECKING:
    import dagster as dg
    from pyspark.sql import SparkSession

STAGES = ("raw", "prepared", "shards")
NEW_FILES = 30
_ROUNDS = 2
_WARM = 300  # pictures for which the JVM and the Python workers import and compile


def measure_graph_stages(task: Task) -> Figures:
    """Time each stage by both ways: of a new data set, after `NEW_FILES` were added, and when nothing changed."""
    import dagster as dg

    from smalti.spark import build_session

    pictures = PictureFolder(task.work / "sets" / f"pictures-{task.samples}", task.data)
    pictures.require(task.samples)
    home = task.scratch / "dagster"
    home.mkdir()
    session, found = build_session(), dict[str, list[float]]()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        try:
            warm = PictureFolder(task.scratch / "warm-pictures", task.data)
            warm.require(_WARM)
            _Pair(warm, task.scratch / "warm", session, instance).bring_up_to_date(is_graph_first=False)
            for number in range(_ROUNDS):
                pair = _Pair(pictures, task.scratch / f"round-{number}", session, instance)
                for name, value in pair.measure(task.samples + number * NEW_FILES, bool(number % 2)).items():
                    found.setdefault(name, []).append(value)
        finally:
            session.stop()
    return {name: statistics.median(values) for name, values in found.items()}


class _Pair:
    """A data set that both ways bring up to date, each below a folder of its own."""

    def __init__(
        self, pictures: PictureFolder, root: Path, session: "SparkSession", instance: "dg.DagsterInstance"
    ) -> None:
        from benchmarks.graph.declared import PlainCalls, declare, graph_job

        self._pictures, self._session, self._instance, self._whole = pictures, session, instance, root / "whole"
        self._plain = PlainCalls(pictures.path, root / "plain", declare(pictures.path))
        self._job = graph_job(pictures.path, root / "graph")

    def measure(self, first_new: int, is_graph_first: bool) -> Figures:
        """Return seconds and ratios of all stages, for each of the three states of the folder."""
        figures: Figures = {}
        for state in ("first", "new", "same"):
            if state == "new":
                self._pictures.add(first_new, NEW_FILES)
            seconds = self.bring_up_to_date(is_graph_first=is_graph_first)
            figures |= {f"{state}_{name}_s": value for name, value in seconds.items()}
            for stage in STAGES:
                graph = seconds[stage] + seconds.get(f"{stage}_checks", 0.0)
                figures[f"{state}_{stage}_ratio"] = graph / seconds[f"{stage}_plain"]
        return figures | {"to_mds_s": self._plain.write_whole(self._session, self._whole)}

    def bring_up_to_date(self, *, is_graph_first: bool) -> Figures:
        """Return the seconds of each stage and its checks in the graph, and of its plain call."""
        ways = [self._run_plain, self._run_graph]
        return {name: value for way in (ways[::-1] if is_graph_first else ways) for name, value in way().items()}

    def _run_plain(self) -> Figures:
        return {f"{name}_plain": value for name, value in self._plain.run(self._session).items()}

    def _run_graph(self) -> Figures:
        from benchmarks.graph.timeline import parts_of

        done = self._job.execute_in_process(instance=self._instance)
        parts = parts_of(self._instance.all_logs(done.run_id), begin=0.0)
        return {name: value for name, value in parts.items() if name.startswith(STAGES)}
