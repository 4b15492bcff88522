"""A deployment of real processes, each of which can be killed and started again: code server, daemon, webserver.

All processes have a mark in their environment, by which what a run leaves behind is found.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from pipelines.home import REPOSITORY
from smalti_dagster.runs.process import PROCESS_TAG
from tests.storage.servers.process import free_port
from tests.torch.train.conftest import publish_squares

LOCATION = "held"
TOOLS = Path(sys.executable).parent
PARTS = ("code server", "daemon", "webserver")
_LAUNCH = """mutation($selector: JobOrPipelineSelector!, $config: RunConfigData, $tags: [ExecutionTag!]) {
  launchRun(executionParams: {selector: $selector, runConfigData: $config, executionMetadata: {tags: $tags}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_TERMINATE = """mutation($run: String!, $policy: TerminateRunPolicy!) {
  terminateRun(runId: $run, terminatePolicy: $policy) { __typename ... on TerminateRunFailure { message }
    ... on PythonError { message } } }"""


def wait_until(check: Callable[[], Any], seconds: float) -> Any:
    """Return what the check returned at last: something true, or something false when the time was over."""
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def processes_with(mark: str) -> dict[int, str]:
    """The processes whose environment holds the mark, by id, with their command lines."""
    found = {int(entry.name): _command_of(entry, mark) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {process: command for process, command in found.items() if command is not None}


def _command_of(process: Path, mark: str) -> str | None:
    try:
        if mark.encode() not in (process / "environ").read_bytes():
            return None
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return None


def kill(*processes: int) -> None:
    """SIGKILL, as the kernel does when memory runs out."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class LiveDeployment:
    """The processes of a deployment, its folders, and its instance."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], module: str, **environment: str) -> None:
        self.folder, self.module, self.mark = folder, module, uuid.uuid4().hex
        self.home, self.root, self.temp = folder / "home", folder / "root", folder / "temp"
        for each in (self.home, self.root, self.temp):
            each.mkdir()
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(dict(settings)))
        self.code_port, self.web_port = free_port(), free_port()
        server = {"host": "127.0.0.1", "port": self.code_port, "location_name": LOCATION}
        self.workspace = folder / "workspace.yaml"
        self.workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        self.environment = {
            **os.environ,
            "SMALTI_TEST_MARK": self.mark,
            "DAGSTER_HOME": str(self.home),
            "SMALTI_STAGE": "local",
            "SMALTI_ROOT": str(self.root),
            "SMALTI_SPARK_MASTER": "local[1]",
            "TMPDIR": str(self.temp),
            "SPARK_LOCAL_DIRS": str(self.temp),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),  # of all processes, and meant to stay
            "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={self.temp}",
            **environment,
        }
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.instance = dg.DagsterInstance.from_config(str(self.home))

    def start(self, part: str) -> None:
        """Start a part; it answers a few seconds later."""
        place = ["-h", "127.0.0.1", "-p"]
        commands = {
            "code server": ["dagster", "api", "grpc", *place, str(self.code_port), "-m", self.module],
            "daemon": ["dagster-daemon", "run", "-w", str(self.workspace)],
            "webserver": ["dagster-webserver", *place, str(self.web_port), "-w", str(self.workspace)],
        }
        command = [str(TOOLS / commands[part][0]), *commands[part][1:]]
        if part == "code server":
            command += ["-a", "defs", "-d", str(REPOSITORY)]
        with (self.folder / f"{part}.log").open("ab") as log:
            self.parts[part] = subprocess.Popen(
                command, cwd=REPOSITORY, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, part: str) -> None:
        """SIGKILL."""
        self.parts[part].kill()
        self.parts[part].wait(timeout=500)

    def log(self, part: str) -> str:
        return (self.folder / f"{part}.log").read_text()[-4000:]

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the answer of the webserver; None while it does not answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}/graphql", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def launch(self, job: str, config: Mapping[str, Any] | None = None, **tags: str) -> str:
        """Launch a run by the webserver; return its id."""
        selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", "jobName": job}
        pairs = [{"key": key, "value": value} for key, value in tags.items()]

        def launched() -> Any:
            answer = self.ask(_LAUNCH, selector=selector, config=config or {}, tags=pairs) or {}
            return (answer.get("launchRun") or {}).get("run")

        found = wait_until(launched, 180)
        assert found, self.ask(_LAUNCH, selector=selector, config=config or {}, tags=pairs)
        return str(found["runId"])

    def terminate(self, run_id: str, *, by_force: bool = False) -> None:
        """Cancel a run as the UI does."""
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if by_force else "SAFE_TERMINATE"
        answer = wait_until(lambda: self.ask(_TERMINATE, run=run_id, policy=policy), 120)
        assert answer["terminateRun"]["__typename"] == "TerminateRunSuccess", answer

    def hold(self, phase: str) -> None:
        """Let the steps go on to this phase, and stop there."""
        (self.root / "reached" / phase).unlink(missing_ok=True)
        (self.root / "hold.new").write_text(phase)
        (self.root / "hold.new").rename(self.root / "hold")

    def has_reached(self, phase: str) -> bool:
        return (self.root / "reached" / phase).exists()

    def of_runs(self) -> dict[int, str]:
        """The processes of runs, by id: all but the parts, and the trackers that multiprocessing starts for them."""
        own = {part.pid for part in self.parts.values()}
        found = processes_with(self.mark)
        trackers = {pid for pid, command in found.items() if "resource_tracker" in command and _parent(pid) in own}
        return {pid: command for pid, command in found.items() if pid not in own | trackers}

    def slots(self) -> dict[str, int]:
        """Return the number of claimed slots of each pool."""
        storage = self.instance.event_log_storage
        return {pool: storage.get_concurrency_info(pool).active_slot_count for pool in ("spark", "training")}

    def worker_of(self, run_id: str) -> int:
        """Return the process id of a run's worker."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return int(run.tags[PROCESS_TAG].split()[0])

    def step_of(self, run_id: str) -> int:
        """Return the process id of the run's newest step."""
        started = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
        data: Any = started[-1].dagster_event.event_specific_data  # type: ignore[union-attr]
        return int(data.metadata["pid"].value)

    def after_the_end(self, run_id: str) -> list[str]:
        """Return the events of steps that were recorded after the run's first end, and states that it got later."""
        ends = {dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED, dg.DagsterEventType.RUN_SUCCESS}
        late: list[str] = []
        is_over = False
        for entry in self.instance.all_logs(run_id):
            kind = entry.dagster_event_type
            if is_over and (entry.step_key is not None or kind in ends):
                late.append(f"{kind.value if kind else entry.user_message} of {entry.step_key or 'the run'}")
            is_over = is_over or kind in ends
        return late

    def close(self) -> None:
        self.instance.dispose()
        for part in self.parts.values():
            part.kill()
        kill(*processes_with(self.mark))
        for part in self.parts.values():
            part.wait(timeout=500)


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def shipped_settings() -> dict[str, Any]:
    """The settings of deploy/sqlite."""
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy/sqlite/dagster.yaml").read_text())
    return found


@contextmanager
def deployed(
    folder: Path,
    *parts: str,
    settings: Mapping[str, Any] | None = None,
    module: str = "tests.code_location.held_sets",
    **environment: str,
) -> Iterator[LiveDeployment]:
    """A running deployment with a shard set to train on."""
    made = LiveDeployment(folder, settings or shipped_settings(), module, **environment)
    metadata = {"classes": ["red", "green", "blue"], "counts": {"train": {}}, "image_size": 24}
    publish_squares(made.root / "squares" / "shards", metadata=metadata)
    made.hold("nothing")
    try:
        for part in parts or PARTS:
            made.start(part)
        yield made
    finally:
        made.close()


def half_published(root: Path) -> list[str]:
    """Return the versions below a root that do not verify, and names that are not of their newest version."""
    from smalti.catalog import verify
    from smalti.errors import SmaltiError

    places = (root / "held" / "shards", root / "squares" / "shards")
    headers = [header for place in places for header in sorted((place / "_versions").glob("*.json"))]

    def problems_of(header: Path) -> list[str]:
        try:
            found = verify(header.parents[1], version=int(header.stem)).problems
        except (SmaltiError, ValueError) as error:
            return [f"{header}: {error}"]
        return [f"{header}: {problem}" for problem in found]

    return [problem for header in headers for problem in problems_of(header)]
