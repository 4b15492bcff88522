"""Every process of a live deployment is killed in every phase of a run; what is left 15 seconds later is shown.

    python -m tests.nightly.kill_matrix [--only PART ...] [--phase PHASE ...] [--out FILE]

The deployment has the settings of deploy/sqlite. Parts that were killed are started again at once, as a supervisor
does; of a code server, the slots of a run are looked at a minute later. When the daemon or the webserver was killed the
run goes on; it is cancelled after the 15 seconds, and what is left another 15 seconds later is what counts. Temporary
folders of a process that gets SIGKILL itself do not count.
"""

import argparse
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from tests.code_location.live_deployment import PARTS, LiveDeployment, deployed, half_published, kill, wait_until

SECONDS = 15.0
"""After which nothing may be left."""
ANSWER_SECONDS = 60.0
"""After which a run of a killed code server has failed and its slots are free: that server has to answer again."""
PHASES = ("raw", "prepared", "shards", "checks", "training")
KILLED = ("run worker", "step", "Java or rank", *PARTS, "everything", "cancel", "cancel by force")
JAVA_WORKS = ("shards", "training")
GOES_ON = ("daemon", "webserver")
ENDS_BY_ITSELF = (*GOES_ON, "cancel")
KILLS_JAVA = ("everything", "Java or rank")
FOLDER_OF_STEP = ("smalti-shard-",)
FOLDERS_OF_JAVA = ("artifacts-", "blockmgr-", "spark-", "liblz4-java")


@dataclass
class Case:
    """One kill: the process, the phase, and the traces that were left."""

    killed: str
    phase: str
    status: str = ""
    gone_after: float = 0.0
    """Seconds until nothing was left; 15 or more if something was."""
    processes: list[str] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    temporary: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Events of steps after the run's end."""
    note: str = ""

    @property
    def is_clean(self) -> bool:
        left = (self.processes, any(self.slots.values()), self.temporary, self.half, self.late, self.note)
        return not any(left)

    def row(self) -> str:
        java = sum("java" in command for command in self.processes)
        held = ", ".join(f"{pool} {count}" for pool, count in self.slots.items() if count) or "0"
        cells = (
            self.killed,
            self.phase,
            self.status,
            f"{self.gone_after:.1f} s",
            str(len(self.processes) - java),
            str(java),
            held,
            str(len(self.temporary)),
            str(len(self.half)),
            "; ".join(self.late) or "0",
            self.note,
        )
        return f"| {' | '.join(cells)} |"


