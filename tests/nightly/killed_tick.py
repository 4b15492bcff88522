"""A daemon that evaluates a sensor until it is killed by SIGKILL at a named point between two steps of a tick."""

import logging
import signal
import sys
import time

import dagster as dg
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.sensor import execute_sensor_iteration

SENSOR = "watched_watch_sensor"


def main(point: str) -> None:
    """Evaluate ticks for a minute at most; exits 0 if the point was never reached."""
    target = ModuleTarget("tests.nightly.watched_location", attribute=None, working_directory=".", location_name="here")
    end = time.monotonic() + 60
    with dg.DagsterInstance.get() as instance, create_test_daemon_workspace_context(target, instance) as context:
        while time.monotonic() < end:
            [state] = instance.all_instigator_state()
            cursor = getattr(state.instigator_data, "cursor", None) or '"seen": ""'
            is_waiting = '"seen": ""' not in cursor  # the next tick may request a run
            flags = {SENSOR: {point: signal.SIGKILL}} if is_waiting else None
            list(execute_sensor_iteration(context, logging.getLogger("tick"), None, None, debug_crash_flags=flags))
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
