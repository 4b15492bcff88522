"""The state of the built-in trainer in a checkpoint: progress, optimiser, and the configuration that it belongs to."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic
import torch

from smalti.errors import CheckpointError, CursorError, TrainingError
from smalti.torch.train.config import FORMER_TASKS, IMAGES, TASKS, TrainConfig, with_nested_options
from smalti.torch.train.context import Context
from smalti.torch.train.data import MIXTURE, Pins, cursor_name
from smalti.torch.train.run.files import Snapshot
from smalti.torch.train.trainer.step import Sums
from smalti.torch.train.trainer.task import Task

_FIXED = ("task", "freeze", "train_split", "model", "optimizer", "seed")
"""Fields of the configuration that may not change between two lives of a run; others (batch size, ranks, rates) may."""
_OPTION = "task_options."
"""Before the name of an option."""
_FROM_DATA = (f"{_OPTION}num_classes", f"{_OPTION}class_names")
"""Options that the version of the data gives where the configuration leaves them out."""
_BEFORE: Mapping[str, Any] = {"task": IMAGES, "freeze": [], "optimizer": "adamw"}
"""Values of fields in checkpoints that were written before they were fields."""


def split_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return an optimiser's tensors as `<parameter number>.<name>`, and the rest of its state as JSON values.

    torch's own form is a nested structure that only a pickle can hold.
    """
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{parameter}.{name}"] = value
            else:
                numbers.setdefault(str(parameter), {})[name] = value
    return tensors, {"numbers": numbers, "groups": state["param_groups"]}


def changed_settings(config: TrainConfig, then: Mapping[str, Any]) -> set[str]:
    """Return the settings of the optimiser's groups that a configuration gives other values than an earlier one did."""
    before, now = then.get("optimizer_options", {}), config.public_json()["optimizer_options"]
    changed = {
        name for name in {*before, *now} if before.get(name) != now.get(name) or (name in before) != (name in now)
    }
    return changed | ({"weight_decay"} if then.get("weight_decay") != config.weight_decay else set())


def restore_state(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    rest: Mapping[str, Any],
    changed: Collection[str] = (),
) -> None:
    """Load a state that `split_state` took apart into `optimizer`.

    Args:
        optimizer: a new one.
        tensors: its tensors.
        rest: the rest of its state.
        changed: settings of its groups that keep the value which `optimizer` has.

    Raises:
        CheckpointError: the state belongs to another optimiser or model.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in rest["numbers"].items()}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            entries.setdefault(int(number), {})[name] = _like(parameters[int(number)], tensor, key)
        # JSON has no tuples, and AdamW unpacks its betas.
        groups = [{name: _with_tuples(name, value) for name, value in group.items()} for group in rest["groups"]]
        _check_parameter_groups(groups, optimizer)
        for group, own in zip(groups, optimizer.param_groups, strict=False):
            group.update({name: own[name] for name in changed if name in own})
        optimizer.load_state_dict({"state": entries, "param_groups": groups})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            "the optimiser state of the checkpoint does not fit the model, `optimizer` and `optimizer_options`: "
            f"{error}. Train on with the configuration that wrote it."
        ) from error


def _with_tuples(name: str, value: Any) -> Any:
    return tuple(value) if isinstance(value, list) and name != "params" else value


def _check_parameter_groups(groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Check that groups hold settings that fit the optimiser; the number of groups is checked when they are loaded.

    Numbers may differ from the optimiser's own. Switches may not: they decide how it computes, and this program sets
    them. A switch may be missing: it was added by a later version of torch than the one that wrote the groups.
    """
    for group, own in zip(groups, optimizer.param_groups, strict=False):
        for name, value in ((name, _with_tuples(name, value)) for name, value in own.items() if name != "params"):
            if value is None or isinstance(value, bool):
                fits = name not in group or group[name] is value
            else:
                fits = _kind(group[name]) == _kind(value)
            if not fits:
                raise ValueError(f"`{name}` is {group[name]!s:.40}, expected one like {value}")


def _kind(value: Any) -> Any:
    """Return a value that is equal for settings of one kind: numbers, or tuples of equally many numbers."""
    if isinstance(value, tuple):
        return [_kind(each) for each in value]
    return float if type(value) in {int, float} else type(value)


def _like(parameter: torch.Tensor, tensor: torch.Tensor, key: str) -> torch.Tensor:
    """Return the tensor in the parameter's memory layout if it has its shape, else as it is.

    Files hold tensors row by row, while parameters may be channels_last. The fused optimisers treat both as flat memory
    and would otherwise give each weight the momentum of another.

    A state may have other dimensions than its parameter: counts, sums over rows, or all values in one row. One with as
    many dimensions and another shape is of another model.
    """
    if tensor.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
    if tensor.dim() == parameter.dim():
        # Optimisers with factors keep one value per row or column of a weight.
        is_factor = all(own in (1, whole) for own, whole in zip(tensor.shape, parameter.shape, strict=True))
        if not is_factor:
            raise ValueError(f"{key} has shape {tuple(tensor.shape)}, its parameter {tuple(parameter.shape)}")
    return tensor


