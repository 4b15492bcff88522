"""The configuration of a training run, and the tables of launchers and shipped tasks.

Configurations are frozen values that go through JSON. This module imports no torch, so that the code
location can read the choices without it.
"""

import dataclasses
import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from smalti.errors import SchemaError, SmaltiError, StoreError, WorldMismatch
from smalti.format.sizes import parse_byte_count
from smalti.order.mixture.planning import BATCHINGS
from smalti.storage.databricks.mount import is_databricks
from smalti.storage.opening import check_address, check_secrets, service_of
from smalti.stream import Stream
from smalti.torch.train.values import (
    MAX_COUNT,
    OPTIONS,
    SECRET,
    Best,
    Count,
    Flag,
    Fraction,
    Fractions,
    MaybeEmpty,
    Number,
    Options,
    Seconds,
    Secrets,
    Text,
    Texts,
    Weight,
    Whole,
    as_tuple,
    configuration,
    is_json,
    one_of,
    plain,
    wrong,
)

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Launcher:
    """A way to start the ranks of a run."""

    function: str
    """`module:function`, called with a `Program` and `on_event`; returns rank 0's result. Imported when used."""
    starts_processes: bool = True
    """True if it starts `num_processes` ranks; False if this process becomes a rank itself."""
    free_slots: str | None = None
    """For a launcher on other machines, `module:function` that returns how many ranks they can run now, or None."""


# To add a launcher, write its function and enter it here.
LAUNCHERS: Mapping[str, Launcher] = {
    # this process, also as a rank of torchrun, Slurm or Kubernetes
    "inline": Launcher(
        "smalti.torch.train.launchers.start:run_inline",
        starts_processes=False,
    ),
    # child processes on this machine
    "processes": Launcher("smalti.torch.train.launchers.processes:run_in_processes"),
    # child processes that Spark's TorchDistributor starts on the driver
    "spark-local": Launcher("smalti.torch.train.launchers.spark:run_on_driver"),
    # one task per process on Spark's executors
    "spark": Launcher(
        "smalti.torch.train.launchers.spark:run_on_executors",
        free_slots="smalti.torch.train.launchers.spark:free_slots",
    ),
}


# ------------------------------------------------------------ tasks


@configuration
class ImageOptions:
    """The options of image classification. The class of the task is a subclass.

    Examples:
        >>> options = {"image_size": 128, "label_smoothing": 0.0, "augment": False}
        >>> config = TrainConfig(data="s3://bucket/photos", run_dir="s3://bucket/runs/8", task_options=options)
    """

    factory: ClassVar[str] = "smalti.torch.train.tasks.images:ImageClassification"
    """`module:Class` of the task, called with `task_options`. Imported when used."""
    free_options: ClassVar[tuple[str, ...]] = ("label_smoothing", "augment", "class_weights")
    """As of any `Task`: those that may change when a run resumes."""

    image_column: Text = "image"
    label_column: Text = "label"
    num_classes: Annotated[Whole, Field(ge=0, le=MAX_COUNT)] = 0
    """0: as many as the version of the data lists, which `convert` and Spark write."""
    class_names: Texts = ()
    """In the order of their numbers; empty: those that the version of the data lists."""
    image_size: Annotated[Whole, Field(ge=1, le=1 << 15)] = 96
    """Side of the model's square input, in pixels."""
    width: Annotated[Number, Field(gt=0, le=100)] = 0.35
    """Width multiplier of `mobilenet_v2`; ignored by others."""
    label_smoothing: Fraction = 0.1
    """Smoothing of classes, in training."""
    augment: Flag = True
    """Random crops, flips and colours of training images."""
    class_weights: Annotated[tuple[Weight, ...], BeforeValidator(as_tuple)] = ()
    """Factor of the training loss of each class, in the order of their numbers; empty: 1 for all of them."""

    def __post_init__(self) -> None:
        if self.class_names and self.num_classes not in (0, len(self.class_names)):
            raise wrong("class_names", f"{self.num_classes} names, as `num_classes` says", self.class_names)

    @classmethod
    def option_defaults(cls) -> dict[str, Any]:
        """Return the options by name, with their defaults."""
        return {option.name: plain(option.default) for option in dataclasses.fields(cls)}


IMAGES = "image-classification"
# To add a task, write its class and that of its options, and enter the latter here.
TASKS: Mapping[str, type[ImageOptions]] = {IMAGES: ImageOptions}
FORMER_TASKS: Mapping[str, str] = {"language-model": "LanguageModel", "tabular-regression": "TabularRegression"}
"""Tasks that were shipped, and the classes of the examples that took their place."""
OBJECT_TASK = "object:"
"""Before the name of a task that was given as an object."""


