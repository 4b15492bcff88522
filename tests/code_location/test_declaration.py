"""Declarations: accepted and refused fields, their messages, and the definitions that follow."""

import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTree, ComponentTreeException
from pydantic import BaseModel

from smalti_dagster import DataSet, Deployment, build_definitions
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.configuration import OVERRIDDEN, overrides, with_defaults
from smalti_dagster.models.model import ModelConfig, model_config
from smalti_dagster.places import expand, place_of, shards_of
from smalti_dagster.resources.storage import StorageResource
from tests.code_location.declared import define


def read(text: str) -> DataSet:
    """The attributes of a `defs.yaml`."""
    return DataSet.resolve_from_yaml(text)  # type: ignore[no-any-return]


TABLE = "name: sales\nsource: {table: lake.sales}\n"
IMAGES = "name: photos\nsource: {folder: s3://bucket/photos}\n"


def test_three_lines_declare_a_table_of_rows() -> None:
    found = read(TABLE)
    assert found.stages == ("raw", "shards")
    assert [key.to_user_string() for key in map(found.key, found.stages)] == ["sales/raw", "sales/shards"]
    dg.Definitions.validate_loadable(define(found))


def test_null_policies_may_be_values() -> None:
    found = read(f"{TABLE}shards: {{nulls: {{amount: mask, city: {{default: Paris}}}}}}")
    assert found.shards.nulls == {"amount": "mask", "city": {"default": "Paris"}}


def test_images_are_prepared_by_default_and_trained_on_when_it_is_declared() -> None:
    assert read(IMAGES).stages == ("raw", "prepared", "shards")
    assert read(f"{IMAGES}train: {{}}").stages == ("raw", "prepared", "shards", "model")


def test_the_model_is_named_model_in_yaml() -> None:
    found = read(f"{IMAGES}train: {{model: resnet18, options: {{learning_rate: 0.01}}}}")
    assert found.train is not None
    assert found.train.architecture == "resnet18"
    config = model_config(found.train)()
    assert (config.model, config.learning_rate, config.epochs) == ("resnet18", 0.01, 30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nsource: {}", "give exactly one of"),
        ("name: a\nsource: {folder: x, table: y}", "found folder, table"),
        ("name: Flowers\nsource: {table: t}", "lower case letters"),
        ("name: a__b\nsource: {table: t}", "lower case letters"),
        ("name: a\nsource: {manifest: labels.txt}", "must be a file .csv or .parquet"),
        ("name: a\nsource: {dataframe: no_function}", "must be module:function"),
        (f"{TABLE}split: {{validation: 0.6, test: 0.4}}", "leave no rows to train on"),
        (f"{TABLE}prepare: {{}}", "exactly one of `image` and `function`"),
        (f"{TABLE}prepare: {{image: {{}}}}", "needs a source of images"),
        (f"{TABLE}train: {{}}", "needs a source of images"),
        (f"{TABLE}train: {{function: train}}", "must be module:function, found 'train'"),
        (f"{IMAGES}prepare: {{function: 'm:f'}}", "needs a source of rows"),
        (f"{IMAGES}split: {{key: path}}", "images are split by their paths"),
        (f"{TABLE}split: {{fixed: true}}", "`split.fixed` is for images"),
        ("name: a\nsource: {table: t, options: {header: 'true'}}", "give its `format`"),
        ("name: a\nsource: {folder: x, version: 'm:f'}", "`version` needs a source of rows"),
        (f"{IMAGES}shards: {{columns: {{image: jpeg}}}}", "label, path is missing"),
        (f"{IMAGES}shards: {{nulls: {{label: mask}}}}", "needs a source of rows"),
        (f"{IMAGES}train: {{epochs: 0}}", "greater than or equal to 1"),
        (f"{IMAGES}trian: {{}}", "trian"),
    ],
)
def test_what_cannot_be_is_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(text)


def test_an_unknown_option_of_the_training_is_refused_when_the_declaration_is_loaded() -> None:
    with pytest.raises(ValueError, match="no field 'learningrate'; it has"):
        build_definitions(read(f"{IMAGES}train: {{options: {{learningrate: 1}}}}"))
    with pytest.raises(ValueError, match=r"no field 'augment'.*it belongs in `task_options`"):
        build_definitions(read(f"{IMAGES}train: {{options: {{augment: false}}}}"))
    with pytest.raises(ValueError, match="ImageTaskOptions has no field 'vocabulary'"):
        build_definitions(read(f"{IMAGES}train: {{task_options: {{vocabulary: 7}}}}"))
    with pytest.raises(ValueError, match="less than or equal to 4096"):
        build_definitions(read(f"{IMAGES}train: {{task_options: {{image_size: 5000}}}}"))


