"""Time and memory of the stages, as metadata of their materialisations."""

import subprocess
import sys
import time

import dagster as dg

from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.runs.usage import Usage, sampled_usage
from smalti_dagster.stage import stage_op
from tests.code_location.live_deployment import wait_until

MB_OF_CHILD = 60
CHILD = f"x = bytearray({MB_OF_CHILD} << 20); print(flush=True); input()"


def test_memory_counts_processes_that_were_started_and_their_peak_stays() -> None:
    usage = Usage()
    before = usage.take()["peak_memory_mb"]
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        usage.sample()
        child.communicate(b"\n", timeout=500)
    assert MB_OF_CHILD <= usage.take()["peak_memory_mb"] - before < MB_OF_CHILD + 50
    assert usage.take()["peak_memory_mb"] - before < MB_OF_CHILD


def test_memory_is_sampled_while_the_body_runs() -> None:
    with sampled_usage(0.05) as usage:
        with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert wait_until(lambda: usage._peak > MB_OF_CHILD * 2**20, 60), "it is sampled without being asked"
            child.communicate(b"\n", timeout=500)
        assert usage.take()["peak_memory_mb"] > MB_OF_CHILD


class Options(dg.Config):
    """A field, because Dagster cannot read a class without any."""

    rows: int = 3


def test_each_materialisation_has_its_own_time_and_memory(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    took: list[float] = []
    specs = [dg.AssetSpec("first"), dg.AssetSpec("second"), dg.AssetSpec("third")]

    @stage_op("make", specs, [], config=Options, pool="spark")
    def make(context: dg.AssetExecutionContext, config: Options, storage: StorageResource) -> object:
        time.sleep(0.4)
        begin = time.monotonic()
        yield dg.MaterializeResult(asset_key="first")
        yield dg.MaterializeResult(asset_key="second", metadata={"rows": 3})
        took.append(time.monotonic() - begin)
        yield dg.MaterializeResult(asset_key="third", metadata={"seconds": 77.0})

    done = dg.materialize([make], instance=instance, resources={"smalti_storage": storage})
    said = [event.materialization.metadata for event in done.get_asset_materialization_events()]
    assert said[0]["seconds"].value >= 0.4
    assert said[1]["seconds"].value <= took[0] + 0.05, "rounded, and without the seconds of the first"
    assert said[1]["rows"].value == 3
    assert said[2]["seconds"].value == 77.0
    assert all(10 < each["peak_memory_mb"].value < 100_000 for each in said)


def test_an_event_of_a_run_that_is_over_is_not_recorded(instance: dg.DagsterInstance, storage: StorageResource) -> None:
    specs = [dg.AssetSpec("first"), dg.AssetSpec("second")]

    @stage_op("make", specs, [], config=Options, pool="spark")
    def make(context: dg.AssetExecutionContext, config: Options, storage: StorageResource) -> object:
        yield dg.MaterializeResult(asset_key="first")
        context.instance.report_run_canceled(context.run)
        yield dg.MaterializeResult(asset_key="second")

    done = dg.materialize([make], instance=instance, resources={"smalti_storage": storage}, raise_on_error=False)
    assert [event.asset_key.to_user_string() for event in done.get_asset_materialization_events()] == ["first"]
