"""The configuration of a training run, its result, and the table of launchers.

Configurations and results are frozen values that go through JSON. This module imports no torch, so that the code
location can read the choices without it.
"""

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

from smalti.errors import SchemaError, SmaltiError, StoreError, WorldMismatch
from smalti.format.sizes import parse_byte_count
from smalti.redaction import HiddenOptions
from smalti.storage.databricks.mount import is_databricks
from smalti.storage.opening import check_address, check_secrets, service_of

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Launcher:
    """A way to start the ranks of a run."""

    function: str
    """`module:function`, called with a `Program` and `on_event`; returns rank 0's result. Imported when used."""
    starts_processes: bool
    """True if it starts `num_processes` ranks; False if this process becomes a rank itself."""
    description: str


# To add a launcher, write its function and enter it here.
LAUNCHERS: Mapping[str, Launcher] = {
    "inline": Launcher(
        "smalti.torch.train.launchers.program:run_inline",
        starts_processes=False,
        description="this process, also as a rank of torchrun, Slurm or Kubernetes",
    ),
    "processes": Launcher(
        "smalti.torch.train.launchers.processes:run_in_processes",
        starts_processes=True,
        description="child processes on this machine",
    ),
    "spark-local": Launcher(
        "smalti.torch.train.launchers.spark:run_on_driver",
        starts_processes=True,
        description="child processes that Spark's TorchDistributor starts on the driver",
    ),
    "spark": Launcher(
        "smalti.torch.train.launchers.spark:run_on_executors",
        starts_processes=True,
        description="one task per process on Spark's executors",
    ),
}


@dataclass(frozen=True)
class ShippedTask:
    """A task of the library."""

    factory: str
    """`module:Class`, called with `task_options`. Imported when used."""
    main_metric: str
    """The figure by which models are compared, as the class says."""
    higher_is_better: bool
    description: str
    data_options: tuple[str, ...] = ()
    """Its options that say what the figures are of: those of models that differ in one are not comparable."""


IMAGES = "image-classification"
# To add a task, write its class and enter it here.
TASKS: Mapping[str, ShippedTask] = {
    IMAGES: ShippedTask(
        "smalti.torch.train.tasks.images:ImageClassification",
        main_metric="accuracy",
        higher_is_better=True,
        description="images and the numbers of their classes",
    ),
    "language-model": ShippedTask(
        "smalti.torch.train.tasks.language:LanguageModel",
        main_metric="perplexity",
        higher_is_better=False,
        description="the next token of blocks of tokens",
        data_options=("column", "vocabulary", "ignore"),
    ),
    "tabular-regression": ShippedTask(
        "smalti.torch.train.tasks.tabular:TabularRegression",
        main_metric="mean_squared_error",
        higher_is_better=False,
        description="a number from the numbers of a row",
        data_options=("target",),
    ),
}
OBJECT_TASK = "object:"
"""Before the name of a task that was given as an object."""