class TrainerContext(Context):
    """The context of the built-in trainer. Its state is a pair: tensors by file, and the rest as JSON values.

    They lie in a checkpoint as they are, with the cursor and the version beside them.
    """

    run: TrainConfig
    config: Task

    @property
    def resumed_from(self) -> dict[str, Any] | None:
        """The checkpoint that the life resumed from, as JSON values."""
        return self._saves.resumed_from

    def stopped(self, step: int) -> TrainingError:
        """Return the error of a life that was stopped after a step, whose checkpoint is the newest."""
        return self._saves.stopped(self.newest, f" after step {step}", step=step)

    def pace(self) -> dict[str, float]:
        """Return the training samples per second of this life over all ranks, and the share of waiting for data."""
        figures = {"samples_per_second": 0.0, "data_fraction": 0.0, **self.stats()}
        return {"images_per_second": figures["samples_per_second"], "data_fraction": figures["data_fraction"]}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_state(state)

    def _packed(self, step: int, state: Any, cursors: Mapping[str, Any], metrics: Mapping[str, float]) -> Snapshot:
        tensors, rest = state
        pins = self._data.pins
        version, digest = pins.get(self._data.address()) or next(iter(pins.values()))
        (cursor,) = cursors.values()
        more = {"cursor": cursor, "version": version, "digest": digest, "metrics": metrics, "life": self._life.number}
        data = {address: list(facts) for address, facts in pins.items()}
        return Snapshot(step, tensors, {**rest, **more, "data": data})

    def _unpacked(self, snapshot: Snapshot) -> tuple[Snapshot, Mapping[str, Any], Pins]:
        config, state, address = self.run, snapshot.state, self._data.address()
        check_same_run(config, state, self.config.free_options)
        # A run keeps the version that it began with, even if a newer one has been published since. Equal data may be
        # at another address, or have another number; the cursor refuses others.
        version = state["version"] if config.version is None else config.version
        others = {place: (number, digest) for place, (number, digest) in state.get("data", {}).items()}
        own = {} if config.streams else {address: (version, config.digest)}
        name = cursor_name(config.train_split, MIXTURE if config.streams else address)
        return snapshot, {name: state["cursor"]}, {**others, **own}


