"""Full verification in rotation: what is due when, and what a run reads."""

import dagster as dg
import pytest

from smalti_dagster.checks.check import CheckInput
from smalti_dagster.checks.shards import SLOTS, Period, build_shard_checks, rotate, slot_of
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stage import plain
from tests.code_location.declared import FLOWERS
from tests.code_location.events import new_run
from tests.code_location.shard_sets import execute_checks, make_version, rows_of, shards

DAY = 86_400
[HASHES] = [check for check in build_shard_checks(FLOWERS) if check.spec.name == "hashes_verify"]


def test_every_slot_is_read_once_in_a_week_by_a_run_each_day() -> None:
    first = rotate([], "weekly", now=0)
    assert first.due == set(range(SLOTS))
    times, read = first.times, []
    for day in range(1, 8):
        turn = rotate(times, "weekly", now=day * DAY)
        read += sorted(turn.due)
        assert 18 <= len(turn.due) <= 19  # 128 / 7
        times = turn.times
    assert sorted(read) == list(range(SLOTS))


def test_runs_that_follow_one_another_read_nothing_again() -> None:
    assert rotate(rotate([], "weekly", now=0).times, "weekly", now=30).due == set()


@pytest.mark.parametrize(("period", "count"), [("always", SLOTS), ("never", 0)])
def test_everything_or_nothing_is_due_where_that_is_declared(period: Period, count: int) -> None:
    assert len(rotate(rotate([], "weekly", now=0).times, period, now=1).due) == count


def test_names_fall_into_all_slots() -> None:
    assert {slot_of(f"train/x/shard.{number:05}.mds") for number in range(5_000)} == set(range(SLOTS))


def check_in_a_run(instance: dg.DagsterInstance, storage: StorageResource) -> dg.AssetCheckResult:
    """Evaluate `hashes_verify` as a run of the asset does."""
    event = latest(instance, FLOWERS.key("shards"))
    assert event is not None
    return HASHES.evaluate(CheckInput(FLOWERS, storage, instance, new_run(instance), HASHES.spec.key, facts_of(event)))


def counts(result: dg.AssetCheckResult) -> list[int]:
    """Numbers of shards that were read because they are new, read again, and not read."""
    names = ("read_because_new", "read_again", "not_read_in_this_run")
    return [int(plain(result.metadata)[name]) for name in names]


def test_an_unchanged_version_is_not_read_again_and_a_new_one_only_where_it_is_new(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    first = make_version(instance, storage, {"train": rows_of(2, 2), "validation": rows_of(1, 1)})
    execute_checks(instance, storage)  # reads everything
    assert counts(check_in_a_run(instance, storage)) == [0, 0, 2]
    path = shards(storage).local_path(first.shards[0].stored.basename)
    assert path is not None
    path.unlink()
    assert check_in_a_run(instance, storage).passed  # it is not looked at before it is due
    make_version(instance, storage, {"train": rows_of(3, 3)})
    assert counts(check_in_a_run(instance, storage)) == [1, 0, 0]  # its one shard


def test_after_a_failure_everything_is_read_until_it_passes(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """The tag `checked` must not move because the damaged shard is not due."""
    first = make_version(instance, storage, {"train": rows_of(2, 2), "validation": rows_of(1, 1)})
    execute_checks(instance, storage)
    path = shards(storage).local_path(first.shards[0].stored.basename)
    assert path is not None
    data = path.read_bytes()
    path.unlink()
    assert not execute_checks(instance, storage, "hashes_verify")["hashes_verify"].passed
    assert not check_in_a_run(instance, storage).passed
    path.write_bytes(data)
    assert counts(check_in_a_run(instance, storage)) == [2, 0, 0]