SCHEDULES = ("cosine", "constant", "step")
PRECISIONS = ("auto", "float32", "bfloat16")
_SECRET = ("storage_options", "run_storage_options")
DEVICES = ("auto", "cpu", "cuda")
MAX_BATCH = 1 << 24
"""Largest number of samples of one step."""
_MAY_BE_EMPTY = ("mlflow", "mlflow_experiment", "model")  # as in the declaration of a data set
_MAX_COUNT = 10**9
_MAX_SECONDS = 10**7  # some months; the operating system's timers end at some centuries
_MAX_INTEGER = (1 << 63) - 1
_MAX_TEXT = 10_000
_MAX_WORKERS = 10_000
_MAX_WIDTH = 100
_POSITIVE = {
    "image_size": 1 << 15,
    **dict.fromkeys(("epochs", "micro_batches", "checkpoint_every", "log_every"), _MAX_COUNT),
    "batch_size": MAX_BATCH,
}
"""Fields that are at least 1, and their largest values."""
_TOO_LARGE = "a number of at most 64 bits, and not infinite"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_NAMES_OF_TYPES = {int: "a whole number", float: "a number", str: "text", bool: "True or False", NoneType: "None"}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The place of a run, its data, and the processes that are its ranks."""

    data: str = ""
    """URL or path of the shard set."""
    version: int | None = None
    """Version of the shard set; None: the newest, or on resume the one that the run began with."""
    digest: str | None = None
    """Digest that the version must have."""
    run_dir: str
    """Path or URL of the folder for checkpoints, metrics and the model; every rank must see a path as the same folder.

    In a store, volumes of Databricks included, each life of the run puts them there from a local temporary folder."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""
    keep_best: str | None = None
    """A figure of checkpoints, with `min` or `max` before it, such as `min loss`; the best one is kept as well.

    Checkpoints of the built-in trainer have the figures of an epoch at its end, others those given to `save`."""
    log_samples: bool = False
    """Record every sample id that is trained on in a ledger, the folder `samples` in `run_dir`.

    `read_sample_order` reads it, and `smalti ledger check` proves that every sample was read once."""
    launcher: str = "inline"
    """Processes that train; a key of `LAUNCHERS`."""
    num_processes: int = 1
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    timeout_seconds: float = 600.0
    """Longest time that one rank waits for the others, in a step or for a checkpoint to be written."""
    grace_seconds: float = 15.0
    """Longest time to finish and save after a signal, and to write the last checkpoint after an exception."""
    max_restarts: int = 0
    """Number of times that a failed run is started again from its newest checkpoint, by a launcher with processes."""
    min_processes: int | None = None
    """Fewest processes on which a restarted run continues; None: `num_processes`."""
    progress: bool | None = None
    """Show progress on standard error: a bar in a terminal, else a line for each epoch and every 30 seconds.

    None: without the lines every 30 seconds; False: nothing."""
    tensorboard: bool = False
    """Write TensorBoard's event files into the folder `tensorboard` in `run_dir`; needs the extra `tensorboard`."""
    mlflow: str | None = None
    """Address of the MLflow tracking server to record the run in, or `environment` for that of MLFLOW_TRACKING_URI.

    Needs the extra `mlflow`. Credentials come from MLflow's own environment variables."""
    mlflow_experiment: str = "smalti"
    """Experiment in MLflow, which is made if there is none."""
    cache_dir: str | None = None
    """Folder for shards that come from a remote store; None: the cache's default."""
    cache_limit: int | str | None = None
    """Bytes that cached shards may take, or text such as "100gb"; None: half of the disk that is free at the start."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the store. They may contain secrets: they are not written to `run_dir`, and repr shows only names."""
    run_storage_options: Mapping[str, Any] | None = None
    """Options of the store of `run_dir`, as secret; None: those of the data if both are on the same service."""
    preflight: bool = True
    """Check, before other processes are started, that they will reach the data and `run_dir`.

    False: for executors with credentials that the driver does not have."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if not _fits(value := getattr(self, name), hint):
                raise self._wrong(name, _TOO_LARGE if _is_too_large(value) else _described(hint))
            object.__setattr__(self, name, _frozen(value))
        for name in _SECRET:
            if (options := getattr(self, name)) is not None:
                object.__setattr__(self, name, MappingProxyType(HiddenOptions(options)))
        for name, is_valid, expected in chain(self._forms(), self._rules()):
            if not is_valid:
                raise self._wrong(name, expected)
        if self.cache_limit is not None:
            parse_byte_count(self.cache_limit, what="`cache_limit`")
        try:
            check_address(self.run_dir)
        except (SmaltiError, ValueError) as error:  # of urllib, for brackets that are no address of IPv6
            raise StoreError(f"`run_dir`: {error}", field="run_dir") from error
        check_secrets(self.data)
        check_tracking_address(self.mlflow or "")

    def _wrong(self, name: str, expected: str) -> SchemaError:
        value = getattr(self, name)
        shown = type(value).__name__ if name in _SECRET else _SHORT.repr(_plain(value))
        return SchemaError(f"`{name}` must be {expected}, not {shown}.", field=name, found=shown)

    def _forms(self) -> Iterator[tuple[str, bool, str]]:
        """Yield the rules for texts, and for values that are sent as JSON; as `_rules`."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                is_text = _is_text(value) and (value != "" or each.default == "" or each.name in _MAY_BE_EMPTY)
                yield each.name, is_text, f"text of 1 to {_MAX_TEXT:,} characters, in UTF-8 and without NUL"
            elif isinstance(value, tuple) and value and isinstance(value[0], str):
                yield each.name, all(map(_is_text, value)), "a list of texts, in UTF-8 and without NUL"
            elif isinstance(value, Mapping):
                stays_here = each.name in _SECRET and self.launcher == "inline"
                yield each.name, stays_here or _is_json(value), "a mapping of options, with values of JSON"

    def _sizes(self) -> Iterator[tuple[str, bool, str]]:
        """Yield the rules for the sizes of all numbers; as `_rules`."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float):  # a comparison with NaN is false
                yield each.name, -(1 << 63) <= value < 1 << 63, "a number of at most 64 bits, and not infinite"

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yield the rules for values: the field, whether its value is valid, and what is expected."""
        yield from ((name, getattr(self, name) >= 1, "at least 1") for name in ("num_processes", "keep_checkpoints"))
        for name in ("keep_checkpoints", "max_restarts", "num_processes"):
            yield name, getattr(self, name) <= _MAX_COUNT, f"at most {_MAX_COUNT:,}"
        for name in ("timeout_seconds", "grace_seconds"):
            yield name, 0 < getattr(self, name) <= _MAX_SECONDS, f"above 0 and at most {_MAX_SECONDS:,}"
        yield "version", self.version is None or self.version >= 0, "0 or more"
        restarts = self.launcher in LAUNCHERS and LAUNCHERS[self.launcher].starts_processes
        expected = "0 or more" if restarts else "0 with launcher='inline'; torchrun has --max-restarts"
        yield "max_restarts", self.max_restarts == 0 or (restarts and self.max_restarts > 0), expected
        fewest = self.min_processes is None or 1 <= self.min_processes <= self.num_processes
        yield "min_processes", fewest, "from 1 to `num_processes`, or None"
        is_named = self.keep_best is None or re.fullmatch(r"(min|max) \S+", self.keep_best) is not None
        yield "keep_best", is_named, "`min` or `max`, a space and the name of a figure"
        yield "launcher", self.launcher in LAUNCHERS, f"one of {', '.join(LAUNCHERS)}"
        yield "device", self.device in DEVICES, f"one of {', '.join(DEVICES)}"
        fits = self.num_processes == 1 or self.launcher not in LAUNCHERS or LAUNCHERS[self.launcher].starts_processes
        starting = " or ".join(repr(name) for name, each in LAUNCHERS.items() if each.starts_processes)
        yield "num_processes", fits, f"1 with launcher={self.launcher!r}; choose {starting} for more"

    def __repr__(self) -> str:
        shown = {**self.public_json(), **{name: sorted(getattr(self, name) or ()) for name in _SECRET}}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)

    def check_ranks(self, num_ranks: int) -> None:
        """Check that so many ranks can work on the run; a WorldMismatch if not."""

    def in_one_rank(self, **changes: Any) -> "Self":
        """Return the configuration of one rank that was started by something else."""
        alone: dict[str, Any] = {"launcher": "inline", "num_processes": 1, "max_restarts": 0, "min_processes": None}
        return replace(self, **alone, **changes)

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
        own = None if self.run_storage_options is None else dict(self.run_storage_options)
        return {**self.public_json(), "storage_options": dict(self.storage_options), "run_storage_options": own}

    def public_json(self) -> dict[str, Any]:
        """Return all fields that may be written to disk: all but the storage options."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in _SECRET)
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Self":
        """Return the configuration that `to_json` or `public_json` wrote.

        Raises:
            SchemaError: a field is unknown or missing, or a value is not allowed.
        """
        fields = dataclasses.fields(cls)
        unknown = sorted(set(obj) - {f.name for f in fields})
        missing = sorted(f.name for f in fields if _is_required(f) and f.name not in obj)
        if unknown or missing:
            raise SchemaError(
                f"not a training configuration: unknown fields {unknown}, missing fields {missing}. The "
                f"fields are those of {cls.__name__}: correct the names, or if another version of Smalti wrote them, "
                "read them with that version.",
                unknown=tuple(unknown),
                missing=tuple(missing),
            )
        return cls(**obj)


@dataclass(frozen=True, kw_only=True, repr=False)  # the base does not show secrets
class TrainConfig(RunConfig):
    """The settings of a training run. Equal configurations on equal data give the same sample order."""

    data: str
    """URL or path of the shard set."""
    task: str = IMAGES
    """A key of `TASKS`, or `module:Class` of a `Task` of your own, called with `task_options`."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task, as JSON values: the arguments of its class."""
    train_split: str | None = "train"
    eval_split: str | None = "validation"
    """None: no evaluation; the result then has the figures of the training samples."""
    image_column: str = "image"
    label_column: str = "label"
    num_classes: int = 0
    """Of image classification; 0: as many as the version of the data lists, which `convert` and Spark write."""
    class_names: tuple[str, ...] = ()
    """Of image classification, in the order of their numbers; empty: those that the version of the data lists."""
    image_size: int = 96
    """Side of the model's square input, in pixels."""
    model: str = "mobilenet_v2"
    """`mobilenet_v2`, `module:function`, or the name of a transformers, timm or torchvision image classifier.

    A module that only the process that calls `train` can import, such as one beside the script, need not be installed
    on Spark's executors: its Python files are sent to them, with those loaded from the same folder. So are those of a
    task, an optimiser and a schedule."""
    width: float = 0.35
    """Width multiplier of `mobilenet_v2`; ignored by others."""
    weights: str | None = None
    """Local folder or hub name with pretrained weights; None trains from scratch."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained: names as in `state_dict()`, of parameters or modules, or patterns with `*`.

    A module whose parameters are all frozen computes as in evaluation: no dropout, no new batch statistics."""
    epochs: int = 5
    batch_size: int = 32
    """Samples per optimiser step over all ranks."""
    micro_batches: int = 1
    """Gradient accumulation: equal parts in which a rank computes its share of a step. Changes memory, not the step."""
    optimizer: str = "adamw"
    """`adamw`, or `module:Class` such as `torch.optim:SGD`."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the optimiser, such as `{"momentum": 0.9}`."""
    learning_rate: float = 4e-3
    """Its peak."""
    weight_decay: float = 0.05
    clip_norm: float = 5.0
    """Largest norm of a gradient; 0: gradients are not clipped. The default only limits outliers."""
    schedule: str = "cosine"
    """Learning rate after `warmup`: `cosine`, `constant`, `step` (see `milestones`), or `module:function`.

    The function is called with the fraction of the course that is over, in [0, 1], and returns the rate's fraction of
    `learning_rate`."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Of `step`: fractions of the course after which the rate is multiplied by `milestone_factor`."""
    milestone_factor: float = 0.1
    warmup: float = 0.1
    """Fraction of the whole run during which the learning rate rises, in [0, 1)."""
    precision: str = "auto"
    """`float32`; `bfloat16` where it suffices (autocast); `auto`: `bfloat16` on a GPU that is fast at it."""
    label_smoothing: float = 0.1
    augment: bool = True
    seed: int = 17
    affinity: float | None = None
    """Part of its training shards that a host reads again in the next epoch, from 0 to 1, as for `StreamingDataset`.

    None: all of them, or on resume as the run began."""
    num_workers: int = 0
    checkpoint_every: int = 50
    """Steps between two checkpoints; another one is saved at the end of every epoch."""
    log_every: int = 10
    """Steps between two `step` events."""
    channels_last: bool = True
    """Memory layout of model and batches; 2 to 6 times faster on CPUs than the other."""

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        yield from super()._rules()
        for name, most in _POSITIVE.items():
            yield name, getattr(self, name) >= 1, "at least 1"
            yield name, getattr(self, name) <= most, f"at most {most:,}"
        for name, most in (("num_classes", _MAX_COUNT), ("num_workers", _MAX_WORKERS), ("width", _MAX_WIDTH)):
            yield name, getattr(self, name) <= most, f"at most {most:,}"
        yield "seed", self.seed >= 0, "0 or more"
        yield from ((name, getattr(self, name) > 0, "above 0") for name in ("learning_rate", "width"))
        not_negative = ("num_classes", "weight_decay", "num_workers", "clip_norm", "milestone_factor")
        yield from ((name, getattr(self, name) >= 0, "0 or more") for name in not_negative)
        yield "task", self.task in TASKS or ":" in self.task, f"one of {', '.join(TASKS)}, or 'module:Class'"
        yield "optimizer", self.optimizer == "adamw" or ":" in self.optimizer, "'adamw' or 'module:Class'"
        is_schedule = self.schedule in SCHEDULES or ":" in self.schedule
        yield "schedule", is_schedule, f"one of {', '.join(SCHEDULES)}, or 'module:function'"
        yield "milestones", all(0 < each < 1 for each in self.milestones), "fractions in (0, 1)"
        yield "precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"
        yield from ((name, 0 <= getattr(self, name) < 1, "in [0, 1)") for name in ("warmup", "label_smoothing"))
        yield "affinity", self.affinity is None or 0 <= self.affinity <= 1, "a number from 0 to 1, or None"
        is_complete = not self.class_names or self.num_classes == 0 or len(self.class_names) == self.num_classes
        yield "class_names", is_complete, f"{self.num_classes} names, as `num_classes` says"

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
            fitting = [] if rest else _divisors(share)
            raise WorldMismatch(
                f"`batch_size` {self.batch_size} cannot be divided over {num_ranks} ranks"
                + (f" with {self.micro_batches} micro-batches each" if self.micro_batches > 1 else "")
                + f": it works with {_listed(fitting)} ranks; choose one of these or another `batch_size`.",
                batch_size=self.batch_size,
                num_ranks=num_ranks,
                fitting=tuple(fitting),
            )
        return self.batch_size // num_ranks