@dataclass
class RunState:
    """The mutable state of a run; equal on all ranks except for the running sums, which are of this rank."""

    step: int = 0
    epoch: int = 0
    """Epoch being trained, from 0."""
    sums: Sums = field(default_factory=Sums)
    """Those of this epoch so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One summary per finished epoch."""
    partial: dict[str, Any] | None = None
    """The summary of the newest evaluation within an epoch."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`step`, `epoch` and `figures` of each evaluation, those within epochs included."""

    def to_json(self, sums: list[float]) -> dict[str, Any]:
        """Return the state as JSON values; `sums` are the running sums over all ranks."""
        return {
            "epoch": self.epoch,
            "sums": sums,
            "scores": list(self.sums.scores),
            "history": self.history,
            "partial": self.partial,
            "evaluations": self.evaluations,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], *, is_first: bool) -> "RunState":
        """Return the state of a checkpoint; only rank 0 takes the sums, so that they are counted once."""
        loss, *scores, num_samples = state["sums"] if is_first else [0.0] * len(state["sums"])
        sums = Sums(loss, dict(zip(_scores_of(state), scores, strict=True)), num_samples)
        history = list(state["history"])
        # Checkpoints of versions that evaluated at the ends of epochs only have neither.
        evaluations = list(state.get("evaluations", map(evaluation_of, history)))
        return cls(state["step"], state["epoch"], sums, history, state.get("partial"), evaluations)

    def add_evaluation(self, summary: Mapping[str, Any]) -> dict[str, float]:
        """Add the evaluation in a summary, and return its figures."""
        self.evaluations.append(evaluation := evaluation_of(summary))
        return dict(evaluation["figures"])

    @property
    def is_evaluated(self) -> bool:
        """True if the newest evaluation is of the newest step."""
        return bool(self.evaluations) and self.evaluations[-1]["step"] == self.step

    def since_best(self, figure: str) -> int:
        """Return the number of evaluations since the best one, the first of equals; 0 before the first evaluation.

        Args:
            figure: `min` or `max`, and the name of a figure.
        """
        direction, _, name = figure.partition(" ")
        values = [evaluation["figures"][name] for evaluation in self.evaluations]
        scores = [-value for value in values] if direction == "min" else values
        return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def evaluation_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return step, epoch and all figures of a summary of an epoch or a part of one."""
    figures = {**summary, **summary.get("metrics", {})}
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    return {"step": summary.get("step", 0), "epoch": summary.get("epoch", 0), "figures": numbers}


class _Summary(pydantic.BaseModel, strict=True):
    loss: float


class _Stored(pydantic.BaseModel, strict=True, use_attribute_docstrings=True):
    """The fields that a state has to have; the text of each says what is expected."""

    epoch: pydantic.NonNegativeInt
    """a whole number from 0"""
    sums: list[float]
    """numbers"""
    history: list[_Summary]
    """a list of epochs with `loss`"""
    cursor: dict[str, Any]
    """an object"""
    optimizer: dict[str, Any]
    """an object"""
    config: dict[str, Any]
    """an object"""
    version: pydantic.NonNegativeInt | None
    """a whole number from 0 or null"""
    digest: str
    """a text"""


def check_state(state: Mapping[str, Any]) -> None:
    """Check that a checkpoint's `state.json` is the state of a run; the loader checks the cursor's own fields.

    Raises:
        CheckpointError: a field is missing or has the wrong type; the message names it.
    """
    try:
        _Stored.model_validate(dict(state))
    except pydantic.ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        found, expected = f"is {str(state.get(name))[:80]}", _Stored.model_fields[name].description
        raise _not_of_trainer(name, found, str(expected)) from None
    if len(state["sums"]) != len(_scores_of(state)) + 2:
        expected = f"the loss, {', '.join(_scores_of(state))} and the number of samples"
        raise _not_of_trainer("sums", f"is {str(state['sums'])[:80]}", expected)
    if len(state["history"]) != state["epoch"]:
        expected = f"one for each of {state['epoch']} finished epochs"
        raise _not_of_trainer("history", f"has {len(state['history'])} entries", expected)
    epoch = state["cursor"].get("epoch", state["epoch"])
    if type(epoch) is not int or not 0 <= epoch - state["epoch"] <= 1:  # the next one, until this one is evaluated
        raise _not_of_trainer("cursor", f"is of epoch {epoch!s:.40}", f"the run's epoch {state['epoch']}")


def _not_of_trainer(name: str, found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"state.json: `{name}` {found}, expected {expected}; it was not written by this trainer, or was edited.",
        field=name,
    )


def check_same_run(config: TrainConfig, state: Mapping[str, Any], free_options: Collection[str] = ()) -> None:
    """Check that a checkpoint belongs to the run that `config` describes; `free_options` are those of its task.

    Raises:
        CursorError: a field differs that may not change within a run; the message names it.
    """
    now, then = (_compared(stored, free_options) for stored in (config.public_json(), state["config"]))
    if FORMER_TASKS.get(then["task"]) == now["task"].rpartition(":")[2]:
        then["task"] = now["task"]  # the same task, as a copy of the example
    names = _FIXED if now["task"] != then["task"] else tuple({**now, **then})
    given = [name for name in names if name not in _FROM_DATA or now.get(name)]
    changed = [name for name in given if now.get(name) != then.get(name)]
    if changed:
        listed = "; ".join(f"`{name}` was {then.get(name)!r} and is {now.get(name)!r}" for name in changed)
        raise CursorError(
            f"{config.run_dir} holds the checkpoints of another run: {listed}. Use another `run_dir`, or "
            "the former values to resume.",
            changed=tuple(changed),
        )
    if config.digest is not None and config.digest != state["digest"]:
        raise CursorError(
            f"{config.run_dir} was trained on data with digest {state['digest']}, and this run is pinned to "
            f"{config.digest}. Use another `run_dir` for other data.",
            expected=config.digest,
            found=state["digest"],
        )


def _compared(stored: Mapping[str, Any], free_options: Collection[str]) -> dict[str, Any]:
    """Return what may not change of the stored fields of a configuration, in the form of this version."""
    fields = with_nested_options({**_BEFORE, **stored})
    task, given = str(fields["task"]), fields.get("task_options")
    defaults = TASKS[task].option_defaults() if task in TASKS else {}
    options = {**defaults, **(given if isinstance(given, Mapping) else {})}
    fixed = {f"{_OPTION}{name}": value for name, value in options.items() if name not in free_options}
    return {**{name: fields.get(name) for name in _FIXED}, **fixed}


def check_same_rate(config: TrainConfig, then: Mapping[str, Any]) -> None:
    """Check that `learning_rate` is that of the checkpoint, whose rates a scheduler of the task's own continues.

    Raises:
        CursorError: it is not.
    """
    if config.learning_rate != then.get("learning_rate"):
        raise CursorError(
            f"`learning_rate` was {then.get('learning_rate')} and is {config.learning_rate}, and the `lr_scheduler` of "
            f"task '{config.task}' continues with the rates of the checkpoint. Give the former value, or use another "
            "`run_dir`.",
            changed=("learning_rate",),
        )


def _scores_of(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the sums between those of the loss and the samples."""
    scores = state.get("scores", ["accuracy"])  # those of checkpoints that were written when there were no others
    return [str(name) for name in scores] if isinstance(scores, list) else []