def refuse_former_task(task: str) -> str:
    """Return the name of a task unless it is a former one.

    Raises:
        SchemaError: it is; the message says what takes its place.
    """
    if task in FORMER_TASKS:
        module, kind = task.replace("-", "_"), FORMER_TASKS[task]
        raise SchemaError(
            f"`task` '{task}' is no shipped task any more, but an example: copy {module}.py of the repository's "
            f"examples beside your code, and give `task: {module}:{kind}` with the same `task_options` "
            "(docs/training.md#the-built-in-trainer). Runs continue under this name; stored models are read with "
            f"`task={kind}(...)`.",
            field="task",
        )
    return task


def place_of_option(name: str) -> str:
    """Return a sentence that says where an option of a shipped task belongs; empty if there is none of the name."""
    for task, shipped in TASKS.items():
        if name in shipped.option_defaults():
            return f" `{name}` is an option of the task '{task}': it belongs in `task_options`."
    return ""


def with_nested_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored fields of a `TrainConfig` with the options of the task in `task_options`.

    Earlier versions of Smalti had those of image classification as fields of every configuration.
    """
    given, former = fields.get("task_options", {}), fields.keys() & ImageOptions.option_defaults().keys()
    if not former or not isinstance(given, Mapping):
        return dict(fields)
    own = {name: fields[name] for name in former} if fields.get("task", IMAGES) == IMAGES else {}
    rest = {name: value for name, value in fields.items() if name not in former}
    return {**rest, "task_options": {**own, **given}}


SCHEDULES = ("cosine", "constant", "step")
PRECISIONS = ("auto", "float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
KEPT = ("last", "best")
STREAM_FIELDS = ("remote", "split", "proportion", "repeat", "choose", "version")
"""Fields of `smalti.Stream` that a configuration may give: it is written to disk, so no credentials."""
MAX_BATCH = 1 << 24
"""Largest number of samples of one step."""


def find_named(path: str, *, field: str) -> Any:
    """Return the object that a configuration names as `module:name`.

    Raises:
        SchemaError: there is no such module or object; `field` is the field of the configuration that names it.
    """
    module_name, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise SchemaError(
            f"`{field}` '{path}': {error}. Expected 'module:name' with an importable module: installed where the "
            "training processes run, or importable in the process that calls `train`.",
            **{field: path},
        ) from error


def check_tracking_address(address: str) -> str:
    """Return the address of a tracking server if it has no password in it: addresses are recorded, shown and linked.

    Raises:
        SchemaError: it has one; the message does not repeat it.
    """
    is_web = address.startswith(("http:", "https:"))
    try:
        netloc = urlsplit(address).netloc
    except ValueError as error:
        raise SchemaError(f"`mlflow` must be the address of a server: {error}.", field="mlflow") from error
    # Passwords in addresses of databases may contain slashes.
    if ("@" in netloc) if is_web else re.search(r"://[^/]*:.*@|[?&;]password=", address):
        raise SchemaError(
            "`mlflow`, or MLFLOW_TRACKING_URI, must be an address without a password, and this one has it: set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, and for a database use "
            "its own file of passwords, such as ~/.pgpass.",
            field="mlflow",
        )
    return address


@configuration
class RunConfig:
    """The place of a run, its data, and the processes that are its ranks.

    Examples:
        >>> run = RunConfig(run_dir="s3://bucket/runs/8", launcher="processes", num_processes=2)
        >>> run.keep_checkpoints
        2
    """

    data: MaybeEmpty = ""
    """URL or path of the shard set."""
    version: Annotated[Whole, Field(ge=0)] | None = None
    """Version of the shard set; None: the newest, or on resume the one that the run began with."""
    digest: Text | None = None
    """Digest that the version must have."""
    run_dir: Text
    """Path or URL of the folder for checkpoints, metrics and the model; every rank must see a path as the same folder.

    In a store, volumes of Databricks included, each life of the run puts them there from a local temporary folder."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that are kept."""
    keep_best: Best | None = None
    """A figure of checkpoints, with `min` or `max` before it, such as `min loss`; the best one is kept as well.

    Checkpoints of the built-in trainer have the figures of an epoch at its end, others those given to `save`."""
    log_samples: Flag = False
    """Record every sample id that is trained on in a ledger, the folder `samples` in `run_dir`.

    `read_sample_order` reads it, and `smalti ledger check` proves that every sample was read once."""
    launcher: Annotated[Text, one_of(tuple(LAUNCHERS))] = "inline"
    """Processes that train; a key of `LAUNCHERS`."""
    num_processes: Count = 1
    """Training processes, one per rank."""
    device: Annotated[Text, one_of(DEVICES)] = "auto"
    """`auto`, `cpu` or `cuda`."""
    timeout_seconds: Seconds = 600.0
    """Longest time that one rank waits for the others, in a step or for a checkpoint to be written."""
    grace_seconds: Seconds = 15.0
    """Longest time to finish and save after a signal, and to write the last checkpoint after an exception."""
    max_restarts: Annotated[Whole, Field(ge=0, le=MAX_COUNT)] = 0
    """Number of times that a failed run is started again from its newest checkpoint, by a launcher with processes."""
    min_processes: Count | None = None
    """Fewest processes on which a restarted run continues; None: `num_processes`."""
    progress: Flag | None = None
    """Show progress on standard error: a bar in a terminal, else a line for each epoch and every 30 seconds.

    None: without the lines every 30 seconds; False: nothing."""
    tensorboard: Flag = False
    """Write TensorBoard's event files into the folder `tensorboard` in `run_dir`; needs the extra `tensorboard`."""
    mlflow: Annotated[MaybeEmpty, AfterValidator(check_tracking_address)] | None = None
    """Address of the MLflow tracking server to record the run in, or `environment` for that of MLFLOW_TRACKING_URI.

    Needs the extra `mlflow`. Credentials come from MLflow's own environment variables."""
    mlflow_experiment: MaybeEmpty = "smalti"
    """Experiment in MLflow, which is made if there is none."""
    cache_dir: Text | None = None
    """Folder for shards that come from a remote store; None: the cache's default."""
    cache_limit: Whole | Text | None = None
    """Bytes that cached shards may take, or text such as "100gb"; None: half of the disk that is free at the start."""
    storage_options: Secrets = field(default_factory=dict)
    """Options of the store. They may contain secrets: they are not written to `run_dir`, and repr shows only names."""
    run_storage_options: Secrets | None = None
    """Options of the store of `run_dir`, as secret; None: those of the data if both are on the same service."""
    preflight: Flag = True
    """Check, before other processes are started, that they will reach the data and `run_dir`.

    False: for executors with credentials that the driver does not have."""

    def __post_init__(self) -> None:
        starts = LAUNCHERS[self.launcher].starts_processes
        starting = " or ".join(repr(name) for name, launcher in LAUNCHERS.items() if launcher.starts_processes)
        for name, is_valid, expected in (
            ("max_restarts", starts or not self.max_restarts, "0 with launcher='inline'; torchrun has --max-restarts"),
            (
                "num_processes",
                starts or self.num_processes == 1,
                f"1 with launcher={self.launcher!r}; choose {starting} for more",
            ),
            ("min_processes", (self.min_processes or 1) <= self.num_processes, "from 1 to `num_processes`, or None"),
            *((name, not starts or is_json(getattr(self, name) or {}), OPTIONS) for name in SECRET),
        ):
            if not is_valid:
                raise wrong(name, expected, getattr(self, name))
        if self.cache_limit is not None:
            parse_byte_count(self.cache_limit, what="`cache_limit`")
        try:
            check_address(self.run_dir)
        except (SmaltiError, ValueError) as error:  # of urllib, for brackets that are no address of IPv6
            raise StoreError(f"`run_dir`: {error}", field="run_dir") from error
        check_secrets(self.data)

    def __repr__(self) -> str:
        shown = {**self.public_json(), **{name: sorted(getattr(self, name) or ()) for name in SECRET}}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)

    def check_ranks(self, num_ranks: int) -> None:
        """Check that so many ranks can work on the run; a WorldMismatch if not."""

    @property
    def local_run_dir(self) -> Path | None:
        """The path of `run_dir`; None if it is in a store.

        Mounted volumes count as a store: nothing can be appended to a file there.
        """
        if is_databricks(self.run_dir):
            return None
        if self.run_dir.startswith("file://"):
            return Path(unquote(urlsplit(self.run_dir).path))
        return None if "://" in self.run_dir else Path(self.run_dir)

    @property
    def run_dir_options(self) -> dict[str, Any]:
        """The storage options of `run_dir`: its own, or those of the data on the same service. Secret."""
        if self.run_storage_options is not None:
            return dict(self.run_storage_options)
        return dict(self.storage_options) if service_of(self.run_dir) == service_of(self.data) else {}

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values, including the secrets in the storage options."""
        return {**self.public_json(), **{name: plain(getattr(self, name)) for name in SECRET}}

    def public_json(self) -> dict[str, Any]:
        """Return all fields that may be written to disk: all but the storage options."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in SECRET)
        return {name: plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Self":
        """Return the configuration that `to_json` or `public_json` wrote.

        Raises:
            SchemaError: a field is unknown or missing, or a value is not allowed.
        """
        return cls(**obj)


@configuration
class TrainConfig(RunConfig):
    """The settings of a training run. Equal configurations on equal data give the same sample order.

    Examples:
        >>> config = TrainConfig(
        ...     data="s3://bucket/photos",
        ...     run_dir="s3://bucket/runs/8",
        ...     task_options={"image_size": 32},
        ...     keep_best="max accuracy",
        ...     keep="best",
        ... )
        >>> config.batch_size
        32
    """

    data: Text = field()  # required: without a value here, the default of `RunConfig` would be inherited
    """URL or path of the shard set."""
    task: Annotated[Text, AfterValidator(refuse_former_task), one_of(tuple(TASKS), "module:Class")] = IMAGES
    """A key of `TASKS`, or `module:Class` of a `Task` of your own, called with `task_options`."""
    task_options: Options = field(default_factory=dict)
    """Options of the task, as JSON values: the arguments of its class.

    Functions that `model` names get all those of image classification, with the classes that the data list."""
    train_split: Text | None = "train"
    streams: Annotated[tuple[Options, ...], BeforeValidator(as_tuple)] = ()
    """Shard sets or splits to mix in training: for each, fields of `smalti.Stream` such as `remote` and `proportion`.

    Without a `remote` it is one of `data`, without a `split` one of `train_split`."""
    batching: Annotated[Text, one_of(BATCHINGS)] = "random"
    """The mixing of `streams` in batches: `random`, or `stratified`, which gives each batch the same number of each."""
    eval_split: Text | None = "validation"
    """None: no evaluation; the result then has the figures of the training samples."""
    eval_data: Text | None = None
    """URL or path of another shard set, whose samples are evaluated; None: `data`."""
    eval_every: Count | None = None
    """Steps between two evaluations; another one is made at the end of every epoch. None: no others."""
    model: MaybeEmpty = "mobilenet_v2"
    """`mobilenet_v2`, or `module:function`: a function that takes the configuration and returns a module.

    A module that only the process that calls `train` can import, such as one beside the script, need not be installed
    on Spark's executors: its Python files are sent to them, with those loaded from the same folder. So are those of a
    task, an optimiser and a schedule."""
    weights: Text | None = None
    """Local folder or hub name with pretrained weights; None trains from scratch."""
    freeze: Texts = ()
    """Parameters that are not trained: names as in `state_dict()`, of parameters or modules, or patterns with `*`.

    A module whose parameters are all frozen computes as in evaluation: no dropout, no new batch statistics."""
    epochs: Count = 5
    """Passes over the training samples."""
    max_steps: Count | None = None
    """Optimiser steps after which the run ends, in place of `epochs`; None: `epochs` decide."""
    patience: Count | None = None
    """Evaluations without a better figure after which the run ends; None: it ends as planned.

    The figure is that of `keep_best`, or else the main one of the task."""
    keep: Annotated[Text, one_of(KEPT)] = "last"
    """The weights that become the model of the run: the `last` ones, or the `best` of all evaluations.

    The figure is that of `keep_best`, or else the main one of the task."""
    batch_size: Annotated[Whole, Field(ge=1, le=MAX_BATCH)] = 32
    """Samples per optimiser step over all ranks."""
    micro_batches: Count = 1
    """Gradient accumulation: equal parts in which a rank computes its share of a step. Changes memory, not the step."""
    optimizer: Annotated[Text, one_of(("adamw",), "module:Class")] = "adamw"
    """`adamw`, or `module:Class` such as `torch.optim:SGD`."""
    optimizer_options: Options = field(default_factory=dict)
    """Further arguments of the optimiser, such as `{"momentum": 0.9}`."""
    learning_rate: Annotated[Number, Field(gt=0)] = 4e-3
    """Its peak."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.05
    """Decay of the weights; biases and scales of normalisation do not decay."""
    clip_norm: Annotated[Number, Field(ge=0)] = 5.0
    """Largest norm of a gradient; 0: gradients are not clipped. The default only limits outliers."""
    schedule: Annotated[Text, one_of(SCHEDULES, "module:function")] = "cosine"
    """Learning rate after `warmup`: `cosine`, `constant`, `step` (see `milestones`), or `module:function`.

    The function is called with the fraction of the course that is over, in [0, 1], and returns the rate's fraction of
    `learning_rate`."""
    milestones: Fractions = (0.5, 0.75)
    """Fractions of the course, for `step`, after which the rate is multiplied by `milestone_factor`."""
    milestone_factor: Annotated[Number, Field(ge=0)] = 0.1
    warmup: Fraction = 0.1
    """Fraction of the whole run during which the learning rate rises, in [0, 1)."""
    precision: Annotated[Text, one_of(PRECISIONS)] = "auto"
    """`float32`; `bfloat16` where it suffices (autocast); `auto`: `bfloat16` on a GPU that is fast at it."""
    seed: Annotated[Whole, Field(ge=0)] = 17
    """Seed of the order of the samples, the initial weights and the random views."""
    affinity: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Part of its training shards that a host reads again in the next epoch, from 0 to 1, as for `StreamingDataset`.

    None: all of them, or on resume as the run began."""
    num_workers: Annotated[Whole, Field(ge=0, le=10_000)] = 0
    """Loader processes per training process; 0: threads."""
    checkpoint_every: Count = 50
    """Steps between two checkpoints; another one is saved at the end of every epoch."""
    log_every: Count = 10
    """Steps between two `step` events."""
    channels_last: Flag = True
    """Memory layout of model and batches; 2 to 6 times faster on CPUs than the other."""
    compile: Text | None = None
    """Backend of `torch.compile` for the model, such as `inductor`; None: the model is not compiled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_split is None and self.eval_data is None:
            for name, unset in (("keep", "last"), ("patience", None), ("eval_every", None)):
                if getattr(self, name) != unset:
                    raise wrong(name, f"{unset!r} without an evaluation: give `eval_split`", getattr(self, name))
        check_secrets(self.eval_data or "")
        if not self.mixed_streams() and self.batching != "random":
            raise wrong("batching", "'random' without `streams`", self.batching)
        if (shipped := TASKS.get(self.task)) is not None:
            try:
                shipped(**self.task_options)
            except SmaltiError as error:
                raise SchemaError(f"`task_options` of the task '{self.task}': {error}", field="task_options") from error

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{place_of_option(name)}")

    advice_on = staticmethod(place_of_option)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Self":
        """Return the configuration that `to_json` or `public_json` wrote, of this version or of an earlier one.

        Raises:
            SchemaError: a field is unknown or missing, or a value is not allowed.
        """
        return cls(**with_nested_options(obj))

    def mixed_streams(self) -> tuple[Stream, ...]:
        """Return the shard sets that training mixes; empty: it reads `train_split` of `data` alone.

        Raises:
            SchemaError: a field is unknown, or a value is not allowed.
        """
        unknown = sorted({name for fields in self.streams for name in fields} - set(STREAM_FIELDS))
        if unknown:
            raise wrong("streams", f"a list of mappings with {', '.join(STREAM_FIELDS)}", unknown)
        try:
            return tuple(Stream(**{"remote": self.data, **fields}) for fields in self.streams)
        except (SmaltiError, TypeError, ValueError) as error:
            raise SchemaError(f"`streams`: {error}", field="streams") from error

    def check_ranks(self, num_ranks: int) -> None:
        """Check that the batch can be divided over so many ranks; a WorldMismatch if not."""
        self.batch_per_rank(num_ranks)

    def batch_per_rank(self, num_ranks: int) -> int:
        """Return the samples that each of `num_ranks` ranks takes per step, for a batch of `batch_size` over all ranks.

        Raises:
            WorldMismatch: the batch does not divide; the message lists the numbers of ranks that work.
        """
        parts = num_ranks * self.micro_batches
        if self.batch_size % parts:
            share, rest = divmod(self.batch_size, self.micro_batches)
            low = [] if rest else [number for number in range(1, math.isqrt(share) + 1) if share % number == 0]
            fitting = sorted({*low, *(share // number for number in low)})
            raise WorldMismatch(
                f"`batch_size` {self.batch_size} cannot be divided over {num_ranks} ranks"
                + (f" with {self.micro_batches} micro-batches each" if self.micro_batches > 1 else "")
                + f": it works with {_listed(fitting)} ranks; choose one of these or another `batch_size`.",
                batch_size=self.batch_size,
                num_ranks=num_ranks,
                fitting=tuple(fitting),
            )
        return self.batch_size // num_ranks


def _listed(numbers: list[int]) -> str:
    words = [str(n) for n in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "no number of"