def test_options_of_the_task_are_the_defaults_of_a_run_that_chooses_others() -> None:
    declared = read(f"{IMAGES}train: {{task_options: {{augment: false, width: 0.5}}}}").train
    assert declared is not None
    config = model_config(declared)
    assert config().task_options.model_dump() == {
        "width": 0.5, "label_smoothing": 0.1, "augment": False, "class_weights": [], "image_size": 0,
    }  # fmt: skip
    chosen = config(task_options=type(config().task_options)(image_size=32))
    assert (chosen.task_options.augment, chosen.task_options.image_size) == (False, 32)
    shown = overrides(chosen)[OVERRIDDEN].value["task_options"]
    assert (shown["declared"]["image_size"], shown["in this run"]["image_size"]) == (0, 32)


def test_a_source_that_is_empty_leaves_the_generated_set(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: flowers\nsource: {folder: '{{ env.FLOWERS_URL }}', generate: 'assets.drawing:draw_flowers'}"
    monkeypatch.delenv("FLOWERS_URL", raising=False)
    assert read(text).source.form == "generate"
    monkeypatch.setenv("FLOWERS_URL", "s3://bucket/flowers")
    assert (read(text).source.form, read(text).source.text) == ("folder", "s3://bucket/flowers")


def code_versions(text: str) -> dict[str, Any]:
    graph = define(read(text)).resolve_asset_graph()
    return {key.path[-1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("train: {epochs: 3}", {"model"}),
        ("train: {}\nshards: {size_limit: 1mb}", {"shards"}),
        ("train: {}\nprepare: {image: {size: 32}}", {"prepared"}),
        ("train: {}\nsplit: {validation: 0.3}", {"prepared", "shards"}),
        ("train: {}\nautomation: {reshard: null}\ndescription: other", set()),
    ],
)
def test_a_changed_declaration_changes_the_code_versions_of_what_it_is_about(change: str, stages: set[str]) -> None:
    before, after = code_versions(f"{IMAGES}train: {{}}"), code_versions(f"{IMAGES}{change}")
    assert {stage for stage in before if before[stage] != after[stage]} == stages


def test_two_data_sets_share_no_place_and_no_name(storage: StorageResource) -> None:
    first, second = read(TABLE), read(TABLE.replace("sales", "costs"))
    for part in ("raw", "prepared", "shards", "inventories", "generated", "archives"):
        assert place_of(first, storage, part).url != place_of(second, storage, part).url
    assert shards_of(first, storage).url == f"{storage.root}/sales/shards"
    both = dg.Definitions.merge(build_definitions(first), define(second))
    dg.Definitions.validate_loadable(both)


def test_a_declared_target_is_where_the_shards_go(storage: StorageResource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET", "lake")
    declared = read(f"{TABLE}shards: {{target: 's3://${{BUCKET}}/sales'}}")
    assert shards_of(declared, storage).url == "s3://lake/sales"


def test_a_reference_to_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ValueError, match="NOWHERE, which is not set"):
        expand("s3://${NOWHERE}/photos")


def test_a_run_s_override_is_shown_beside_what_is_declared_and_without_secrets() -> None:
    declared = with_defaults(ModelConfig, epochs=7)
    assert overrides(declared()) == {}
    shown = overrides(declared(epochs=9, weights="https://host/w?sig=CANARY&token=CANARY"))[OVERRIDDEN].value
    assert shown["epochs"] == {"declared": 7, "in this run": 9}
    assert "CANARY" not in str(shown)


def test_the_shipped_data_sets_fit_on_a_page() -> None:
    root = Path(__file__).parents[2]
    [declared] = (root / "pipelines" / "defs").rglob("defs.yaml")
    assert declared.parent.name == "tokens"
    assert len(declared.read_text().splitlines()) <= 20
    assert len((root / "assets" / "flowers.py").read_text().splitlines()) <= 60


def test_the_declaration_and_the_component_have_the_same_fields() -> None:
    assert DataSet.model_fields.keys() == Declaration.model_fields.keys()


# ---------------------------------------------------------------- the documentation


def test_the_declaration_in_the_page_about_training_names_a_function() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "smalti_dagster.DataSet" in each]
    declared = read(yaml.safe_dump(yaml.safe_load(block)["attributes"]))
    assert declared.train is not None
    assert declared.train.function == "pipelines.defs.digits.train:train_digits"
    assert build_definitions(declared).assets


