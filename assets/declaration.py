"""The declaration of a data set: everything that decides its assets, checks, jobs, schedule and sensors.

Here: the typed fields that a `defs.yaml` holds, their validation, and the names that follow from them. Not here: what
is built from them (`assets.stages`, `pipelines.data_set`), credentials and places (`resources`).
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import dagster as dg
from pydantic import Field, field_validator, model_validator

from assets.checks.declared import CheckName, Severity, blocking_checks, refuse_of_other_kind
from smalti.errors import SchemaError
from smalti.torch.train.config import IMAGES, TASKS
from smalti.torch.tuning.space import parse_space

Share = Annotated[float, Field(ge=0, le=1)]
Stage = Literal["raw", "prepared", "shards", "model"]

_STAGES: tuple[Stage, ...] = get_args(Stage)

PARTITION = "{partition}"
"""Stands for the key of a partition in the address of its images."""

MANIFESTS = (".csv", ".parquet")
"""Endings of the names of manifests."""

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KINDS = ("folder", "manifest", "table", "sql", "dataframe")
_IMAGE_COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}


class Drawn(dg.Model, dg.Resolvable):
    """A generated example set of flowers, for a deployment without data."""

    images_per_class: int = Field(default=160, ge=2, le=100_000)
    seed: int = Field(default=0, ge=0, description="Another seed gives other images.")


class Source(dg.Model, dg.Resolvable):
    """The place of the raw data: one of `folder`, `manifest`, `table`, `sql`, `dataframe`, `drawn`.

    `drawn` may stand beside another one, and is used while that one is empty. `{{ env.NAME }}` is replaced by a
    variable of the environment when the declaration is loaded, and shown in the UI. `${NAME}` is replaced when a run
    reads the source, and shown as it stands: use it for addresses that hold a secret.
    """

    folder: str | None = Field(
        default=None,
        description="Folder or archive (.tgz, .tar, .zip) with one sub-folder per class: path, s3://, gs://, abfs://, "
        "dbfs:/Volumes/..., https:// for archives.",
    )
    manifest: str | None = Field(
        default=None, description="CSV or Parquet file with a row for each image: a path relative to it, and a label."
    )
    path_column: str = Field(default="path", description="Of the manifest.")
    label_column: str = Field(default="label", description="Of the manifest.")
    table: str | None = Field(default=None, description="Name in the Spark catalogue, or address of a table's folder.")
    format: Literal["delta", "iceberg", "parquet", "orc", "csv", "json", "text"] | None = Field(
        default=None, description="Of a table given by its address; a name in the catalogue needs none."
    )
    options: dict[str, str] = Field(
        default={}, description='Of Spark\'s reader of a table given by its address, such as {header: "true"} of CSV.'
    )
    sql: str | None = Field(default=None, description="A query of Spark SQL.")
    dataframe: str | None = Field(
        default=None, description="module:function, called with the Spark session; returns a DataFrame."
    )
    version: str | None = Field(
        default=None,
        description="Of rows: module:function without arguments that needs no Spark; returns a text, another one "
        "whenever the rows are others, or None. While it is the same, no rows are read.",
    )
    drawn: Drawn | None = Field(default=None, description="A generated example set.")

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Source":
        given = [name for name in _KINDS if getattr(self, name)]
        if len(given) > 1 or (not given and self.drawn is None):
            choices = f"{', '.join(_KINDS)}, drawn"
            raise ValueError(f"give exactly one of {choices} as the source, found {', '.join(given) or 'none'}")
        if self.manifest and not self.manifest.endswith(MANIFESTS):
            raise ValueError(f"`manifest` must be a file {' or '.join(MANIFESTS)}, found {self.manifest!r}")
        if self.dataframe:
            _require_import_path("dataframe", self.dataframe)
        if self.version:
            _require_import_path("version", self.version)
        if self.version and self.kind == "images":
            raise ValueError("`version` needs a source of rows (table, sql, dataframe)")
        if self.options and self.format is None:
            raise ValueError("`options` are those of the reader of a table given by its address: give its `format`")
        return self

    @property
    def form(self) -> str:
        """The field that holds the source."""
        return next((name for name in _KINDS if getattr(self, name)), "drawn")

    @property
    def text(self) -> str:
        """The value of that field; empty for a generated set."""
        return str(getattr(self, self.form)) if self.form != "drawn" else ""

    @property
    def kind(self) -> Literal["images", "rows"]:
        """`images` for folders, manifests and generated sets, `rows` for tables, queries and DataFrames."""
        return "rows" if self.form in ("table", "sql", "dataframe") else "images"


_WINDOWS: dict[str, Callable[..., dg.PartitionsDefinition[str]]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "week": dg.WeeklyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}


class Partitions(dg.Model, dg.Resolvable):
    """Partitions of the source: a run reads its own, and the shard set holds those that were read so far.

    The address of images holds `{partition}`, such as `s3://lake/photos/day={partition}`; rows have a column.
    """

    by: Literal["hour", "day", "week", "month", "key"] = Field(
        description="Windows of time, or keys that are found in the source (images) or added in the UI (rows)."
    )
    start: str | None = Field(
        default=None, description="Key of the first window: 2026-11-01, or 2026-11-01-00:00 of hours. Not of keys."
    )
    timezone: str = Field(default="UTC", description="Of the windows.")
    column: str | None = Field(
        default=None, description="Rows only: column that holds the key of each row, as text or date."
    )

    @model_validator(mode="after")
    def _has_a_start(self) -> "Partitions":
        if (self.by == "key") != (self.start is None):
            raise ValueError("`start` is the first window of time: give it unless partitions are by `key`")
        try:
            if self.start is not None:
                self.definition("").get_first_partition_key()
        except ValueError as error:
            raise ValueError(f"`start` must be like 2026-11-01, of hours 2026-11-01-00:00: {error}") from error
        return self

    def definition(self, name: str) -> dg.PartitionsDefinition[str]:
        """Return Dagster's definition of the partitions of a data set."""
        if self.start is None:
            return dg.DynamicPartitionsDefinition(name=f"{name}_partitions")
        return _WINDOWS[self.by](start_date=self.start, timezone=self.timezone)


