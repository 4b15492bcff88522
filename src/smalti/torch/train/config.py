"""The configuration of a training run, its result, and the table of launchers.

Configurations and results are frozen values that go through JSON. This module imports no torch, so that the code
location can read the choices without it.
"""

import dataclasses
import difflib
import importlib
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, Strict
from typing_extensions import dataclass_transform

from smalti.errors import SchemaError, SmaltiError, StoreError, WorldMismatch
from smalti.format.sizes import parse_byte_count
from smalti.redaction import HiddenOptions
from smalti.storage.databricks.mount import is_databricks
from smalti.storage.opening import check_address, check_secrets, service_of

if TYPE_CHECKING:
    from typing_extensions import Self

C = TypeVar("C")


@dataclass(frozen=True)
class Launcher:
    """A way to start the ranks of a run."""

    function: str
    """`module:function`, called with a `Program` and `on_event`; returns rank 0's result. Imported when used."""
    starts_processes: bool
    """True if it starts `num_processes` ranks; False if this process becomes a rank itself."""
    description: str
    free_slots: str | None = None
    """Of a launcher on other machines: `module:function` that returns how many ranks they can run now, or None."""


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
        free_slots="smalti.torch.train.launchers.spark:free_slots",
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
        "smalti.torch.train.tasks.rows:LanguageModel",
        main_metric="perplexity",
        higher_is_better=False,
        description="the next token of blocks of tokens",
        data_options=("column", "vocabulary", "ignore"),
    ),
    "tabular-regression": ShippedTask(
        "smalti.torch.train.tasks.rows:TabularRegression",
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
DEVICES = ("auto", "cpu", "cuda")
MAX_BATCH = 1 << 24
"""Largest number of samples of one step."""
_SECRET = ("storage_options", "run_storage_options")
_MAX_COUNT = 10**9
_MAX_SECONDS = 10**7  # some months; the operating system's timers end at some centuries
_MAX_INTEGER = (1 << 63) - 1
_MAX_TEXT = 10_000
_TEXT = f"text of 1 to {_MAX_TEXT:,} characters, in UTF-8 and without NUL"
_OPTIONS = "a mapping of options, with values of JSON"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_NAMES_OF_TYPES = {int: "a whole number", float: "a number", str: "text", bool: "True or False", NoneType: "None"}
_BEST = re.compile(r"(min|max) \S+")
_LIMITS = {
    "greater_than_equal": ("ge", "at least {:,}"),
    "greater_than": ("gt", "above {:,}"),
    "less_than_equal": ("le", "at most {:,}"),
    "less_than": ("lt", "below {:,}"),
}
"""Types of pydantic's errors about limits: the name of the limit, and what is expected."""


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


def _plain_number(value: Any) -> Any:
    """Return a number of Python for one of NumPy.

    Raises:
        ValueError: it has more than 64 bits.
    """
    if isinstance(value, Real) and type(value) not in {bool, int, float}:
        value = int(value) if isinstance(value, Integral) else float(value)
    if type(value) in {int, float} and abs(value) > _MAX_INTEGER:
        raise ValueError("a number of at most 64 bits, and not infinite")
    return value


def _checked_text(value: str) -> str:
    if len(value) > _MAX_TEXT or "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(_TEXT)
    return value


def _is_json(value: Mapping[str, Any]) -> bool:
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _frozen(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


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


def _hidden(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(HiddenOptions(value))


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _are_fractions(values: Sequence[float]) -> bool:
    return all(0 < value < 1 for value in values)


def _checked(is_valid: Callable[[Any], object], expected: str) -> AfterValidator:
    """Return a validator of values that says what is expected."""

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


class _NotOneOfError(ValueError):
    """A name that is none of some names."""

    def __init__(self, expected: str, names: Sequence[str]) -> None:
        super().__init__(expected)
        self.names = names


def _one_of(names: Sequence[str], or_path: str = "") -> AfterValidator:
    """Return a validator of names, or of `module:name` if `or_path` says what that names."""
    known = f"one of {', '.join(names)}" if len(names) > 1 else f"'{names[0]}'"
    expected = f"{known}, or '{or_path}'" if or_path else known

    def check(value: str) -> str:
        if value not in names and not (or_path and ":" in value):
            raise _NotOneOfError(expected, names)
        return value

    return AfterValidator(check)


Whole = Annotated[int, BeforeValidator(_plain_number), Strict()]
Number = Annotated[float, BeforeValidator(_plain_number), Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
MaybeEmpty = Annotated[str, Strict(), AfterValidator(_checked_text)]
Text = Annotated[MaybeEmpty, _checked(bool, _TEXT)]
Texts = Annotated[tuple[MaybeEmpty, ...], BeforeValidator(as_tuple)]
Options = Annotated[Mapping[str, Any], _checked(_is_json, _OPTIONS), AfterValidator(_frozen)]
Secrets = Annotated[Mapping[str, Any], AfterValidator(_hidden)]
Best = Annotated[Text, _checked(_BEST.fullmatch, "`min` or `max`, a space and the name of a figure")]
Count = Annotated[Whole, Field(ge=1, le=_MAX_COUNT)]
Seconds = Annotated[Number, Field(gt=0, le=_MAX_SECONDS)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Fractions = Annotated[
    tuple[Number, ...], BeforeValidator(as_tuple), _checked(_are_fractions, "a list, each a fraction in (0, 1)")
]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def configuration(kind: type[C]) -> type[C]:
    """Make a class a frozen dataclass whose values pydantic checks; a value that is not allowed is a SchemaError."""
    rules = pydantic.ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, arbitrary_types_allowed=True
    )
    checked: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, repr=False, config=rules)(kind)
    validate = checked.__init__

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807 - of the class
        try:
            validate(self, **values)
        except pydantic.ValidationError as error:
            raise _explained(checked, error, values) from None

    checked.__init__ = __init__
    return checked  # type: ignore[no-any-return]


def _explained(kind: type, error: pydantic.ValidationError, values: Mapping[str, Any]) -> SmaltiError:
    """Return the first fault of some values as an error that names the field, and what was expected and found."""
    faults = error.errors(include_url=False, include_input=False)
    unknown = sorted(str(fault["loc"][0]) for fault in faults if fault["type"] == "unexpected_keyword_argument")
    missing = sorted(str(fault["loc"][0]) for fault in faults if fault["type"] == "missing")
    if unknown or missing:
        return SchemaError(
            f"these are not the fields of {kind.__name__}: unknown fields {unknown}, missing fields {missing}. Correct "
            "the names, or if another version of Smalti wrote them, read them with that version.",
            unknown=tuple(unknown),
            missing=tuple(missing),
        )
    first, *_ = sorted(faults, key=lambda fault: fault["type"] != "value_error")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SmaltiError):
        return cause
    name = str(first["loc"][0])
    if first["type"] in _LIMITS:
        limit, words = _LIMITS[first["type"]]
        bound = first["ctx"][limit]
        expected = "0 or more" if (limit, bound) == ("ge", 0) else words.format(bound)
    else:
        whole = "a list, each " if len(first["loc"]) > 1 and isinstance(first["loc"][1], int) else ""
        expected = f"{whole}{cause}" if cause is not None else _described(get_type_hints(kind)[name])
    value = values[name] if name in values else getattr(kind, name)
    near = did_you_mean(str(value), cause.names) if isinstance(cause, _NotOneOfError) else ""
    return _wrong(name, expected, value, near)


def _wrong(name: str, expected: str, value: Any, near: str = "") -> SchemaError:
    shown = type(value).__name__ if name in _SECRET else _SHORT.repr(_plain(value))
    return SchemaError(f"`{name}` must be {expected}, not {shown}.{near}", field=name, found=shown)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names what is spelled nearly like a name; empty if nothing is."""
    near = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else ""


def _described(hint: Any) -> str:
    """Return the type of a field in words."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if kind is tuple:
        return f"a list, each {_described(get_args(hint)[0])}"
    return _NAMES_OF_TYPES.get(kind, "a mapping of options")


@configuration
class RunConfig:
    """The place of a run, its data, and the processes that are its ranks."""

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
    launcher: Annotated[Text, _one_of(tuple(LAUNCHERS))] = "inline"
    """Processes that train; a key of `LAUNCHERS`."""
    num_processes: Count = 1
    """Training processes, one per rank."""
    device: Annotated[Text, _one_of(DEVICES)] = "auto"
    """`auto`, `cpu` or `cuda`."""
    timeout_seconds: Seconds = 600.0
    """Longest time that one rank waits for the others, in a step or for a checkpoint to be written."""
    grace_seconds: Seconds = 15.0
    """Longest time to finish and save after a signal, and to write the last checkpoint after an exception."""
    max_restarts: Annotated[Whole, Field(ge=0, le=_MAX_COUNT)] = 0
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
            *((name, not starts or _is_json(getattr(self, name) or {}), _OPTIONS) for name in _SECRET),
        ):
            if not is_valid:
                raise _wrong(name, expected, getattr(self, name))
        if self.cache_limit is not None:
            parse_byte_count(self.cache_limit, what="`cache_limit`")
        try:
            check_address(self.run_dir)
        except (SmaltiError, ValueError) as error:  # of urllib, for brackets that are no address of IPv6
            raise StoreError(f"`run_dir`: {error}", field="run_dir") from error
        check_secrets(self.data)

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
        return cls(**obj)


@configuration
class TrainConfig(RunConfig):
    """The settings of a training run. Equal configurations on equal data give the same sample order."""

    data: Text = field()  # required: without a value here, the default of `RunConfig` would be inherited
    """URL or path of the shard set."""
    task: Annotated[Text, _one_of(tuple(TASKS), "module:Class")] = IMAGES
    """A key of `TASKS`, or `module:Class` of a `Task` of your own, called with `task_options`."""
    task_options: Options = field(default_factory=dict)
    """Options of the task, as JSON values: the arguments of its class."""
    train_split: Text | None = "train"
    eval_split: Text | None = "validation"
    """None: no evaluation; the result then has the figures of the training samples."""
    image_column: Text = "image"
    label_column: Text = "label"
    num_classes: Annotated[Whole, Field(ge=0, le=_MAX_COUNT)] = 0
    """Of image classification; 0: as many as the version of the data lists, which `convert` and Spark write."""
    class_names: Texts = ()
    """Of image classification, in the order of their numbers; empty: those that the version of the data lists."""
    image_size: Annotated[Whole, Field(ge=1, le=1 << 15)] = 96
    """Side of the model's square input, in pixels."""
    model: MaybeEmpty = "mobilenet_v2"
    """`mobilenet_v2`, or `module:function`: a function that takes the configuration and returns a module.

    A module that only the process that calls `train` can import, such as one beside the script, need not be installed
    on Spark's executors: its Python files are sent to them, with those loaded from the same folder. So are those of a
    task, an optimiser and a schedule."""
    width: Annotated[Number, Field(gt=0, le=100)] = 0.35
    """Width multiplier of `mobilenet_v2`; ignored by others."""
    weights: Text | None = None
    """Local folder or hub name with pretrained weights; None trains from scratch."""
    freeze: Texts = ()
    """Parameters that are not trained: names as in `state_dict()`, of parameters or modules, or patterns with `*`.

    A module whose parameters are all frozen computes as in evaluation: no dropout, no new batch statistics."""
    epochs: Count = 5
    """Passes over the training samples."""
    batch_size: Annotated[Whole, Field(ge=1, le=MAX_BATCH)] = 32
    """Samples per optimiser step over all ranks."""
    micro_batches: Count = 1
    """Gradient accumulation: equal parts in which a rank computes its share of a step. Changes memory, not the step."""
    optimizer: Annotated[Text, _one_of(("adamw",), "module:Class")] = "adamw"
    """`adamw`, or `module:Class` such as `torch.optim:SGD`."""
    optimizer_options: Options = field(default_factory=dict)
    """Further arguments of the optimiser, such as `{"momentum": 0.9}`."""
    learning_rate: Annotated[Number, Field(gt=0)] = 4e-3
    """Its peak."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.05
    """Of the weights; biases and scales of normalisation do not decay."""
    clip_norm: Annotated[Number, Field(ge=0)] = 5.0
    """Largest norm of a gradient; 0: gradients are not clipped. The default only limits outliers."""
    schedule: Annotated[Text, _one_of(SCHEDULES, "module:function")] = "cosine"
    """Learning rate after `warmup`: `cosine`, `constant`, `step` (see `milestones`), or `module:function`.

    The function is called with the fraction of the course that is over, in [0, 1], and returns the rate's fraction of
    `learning_rate`."""
    milestones: Fractions = (0.5, 0.75)
    """Of `step`: fractions of the course after which the rate is multiplied by `milestone_factor`."""
    milestone_factor: Annotated[Number, Field(ge=0)] = 0.1
    warmup: Fraction = 0.1
    """Fraction of the whole run during which the learning rate rises, in [0, 1)."""
    precision: Annotated[Text, _one_of(PRECISIONS)] = "auto"
    """`float32`; `bfloat16` where it suffices (autocast); `auto`: `bfloat16` on a GPU that is fast at it."""
    label_smoothing: Fraction = 0.1
    """Of classes and tokens."""
    augment: Flag = True
    """Random crops, flips and colours of training images."""
    seed: Annotated[Whole, Field(ge=0)] = 17
    """Of the order of the samples, the initial weights and the random views."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_names and self.num_classes not in (0, len(self.class_names)):
            raise _wrong("class_names", f"{self.num_classes} names, as `num_classes` says", self.class_names)

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


def _divisors(number: int) -> list[int]:
    low = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*low, *(number // each for each in low)})


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
