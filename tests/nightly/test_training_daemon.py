"""Training and promotion beside a live daemon, code server and webserver: from a changed folder to a model in use."""

import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorState, InstigatorTick

from smalti.catalog.manifest import Header
from smalti.catalog.opening import find_newest
from smalti.storage import open_store
from smalti_dagster.lineage import TRAINS_TAG, VERSION_TAG, evaluations
from smalti_dagster.shard_tags import checked_version, promoted_model
from tests.code_location.graph import draw, draw_all
from tests.code_location.live_deployment import LOCATION, LiveDeployment, deployed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

SECONDS = 300
SENSORS = ("photos_watch_sensor", "photos_train_sensor")
_START = """mutation($sensor: SensorSelector!) {
  startSensor(sensorSelector: $sensor) { __typename ... on PythonError { message } } }"""
_STOP = """mutation($origin: String!, $selector: String!) {
  stopSensor(jobOriginId: $origin, jobSelectorId: $selector) { __typename ... on PythonError { message } } }"""


class Photos:
    """A watched folder of photos, and what a live deployment makes of it."""

    def __init__(self, made: LiveDeployment) -> None:
        self.made, self.folder, self.store = made, made.folder / "photos", open_store(made.root / "photos" / "shards")
        self.number = 100

    def wait_for(self, condition: Callable[[], object]) -> None:
        assert wait_until(condition, SECONDS), (self.reason(), self.made.log("daemon"), self.made.log("code server"))

    def switch_on(self, sensor: str) -> None:
        selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", "sensorName": sensor}

        before = len(self.ticks(sensor))

        def ticks_again() -> bool:  # the webserver answers before the code server does; a tick that ends may undo it
            self.made.ask(_START, sensor=selector)
            time.sleep(0.5)
            return len(self.ticks(sensor)) > before + 1

        self.wait_for(ticks_again)

    def switch_off(self, sensor: str) -> None:
        state = self._state(sensor)
        assert state is not None
        answer = self.made.ask(_STOP, origin=state.instigator_origin_id, selector=state.selector_id)
        assert answer["stopSensor"]["__typename"] == "StopSensorMutationResult", answer

    def _state(self, sensor: str) -> InstigatorState | None:
        return next((each for each in self.made.instance.all_instigator_state() if each.name == sensor), None)

    def ticks(self, sensor: str = "photos_train_sensor") -> list[InstigatorTick]:
        """The ticks of a sensor, newest first."""
        state = self._state(sensor)
        if state is None:
            return []
        return list(self.made.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=10_000))

    def reason(self) -> str:
        """The reason of the last tick that trained nothing."""
        return next((str(tick.skip_reason) for tick in self.ticks() if tick.skip_reason), "")

    def wait_for_ticks(self, count: int) -> None:
        before = len(self.ticks())
        self.wait_for(lambda: len(self.ticks()) >= before + count)

    def kill_daemon(self) -> None:
        """SIGKILL; another one starts at once, as a supervisor does it."""
        self.made.kill("daemon")
        self.made.start("daemon")

    def checked(self) -> Header | None:
        return checked_version(self.store)

    def newest(self) -> int:
        header = find_newest(self.store).header
        return header.version if header is not None else 0

    def publish(self) -> Header:
        """Add a photo, and return the version with it when its blocking checks have passed."""
        before, self.number = self.newest(), self.number + 1
        draw(self.folder, f"roses/{self.number}.jpg", number=self.number)
        return self.checked_after(before)

    def checked_after(self, version: int) -> Header:
        self.wait_for(lambda: (found := self.checked()) is not None and found.version > version)
        found = self.checked()
        assert found is not None
        return found

    def trainings(self, digest: str) -> list[dg.DagsterRun]:
        """The trainings on a content that the sensor requested, oldest first; without what the daemon retries."""
        runs = self.made.instance.get_runs(dg.RunsFilter(tags={TRAINS_TAG: digest}), ascending=True)
        return [run for run in runs if run.parent_run_id is None]

    def trained(self, digest: str) -> dg.DagsterRun:
        """Return the run that has trained on a content, when it has."""
        tags = {TRAINS_TAG: digest}
        wanted = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.SUCCESS])
        self.wait_for(lambda: self.made.instance.get_runs(wanted))
        [run] = self.made.instance.get_runs(wanted)
        return run

    def settled(self) -> dg.DagsterRun:
        """Return the training of the version that is checked: no change of the folder is on its way."""
        return self.trained(self.checked_after(0).digest)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Photos]:
    """Eight photos of two classes, in a deployment whose sensors are on."""
    folder = tmp_path_factory.mktemp("live")
    draw_all(folder / "photos", per_class=8)
    location = "tests.nightly.trained_location"
    with deployed(folder, module=location, SMALTI_TEST_PHOTOS=str(folder / "photos")) as made:
        found = Photos(made)
        for sensor in SENSORS:
            found.switch_on(sensor)
        yield found