COLUMNS = (
    "killed",
    "in phase",
    "the run",
    "nothing left after",
    "processes",
    "JVMs",
    "pool slots",
    "temporary folders",
    "half versions",
    "events after the end",
    "note",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|"


def reach(made: LiveDeployment, phase: str) -> str:
    """Launch a run, and return its id when it is in a phase."""
    tags = {"dagster/max_retries": "0"}  # what is left is of this run
    if phase == "training":
        before = trained(made.root)
        config = {"ops": {"squares__model": {"config": {"version": 1}}}}
        run_id = made.launch("squares_train_job", config, **tags)
        assert wait_until(lambda: trained(made.root) - before, 120), made.log("code server")
        return run_id
    steps = [step for step in PHASES[: PHASES.index(phase) + 1] if step != "checks"]
    made.hold(steps[0])
    config = {"ops": {"held__data": {"config": {"shards": {"rewrite": True}}}}}
    run_id = made.launch("held_reshard_job", config, **tags)
    for step in steps:
        made.hold(step)
        assert wait_until(functools.partial(made.has_reached, step), 120), (step, made.log("code server"))
    if phase == "checks":
        made.hold("nothing")
        assert wait_until(lambda: has_published(made, run_id), 90), made.log("code server")
    return run_id


def trained(root: Path) -> set[Path]:
    """Return the logs of trainings that have taken a step."""
    return {path for path in root.glob("runs/*/*/metrics.jsonl") if '"event":"step"' in path.read_text()}


def has_published(made: LiveDeployment, run_id: str) -> bool:
    """Return whether a run has materialised its shards; their checks come next."""
    event = made.instance.get_latest_materialization_event(dg.AssetKey(["held", "shards"]))
    return event is not None and event.run_id == run_id


def hit(made: LiveDeployment, killed: str, run_id: str) -> None:
    """Kill, or cancel; parts are started again."""
    if killed == "run worker":
        kill(made.worker_of(run_id))
    elif killed == "step":
        kill(made.step_of(run_id))
    elif killed == "Java or rank":
        names = ("SparkSubmit", "smalti.torch.train.launchers.processes")
        kill(next(pid for pid, command in made.of_runs().items() if any(name in command for name in names)))
    elif killed == "everything":
        kill(*(part.pid for part in made.parts.values()), *made.of_runs())
        for part in PARTS:
            made.parts[part].wait(timeout=10)
            made.start(part)
    elif killed in PARTS:
        made.kill(killed)
        made.start(killed)
    else:
        made.terminate(run_id, by_force=killed == "cancel by force")


def observe(made: LiveDeployment, case: Case, run_id: str) -> None:
    """Wait until nothing of a run is left, or the time is over, and write down what is left."""
    begin, ended = time.monotonic(), [0.0]

    def status() -> dg.DagsterRunStatus:
        run = made.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status

    def is_clean() -> bool:
        run = made.instance.get_run_by_id(run_id)
        return run is not None and run.is_finished and not made.of_runs() and not any(made.slots().values())

    limit = ANSWER_SECONDS if case.killed in ("code server", "everything") else SECONDS
    wait_until(lambda: not made.of_runs(), SECONDS)
    case.processes = list(made.of_runs().values())
    if wait_until(is_clean, limit - (time.monotonic() - begin)):
        ended[0] = time.monotonic() - begin
    case.gone_after = ended[0] or limit
    case.slots = made.slots()
    case.status = status().value
    case.half = half_published(made.root)
    case.temporary = sorted(path.name for path in made.temp.iterdir())
    if not ended[0] and not case.processes and not any(case.slots.values()):
        case.note = f"the run is {case.status}"


def settle(made: LiveDeployment, run_id: str) -> None:
    """End what a case has left, so that the next one begins with nothing."""
    kill(*made.of_runs())
    run = made.instance.get_run_by_id(run_id)
    if run is not None and not run.is_finished:
        made.instance.report_run_canceled(run)
    made.instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    for path in made.temp.iterdir():
        shutil.rmtree(path, ignore_errors=True)


def own_folders(killed: str) -> tuple[str, ...]:
    """Return how the names of the temporary folders begin whose own process gets SIGKILL, and cannot remove them."""
    of_step = () if killed in ENDS_BY_ITSELF else FOLDER_OF_STEP
    return (*of_step, *(FOLDERS_OF_JAVA if killed in KILLS_JAVA else ()))


def try_case(made: LiveDeployment, killed: str, phase: str) -> Case:
    """Reach the phase, kill, and look."""
    case = Case(killed, phase)
    at_rest = {path.name for path in made.temp.iterdir()}
    run_id = reach(made, phase)
    hit(made, killed, run_id)
    if killed in GOES_ON:
        time.sleep(SECONDS)
        run = made.instance.get_run_by_id(run_id)
        finishes = phase == "checks"  # nothing holds it there
        wanted = {dg.DagsterRunStatus.SUCCESS} if finishes else {dg.DagsterRunStatus.STARTED}
        if run is None or run.status not in wanted:
            case.note = f"the run did not go on: {run.status.value if run else 'deleted'}"
        elif not finishes:
            made.terminate(run_id)
    observe(made, case, run_id)
    allowed = own_folders(killed)
    case.temporary = [name for name in case.temporary if name not in at_rest and not name.startswith(allowed)]
    made.hold("nothing")  # a step that lives on would go on now, and record
    time.sleep(1.0)
    case.late = made.after_the_end(run_id)
    settle(made, run_id)
    return case


def matrix(folder: Path, killed: Any = KILLED, phases: Any = PHASES) -> Iterator[Case]:
    """Try all cases on one deployment."""
    with deployed(folder) as made:
        for phase in phases:
            for each in killed:
                if each == "Java or rank" and phase not in JAVA_WORKS:
                    continue  # the step is in Python code there, and finds out when it calls Spark again
                try:
                    yield try_case(made, each, phase)
                except AssertionError as error:
                    yield Case(each, phase, note=f"not tried: {str(error)[-300:]!r}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=KILLED)
    parser.add_argument("--phase", nargs="*", default=PHASES)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    out = open(options.out, "a") if options.out else sys.stdout  # noqa: SIM115
    print(HEAD, file=out, flush=True)
    with tempfile.TemporaryDirectory(prefix="smalti-matrix-") as folder:
        for case in matrix(Path(folder), options.only, options.phase):
            print(case.row(), file=out, flush=True)
            for line in (*case.processes, *case.temporary, *case.half):
                print(f"  left: {line[:200]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