class Split(dg.Model, dg.Resolvable):
    """The split of the rows: by a stable hash into shares, or by a column."""

    validation: Share = 0.2
    test: Share = Field(default=0.0, description="Share that is kept for a test after training.")
    fixed: bool = Field(
        default=False,
        description="Images only: a hash of its path alone decides the split of a file, so that none changes it when "
        "others come or go, and shares are met on average; always so with `test`, and of rows.",
    )
    key: str | None = Field(
        default=None, description="Rows only: column that is hashed, so that equal values stay together; else all."
    )
    column: str | None = Field(default=None, description="Rows only: column with the name of the split, not shares.")
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _leaves_training_rows(self) -> "Split":
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave no rows to train on")
        return self


class Image(dg.Model, dg.Resolvable):
    """Images decoded, rotated upright, cropped to a square, scaled and encoded as JPEG."""

    size: int = Field(default=96, ge=8, le=4096, description="Side of the square in pixels.")
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality.")
    on_bad_image: Literal["fail", "skip"] = Field(
        default="skip",
        description="Of files that are no images. skip: leave them out, up to `checks.max_bad_share`; fail: stop if "
        "there is one.",
    )


class Prepare(dg.Model, dg.Resolvable):
    """The preparation of each row before it is stored: `image`, or a function of the user's."""

    image: Image | None = None
    function: str | None = Field(
        default=None, description="module:function over Arrow or pandas batches, as `dataframe_to_mds(transform=...)`."
    )

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Prepare":
        if (self.image is None) == (self.function is None):
            raise ValueError("give exactly one of `image` and `function` in `prepare`")
        if self.function is not None:
            _require_import_path("function", self.function)
        return self