@pytest.fixture(autouse=True)
def seconds(request: pytest.FixtureRequest) -> Iterator[None]:
    begin = time.monotonic()
    yield
    print(f"{request.node.name}: {time.monotonic() - begin:.0f} s")


def test_a_checked_version_is_trained_on_once_although_the_daemon_is_killed_between_two_ticks(photos: Photos) -> None:
    photos.settled()
    version = photos.publish()
    photos.kill_daemon()
    photos.wait_for(lambda: photos.trainings(version.digest))
    photos.kill_daemon()
    trained = photos.trained(version.digest)
    photos.wait_for_ticks(3)
    [run] = photos.trainings(version.digest)
    assert trained.run_id == run.run_id or trained.root_run_id == run.run_id
    pinned = {"version": version.version, "digest": version.digest}
    assert run.run_config == {"ops": {"photos__model": {"config": pinned}}}
    assert run.tags[VERSION_TAG] == str(version.version)
    assert f"has been given to run {trained.run_id}: trained" in photos.reason()


def test_a_version_whose_blocking_check_fails_is_not_trained_on(photos: Photos) -> None:
    photos.settled()
    before, checked, hidden = photos.newest(), photos.checked(), photos.made.folder / "hidden"
    trainings = photos.made.instance.get_runs_count(dg.RunsFilter(job_name="photos_train_job"))
    (photos.folder / "daisy").rename(hidden)
    try:
        photos.wait_for(lambda: f"the blocking checks of version {before + 1} have not all passed" in photos.reason())
        photos.wait_for_ticks(3)
        assert photos.checked() == checked
    finally:
        hidden.rename(photos.folder / "daisy")
    again = photos.checked_after(before + 1)
    photos.wait_for_ticks(3)
    assert checked is not None
    assert again.digest == checked.digest
    assert photos.made.instance.get_runs_count(dg.RunsFilter(job_name="photos_train_job")) == trainings


def test_a_training_that_fails_is_requested_three_times_in_all_and_the_tick_says_so(photos: Photos) -> None:
    photos.settled()
    broken = photos.made.root / "broken"
    broken.touch()
    version = photos.publish()
    photos.wait_for(lambda: "was given to 3 runs, which failed or were cancelled" in photos.reason())
    photos.wait_for_ticks(3)
    runs = photos.trainings(version.digest)
    assert [run.status for run in runs] == [dg.DagsterRunStatus.FAILURE] * 3
    assert f"the last is {runs[-1].run_id}. Look at its log and mend the cause" in photos.reason()
    assert "switch this sensor off and on for new tries" in photos.reason()
    broken.unlink()
    photos.switch_off("photos_train_sensor")
    photos.switch_on("photos_train_sensor")
    assert photos.trained(version.digest).run_id == photos.trainings(version.digest)[3].run_id
    photos.wait_for_ticks(3)
    assert len(photos.trainings(version.digest)) == 4


def test_promotion_tags_model_and_version_together_and_the_next_training_is_compared_with_that_model(
    photos: Photos,
) -> None:
    trained, checked, instance = photos.settled(), photos.checked(), photos.made.instance
    run_id = photos.made.launch("photos_promote_job")
    photos.wait_for(lambda: (run := instance.get_run_by_id(run_id)) is not None and run.is_finished)
    promoted = promoted_model(photos.store)
    assert promoted is not None
    assert checked is not None
    assert (promoted.version, promoted.metadata["digest"]) == (checked.version, checked.digest)
    assert (promoted.metadata["run"], promoted.metadata["promoted_by"]) == (trained.run_id, run_id)

    following = photos.trained(photos.publish().digest)
    check = dg.AssetCheckKey(dg.AssetKey(["photos", "model"]), "accuracy_has_not_dropped")
    said = dict(evaluations(instance, check))[following.run_id]
    assert said.passed
    assert said.metadata["promoted_model_of_run"].value == trained.run_id
    assert 0.0 <= float(said.metadata["accuracy_of_the_promoted_model"].value) <= 1.0
