"""Training configurations in YAML files: the keys are the fields of `TrainConfig`. Imports no torch.

A fault is reported with the line of its key, and all unknown keys at once.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from smalti.errors import SchemaError, SmaltiError
from smalti.regular_files import read_regular_text
from smalti.torch.train.config import DEVICES, LAUNCHERS, PRECISIONS, SCHEDULES, TASKS, TrainConfig

_CHOICES: Mapping[str, Iterable[str]] = {
    "launcher": LAUNCHERS,
    "task": TASKS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "device": DEVICES,
}


def read_config(
    path: str | Path, overrides: Iterable[str] = (), *, storage_options: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Return the training configuration of a YAML file.

    Relative paths in it are relative to the working folder. YAML needs the package pyyaml (`smalti[cli]`).

    Args:
        path: The file. Its keys are the fields of `TrainConfig`; `data` and `run_dir` are required.
        overrides: Values in place of those of the file, such as `epochs=3`, `freeze=[backbone]` or
            `task_options.vocabulary=512`; the values are YAML.
        storage_options: Options of the data's store, added to those of the file.

    Raises:
        SchemaError: the file is not YAML, or a key or value is wrong; the message names the line and near names.
        OSError: the file cannot be read.
    """
    entries = _Entries(str(path))
    try:
        text = read_regular_text(path)
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path}: not YAML in UTF-8: {error}") from error
    entries.read(text)
    for override in overrides:
        entries.override(override)
    if storage_options:
        entries.add("storage_options", storage_options)
    return entries.config()


class _Entries:
    """The keys of a file and of overrides, their values, and the places where they stand."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self._types = get_type_hints(TrainConfig)
        self._fields = {field.name: field for field in dataclasses.fields(TrainConfig)}

    def read(self, text: str) -> None:
        """Read the YAML of a file."""
        import yaml

        try:
            root = yaml.compose(text, yaml.SafeLoader)
            loaded = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as fault:  # such as a day 99, or lists in lists in lists
            raise SchemaError(f"{self._where_of(fault)}: not YAML: {_problem_of(fault)}") from None
        if not isinstance(root, yaml.MappingNode):
            raise SchemaError(
                f"{self.file}: expected lines `key: value` of a training configuration, found {_kind(loaded)}"
            )
        for key, _ in root.value:
            where = f"{self.file}, line {key.start_mark.line + 1}"
            if key.value in self.places:
                raise SchemaError(
                    f"{where}: `{key.value}` is there twice, also in {self.places[key.value]}; remove one."
                )
            self.places[key.value] = where
        self.values = {str(key): value for key, value in loaded.items()}

    def override(self, text: str) -> None:
        """Set the value of `key=value`, or of an option of a field, `field.option=value`."""
        import yaml

        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SchemaError(f"--set: expected key=value, such as epochs=3, found {text!r}")
        try:
            loaded = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as fault:
            raise SchemaError(f"--set {name}: not YAML: {_problem_of(fault)}") from None
        field, dot, option = name.partition(".")
        self.places[field] = f"--set {name}"
        if not dot:
            self.values[field] = loaded
            return
        if field in self._fields and "Mapping" not in str(self._fields[field].type):
            raise SchemaError(f"--set {name}: `{field}` has no options; write {field}=value")
        self.add(field, {option: loaded})

    def add(self, field: str, options: Mapping[str, Any]) -> None:
        """Add options to those of a field; a value that is no mapping stays, and is refused."""
        known = self.values.get(field) or {}
        if isinstance(known, Mapping):
            self.values[field] = {**known, **options}

    def config(self) -> TrainConfig:
        """Check all values and return the configuration."""
        unknown = [name for name in self.values if name not in self._fields]
        if unknown:
            places = {name: self.places.get(name, self.file) for name in unknown}
            raise SchemaError("\n".join(f"{places[name]}: unknown key `{name}`.{self._near(name)}" for name in unknown))
        missing = [
            name
            for name, field in self._fields.items()
            if field.default is field.default_factory is dataclasses.MISSING and name not in self.values
        ]
        if missing:
            lines = ", ".join(f"`{name}: ...`" for name in missing)
            raise SchemaError(f"{self.file}: required keys are missing; add {lines}", missing=tuple(missing))
        values = {name: self._numbered(name, value) for name, value in self.values.items()}
        try:
            return TrainConfig(**values)
        except SmaltiError as fault:
            name = fault.facts.get("field")
            if name not in self.places:
                raise SchemaError(f"{self.file}: {fault}", **fault.facts) from None
            near = _did_you_mean(str(values[name]), _CHOICES[name]) if name in _CHOICES else ""
            text = str(fault).replace("or None", "or null")
            raise SchemaError(f"{self.places[name]}: {text}{near}", **fault.facts) from None

    def _numbered(self, name: str, value: Any) -> Any:
        """Return a value of a field; of one for numbers, the number that a text such as `4e-3` means."""
        hint = self._types[name]
        if isinstance(value, str) and (hint is float or float in get_args(hint)):  # YAML 1.1 takes it for text
            with contextlib.suppress(ValueError):
                return float(value)
        return value

    def _near(self, name: str) -> str:
        return _did_you_mean(name, self._fields) or " The keys are the fields of smalti.torch.train.TrainConfig."

    def _where_of(self, fault: Exception) -> str:
        mark = getattr(fault, "problem_mark", None)
        return self.file if mark is None else f"{self.file}, line {mark.line + 1}, column {mark.column + 1}"


def _problem_of(fault: Exception) -> str:
    return str(getattr(fault, "problem", None) or str(fault) or type(fault).__name__)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else ""


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
