"""The watch sensor beside a real daemon that is killed by SIGKILL: exactly one run for each change (J1, J2, J10)."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest

from pipelines.home import REPOSITORY

SECONDS = 120
TOOLS = Path(sys.executable).parent
WORKSPACE = (
    "load_from: [{python_module: {module_name: tests.nightly.watched_location, "
    f"working_directory: '{REPOSITORY}', location_name: here}}}}]"
)
SETTINGS = "telemetry: {enabled: false}\nrun_monitoring: {enabled: true, poll_interval_seconds: 5}\n"
POINTS = ["TICK_CREATED", "TICK_HELD", "RUN_IDS_RESERVED", "RUN_CREATED", "RUN_LAUNCHED"]


class Deployment:
    """A home, a folder that is watched, and daemons that come and go."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "photos"
        self.started: list[int] = []
        self.instance = dg.DagsterInstance.from_config(str(home))

    def change(self, number: int) -> None:
        (self.folder / "roses").mkdir(parents=True, exist_ok=True)
        (self.folder / "roses" / f"{number}.jpg").write_text(f"{number}")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / "daemon.log").open("ab") as log:
            process = subprocess.Popen(arguments, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
        self.started.append(process.pid)
        return process

    def stop(self) -> None:
        """Kill everything that was started and still lives: each is a group of its own."""
        for pid in self.started:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    @contextmanager
    def daemon(self):
        """A daemon that is killed by SIGKILL at the end; its code server and the runs live on for a while."""
        process = self.start(str(TOOLS / "dagster-daemon"), "run", "-w", str(self.home / "workspace.yaml"))
        try:
            yield
        finally:
            process.kill()
            process.wait(30)

    def runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs())

    def read(self) -> int:
        """The number of images that the newest run has read."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(["watched", "raw"]))
        return event.asset_materialization.metadata["images"].value if event is not None else 0

    def wait_for(self, condition) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, (self.home / "daemon.log").read_text()[-3000:]
            time.sleep(0.05)

    def settle(self, images: int) -> None:
        """Let a daemon live until everything is read, and then for three ticks more."""
        with self.daemon():
            self.wait_for(lambda: self.read() == images and all(run.is_finished for run in self.runs()))
            ticks = self.ticks()
            self.wait_for(lambda: self.ticks() >= ticks + 3)

    def ticks(self) -> int:
        [state] = self.instance.all_instigator_state()
        return len(self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=10_000))


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    (tmp_path / "dagster.yaml").write_text(SETTINGS)
    (tmp_path / "workspace.yaml").write_text(WORKSPACE)
    for name, value in {
        "DAGSTER_HOME": tmp_path,
        "WATCHED_FOLDER": tmp_path / "photos",
        "SMALTI_ROOT": tmp_path / "data",
        "DAGSTER_DISABLE_TELEMETRY": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    made = Deployment(tmp_path)
    made.change(0)
    start = [TOOLS / "dagster", "sensor", "start", "watched_watch_sensor", "-w", tmp_path / "workspace.yaml"]
    subprocess.run(start, cwd=REPOSITORY, check=True, capture_output=True, timeout=SECONDS)
    yield made
    made.stop()
    made.instance.dispose()


def test_j1_a_daemon_that_is_killed_at_each_point_of_a_tick_starts_one_run_for_each_change(deployment):
    for number, point in enumerate(POINTS, 1):
        deployment.change(number)
        time.sleep(1.5)
        killed = deployment.start(sys.executable, "-m", "tests.nightly.killed_tick", point)
        assert killed.wait(SECONDS) == -signal.SIGKILL, point
        deployment.settle(images=number + 1)
        assert len(deployment.runs()) == number, point
        print(f"killed at {point}: {number} changes, {len(deployment.runs())} runs")
    assert all(run.is_success for run in deployment.runs())


def test_j1_a_live_daemon_that_is_killed_again_and_again_starts_one_run_for_each_change(deployment):
    random.seed(17)
    kills = 0
    for number in range(1, 3):
        deployment.change(number)
        for _ in range(3):
            ticks, begun = deployment.ticks(), len(deployment.runs())
            with deployment.daemon():
                deployment.wait_for(lambda: deployment.ticks() > ticks + 1 or len(deployment.runs()) > begun)  # noqa: B023
                time.sleep(random.uniform(0, 3))
            kills += 1
        deployment.settle(images=number + 1)
        assert [run.is_success for run in deployment.runs()] == [True] * number
    print(f"{kills} kills, {len(deployment.runs())} runs, {deployment.ticks()} ticks")
