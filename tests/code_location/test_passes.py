"""The times that a check passed before, as it knows them."""

from types import SimpleNamespace
from typing import Any

import dagster as dg

from smalti_dagster.lineage import CHECKED_IN, CONTENT, Passes, content_digest, passes_of

PASSES = Passes(
    (
        ("run 4", {CONTENT: content_digest("b"), CHECKED_IN: "run 2"}),
        ("run 3", {CONTENT: content_digest("a"), "version": 7}),
        ("run 2", {CONTENT: content_digest("b"), "version": 6}),
    )
)


def test_the_run_of_a_content_is_the_one_in_which_it_was_really_checked() -> None:
    assert PASSES.run_for("a") == "run 3"
    assert PASSES.run_for("b") == "run 2"
    assert PASSES.run_for("c") is None


def test_the_last_one_made_is_not_one_that_pointed_to_an_earlier_run() -> None:
    assert PASSES.last_made == {CONTENT: content_digest("a"), "version": 7}
    assert Passes(()).last_made is None


class History:
    """An event log that counts how often it is asked."""

    asked = 0

    def get_asset_check_execution_history(self, key: dg.AssetCheckKey, limit: int) -> list[Any]:
        self.asked += 1
        evaluation = SimpleNamespace(passed=True, metadata={CONTENT: dg.MetadataValue.text(content_digest("a"))})
        made = SimpleNamespace(
            event_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, asset_check_evaluation_data=evaluation
        )
        return [SimpleNamespace(run_id="run 1", event=SimpleNamespace(dagster_event=made))]


def test_the_history_is_asked_for_once() -> None:
    history = History()
    instance: Any = SimpleNamespace(event_log_storage=history)
    passes = passes_of(instance, dg.AssetCheckKey(dg.AssetKey("shards"), "whole"))
    assert passes.run_for("a") == "run 1"
    assert passes.last_made == {CONTENT: content_digest("a")}
    assert history.asked == 1
