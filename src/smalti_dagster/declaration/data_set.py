"""The declaration of a data set as a whole: its sections, the thresholds of its checks, and what fits together."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

import dagster as dg
from pydantic import Field, field_validator, model_validator

from smalti.torch.train.config import IMAGES
from smalti_dagster.declaration.automation import Automation
from smalti_dagster.declaration.checks import CheckName, Severity, blocking_checks, refuse_of_other_kind
from smalti_dagster.declaration.data import PARTITION, Image, Partitions, Prepare, Shards, Source, Split, forms_of
from smalti_dagster.declaration.training import Train, Tuning
from smalti_dagster.declaration.values import IMPORT_PATH, Share, module_text

Stage = Literal["raw", "prepared", "shards", "model"]

_STAGES: tuple[Stage, ...] = get_args(Stage)
_IMAGE_COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}


class Checks(dg.Model, dg.Resolvable):
    """Thresholds of the asset checks."""

    max_bad_share: Share = Field(
        default=0.01, description="Share of unusable files that may be left out, rounded up to whole files."
    )
    max_row_loss: Share = Field(default=0.1, description="Rows that may be lost from one checked version to the next.")
    max_class_shift: Share = Field(
        default=0.1,
        description="Share of the images by which classes may shift from the last checked version; new and removed "
        "classes do not count.",
    )
    near_duplicate_bits: int = Field(
        default=8, ge=0, le=32, description="Bits of 128 in which the perceptual hashes of near-duplicates may differ."
    )
    max_near_duplicates: Share = Field(
        default=0.02, description="Share of the images that may be near-duplicates of others."
    )
    max_split_leakage: Share = Field(
        default=0.02,
        description="Share of the held-out images that may be near-duplicates of images that are trained on.",
    )
    min_accuracy: Share | None = Field(default=None, description="Held-out accuracy; by default above chance.")
    max_accuracy_drop: Share | None = Field(
        default=0.02,
        description="Accuracy that a model may lose against the promoted one on the same images; null: not checked.",
    )
    metric_limit: float | None = Field(
        default=None,
        description="Other tasks than image classification: limit of the held-out main figure.",
    )
    max_metric_loss: float | None = Field(
        default=0.05,
        ge=0,
        description="Share by which the main figure of such a task may be worse than the promoted model's, on the same "
        "rows; null: not checked.",
    )
    full_verification: Literal["always", "daily", "weekly", "monthly", "never"] = Field(
        default="weekly",
        description="Period in which every shard is read again and its hashes verified, spread over the runs in it; "
        "new shards are verified in each run.",
    )
    severity: dict[CheckName, Severity] = Field(
        default={},
        description="Severity by name of a check: block (stop the run; no such version is `checked`), warn, or none.",
    )


class Declaration(dg.Model, dg.Resolvable):
    """A data set: raw data, preprocessed rows, an MDS shard set, and a trained model.

    Asset keys are `<name>/source`, `<name>/raw`, `<name>/prepared`, `<name>/shards` and `<name>/model`, in a group of
    the same name.
    """

    name: str = Field(description="Prefix of all keys, jobs and sensors: lower case letters, digits and _.")
    description: str = ""
    source: Source
    partitions: Partitions | None = Field(default=None, description="By default the source is read as a whole.")
    split: Split = Split()
    prepare: Prepare | None = Field(
        default=None, description="By default images are stored at 96 pixels, and rows as they are."
    )
    shards: Shards = Shards()
    train: Train | None = Field(default=None, description="Without it, no model is trained.")
    tuning: Tuning | None = Field(
        default=None, description="A study of the training's hyperparameters; by default none."
    )
    automation: Automation = Automation()
    checks: Checks = Checks()
    owners: list[str] = Field(default=[], description="team:name, or an e-mail address.")
    tags: dict[str, str] = Field(default={}, description="Tags of assets, jobs, schedule and sensors.")
    group: str = Field(default="", description="By default the name.")

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        # Run tags that contain the name may have 63 characters; "__" separates the parts of a key in names of ops.
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or "__" in name or name.endswith("_"):
            raise ValueError(
                "`name` must be at most 40 lower case letters, digits and single underscores, and begin with a "
                f"letter, found {name!r}"
            )
        return name

    @model_validator(mode="after")
    def _fits_its_source(self) -> "Declaration":
        if self.source.kind == "images":
            _refuse_for_images(self)
        else:
            _refuse_for_rows(self)
        if self.tuning is not None and self.train is None:
            raise ValueError("`tuning` needs `train`: the training whose hyperparameters are tried out")
        if self.tuning is not None and self.train is not None and (self.train.task != IMAGES or self.train.function):
            raise ValueError(f"`tuning` is for the task {IMAGES}; call `hyperparameter_study` for others")
        _refuse_partitions(self)
        refuse_of_other_kind(self.source.kind, self.checks.severity)
        _refuse_automation(self)
        return self

    @property
    def partitions_definition(self) -> dg.PartitionsDefinition[str] | None:
        """The partitions of raw data, prepared rows and shards; None without any."""
        return self.partitions.definition(self.name) if self.partitions is not None else None

    @property
    def image(self) -> Image:
        """The options of images."""
        return (self.prepare.image if self.prepare is not None else None) or Image()

    @property
    def function(self) -> str | None:
        """The import path of the function that prepares rows; None without one."""
        return self.prepare.function if self.prepare is not None else None

    @property
    def columns(self) -> dict[str, str | None] | None:
        """The columns to store: name to encoding; None for all."""
        if self.shards.columns is None and self.source.kind == "images":
            return dict(_IMAGE_COLUMNS)
        return self.shards.columns

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The assets of this data set, in order."""
        is_prepared = self.source.kind == "images" or self.prepare is not None
        is_in = {"raw": True, "prepared": is_prepared, "shards": True, "model": self.train is not None}
        return tuple(stage for stage in _STAGES if is_in[stage])

    @property
    def blocking_checks(self) -> tuple[str, ...]:
        """The checks of a version that have to pass before the tag `checked` names it."""
        return blocking_checks(self.source.kind, self.checks.severity)

    @property
    def labels(self) -> dict[str, Any]:
        """The tags and owners of all that belongs to the data set, as arguments of Dagster's definitions."""
        return {"tags": {"data_set": self.name, **self.tags}, "owners": self.owners or None}

    def key(self, stage: Stage) -> dg.AssetKey:
        """Return the key of an asset."""
        return dg.AssetKey([self.name, stage])

    @property
    def source_key(self) -> dg.AssetKey:
        """The key of the external asset that stands for the source."""
        return dg.AssetKey([self.name, "source"])

    @property
    def data_op(self) -> str:
        """The name in a run's configuration of the op that makes all assets but the model."""
        return self.op_of(self.stages[: self.stages.index("shards") + 1])

    def op_of(self, stages: Sequence[Stage]) -> str:
        """Return the name of the op that makes stages up to the shards."""
        is_all = self.stages[: self.stages.index("shards") + 1] == tuple(stages)
        return f"{self.name}__{'data' if is_all else '_'.join(stages)}"

    @property
    def model_op(self) -> str:
        """The name in a run's configuration of the op that trains the model."""
        return self.key("model").to_python_identifier()

    def place(self, part: str) -> str:
        """Return a place below the storage root that no other data set uses."""
        return f"{self.name}/{part}"

    def code_version(self, stage: Stage, number: str) -> str:
        """Return the version of an asset's code: its own number, and a digest of what the declaration says about it.

        The digest covers the text of the modules that the declaration names: an edit marks the asset as out of date.
        """
        sections: dict[Stage, tuple[str, ...]] = {
            "raw": ("source", "partitions"),
            "prepared": ("prepare", "split"),
            "shards": ("shards", "split"),
            "model": ("train",),
        }
        declared = self.digest(*sections[stage])
        if code := "".join(map(module_text, self._import_paths(stage))):
            declared = hashlib.sha256(f"{declared}{code}".encode()).hexdigest()[:12]
        return f"{number}-{declared}"

    def _import_paths(self, stage: Stage) -> list[str]:
        """Return each `module:name` that a stage calls."""
        train = self.train
        named: dict[Stage, tuple[str | None, ...]] = {
            "raw": tuple(path for name, path in self.source.functions.items() if name != "version"),
            "prepared": (self.function,),
            "model": (train.function, train.task, train.architecture) if train is not None else (),
        }
        return [path for path in named.get(stage, ()) if path is not None and IMPORT_PATH.fullmatch(path)]

    def digest(self, *sections: str) -> str:
        """Return a digest of some sections of the declaration, of everything by default."""
        values = self.model_dump(mode="json", include=set(sections) or set(Declaration.model_fields))
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _refuse_for_images(declared: Declaration) -> None:
    split, columns = declared.split, declared.shards.columns
    if declared.function is not None:
        raise ValueError(
            f"`prepare.function` needs a source of rows ({', '.join(forms_of('rows'))}); images take `image`"
        )
    if split.key or split.column:
        raise ValueError("`split.key` and `split.column` need a source of rows: images are split by their paths")
    if declared.shards.nulls:
        raise ValueError("`shards.nulls` needs a source of rows: prepared images have no nulls")
    if columns is not None and not _IMAGE_COLUMNS.keys() <= columns.keys():
        missing = ", ".join(sorted(_IMAGE_COLUMNS.keys() - columns.keys()))
        raise ValueError(f"`shards.columns` of images must have image, label and path; {missing} is missing")