def check_tracking_address(address: str) -> None:
    """Check that the address of a tracking server has no password in it: addresses are recorded, shown and linked.

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


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a field; numbers may be of numpy, and must be finite."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if kind is tuple:
        return isinstance(value, list | tuple) and all(_fits(each, get_args(hint)[0]) for each in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if kind is int:
        return type(value) is not bool and isinstance(value, Integral) and abs(int(value)) <= _MAX_INTEGER
    if kind is float:
        return type(value) is not bool and isinstance(value, Real) and _is_finite(value)
    return isinstance(value, kind)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _described(hint: Any) -> str:
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return " or ".join(_described(each) for each in get_args(hint))
    if kind is tuple:
        return f"a list, each {_described(get_args(hint)[0])}"
    return _NAMES_OF_TYPES.get(kind, "a mapping of options")


def _is_too_large(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > _MAX_INTEGER or value < -_MAX_INTEGER


def _frozen(value: Any) -> Any:
    """Return a value that cannot be changed, with numbers of Python."""
    if isinstance(value, Mapping):
        return MappingProxyType(dict(value))
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, Real) and type(value) not in {bool, int, float}:
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def _is_text(value: str) -> bool:
    return len(value) <= _MAX_TEXT and "\0" not in value and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_json(value: Mapping[str, Any]) -> bool:
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _divisors(number: int) -> list[int]:
    low = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*low, *(number // each for each in low)})


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _listed(numbers: list[int]) -> str:
    words = [str(n) for n in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "no number of"


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The figures of a finished run, and the addresses of its model and newest checkpoint."""

    accuracy: float | None
    """Fraction of the evaluation samples that were classified correctly, in [0, 1]; None of tasks without one."""
    loss: float
    """Mean loss over the evaluation samples; of classifiers the cross entropy, without label smoothing."""
    epochs: int
    steps: int
    history: tuple[dict[str, Any], ...]
    """One summary per epoch, over all lives of the run."""
    model_dir: str
    checkpoint: str
    images_per_second: float
    """Training samples per second of this life, over all ranks, without evaluation; 0 if the run was finished."""
    seconds: float
    resumed_from: dict[str, Any] | None
    """`checkpoint`, `step`, `epoch` and `skipped` (broken checkpoints, newest first); None for a fresh start."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All figures of the task over the evaluation samples, by name, and `loss`."""
    main_metric: str = "accuracy"
    """The one by which models are compared; `loss` if the task's own needs an evaluation, and there was none."""
    higher_is_better: bool = True
    """True if the better of two models has the higher one."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "TrainResult":
        """Return the result that `to_json` wrote."""
        return cls(**{**obj, "history": tuple(obj["history"])})
