"""Runs of the Databricks Jobs API: submitted once, looked at, cancelled; and what a state means."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smalti.redaction import redact
from smalti.storage.databricks.workspace import Workspace
from smalti.storage.redact import detect_secrets

_RUNS = "/api/2.2/jobs/runs"
_OVER = frozenset({"TERMINATED", "SKIPPED", "INTERNAL_ERROR"})
_WAITING = frozenset({"PENDING", "QUEUED", "BLOCKED", "WAITING_FOR_RETRY"})


@dataclass(frozen=True)
class JobRun:
    """A run of a job as the workspace describes it."""

    number: int
    phase: str
    """PENDING, RUNNING, TERMINATING, TERMINATED, SKIPPED, INTERNAL_ERROR, QUEUED, BLOCKED, WAITING_FOR_RETRY."""
    result: str = ""
    """SUCCESS, FAILED, CANCELED, TIMEDOUT and others; empty before the end."""
    message: str = ""
    code: str = ""
    """Code of its end, such as CLUSTER_ERROR or RUN_EXECUTION_ERROR; older workspaces have none."""
    page: str = ""
    """Address of the run's page."""
    task: int | None = None
    """Number of the run of its only task, of which the output can be asked for."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing runs any more."""
        return self.phase in _OVER

    @property
    def is_waiting(self) -> bool:
        """Return whether the run has no cluster yet."""
        return self.phase in _WAITING

    @property
    def is_successful(self) -> bool:
        """Return whether the run ended well."""
        return self.phase == "TERMINATED" and self.result == "SUCCESS"


class Jobs:
    """Requests about runs of jobs. The SDK repeats requests that were throttled or refused for a moment.

    Every error is an `OSError`.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def submit(self, run: Mapping[str, Any], *, token: str) -> int:
        """Start a run, and return its number; one that was sent twice with the same `token` is started once."""
        answer = self._ask("POST", "submit", body={**run, "idempotency_token": token})
        return int(answer["run_id"])

    def look(self, number: int) -> JobRun:
        """Return a run as it is now."""
        return _parse(self._ask("GET", "get", query={"run_id": number}))

    def cancel(self, number: int) -> None:
        """Ask for the end of a run; it is over some time later."""
        self._ask("POST", "cancel", body={"run_id": number})

    def error_text(self, run: JobRun) -> str:
        """Return the error and the traceback of the run's task, as far as the workspace has them."""
        if run.task is None:
            return ""
        with contextlib.suppress(OSError):
            output = self._ask("GET", "get-output", query={"run_id": run.task})
            parts = [output.get("error"), output.get("error_trace")]
            return clean("\n".join(str(part) for part in parts if part))
        return ""

    def _ask(self, method: str, call: str, **arguments: Any) -> Any:
        headers = {"Accept": "application/json"}
        return self._workspace.request(method, f"{_RUNS}/{call}", f"jobs/runs/{call}", headers=headers, **arguments)


def clean(text: str) -> str:
    """Return a text of the workspace without secrets."""
    return redact(text.strip(), detect_secrets())


def describe_end(run: JobRun, *, has_started: bool) -> str:
    """Say how a run ended that was not successful."""
    said = f": {run.message}" if run.message else ""
    if run.result == "CANCELED":
        return f"was cancelled on Databricks{said}"
    if run.result == "TIMEDOUT":
        return f"took longer than its time limit, and was ended by Databricks{said}"
    if run.phase == "SKIPPED" or run.result in {"EXCLUDED", "DISABLED", "MAXIMUM_CONCURRENT_RUNS_REACHED"}:
        return f"was not started by Databricks ({run.result or run.phase}){said}"
    if "CLUSTER" in run.code or "CLOUD" in run.code or (run.phase == "INTERNAL_ERROR" and not has_started):
        return f"got no cluster ({run.code or run.phase}){said}"
    if "LIBRARY" in run.code:
        return f"could not install the code or its requirements on the cluster ({run.code}){said}"
    return f"failed on Databricks ({run.code or run.result or run.phase}){said}"


def _parse(answer: Mapping[str, Any]) -> JobRun:
    state = answer.get("state") or {}
    ended = (answer.get("status") or {}).get("termination_details") or {}
    tasks = answer.get("tasks") or ()
    return JobRun(
        number=int(answer["run_id"]),
        phase=state.get("life_cycle_state") or "",
        result=state.get("result_state") or "",
        message=clean(state.get("state_message") or ended.get("message") or ""),
        code=ended.get("code") or "",
        page=answer.get("run_page_url") or "",
        task=int(tasks[0]["run_id"]) if tasks else None,
    )