class Shards(dg.Model, dg.Resolvable):
    """Storage of rows; see docs/types.md and docs/format.md."""

    columns: dict[str, str | None] | None = Field(
        default=None, description="Encoding by column, null for that of its type; by default all columns."
    )
    nulls: dict[str, str | dict[str, Any]] = Field(
        default={}, description="Rows only: null policy by column: reject, mask or {default: value}."
    )
    compression: str = Field(default="", description="zstd or zstd:<level>; none by default.")
    hashes: list[str] = Field(default=["xxh3_64"], description="Checksums of every shard.")
    size_limit: str = Field(default="16mb", description="Largest shard before compression.")
    target: str = Field(default="", description="Address of the shard set; by default below the storage root.")


def _resolve_text(context: dg.ResolutionContext, value: str) -> str:
    return str(context.resolve_value(value, as_type=str))


class Tracking(dg.Model, dg.Resolvable):
    """Records of each training beside those of Dagster."""

    tensorboard: bool = Field(default=False, description="Write TensorBoard's event files into the run's folder.")
    mlflow: str = Field(
        default="",
        description="Address of an MLflow tracking server, or `environment` for that of MLFLOW_TRACKING_URI.",
    )
    experiment: str = Field(default="", description="Of MLflow; by default the data set's name.")


class Tuning(dg.Model, dg.Resolvable):
    """A study of hyperparameters: trainings with different values, of which the best is found."""

    space: dict[str, Any] = Field(
        description="By field of the training, such as learning_rate: a list of choices, or {low: 0.001, high: 0.1, "
        "log: true}, or {low: 1, high: 9, step: 2}."
    )
    metric: str = Field(default="accuracy", description="Figure of the held-out samples to compare trials by.")
    direction: Literal["maximize", "minimize"] = "maximize"
    trials: int = Field(default=20, ge=1, description="Of a study.")
    hours: float = Field(default=0.0, ge=0, description="After these no trial begins any more; 0: no limit.")
    parallel: int = Field(default=1, ge=1, description="Trials at once.")
    sampler: Literal["tpe", "random"] = Field(default="tpe", description="tpe learns from the trials before.")
    pruner: Literal["median", "hyperband", "none"] = Field(
        default="median", description="Ends trials that are worse than others were at the same epoch."
    )

    @field_validator("space")
    @classmethod
    def _is_a_space(cls, space: dict[str, Any]) -> dict[str, Any]:
        try:
            parse_space(space)
        except SchemaError as error:
            raise ValueError(str(error)) from error
        return space


class Train(dg.Model, dg.Resolvable):
    """Training of a model; the fields of `smalti.torch.train.TrainConfig`."""

    task: str = Field(
        default=IMAGES,
        description="image-classification; of rows language-model or tabular-regression; or module:Class of a task of "
        "your own (docs/training.md).",
    )
    task_options: dict[str, Any] = Field(default={}, description="Arguments of the task's class, such as vocabulary.")
    function: str | None = Field(
        default=None,
        description="module:function of your own, in place of the task and its model (docs/training.md); `options` is "
        "its `context.config`.",
    )
    # `model` is a method of dg.Resolvable; only the YAML has that name.
    architecture: Annotated[str, dg.Resolver(_resolve_text, model_field_name="model", model_field_type=str)] = Field(
        default="mobilenet_v2", description="A shipped model, module:function, or a known model's name."
    )
    epochs: int = Field(default=30, ge=1)
    batch_size: int = Field(default=32, ge=1, description="Samples per step over all processes.")
    launcher: Literal["default", "inline", "processes", "spark-local", "spark"] = Field(
        default="default", description="Which processes train; default: the deployment's own launcher."
    )
    num_processes: int = Field(default=0, ge=0, description="Training processes; 0: the deployment's own number.")
    cache_limit: str = Field(default="", description="Of copies of remote shards; by default half of the free disk.")
    tracking: Tracking = Tracking()
    options: dict[str, float | int | str | bool | list[str] | dict[str, Any]] = Field(
        default={}, description="Further fields that the Launchpad shows for the model, such as learning_rate."
    )

    @field_validator("function")
    @classmethod
    def _is_an_import_path(cls, function: str | None) -> str | None:
        if function is not None:
            _require_import_path("train.function", function)
        return function

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        if task not in TASKS and not _IMPORT_PATH.fullmatch(task):
            raise ValueError(f"`task` must be one of {', '.join(TASKS)}, or module:Class, found {task!r}")
        return task


