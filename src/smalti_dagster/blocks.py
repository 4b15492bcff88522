"""The building blocks of a data set: its assets, checks, sensors and definitions, one by one in plain Python.

A `DataSet` says what the data set is. Each function here builds one part of it, and `build_definitions` builds all
parts that are not given to it: the component that a `defs.yaml` names is `build_definitions(data_set)`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import dagster as dg

from smalti.torch.train.config import IMAGES
from smalti_dagster.automation.failure import build_failure_sensor
from smalti_dagster.automation.schedules import build_reshard_schedule, is_schedulable
from smalti_dagster.automation.training import build_train_sensor
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.checks.check import evaluate
from smalti_dagster.checks.storage import build_storage_check
from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import build_jobs
from smalti_dagster.lineage import run_tags, upstream
from smalti_dagster.models.model import build_model, study_key
from smalti_dagster.models.promotion import build_promotion, promoted_key
from smalti_dagster.models.task_model import build_task_model
from smalti_dagster.models.training_function import build_function_model
from smalti_dagster.models.tuning import build_study
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stages.data import build_data, data_checks, data_spec, data_stages
from smalti_dagster.stages.source import build_source, is_watchable

Asset = dg.AssetsDefinition | dg.AssetSpec
Upstream = dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey | str
"""An asset that another one depends on: itself, or its key."""


def raw_data(data_set: Declaration, *, deps: Iterable[Upstream] = ()) -> dg.AssetsDefinition:
    """Return the asset `<name>/raw` with its checks: the inventory of the images, or the identity of the rows.

    Args:
        data_set: what the data set is.
        deps: assets of your own that have to be there first, such as the one that writes the table or folder.

    Returns:
        A step by itself; `in_one_step` joins several.

    Raises:
        ValueError: `deps` has something that is neither an asset nor a key.

    Examples:
        ```python
        photos = DataSet(name="photos", source=Source(folder="s3://bucket/photos"))
        raw = raw_data(photos, deps=[downloaded])
        ```
    """
    return build_data(data_set, [_with_deps(data_spec(data_set, "raw"), deps)])


def prepared_rows(
    data_set: Declaration, *, images_from: Upstream | None = None, deps: Iterable[Upstream] = ()
) -> dg.AssetsDefinition:
    """Return the asset `<name>/prepared` with its checks: a DataFrame of prepared images, or what a function gives.

    Args:
        data_set: what the data set is; one of rows needs `prepare`.
        images_from: an asset of your own between `<name>/raw` and this one, which returns `hand_on_images(...)`:
            its images are prepared. By default those of `<name>/raw`.
        deps: further assets that have to be there first.

    Returns:
        A step by itself; `in_one_step` joins several.

    Raises:
        ValueError: the data set has no such stage, or `images_from` is given for rows.

    Examples:
        ```python
        prepared = prepared_rows(photos, images_from=reviewed)
        ```
    """
    if "prepared" not in data_set.stages:
        raise ValueError(f"data set {data_set.name} has no `prepare`, so that there is no {data_set.name}/prepared")
    spec = data_spec(data_set, "prepared")
    if images_from is not None:
        if data_set.source.kind == "rows":
            raise ValueError(
                f"`images_from` needs a data set of images, and {data_set.name} has rows: give an asset of your own as "
                "one of `deps`, or put it before `raw_data`"
            )
        spec = spec.replace_attributes(deps=[_key_of(images_from)])
    return build_data(data_set, [_with_deps(spec, deps)])


def shard_set(data_set: Declaration, *, deps: Iterable[Upstream] = ()) -> dg.AssetsDefinition:
    """Return the asset `<name>/shards` with its checks: a version of the MDS shard set.

    Args:
        data_set: what the data set is.
        deps: assets of your own that have to be there first, such as an approval.

    Returns:
        A step by itself; `in_one_step` joins several.

    Raises:
        ValueError: `deps` has something that is neither an asset nor a key.

    Examples:
        ```python
        shards = shard_set(photos, deps=[approved])
        ```
    """
    return build_data(data_set, [_with_deps(data_spec(data_set, "shards"), deps)])


def in_one_step(data_set: Declaration, *stages: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Return stages of a data set as one step: one process and one Spark session in place of one for each.

    Where an asset of your own stands between two of them, Dagster executes the step in parts.

    Args:
        data_set: what the data set is.
        stages: what `raw_data`, `prepared_rows` and `shard_set` have returned, as many as there are.

    Returns:
        One step with the assets and checks of all of them.

    Raises:
        ValueError: an asset is no such stage of this data set.

    Examples:
        ```python
        data = in_one_step(photos, raw_data(photos), prepared_rows(photos), shard_set(photos))
        ```
    """
    known = {data_set.key(stage) for stage in data_stages(data_set)}
    specs = [spec for each in stages for spec in each.specs]
    for spec in specs:
        if spec.key not in known:
            raise ValueError(
                f"{spec.key.to_user_string()} is no stage of {data_set.name} up to its shards: expected one of "
                f"{', '.join(sorted(key.to_user_string() for key in known))}"
            )
    return build_data(data_set, specs)


