"""The public building blocks, one by one: own assets and checks, and functions as they are."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

import smalti_dagster
from assets import tokens
from assets.drawing import draw_flowers
from smalti import MDSWriter
from smalti.catalog import load_manifest
from smalti.errors import CatalogError
from smalti.images.pixels import encode_jpeg
from smalti.storage import open_store
from smalti_dagster import (
    DataSet,
    build_definitions,
    failure_sensor,
    hand_on_images,
    in_one_step,
    materialized_version,
    open_images,
    open_shards,
    prepared_rows,
    raw_data,
    resources,
    shard_checks,
    shard_set,
    train_sensor,
    trained_model,
    watch_sensor,
)
from smalti_dagster.declaration import Automation, Declaration, Notify, Prepare, Source, Split, Train
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.places import place_of
from smalti_dagster.resources import LocalStorage
from smalti_dagster.shard_tags import checked_version
from tests.code_location.row_set import NoSpark
from tests.code_location.test_definitions import describe

PHOTOS = DataSet(
    name="photos",
    source=Source(folder="/photos"),
    train=Train(),
    automation=Automation(notify=Notify(slack="${SLACK}")),
)
SALES = DataSet(name="sales", source=Source(table="lake.sales"))


@dg.asset(key=["photos", "reviewed"], deps=[PHOTOS.key("raw")])
def reviewed(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """Images without those that a person has rejected."""
    images = open_images(context, PHOTOS)
    return hand_on_images(context, PHOTOS, [file for file in images.files if file.path != "roses/1.jpg"])


def described(defs: dg.Definitions) -> dict[str, Any]:
    return describe(dg.Definitions.merge(defs, dg.Definitions(executor=dg.in_process_executor)))


# ---------------------------------------------------------------- one by one


def test_the_blocks_one_by_one_are_what_the_component_gives() -> None:
    one_by_one = [raw_data(PHOTOS), prepared_rows(PHOTOS), shard_set(PHOTOS), trained_model(PHOTOS)]
    assert described(build_definitions(PHOTOS, one_by_one)) == described(build_definitions(PHOTOS))
    names = [asset.op.name for asset in one_by_one]
    assert names == ["photos__raw", "photos__prepared", "photos__shards", "photos__model"]
    assert in_one_step(PHOTOS, *one_by_one[:3]).op.name == "photos__data"
    sensors = {each.name for each in (watch_sensor(PHOTOS), train_sensor(PHOTOS), failure_sensor(PHOTOS))}
    assert sensors == set(described(build_definitions(PHOTOS))["sensors"])


def test_an_own_asset_between_two_stages_is_made_by_the_jobs_of_both() -> None:
    defs = build_definitions(PHOTOS, [reviewed, prepared_rows(PHOTOS, images_from=reviewed)])
    found = described(defs)
    assert found["assets"]["photos/prepared"]["after"] == ["photos/reviewed"]
    reshard = ["photos/prepared", "photos/raw", "photos/reviewed", "photos/shards"]
    assert found["jobs"]["photos_reshard_job"]["assets"] == reshard
    assert found["jobs"]["photos_everything_job"]["assets"] == sorted(["photos/model", *reshard])
    assert found["jobs"]["photos_train_job"]["assets"] == ["photos/model"]
    steps = {each.op.name for each in defs.assets or [] if isinstance(each, dg.AssetsDefinition)}
    assert {"photos__raw", "photos__prepared", "photos__shards"} <= steps


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: prepared_rows(SALES), "data set sales has no `prepare`"),
        (
            lambda: prepared_rows(
                DataSet(name="b", source=Source(table="t"), prepare=Prepare(function="m:f")), images_from="b/raw"
            ),
            "`images_from` needs a data set of images",
        ),
        (lambda: trained_model(SALES), "data set sales has no `train`"),
        (lambda: train_sensor(SALES), "has no `train`: there is nothing to launch"),
        (lambda: watch_sensor(SALES), "data set sales cannot be watched"),
        (lambda: failure_sensor(SALES), "has no `automation.notify`"),
        (lambda: shard_checks(PHOTOS), "the checks of images need"),
        (lambda: in_one_step(SALES, raw_data(PHOTOS)), "photos/raw is no stage of sales .* sales/raw, sales/shards"),
        (lambda: raw_data(SALES, deps=[3]), "expected an asset, its specification or its key, found 3"),  # type: ignore[list-item]
    ],
)
def test_a_part_that_cannot_be_built_says_why(build: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()


# ---------------------------------------------------------------- functions


def test_a_function_is_given_as_it_is_and_declares_the_same_as_its_import_path() -> None:
    by_path = {"dataframe": "assets.tokens:documents", "version": "assets.tokens:version"}
    given = Declaration(
        name="tokens",
        source=Source(dataframe=tokens.documents, version=tokens.version),
        prepare=Prepare(function=tokens.tokenize),
    )
    named = Declaration(name="tokens", source=Source(**by_path), prepare=Prepare(function="assets.tokens:tokenize"))
    assert given == named
    assert Source(generate=draw_flowers).generate == "assets.drawing:draw_flowers"
    assert given.digest() == named.digest()


def made_here() -> Any:
    """Return a function that no other process can import."""

    def inner(folder: Path) -> None:
        """Draw nothing."""

    return inner


@pytest.mark.parametrize("function", [lambda folder: None, made_here()])
def test_a_function_that_step_processes_cannot_import_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="cannot be imported by the processes of steps: define it by `def`"):
        Source(generate=function)


# ---------------------------------------------------------------- versions


def write(storage: LocalStorage, name: str, values: list[int]) -> dict[str, Any]:
    """Write a version of a shard set as an asset of a team's own does; return the facts that it gives."""
    place = storage.url(name, "shards")
    with MDSWriter(out=place, columns={"id": "int"}, mode="overwrite") as writer:
        for value in values:
            writer.write({"id": value})
    manifest = load_manifest(open_store(place))
    return {"version": manifest.version, "digest": manifest.digest, "dagster/uri": place}


