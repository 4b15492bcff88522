"""The run launcher of a deployment: Dagster's default one, whose runs Dagster's own run monitoring can look after.

In `dagster.yaml`:

    run_launcher: {module: smalti_dagster.runs.launcher, class: MonitoredRunLauncher}

Intended behaviour, with `run_monitoring` enabled:
1. The daemon fails a started run whose process is gone, whatever has started it: a code server, or a command such as
   `dg launch`. `run_retries` then starts it again, and the daemon frees its places in the pools. Dagster's default
   launcher does not know whether a process lives.
2. A run of a code server has failed only once that server answers again: Dagster tries a retry a single time, and drops
   it if the server cannot be reached. The run must be found gone for a few seconds, in which the daemon loads the new
   server. Without an answer for a minute the run has failed, so that its places are free.
3. A process on the daemon's machine is found by the tags that the executor has given the run (`worker`). For a
   process on another machine, the code server that has started the run is asked.
4. *Terminate* ends a run whose process is gone, and interrupts one that a command on the same machine executes.
"""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg

# Not among Dagster's public names, though every launcher that can be monitored needs them.
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult

from smalti_dagster.runs.process import HOST_TAG, is_alive, process_here, this_host

_ASK_SECONDS = 5  # that a code server has for its answer


class MonitoredRunLauncher(dg.DefaultRunLauncher):
    """Dagster's default launcher, which also knows whether the process of a run lives.

    Args:
        inst_data: Data of the instance, from Dagster.
        settle_seconds: For so long a run must be found gone before it has failed.
        offline_seconds: The same while its code server does not answer.

    Examples:
        ```yaml
        # dagster.yaml
        run_launcher: {module: smalti_dagster.runs.launcher, class: MonitoredRunLauncher}
        run_monitoring: {enabled: true, poll_interval_seconds: 2}
        ```
    """

    def __init__(self, inst_data: Any = None, settle_seconds: float = 5.0, offline_seconds: float = 60.0) -> None:
        super().__init__(inst_data)
        self.settle_seconds, self.offline_seconds = settle_seconds, offline_seconds
        self._gone_since: dict[tuple[str, bool], float] = {}

    @classmethod
    def config_type(cls) -> Any:
        """Return the settings that may stand below `config` in `dagster.yaml`."""
        return {
            "settle_seconds": dg.Field(float, is_required=False),
            "offline_seconds": dg.Field(float, is_required=False),
        }

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "MonitoredRunLauncher":
        """Return a launcher with the settings of `dagster.yaml`."""
        return cls(inst_data, **config_value)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: `check_run_worker_health` can be asked."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return whether the process of a started run lives; NOT_FOUND if it is gone for good."""
        here = process_here(run)
        if here is not None and is_alive(here):
            return self._lives(run)
        is_known = self._is_known_to_server(run) if GRPC_INFO_TAG in run.tags else None
        is_offline = GRPC_INFO_TAG in run.tags and is_known is None
        if here is not None:
            why = f"process {here.number} of this machine, which has executed the run, is gone"
            return self._gone(run, why, is_offline=is_offline)
        if is_known is False:
            return self._gone(run, "the code server that has started the run does not execute it", is_offline=False)
        return self._lives(run)

    def terminate(self, run_id: str) -> bool:
        """Cancel a run; return whether it was cancelled, or its process was asked to end."""
        run = self._instance.get_run_by_id(run_id)
        here = process_here(run) if run is not None and not run.is_finished else None
        if run is None or here is None or (is_alive(here) and GRPC_INFO_TAG in run.tags):
            terminate: Any = super().terminate
            return bool(terminate(run_id))
        self._instance.report_run_canceling(run)
        if is_alive(here):
            os.kill(here.number, signal.SIGINT)
        else:
            self._instance.report_run_canceled(run, message="its process was gone")
        return True

    def _lives(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        for is_offline in (True, False):
            self._gone_since.pop((run.run_id, is_offline), None)
        return CheckRunHealthResult(WorkerStatus.RUNNING)

    def _gone(self, run: dg.DagsterRun, why: str, *, is_offline: bool) -> CheckRunHealthResult:
        """Return that a run's process is gone, if it was found so for long enough."""
        now = time.monotonic()
        since = self._gone_since.setdefault((run.run_id, is_offline), now)
        if now - since < (self.offline_seconds if is_offline else self.settle_seconds):
            return CheckRunHealthResult(WorkerStatus.RUNNING, msg=why)
        self._lives(run)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, msg=why)

    def _is_known_to_server(self, run: dg.DagsterRun) -> bool | None:
        """Return whether a run's code server executes it; None if it does not answer."""
        connect: Any = self._get_grpc_client_for_termination
        client = connect(run.run_id)
        if client is None:
            return None
        try:
            answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id), timeout=_ASK_SECONDS)
        except DagsterUserCodeUnreachableError:
            return None
        return bool(dg.deserialize_value(answer, CanCancelExecutionResult).can_cancel)


def cancel_dead_commands(instance: dg.DagsterInstance) -> list[str]:
    """Cancel the runs of commands of this machine that were killed, and free their places in pools; return their ids.

    The daemon finds them by `MonitoredRunLauncher`; this is for a command that runs without one, such as the demo.
    """
    begun = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    ours = dg.RunsFilter(tags={HOST_TAG: this_host()}, statuses=begun)
    dead = []
    for run in instance.get_runs(ours):
        process = process_here(run)
        if process is not None and run.remote_job_origin is None and not is_alive(process):
            instance.report_run_canceled(run, message="its process was gone")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            dead.append(run.run_id)
    return dead
