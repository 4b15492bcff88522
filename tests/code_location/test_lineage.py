"""The materialisation that a step builds on: of its own run, of the run that it re-executes, or the newest."""

from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.lineage import upstream
from tests.code_location.events import materialise, new_run
from tests.code_location.shipped import defs


def context_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Any:
    """Return the context of a step, with the run in its state at the start of the step."""
    op = SimpleNamespace(job_def=defs.resolve_job_def(run.job_name))
    return SimpleNamespace(instance=instance, run=run, op_execution_context=op)


def digest_for(instance: dg.DagsterInstance, run: dg.DagsterRun, stage: str = "raw") -> str:
    return str(upstream(context_of(instance, run), dg.AssetKey(["flowers", stage]))["digest"])


def test_a_re_execution_builds_on_what_the_failed_run_made_and_not_on_what_others_made_since(
    instance: dg.DagsterInstance,
) -> None:
    first, other = new_run(instance), new_run(instance)
    materialise(instance, "raw", {"digest": "a"}, first)
    materialise(instance, "raw", {"digest": "b"}, other)
    again = new_run(instance, parent=first)
    assert digest_for(instance, again) == "a"
    assert digest_for(instance, new_run(instance, parent=again)) == "a"
    assert digest_for(instance, other) == "b"


def test_a_re_execution_builds_on_the_nearest_run_that_made_the_asset(instance: dg.DagsterInstance) -> None:
    first = new_run(instance)
    materialise(instance, "raw", {"digest": "a"}, first)
    second = new_run(instance, parent=first)
    materialise(instance, "raw", {"digest": "b"}, second)
    assert digest_for(instance, new_run(instance, parent=second)) == "b"


def test_a_run_finds_what_it_made_itself_however_many_others_came_since(instance: dg.DagsterInstance) -> None:
    ours = new_run(instance)
    materialise(instance, "raw", {"digest": "ours"}, ours)
    for number in range(30):
        materialise(instance, "raw", {"digest": str(number)})
    assert digest_for(instance, ours) == "ours"


@pytest.mark.parametrize("by_a_run", [True, False])
def test_another_run_takes_the_newest_and_notes_it_so_that_later_steps_and_re_executions_take_the_same(
    instance: dg.DagsterInstance, by_a_run: bool
) -> None:
    maker = new_run(instance) if by_a_run else None
    materialise(instance, "shards", {"digest": "a"}, maker)
    run = new_run(instance, "train")
    assert digest_for(instance, run, "shards") == "a"
    stored = instance.get_run_by_id(run.run_id)
    assert stored is not None
    assert stored.tags["smalti/flowers.shards.run"] == (maker.run_id if maker is not None else "none")
    assert stored.tags["smalti/flowers.shards.digest"] == "a"
    materialise(instance, "shards", {"digest": "b"}, maker)
    assert digest_for(instance, run, "shards") == "a"
    assert digest_for(instance, new_run(instance, "train", parent=run), "shards") == "a"
    assert digest_for(instance, new_run(instance, "train"), "shards") == "b"


def test_tags_that_a_re_execution_inherits_do_not_hide_what_its_parent_made(instance: dg.DagsterInstance) -> None:
    materialise(instance, "raw", {"digest": "a"})
    first = new_run(instance)
    assert digest_for(instance, first) == "a"
    stored = instance.get_run_by_id(first.run_id)
    assert stored is not None
    second = new_run(instance, parent=first, tags=stored.tags)
    materialise(instance, "raw", {"digest": "b"}, second)
    assert digest_for(instance, new_run(instance, parent=second, tags=stored.tags)) == "b"


def test_a_re_execution_whose_data_is_not_known_is_refused_and_names_the_runs(instance: dg.DagsterInstance) -> None:
    failed = new_run(instance)
    materialise(instance, "raw", {"digest": "of somebody else"})
    again = new_run(instance, parent=failed)
    with pytest.raises(dg.Failure) as caught:
        upstream(context_of(instance, again), dg.AssetKey(["flowers", "raw"]))
    assert again.run_id in str(caught.value.description)
    assert failed.run_id in str(caught.value.description)
    assert caught.value.allow_retries is False


@pytest.mark.parametrize("died", ["before its step", "in its step"])
def test_a_re_execution_of_runs_that_never_came_to_take_an_asset_takes_the_newest(
    instance: dg.DagsterInstance, died: str
) -> None:
    """As of a training whose worker was killed as soon as it was started."""
    killed = new_run(instance, "train")
    if died == "in its step":
        kind = dg.DagsterEventType.STEP_START.value
        instance.report_dagster_event(dg.DagsterEvent(kind, killed.job_name, step_key="flowers__model"), killed.run_id)
    materialise(instance, "shards", {"digest": "a"})
    again = new_run(instance, "train", parent=new_run(instance, "train", parent=killed))
    assert digest_for(instance, again, "shards") == "a"
    materialise(instance, "shards", {"digest": "b"})
    assert digest_for(instance, again, "shards") == "a"
    assert digest_for(instance, new_run(instance, "train", parent=again), "shards") == "a"


def test_a_re_execution_is_refused_when_the_run_before_it_was_deleted_which_may_have_made_the_asset_anew(
    instance: dg.DagsterInstance,
) -> None:
    """The run before that one, which is still there, may have read another source."""
    first = new_run(instance)
    materialise(instance, "raw", {"digest": "a"}, first)
    second = new_run(instance, parent=first)
    materialise(instance, "raw", {"digest": "b"}, second)
    third = new_run(instance, parent=second)
    assert digest_for(instance, third) == "b"
    instance.delete_run(second.run_id)
    with pytest.raises(dg.Failure, match=f"run {second.run_id}.*deleted"):
        upstream(context_of(instance, third), dg.AssetKey(["flowers", "raw"]))
    materialise(instance, "raw", {"digest": "c"}, third)
    assert digest_for(instance, third) == "c"


def test_a_re_execution_is_refused_when_what_its_parent_took_is_gone(instance: dg.DagsterInstance) -> None:
    maker, run = new_run(instance), new_run(instance, "train")
    materialise(instance, "shards", {"digest": "a"}, maker)
    assert digest_for(instance, run, "shards") == "a"
    instance.delete_run(maker.run_id)
    materialise(instance, "shards", {"digest": "b"})
    with pytest.raises(dg.Failure, match="is gone") as caught:
        upstream(context_of(instance, new_run(instance, "train", parent=run)), dg.AssetKey(["flowers", "shards"]))
    assert maker.run_id in str(caught.value.description)


@pytest.mark.parametrize(
    ("home", "said"),
    [
        ("/srv/dagster", "asset flowers/raw has never been materialised: materialise it first"),
        (
            "",
            "asset flowers/raw has never been materialised: materialise it first, and set DAGSTER_HOME to a folder "
            "that stays: without it, Dagster's records end with each command",
        ),
    ],
)
def test_an_asset_that_was_never_materialised_is_asked_for(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, home: str, said: str
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", home)
    with pytest.raises(dg.Failure) as failure:
        upstream(context_of(instance, new_run(instance)), dg.AssetKey(["flowers", "raw"]))
    assert failure.value.description == said