def _refuse_for_rows(declared: Declaration) -> None:
    if declared.prepare is not None and declared.prepare.image is not None:
        images = ", ".join(forms_of("images"))
        raise ValueError(f"`prepare.image` needs a source of images ({images}); rows take `function`")
    if declared.train is not None and declared.train.function is None and declared.train.task == IMAGES:
        raise ValueError(
            f"`train.task` {IMAGES} needs a source of images; for rows, give module:Class or `train.function`"
        )
    if declared.split.fixed:
        raise ValueError("`split.fixed` is for images: of rows, a hash of each row or of `key` always decides")


def _refuse_partitions(declared: Declaration) -> None:
    partitions, source = declared.partitions, declared.source
    if partitions is None:
        if source.folder is not None and PARTITION in source.folder:
            raise ValueError(f"`source.folder` has {PARTITION}: declare `partitions`")
        return
    if source.kind == "rows" and partitions.column is None:
        raise ValueError("`partitions` of rows need `column`: the column that holds the key of each row")
    if source.kind == "images" and (source.folder or "").count(PARTITION) != 1:
        raise ValueError(
            f"`partitions` of images need `source.folder` with {PARTITION} once, such as "
            f"s3://lake/photos/day={PARTITION}, found {source.text or 'no folder'!r}"
        )
    if source.kind == "images" and partitions.column is not None:
        raise ValueError("`partitions.column` needs a source of rows")


def _refuse_automation(declared: Declaration) -> None:
    watch, source = declared.automation.watch, declared.source
    if declared.automation.condition == "on_missing" and declared.partitions is None:
        raise ValueError("`automation.condition: on_missing` needs `partitions`: each new one is made once")
    if watch is None or watch.is_full:
        return
    if source.kind != "images" or declared.partitions is not None:
        raise ValueError("`watch` with `listing: paged`, `file` or `queue` needs a source of images without partitions")
    if watch.listing == "paged" and source.form == "manifest":
        raise ValueError("`watch.listing: paged` needs `source.folder`: of a manifest, give `watch.file`, its name")