def trained_model(data_set: Declaration) -> dg.AssetsDefinition:
    """Return the asset `<name>/model` with its checks: a model trained on one version of the shard set.

    Args:
        data_set: what the data set is; it needs `train`.

    Returns:
        A step by itself, which trains on the version of `<name>/shards` that its run builds on.

    Raises:
        ValueError: the data set has no `train`.

    Examples:
        ```python
        model = trained_model(photos)
        ```
    """
    train = data_set.train
    if train is None:
        raise ValueError(f"data set {data_set.name} has no `train`, so that there is no {data_set.name}/model")
    if train.function is not None:
        return build_function_model(data_set, train, train.function)
    return (build_model if train.task == IMAGES else build_task_model)(data_set, train)


def shard_checks(data_set: Declaration) -> dg.AssetChecksDefinition:
    """Return the checks of `<name>/shards` for an asset of your own that makes this asset in place of `shard_set`.

    Your asset writes the shard set, and returns `version` and `digest` of the version as metadata, which `smalti`
    functions that write give, and `accept_removed`, a list, if splits, columns or many rows are meant to be gone. When
    the blocking checks pass, the version gets the tag `checked`, which training follows. `shard_set` has the same
    checks in its own step.

    Args:
        data_set: what the data set is; of rows, because those of images compare with prepared images.

    Returns:
        The checks, each of which can be executed by itself.

    Raises:
        ValueError: the data set is of images.

    Examples:
        ```python
        @dg.asset(key=sales.key("shards"))
        def shards() -> dg.MaterializeResult:
            version = dataframe_to_mds(frame, "s3://bucket/prefix/sales/shards", mode="overwrite")
            return dg.MaterializeResult(metadata={"version": version.version, "digest": version.digest})

        defs = build_definitions(sales, assets=[shards], asset_checks=[shard_checks(sales)])
        ```
    """
    if data_set.source.kind == "images":
        raise ValueError(f"the checks of images need those that `shard_set({data_set.name})` has prepared: use that")
    checks, key = data_checks(data_set, "shards"), data_set.key("shards")

    @dg.multi_asset_check(
        name=f"{data_set.name}__shards_checks", specs=[check.spec for check in checks], can_subset=True
    )
    @with_resources
    def check(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[Any]:
        yield from evaluate(context, data_set, checks, storage, lambda: upstream(context, key))

    made: dg.AssetChecksDefinition = check
    return made


def watch_sensor(data_set: Declaration) -> dg.SensorDefinition:
    """Return the sensor that launches `<name>_reshard_job` when the source has changed; off until it is switched on.

    Args:
        data_set: what the data set is; `automation.watch` has the options.

    Returns:
        The sensor `<name>_watch_sensor`; the job has to be there, as in `build_definitions`.

    Raises:
        ValueError: there is no `automation.watch`, or only Spark can see whether this source has changed.

    Examples:
        ```python
        sensor = watch_sensor(photos)
        ```
    """
    watch = data_set.automation.watch
    if watch is None or not is_watchable(data_set):
        raise ValueError(
            f"data set {data_set.name} cannot be watched: it needs `automation.watch`, and a source of images, a table "
            "given by its address, or `source.version`"
        )
    return build_watch_sensor(data_set, watch)


def train_sensor(data_set: Declaration) -> dg.SensorDefinition:
    """Return the sensor that launches `<name>_train_job` for each new checked version; off until it is switched on.

    Args:
        data_set: what the data set is; it needs `train`.

    Returns:
        The sensor `<name>_train_sensor`; the job has to be there, as in `build_definitions`.

    Raises:
        ValueError: the data set has no `train`.

    Examples:
        ```python
        sensor = train_sensor(photos)
        ```
    """
    if data_set.train is None:
        raise ValueError(f"data set {data_set.name} has no `train`: there is nothing to launch")
    return build_train_sensor(data_set)


def failure_sensor(data_set: Declaration) -> dg.SensorDefinition:
    """Return the sensor that reports failures of a data set to the channels of its `automation.notify`; it is on.

    Args:
        data_set: what the data set is.

    Returns:
        The sensor `<name>_failure_sensor`.

    Raises:
        ValueError: there is no `automation.notify`.

    Examples:
        ```python
        sensor = failure_sensor(photos)
        ```
    """
    if data_set.automation.notify is None:
        raise ValueError(f"data set {data_set.name} has no `automation.notify`: there is no channel to report to")
    return build_failure_sensor(f"{data_set.name}_failure_sensor", declared=data_set, is_on=True)


def build_definitions(
    data_set: Declaration,
    assets: Iterable[Asset] = (),
    *,
    asset_checks: Iterable[dg.AssetChecksDefinition] = (),
) -> dg.Definitions:
    """Return the assets, checks, jobs, schedule and sensors of a data set; resources are the deployment's.

    Args:
        data_set: what the data set is.
        assets: assets that take the place of those with the same keys, and any others of your own. The stages that are
            not given are built here, those that follow each other in one step.
        asset_checks: checks of your own.

    Returns:
        Definitions without resources, which can be merged with others. The jobs `<name>_reshard_job` and
        `<name>_everything_job` also make assets of your own that stand between two stages.

    Raises:
        ValueError: a part of the declaration cannot be built.

    Examples:
        ```python
        photos = DataSet(name="photos", source=Source(folder="s3://bucket/photos"))
        defs = build_definitions(photos, [reviewed, prepared_rows(photos, images_from=reviewed)])
        ```
    """
    own = list(assets)
    made = own + _missing_assets(data_set, {key for each in own for key in _keys_of(each)})
    return dg.Definitions(
        assets=made,
        asset_checks=[build_storage_check(data_set), *asset_checks],
        jobs=build_jobs(data_set),
        schedules=_schedules(data_set),
        sensors=_sensors(data_set),
    )


def _missing_assets(data_set: Declaration, given: set[dg.AssetKey]) -> list[Asset]:
    """Return the assets of a data set without those that are given."""
    missing: list[Asset] = []
    if data_set.source_key not in given:
        missing.append(build_source(data_set))
    for is_given, stages in groupby(data_stages(data_set), key=lambda stage: data_set.key(stage) in given):
        if not is_given:
            missing.append(build_data(data_set, [data_spec(data_set, stage) for stage in stages]))
    train, model = data_set.train, data_set.key("model")
    if train is None:
        return missing
    if model not in given:
        missing.append(trained_model(data_set))
    if train.function is None and promoted_key(data_set) not in given:
        missing.append(build_promotion(data_set))
    if data_set.tuning is not None and study_key(data_set) not in given:
        missing.append(build_study(data_set, train, data_set.tuning))
    return missing


def _schedules(data_set: Declaration) -> list[dg.ScheduleDefinition]:
    automation = data_set.automation
    if automation.condition is not None or not automation.reshard or not is_schedulable(data_set):
        return []
    return [build_reshard_schedule(data_set, automation.reshard)]


def _sensors(data_set: Declaration) -> list[dg.SensorDefinition]:
    automation = data_set.automation
    sensors: list[dg.SensorDefinition] = []
    if automation.watch is not None and is_watchable(data_set):
        sensors.append(watch_sensor(data_set))
    if data_set.train is not None and automation.train_on_new_version and automation.condition is None:
        sensors.append(train_sensor(data_set))
    if automation.notify is not None:
        sensors.append(failure_sensor(data_set))
    if automation.condition is not None:
        sensors.append(_automation_sensor(data_set))
    return sensors


def _automation_sensor(data_set: Declaration) -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that requests assets by their automation conditions."""
    return dg.AutomationConditionSensorDefinition(
        f"{data_set.name}_automation_sensor",
        target=dg.AssetSelection.assets(*map(data_set.key, data_set.stages)),
        default_status=dg.DefaultSensorStatus.STOPPED,
        run_tags=run_tags(data_set),
        tags=data_set.labels["tags"],  # it takes no owners
        description=f"Requests the assets of {data_set.name} by their conditions ({data_set.automation.condition}).",
    )


def _with_deps(spec: dg.AssetSpec, deps: Iterable[Upstream]) -> dg.AssetSpec:
    """Return a specification with further assets that it depends on."""
    further = [_key_of(each) for each in deps]
    return spec.replace_attributes(deps=[*spec.deps, *further]) if further else spec


def _key_of(asset: Upstream) -> dg.AssetKey:
    if isinstance(asset, str):
        return dg.AssetKey.from_user_string(asset)
    if isinstance(asset, dg.AssetKey):
        return asset
    if isinstance(asset, dg.AssetsDefinition | dg.AssetSpec):
        return asset.key
    raise ValueError(f"expected an asset, its specification or its key, found {asset!r}")


def _keys_of(asset: Asset) -> Iterable[dg.AssetKey]:
    return asset.keys if isinstance(asset, dg.AssetsDefinition) else [asset.key]
