"""Freshness policies of the shards: as declared, or by the times of the schedule."""

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from smalti_dagster import DataSet, build_definitions
from tests.code_location.declared import define

FOLDER = "name: a\nsource: {folder: /photos}\n"
ROWS = "name: a\nsource: {table: t}\n"
DAYS = "partitions: {by: day, start: '2026-11-01'"


def policy_of(text: str, stage: str = "shards") -> Any:
    graph = define(DataSet.resolve_from_yaml(text)).resolve_asset_graph()
    return graph.get(dg.AssetKey(["a", stage])).freshness_policy


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        (FOLDER, 48.0),
        (f"{FOLDER}automation: {{reshard: '0 * * * *'}}", 2.0),
        (f"{FOLDER}automation: {{reshard: '0 * * * 1-5', timezone: Europe/Berlin}}", 98.0),
        (f"{FOLDER}automation: {{reshard: '*/10 8-18 * * *', timezone: America/New_York}}", 26 + 1 / 3),
        (f"{FOLDER}automation: {{reshard: '0 3 1 * *'}}", 62 * 24.0),
        (f"{FOLDER}automation: {{freshness: {{fail_hours: 30}}}}", 30.0),
        (f"{FOLDER}automation: {{reshard: null, freshness: {{fail_hours: 30}}}}", 30.0),
        (f"{FOLDER}automation: {{reshard: null}}", None),
        (f"{FOLDER}automation: {{freshness: null}}", None),
        (f"{FOLDER}automation: {{condition: eager}}", None),
        (f"{FOLDER}automation: {{condition: on_cron}}", 48.0),
        (f"{ROWS}{DAYS}, column: day}}", 48.0),
        (f"{ROWS}partitions: {{by: key, column: day}}", None),  # a person alone knows when
        (f"name: a\nsource: {{folder: '/photos/{{partition}}'}}\n{DAYS}}}", None),  # an unchanged one is not read
    ],
)
def test_the_shards_are_overdue_after_two_pauses_of_the_schedule_or_as_is_declared(
    text: str, hours: float | None
) -> None:
    policy = policy_of(text)
    assert (policy.fail_window.to_timedelta() if policy else None) == (timedelta(hours=hours) if hours else None)
    assert policy_of(text, "raw") is None


def test_a_warning_comes_before() -> None:
    policy = policy_of(f"{FOLDER}automation: {{freshness: {{warn_hours: 26}}}}")
    assert policy.warn_window.to_timedelta() == timedelta(hours=26)
    assert policy.fail_window.to_timedelta() == timedelta(hours=48)


@pytest.mark.parametrize(
    ("automation", "message"),
    [
        ("freshness: {fail_hours: 2, warn_hours: 2}", "`warn_hours` 2 must be less than `fail_hours` 2"),
        ("reshard: nightly", "`reshard` must be a cron expression such as '0 3 \\* \\* \\*', found 'nightly'"),
    ],
)
def test_times_that_cannot_be_are_refused_with_a_message(automation: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        build_definitions(DataSet.resolve_from_yaml(f"{FOLDER}automation: {{{automation}}}"))
