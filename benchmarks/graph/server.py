"""A live `dagster dev` of this code location: webserver, daemon and code server, as `make ui` starts them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster_graphql import DagsterGraphQLClient

from benchmarks.environment import ROOT
from pipelines.home import prepare_home

JOB, LOCATION = "flowers_reshard_job", "smalti"
_START_SECONDS, _RUN_SECONDS, _POLL_SECONDS = 120.0, 600.0, 0.5


@contextlib.contextmanager
def live_graph(folder: Path, pictures: Path) -> Iterator["LiveGraph"]:
    """Serve the code location with the data set `flowers` of these pictures; records and data lie in `folder`."""
    home, port = folder / "home", _free_port()
    prepare_home(home)
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port), "-w", "workspace.yaml"]
    variables = {"DAGSTER_HOME": str(home), "SMALTI_ROOT": str(folder / "data"), "FLOWERS_URL": str(pictures)}
    quiet = {"SMALTI_STAGE": "local", "DAGSTER_DISABLE_TELEMETRY": "1"}
    with (folder / "dagster-dev.txt").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables, **quiet}, stdout=log, stderr=log)
        try:
            _wait_until_loaded(port, server)
            with dg.DagsterInstance.from_config(str(home)) as instance:
                yield LiveGraph(DagsterGraphQLClient("127.0.0.1", port_number=port), instance)
        finally:
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)


class LiveGraph:
    """The served code location, and the instance that it records in."""

    def __init__(self, client: DagsterGraphQLClient, instance: dg.DagsterInstance) -> None:
        self._client, self._instance = client, instance

    def launch(self) -> tuple[float, list[dg.EventLogEntry]]:
        """Launch a run and wait for its end; return when it was launched, and its events.

        Raises:
            RuntimeError: It did not succeed.
        """
        begin = time.time()
        run_id = self._client.submit_job_execution(JOB, repository_location_name=LOCATION)
        while not (run := self._run(run_id)).is_finished:
            if time.time() > begin + _RUN_SECONDS:
                raise RuntimeError(f"run {run_id} is {run.status.value} after {_RUN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        if not run.is_success:
            raise RuntimeError(f"run {run_id} ended as {run.status.value}")
        return begin, list(self._instance.all_logs(run_id))

    def _run(self, run_id: str) -> dg.DagsterRun:
        run = self._instance.get_run_by_id(run_id)
        if run is None:
            raise RuntimeError(f"run {run_id} is not recorded")
        return run


def _wait_until_loaded(port: int, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5).close()
            return
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"dagster dev does not answer at port {port}: see dagster-dev.txt")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
