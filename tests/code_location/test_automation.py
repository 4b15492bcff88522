"""The source that automation keeps, whatever becomes of the runs and of the cursor."""

import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import SensorInstigatorData

from assets.automation import keeping_another, kept_source
from pipelines.jobs import RESHARD_ASSETS
from pipelines.repeat import last_config
from pipelines.sensors import build_reshard_sensor
from tests.code_location.events import materialise, new_run, switch_on

NIGHTLY, RESHARD = "nightly_reshard_schedule", "reshard_on_new_images_sensor"


@pytest.fixture
def stored_instance() -> Iterator[dg.DagsterInstance]:
    """One in a folder, which keeps what is switched on."""
    with dg.instance_for_test() as made:
        yield made


def read(instance: dg.DagsterInstance, source: str) -> dg.DagsterRun:
    """A run that read a source."""
    run = new_run(instance, config={"raw_images": {"source": source}})
    materialise(instance, "raw_images", {"source": source, "folder": source, "digest": "d"}, run)
    return run


def set_cursor(instance: dg.DagsterInstance, name: str) -> None:
    """What the UI does when a person sets or resets a sensor's cursor: the time of its start is lost."""
    [state] = [state for state in instance.all_instigator_state() if state.instigator_name == name]
    instance.update_instigator_state(state.with_data(SensorInstigatorData(cursor="")))


@pytest.mark.parametrize("name", [NIGHTLY, RESHARD])
def test_the_source_is_kept_when_the_run_that_read_it_is_deleted(
    stored_instance: dg.DagsterInstance, name: str
) -> None:
    """The one before it drew flowers."""
    read(stored_instance, "drawn flowers")
    run = read(stored_instance, "/photos")
    switch_on(stored_instance, name, time.time())
    assert kept_source(stored_instance, name) == "/photos"
    read(stored_instance, "/photos")
    stored_instance.delete_run(run.run_id)
    assert kept_source(stored_instance, name) == "/photos"


def test_a_manual_run_is_enough_to_note_which_source_is_kept(stored_instance: dg.DagsterInstance) -> None:
    """The schedule is evaluated once a day only."""
    run = read(stored_instance, "/photos")
    switch_on(stored_instance, NIGHTLY, time.time())
    assert keeping_another(stored_instance, "/other") == {NIGHTLY: "/photos"}
    read(stored_instance, "/other")
    stored_instance.delete_run(run.run_id)
    assert kept_source(stored_instance, NIGHTLY) == "/photos"


def test_the_source_is_kept_when_the_cursor_of_the_sensor_is_set(stored_instance: dg.DagsterInstance) -> None:
    read(stored_instance, "/photos")
    switch_on(stored_instance, RESHARD, time.time())
    assert keeping_another(stored_instance, "/other") == {RESHARD: "/photos"}
    read(stored_instance, "/other")
    set_cursor(stored_instance, RESHARD)
    assert kept_source(stored_instance, RESHARD) == "/photos"
    assert keeping_another(stored_instance, "/other") == {RESHARD: "/photos"}


def test_switching_off_and_on_again_follows_the_source_that_was_read_last(stored_instance: dg.DagsterInstance) -> None:
    read(stored_instance, "/photos")
    switch_on(stored_instance, RESHARD, time.time())
    assert kept_source(stored_instance, RESHARD) == "/photos"
    read(stored_instance, "/other")
    [state] = [state for state in stored_instance.all_instigator_state() if state.instigator_name == RESHARD]
    again: Any = SensorInstigatorData(last_sensor_start_timestamp=time.time())
    stored_instance.update_instigator_state(state.with_data(again))
    assert kept_source(stored_instance, RESHARD) == "/other"


def test_a_kept_source_of_which_no_materialisation_is_left_is_not_replaced_by_drawn_flowers(
    stored_instance: dg.DagsterInstance,
) -> None:
    """A run without a configuration draws them."""
    read(stored_instance, "/photos")
    switch_on(stored_instance, RESHARD, time.time())
    assert kept_source(stored_instance, RESHARD) == "/photos"
    stored_instance.wipe_assets([dg.AssetKey("raw_images")])
    with pytest.raises(LookupError, match="launch a run of it by hand once"):
        last_config(stored_instance, RESHARD_ASSETS, "/photos")
    with (
        dg.build_sensor_context(instance=stored_instance, resources={"storage": None}) as context,
        pytest.raises(LookupError, match="no materialisation of raw_images from /photos is left"),
    ):
        build_reshard_sensor().evaluate_tick(context)
