"""Names of the checks whose severity a declaration may choose, and what each does by default.

Not here: the checks of a version's bytes and rows (`hashes_verify`, `every_row_is_in_the_shards`), which always block,
and those of the model and of the storage.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["images", "rows"]
Severity = Literal["block", "warn", "none"]
"""`block`: stops the run, and no version that failed is named `checked`; `warn`: shows it; `none`: no such check."""

CheckName = Literal[
    "every_class_can_be_split",
    "few_images_were_left_out",
    "no_class_vanished",
    "class_balance_is_kept",
    "few_near_duplicates",
    "no_split_leakage",
    "columns_are_as_declared",
    "few_rows_vanished",
    "no_column_vanished",
]


class _Default(NamedTuple):
    kind: Kind | None  # None: both
    stage: Literal["raw", "prepared", "shards"]
    severity: Severity


_DEFAULTS: Mapping[CheckName, _Default] = {
    "every_class_can_be_split": _Default("images", "raw", "warn"),
    "few_images_were_left_out": _Default("images", "prepared", "block"),
    "no_class_vanished": _Default("images", "shards", "block"),
    "class_balance_is_kept": _Default("images", "shards", "warn"),
    "few_near_duplicates": _Default("images", "shards", "warn"),
    "no_split_leakage": _Default(None, "shards", "warn"),
    "columns_are_as_declared": _Default("rows", "raw", "block"),
    "few_rows_vanished": _Default("rows", "shards", "block"),
    "no_column_vanished": _Default("rows", "shards", "block"),
}
INTEGRITY: Mapping[Kind, tuple[str, ...]] = {
    "images": ("every_row_is_in_the_shards", "hashes_verify"),
    "rows": ("hashes_verify",),
}
"""The checks of a version's bytes and rows, which always block."""


def severity_of(name: CheckName, chosen: Mapping[CheckName, Severity]) -> Severity:
    """Return the severity of a check, given those that a declaration chooses."""
    return chosen.get(name, _DEFAULTS[name].severity)


def blocking_checks(kind: Kind, chosen: Mapping[CheckName, Severity]) -> tuple[str, ...]:
    """Return the checks of shards that have to pass before the tag `checked` names a version."""
    names = (name for name, each in _DEFAULTS.items() if each.kind in (kind, None) and each.stage == "shards")
    return (*INTEGRITY[kind], *(name for name in names if severity_of(name, chosen) == "block"))


def checks_before_shards(kind: Kind, chosen: Mapping[CheckName, Severity]) -> list[CheckName]:
    """Return the checks of raw and prepared data that stop a run."""
    names = (name for name, each in _DEFAULTS.items() if each.kind in (kind, None) and each.stage != "shards")
    return [name for name in names if severity_of(name, chosen) == "block"]


def refuse_of_other_kind(kind: Kind, chosen: Mapping[CheckName, Severity]) -> None:
    """Raise a ValueError about a severity of a check that a data set of this kind does not have."""
    known = [name for name, each in _DEFAULTS.items() if each.kind in (kind, None)]
    for name in chosen:
        if name not in known:
            raise ValueError(f"`checks.severity`: a set of {kind} has no check {name}; it has {', '.join(known)}")