class Watch(dg.Model, dg.Resolvable):
    """Options of the sensor that re-shards a changed source."""

    quiet_seconds: int = Field(default=60, ge=0, description="The source must not have changed for so long.")
    interval_seconds: int = Field(default=30, ge=1, description="Between two looks at the source.")
    listing: Literal["full", "paged"] = Field(
        default="full",
        description="paged: each look lists a part of a folder on S3; needed from some 100,000 files on.",
    )
    file: str | None = Field(
        default=None,
        description="Name below the folder, or beside the manifest, of a file that is looked at in place of a listing: "
        "_SUCCESS, or the manifest itself.",
    )
    queue: str | None = Field(
        default=None, description="Address of an SQS queue with the bucket's events, in place of a listing."
    )

    @model_validator(mode="after")
    def _has_one_way(self) -> "Watch":
        given = ["listing: paged"] if self.listing == "paged" else []
        given += [name for name in ("file", "queue") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"give one of `listing: paged`, `file` and `queue` in `watch`, found {' and '.join(given)}"
            )
        return self

    @property
    def is_full(self) -> bool:
        """True if each look lists the whole source."""
        return self.listing == "full" and not self.file and not self.queue


class Notify(dg.Model, dg.Resolvable):
    """Channels that failures of this data set are reported to, beside those of the deployment."""

    webhook: str = Field(default="", description="URL that takes JSON; ${NAME} of a variable that holds it.")
    slack: str = Field(default="", description="Incoming webhook of Slack; ${NAME} of a variable that holds it.")
    email: list[str] = Field(default=[], description="Mailboxes; the deployment has the mail server.")
    error_texts: bool = Field(
        default=False, description="Texts of all errors, also of those that may hold values of rows."
    )

    @model_validator(mode="after")
    def _has_a_channel(self) -> "Notify":
        if not (self.webhook or self.slack or self.email):
            raise ValueError("give `webhook`, `slack` or `email` in `notify`, or leave it out")
        return self


class Automation(dg.Model, dg.Resolvable):
    """Schedule and sensors; everything is off until it is switched on in the UI."""

    reshard: str | None = Field(default="0 3 * * *", description="Cron expression, or null for no schedule.")
    timezone: str = "UTC"
    watch: Watch | None = Field(
        default=Watch(),
        description="Null for no sensor; of images, of tables given by address, and of rows with `source.version`.",
    )
    train_on_new_version: bool = True
    notify: Notify | None = Field(default=None, description="By default failures go to the deployment's channels.")
    condition: Literal["eager", "on_missing", "on_cron"] | None = Field(
        default=None,
        description="Dagster's declarative automation in place of schedule and requests of sensors; on_cron at the "
        "times of `reshard`.",
    )

    @model_validator(mode="after")
    def _has_times(self) -> "Automation":
        if self.condition == "on_cron" and self.reshard is None:
            raise ValueError("`condition: on_cron` needs `reshard`, the cron expression")
        if self.watch is not None and self.watch.queue and (self.reshard is None or self.condition is not None):
            raise ValueError(
                "`watch.queue` needs the schedule `reshard`, which finds changes whose message was lost, "
                "and no `condition`"
            )
        return self


