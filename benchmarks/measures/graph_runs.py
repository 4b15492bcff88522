"""Whole runs of a data set by a live daemon, from the launch to SUCCESS, on the default multiprocess executor."""

import statistics

from benchmarks.graph.pictures import PictureFolder
from benchmarks.measures.graph_stages import NEW_FILES
from benchmarks.task import Figures, Task

_REPEATS = 2


def measure_graph_runs(task: Task) -> Figures:
    """Time a first run, runs in which nothing changed, and runs after `NEW_FILES` were added; the median of two."""
    from benchmarks.graph.server import live_graph
    from benchmarks.graph.timeline import parts_of

    pictures = PictureFolder(task.work / "sets" / f"pictures-{task.samples}", task.data)
    pictures.require(task.samples)
    found: dict[str, list[float]] = {}
    with live_graph(task.scratch, pictures.path) as graph:

        def run(state: str) -> None:
            begin, events = graph.launch()
            parts = parts_of(events, begin)
            for name, value in {**parts, "run": sum(parts.values())}.items():
                found.setdefault(f"{state}_{name}_s", []).append(value)

        run("first")
        for number in range(_REPEATS):
            run("same")
            pictures.add(task.samples + number * NEW_FILES, NEW_FILES)
            run("new")
    return {name: statistics.median(values) for name, values in found.items()}