class Team:
    """An instance, and a storage where a team's own asset writes the shards of `sales`."""

    def __init__(self, instance: dg.DagsterInstance, root: Path) -> None:
        self.instance, self.storage = instance, LocalStorage(root=str(root))
        self.values = [1, 2, 3]
        self.accepted: list[str] = []

    def run(self, *assets: Any, selection: Any = None, raises: bool = True) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            assets,
            selection=selection,
            instance=self.instance,
            resources={"smalti_storage": self.storage, "smalti_spark": NoSpark()},
            raise_on_error=raises,
        )

    def shards(self) -> dg.AssetsDefinition:
        @dg.asset(key=SALES.key("shards"))
        def shards() -> dg.MaterializeResult[Any]:
            facts = write(self.storage, "sales", self.values)
            return dg.MaterializeResult(metadata={**facts, "accept_removed": self.accepted})

        return shards


@pytest.fixture
def team(instance: dg.DagsterInstance, tmp_path: Path) -> Team:
    return Team(instance, tmp_path / "data")


@dg.asset(deps=[SALES.key("shards")])
def total(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """The sum of a column of exactly the materialised version."""
    values = [int(sample["id"]) for sample in open_shards(context, "sales")]
    return dg.MaterializeResult(metadata={"total": sum(values), **materialized_version(context, SALES).metadata()})


def facts(team: Team, asset: dg.AssetsDefinition) -> dict[str, Any]:
    event = latest(team.instance, asset.key)
    assert event is not None
    return facts_of(event)


def test_an_own_asset_reads_the_version_that_was_materialised_and_not_a_newer_one(team: Team) -> None:
    team.run(team.shards())
    write(team.storage, "sales", [1000])  # published, and not materialised
    team.run(total)
    assert {"total": 6, "shards": "sales/shards", "shards_version": 1}.items() <= facts(team, total).items()
    team.values = [4, 5]
    team.run(team.shards(), total)
    assert (facts(team, total)["total"], facts(team, total)["shards_version"]) == (9, 3)


def test_a_version_that_is_no_longer_what_was_materialised_is_refused(team: Team) -> None:
    team.run(team.shards())
    for path in Path(team.storage.url("sales", "shards")).rglob("*"):
        if path.is_file():
            path.unlink()
    write(team.storage, "sales", [7])  # another set with a version 1 in the same place
    with pytest.raises(CatalogError, match="the set was replaced; materialise sales/shards again"):
        team.run(total)


def test_the_checks_of_shards_guard_an_own_asset_and_name_its_version_checked(team: Team) -> None:
    done = team.run(team.shards(), shard_checks(SALES))
    passed = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    assert {"hashes_verify": True, "few_rows_vanished": True, "no_column_vanished": True}.items() <= passed.items()
    store = open_store(team.storage.url("sales", "shards"))
    checked = checked_version(store)
    assert checked is not None
    assert checked.version == 1
    team.values = [1]  # two of three rows are gone
    failed = team.run(team.shards(), shard_checks(SALES), raises=False)
    assert not failed.success
    [said] = [each for each in failed.get_asset_check_evaluations() if not each.passed]
    assert "run that with `accept_removed` in the metadata of sales/shards" in str(said.description)
    checked = checked_version(store)
    assert checked is not None
    assert (checked.version, load_manifest(store).version) == (1, 2)
    team.accepted = ["rows"]
    assert team.run(team.shards(), shard_checks(SALES)).success


def test_an_own_check_reads_the_version_that_its_run_has_made(team: Team) -> None:
    @dg.asset_check(asset=SALES.key("shards"), blocking=True)
    def ids_are_small(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=all(sample["id"] < 100 for sample in open_shards(context, SALES)))

    assert team.run(team.shards(), ids_are_small).success
    team.values = [1000]
    assert not team.run(team.shards(), ids_are_small, total, raises=False).success
    assert latest(team.instance, total.key) is None, "what comes after the asset is not made"


# ---------------------------------------------------------------- images


def test_images_are_handed_on_without_those_that_an_own_asset_leaves_out(team: Team, tmp_path: Path) -> None:
    photo = encode_jpeg(np.zeros((32, 40, 3), np.uint8), 90)
    for name in ("daisy/1.jpg", "daisy/2.jpg", "roses/1.jpg", "roses/2.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo)
    here = PHOTOS.model_copy(update={"source": Source(folder=str(tmp_path / "photos"))})
    team.run(raw_data(here), reviewed)
    said = facts(team, reviewed)
    assert (said["images"], said["left_out"], said["classes"]) == (3, 1, ["daisy", "roses"])
    place = place_of(here, team.storage, "inventories").store()
    assert place.exists(said["inventory"])
    assert said["source"] == str(tmp_path / "photos")


# ---------------------------------------------------------------- examples

_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def example_of(name: str) -> str:
    text = getattr(smalti_dagster, name).__doc__
    [code] = _CODE.findall(re.sub(r"^ {8}", "", str(text), flags=re.MULTILINE))
    return str(code)


@pytest.mark.parametrize("name", [name for name in smalti_dagster.__all__ if name != "Deployment"])
def test_a_public_name_says_what_it_takes_and_gives_and_its_example_runs(name: str) -> None:
    text = getattr(smalti_dagster, name).__doc__
    assert name == "DataSet" or all(section in text for section in ("Args:", "Returns:", "Raises:"))

    @dg.asset
    def downloaded() -> None:
        """Download the photos."""

    @dg.asset
    def approved() -> None:
        """Wait for a person."""

    known = {each: getattr(smalti_dagster, each) for each in smalti_dagster.__all__}
    names: dict[str, Any] = {**known, "dg": dg, "Source": Source, "Split": Split, "photos": PHOTOS, "sales": SALES}
    names |= {"downloaded": downloaded, "approved": approved, "reviewed": reviewed, "REJECTED": ()}
    if name == "open_images":
        names["open_images"] = lambda context, data_set: _Images()
        names["context"] = None
    exec(compile(example_of(name), name, "exec"), names)
    if "defs" in names:
        dg.Definitions.validate_loadable(names["defs"])


class _Images:
    files = ()


def test_the_example_of_the_resources_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING_SECRET", "canary")
    [code] = _CODE.findall(re.sub(r"^ {4}", "", str(resources.__doc__), flags=re.MULTILINE))
    names: dict[str, Any] = {name: getattr(resources, name) for name in resources.__all__} | {"dg": dg}
    exec(compile(code, "resources", "exec"), names)
    assert names["resources"].keys() == {resources.KEYS[each] for each in ("storage", "spark", "trainer")}
    assert "canary" not in repr(names["resources"])
