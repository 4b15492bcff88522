"""Runs whose code server or worker is killed are started again by a live daemon, and succeed."""

import time

import dagster as dg
import pytest

from smalti.catalog import load_manifest
from smalti.storage import open_store
from smalti_dagster.runs.process import process_here
from tests.code_location.live_deployment import PARTS, deployed, kill, wait_until
from tests.nightly.kill_matrix import trained

SECONDS = 120.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [("code server",), PARTS])
@pytest.mark.parametrize("down_seconds", [0.0, 20.0])
def test_a_run_is_started_again_when_its_code_server_is_there_again(tmp_path, killed, down_seconds):
    with deployed(tmp_path) as made:
        made.hold("waiting")
        first = made.launch("waiting_job")
        assert wait_until(lambda: made.has_reached("waiting"), SECONDS), made.log("code server")
        for part in killed:
            made.kill(part)
        if killed == PARTS:
            kill(*made.of_runs())
        time.sleep(down_seconds)
        made.hold("nothing")
        for part in killed:
            made.start(part)

        def again():
            return [run for run in made.instance.get_runs() if run.parent_run_id == first and run.is_success]

        begin = time.monotonic()
        assert wait_until(again, SECONDS), ([run.status for run in made.instance.get_runs()], made.log("daemon"))
        print(f"{killed} {down_seconds}: succeeded {time.monotonic() - begin:.1f} s after the start")
        assert made.instance.get_run_by_id(first).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.timeout(600)
def test_a_training_whose_worker_is_killed_before_its_step_begins_is_started_again_and_trains(tmp_path):
    with deployed(tmp_path) as made:
        manifest = load_manifest(open_store(made.root / "squares" / "shards"))
        facts = {"version": manifest.version, "digest": manifest.digest}
        made.instance.report_runless_asset_event(dg.AssetMaterialization(["squares", "shards"], metadata=facts))
        first = made.launch("squares_train_job")

        def worker():
            run = made.instance.get_run_by_id(first)
            return process_here(run) if run is not None else None

        assert wait_until(worker, SECONDS), made.log("code server")
        kill(worker().number)
        assert not made.instance.all_logs(first, of_type=dg.DagsterEventType.STEP_START)
        assert wait_until(lambda: trained(made.root), SECONDS), [run.status for run in made.instance.get_runs()]
        [again] = [run for run in made.instance.get_runs() if run.parent_run_id == first]
        assert again.status is dg.DagsterRunStatus.STARTED
