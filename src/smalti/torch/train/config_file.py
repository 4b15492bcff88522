"""Training configurations in YAML files: the keys are the fields of `TrainConfig`. Imports no torch.

A fault is reported with the line of its key, and all unknown keys at once.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from smalti.errors import SchemaError, SmaltiError
from smalti.redaction import has_login, redact_address
from smalti.regular_files import open_regular
from smalti.storage.opening import service_of
from smalti.torch.train.config import IMAGES, TASKS, TrainConfig, place_of_option
from smalti.torch.train.values import did_you_mean

if TYPE_CHECKING:
    import yaml

MAX_BYTES, MAX_DEPTH = 1 << 20, 20
"""Largest size of a file, and largest depth of a value in it."""


def read_config(
    path: str | Path, overrides: Iterable[str] = (), *, storage_options: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Return the training configuration of a YAML file.

    Relative paths in it are relative to the working folder. YAML needs the package pyyaml (`smalti[cli]`).

    Args:
        path: The file. Its keys are the fields of `TrainConfig`; `data` and `run_dir` are required.
        overrides: Values in place of those of the file, such as `epochs=3`, `freeze=[backbone]` or
            `task_options.image_size=64`; the values are YAML.
        storage_options: Options of the data's store, added to those of the file.

    Raises:
        SchemaError: the file is not YAML, or a key or value is wrong; the message names the line and near names.
        OSError: the file cannot be read.

    Examples:
        >>> _ = Path("run.yaml").write_text("{data: s3://bucket/photos, run_dir: s3://bucket/runs/8}")
        >>> read_config("run.yaml", ["epochs=3"]).epochs
        3
    """
    shown = redact_address(str(path))
    if service_of(str(path)) or has_login(str(path)):
        raise SchemaError(f"{shown}: a configuration is a file of this machine; copy it here, and give its path")
    with open_regular(path) as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SchemaError(f"{shown}: larger than {MAX_BYTES:,} bytes, which no training configuration is")
    entries = _Entries(shown)
    try:
        entries.read(content.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise SchemaError(f"{shown}: byte {fault.start} is not UTF-8; save the file as UTF-8") from None
    for text in overrides:
        entries.override(text)
    if storage_options:
        entries.override_options("storage_options", storage_options, "--storage-option")
    return entries.config()


class _Entries:
    """The keys of a file and of overrides, their values, and the places where they stand."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self._fields = {field.name: field for field in dataclasses.fields(TrainConfig)}

    def read(self, text: str) -> None:
        """Read the YAML of a file."""
        import yaml

        root, loaded = self._loaded(text, self.file)
        if not isinstance(root, yaml.MappingNode):
            found = "nothing" if loaded is None else f"a {type(loaded).__name__}"
            raise SchemaError(f"{self.file}: expected lines `key: value` of a training configuration, found {found}")
        for key, _ in root.value:
            where = f"{self.file}, line {key.start_mark.line + 1}"
            if key.tag != "tag:yaml.org,2002:str":
                kind = key.tag.rpartition(":")[2]
                raise SchemaError(f"{where}: expected a key that is a name, found a value of the type `{kind}`.")
            if key.value in self.places:
                raise SchemaError(
                    f"{where}: `{key.value}` is there twice, also in {self.places[key.value]}; remove one."
                )
            self.places[key.value] = where
        self.values = dict(loaded)

    def _loaded(self, text: str, where: str) -> tuple[Any, Any]:
        """Return the root node of a YAML text, and its value."""
        import yaml

        try:
            _check_form(yaml.parse(text, yaml.SafeLoader), where)
            return yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
        except SchemaError:
            raise
        except yaml.YAMLError as fault:
            mark = getattr(fault, "problem_mark", None) if where == self.file else None
            place = where if mark is None else f"{where}, line {mark.line + 1}, column {mark.column + 1}"
            problem = getattr(fault, "problem", None) or str(fault) or type(fault).__name__
            raise SchemaError(f"{place}: not YAML: {problem}") from None
        except (ValueError, OverflowError) as fault:  # of a number or a date, such as 2020-13-45
            raise SchemaError(f"{where}: a value cannot be read: {fault}") from None

    def override(self, text: str) -> None:
        """Set the value of `key=value`, or of an option of a field, `field.option=value`."""
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.[^:]+)?", name):
            word = re.split(r"\W", text, maxsplit=1)[0]  # of the rest, any part may be secret
            shown = f" {word}" if word in self._fields else ""
            raise SchemaError(f"--set{shown}: expected key=value, such as epochs=3")
        _, loaded = self._loaded(value, f"--set {name}")
        field, dot, option = name.partition(".")
        if dot:
            self.override_options(field, {option: loaded}, f"--set {name}")
        else:
            self.places[field] = f"--set {name}"
            self.values[field] = loaded

    def override_options(self, field: str, options: Mapping[str, Any], place: str) -> None:
        """Set some options of a field; a value that is no mapping stays, and is refused."""
        if field in self._fields and "Mapping" not in str(self._fields[field].type):
            raise SchemaError(f"{place}: `{field}` has no options; write {field}=value")
        before = self.values.get(field) or {}
        self.places[field] = place
        if isinstance(before, Mapping):
            self.values[field] = {**before, **options}

    def config(self) -> TrainConfig:
        """Check all values and return the configuration."""
        values, task = _numbered(self.values, get_type_hints(TrainConfig)), str(self.values.get("task", IMAGES))
        if (shipped := TASKS.get(task)) and isinstance(options := values.get("task_options"), Mapping):
            values["task_options"] = _numbered(options, get_type_hints(shipped))
        try:
            return TrainConfig(**values)
        except SmaltiError as fault:
            lines = [
                f"{self.places.get(name, self.file)}: unknown key `{name}`."
                + (
                    place_of_option(name)
                    or did_you_mean(name, self._fields)
                    or " The keys are the fields of smalti.torch.train.TrainConfig."
                )
                for name in self.values
                if name in fault.facts.get("unknown", ())
            ]
            if lines:
                raise SchemaError("\n".join(lines)) from None
            if missing := fault.facts.get("missing"):
                keys = ", ".join(f"`{name}: ...`" for name in missing)
                raise SchemaError(f"{self.file}: required keys are missing; add {keys}", missing=missing) from None
            where = self.places.get(fault.facts.get("field", ""), self.file)
            raise SchemaError(f"{where}: {str(fault).replace('or None', 'or null')}", **fault.facts) from None


def _numbered(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name; of those for numbers, the number that a text such as `4e-3` means."""
    numbered = dict(values)
    for name, value in values.items():
        hint = hints.get(name)
        if isinstance(value, str) and (hint is float or float in get_args(hint)):  # YAML 1.1 takes it for text
            with contextlib.suppress(ValueError):
                numbered[name] = float(value)
    return numbered


def _check_form(events: "Iterable[yaml.Event]", where: str) -> None:
    """Check the depth of a YAML text, before code that recurses reads it, and that no value stands for many."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise SchemaError(f"{where}: in line {line}, values are nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            raise SchemaError(f"{where}: in line {line}, `*{event.anchor}` repeats a value; write the value itself")