class Checks(dg.Model, dg.Resolvable):
    """Thresholds of the asset checks."""

    max_bad_share: Share = Field(
        default=0.01, description="Share of unusable files that may be left out, rounded up to whole files."
    )
    max_row_loss: Share = Field(default=0.1, description="Rows that may be lost from one checked version to the next.")
    max_class_shift: Share = Field(
        default=0.1,
        description="Share of the images that other classes may have than in the last checked version; classes that "
        "are new or gone do not count.",
    )
    near_duplicate_bits: int = Field(
        default=8, ge=0, le=32, description="Bits of 128 in which the perceptual hashes of near-duplicates may differ."
    )
    max_near_duplicates: Share = Field(
        default=0.02, description="Share of the images that may be near-duplicates of others."
    )
    max_split_leakage: Share = Field(
        default=0.005,
        description="Share of the held-out images that may be near-duplicates of images that are trained on.",
    )
    min_accuracy: Share | None = Field(default=None, description="Held-out accuracy; by default above chance.")
    max_accuracy_drop: Share | None = Field(
        default=0.02,
        description="How far a model may be below the promoted one, on the same images; null: not checked.",
    )
    metric_limit: float | None = Field(
        default=None,
        description="Of other tasks than image classification: the held-out main figure must be as good as this.",
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
        description="By name of a check: block (stop the run; no such version is named `checked`), warn, or none.",
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
    tags: dict[str, str] = Field(default={}, description="Of the assets.")
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
        return f"{self.name}__data"

    @property
    def model_op(self) -> str:
        """The name in a run's configuration of the op that trains the model."""
        return self.key("model").to_python_identifier()

    def place(self, part: str) -> str:
        """Return a place below the storage root that no other data set uses."""
        return f"{self.name}/{part}"

    def code_version(self, stage: Stage, number: str) -> str:
        """Return the version of an asset's code: its own number, and a digest of what the declaration says about it."""
        sections: dict[Stage, tuple[str, ...]] = {
            "raw": ("source", "partitions"),
            "prepared": ("prepare", "split"),
            "shards": ("shards", "split"),
            "model": ("train",),
        }
        return f"{number}-{self.digest(*sections[stage])}"

    def digest(self, *sections: str) -> str:
        """Return a digest of some sections of the declaration, of everything by default."""
        values = self.model_dump(mode="json", include=set(sections) or set(Declaration.model_fields))
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _refuse_for_images(declared: Declaration) -> None:
    split, columns = declared.split, declared.shards.columns
    if declared.function is not None:
        raise ValueError("`prepare.function` needs a source of rows (table, sql, dataframe); images take `image`")
    if declared.train is not None and declared.train.task in TASKS and declared.train.task != IMAGES:
        raise ValueError(f"`train.task` {declared.train.task} needs a source of rows (table, sql, dataframe)")
    if split.key or split.column:
        raise ValueError("`split.key` and `split.column` need a source of rows: images are split by their paths")
    if declared.shards.nulls:
        raise ValueError("`shards.nulls` needs a source of rows: prepared images have no nulls")
    if columns is not None and not _IMAGE_COLUMNS.keys() <= columns.keys():
        missing = ", ".join(sorted(_IMAGE_COLUMNS.keys() - columns.keys()))
        raise ValueError(f"`shards.columns` of images must have image, label and path; {missing} is missing")


def _refuse_for_rows(declared: Declaration) -> None:
    if declared.prepare is not None and declared.prepare.image is not None:
        raise ValueError("`prepare.image` needs a source of images (folder, manifest, drawn); rows take `function`")
    if declared.train is not None and declared.train.function is None and declared.train.task == IMAGES:
        rest = ", ".join(name for name in TASKS if name != IMAGES)
        raise ValueError(
            f"`train.task` {IMAGES} needs a source of images; of rows give {rest}, module:Class, or `train.function`"
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


def _require_import_path(name: str, text: str) -> None:
    if not _IMPORT_PATH.fullmatch(text):
        raise ValueError(f"`{name}` must be module:function, found {text!r}")