PAGE = Path(__file__).parents[2] / "docs" / "dagster.md"
REFERENCE = PAGE.with_name("dagster-reference.md")
MARK = "SMALTI_UPDATE_SNAPSHOT=1 writes it -->\n"


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, default and description of every field, with those of nested models after their own."""
    for attribute, field in model.model_fields.items():
        name = prefix + {"architecture": "model"}.get(attribute, attribute)
        inner = next((each for each in models_in(field.annotation)), None)
        default = "" if field.is_required() else f"`{json.dumps(field.default)}`" if inner is None else "`null`"
        text = field.description or (inner.__doc__ or "").splitlines()[0] if inner else field.description or ""
        if not field.is_required() and isinstance(field.default, BaseModel):
            default = "see below"
        yield name, default, text.replace("|", "\\|")
        if inner is not None:
            yield from fields_of(inner, f"{name}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


def test_the_documentation_has_every_field_in_one_table() -> None:
    rows = [f"| `{name}` | {default} | {text} |" for name, default, text in fields_of(Declaration)]
    table = "\n".join(["| field | default | |", "| --- | --- | --- |", *rows, ""])
    before, mark, written = REFERENCE.read_text().partition(MARK)
    if os.environ.get("SMALTI_UPDATE_SNAPSHOT"):
        REFERENCE.write_text(before + mark + table)
        written = table
    assert written == table


def test_the_examples_of_the_documentation_are_declarations_of_at_most_twenty_lines() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = []
    for text in examples:
        assert len(text.splitlines()) <= 20
        document = yaml.safe_load(text)
        attributes = document["attributes"]
        if document["type"] == "smalti_dagster.Deployment":
            assert Deployment.resolve_from_yaml(yaml.safe_dump(attributes)).resources()
            continue
        found = read(yaml.safe_dump(attributes))
        dg.Definitions.validate_loadable(define(found))
        names.append(found.name)
    assert names == ["shapes", "sales", "photos"]


def test_the_commands_of_the_guide_launch_jobs_that_its_data_set_has() -> None:
    first = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert first is not None
    jobs = {each.name for each in define(read(yaml.safe_dump(yaml.safe_load(first[1])["attributes"]))).jobs or []}
    launched = set(re.findall(r"^dg launch --job (\w+)", PAGE.read_text(), re.MULTILINE))
    assert launched == {"shapes_reshard_job", "shapes_train_job", "shapes_promote_job"}
    assert launched <= jobs


def test_two_declarations_of_one_name_name_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "twice" / "defs"
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "defs.yaml").write_text(
            "type: smalti_dagster.DataSet\nattributes: {name: photos, source: {folder: /photos}}\n"
        )
    for module in (folder.parent, folder):
        (module / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    tree = ComponentTree.from_module(defs_module=importlib.import_module("twice.defs"), project_root=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster previews its own loaders
        with pytest.raises(ComponentTreeException) as caught:
            tree.build_defs()
    assert str(caught.value.__cause__) == (
        f"2 data sets are named 'photos', in {folder}/cats and {folder}/dogs: rename all but one, or delete their files"
    )


@pytest.mark.parametrize(
    ("declaration", "stage"),
    [
        (f"{TABLE}prepare: {{function: 'edited:f'}}", "prepared"),
        ("name: sales\nsource: {dataframe: 'edited:f'}\n", "raw"),
        ("name: photos\nsource: {generate: 'edited:f'}\n", "raw"),
        (f"{TABLE}train: {{function: 'edited:f'}}", "model"),
        (f"{TABLE}train: {{task: 'edited:F'}}", "model"),
        (f"{IMAGES}train: {{model: 'edited:f'}}", "model"),
    ],
)
def test_an_edit_of_a_named_function_changes_the_code_version_of_its_stage_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declaration: str, stage: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = read(declaration)

    def versions(text: str) -> dict[str, str]:
        (tmp_path / "edited.py").write_text(text)
        importlib.invalidate_caches()
        return {each: found.code_version(each, "1") for each in found.stages}

    before, after = versions("def f(rows): return rows"), versions("def f(rows): return rows[:1]")
    assert {each for each in before if before[each] != after[each]} == {stage}
    assert "edited" not in sys.modules, "a module that is slow to import does not delay the code location"


def test_a_declaration_loads_although_its_module_is_not_there() -> None:
    assert read(f"{TABLE}prepare: {{function: 'no.such.module:f'}}").code_version("prepared", "3").startswith("3-")
