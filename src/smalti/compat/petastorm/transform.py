"""TransformSpec: a function on a pandas DataFrame of rows, and the columns of its result."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from smalti.attributes import Replaceable
from smalti.compat.petastorm.unischema import Unischema, UnischemaField

EditField = tuple[str, Any, Sequence[int | None], bool]
"""Name, numpy type, shape of one row's value, and whether it may be null."""


def edit_field(name: str, numpy_dtype: Any, shape: Sequence[int | None], nullable: bool = False) -> EditField:  # noqa: FBT001, FBT002 -- Petastorm's signature
    """Return an entry of `edit_fields`.

    Args:
        name: Name of the column.
        numpy_dtype: Type of its values, or of their elements.
        shape: Shape of a value; None for a varying side.
        nullable: Whether values may be missing.

    Examples:
        >>> spec = TransformSpec(edit_fields=[edit_field("features", np.uint8, (32, 32, 3))])
    """
    return name, numpy_dtype, shape, nullable


@dataclass(frozen=True)
class RowTransform:
    """The declared fields of a TransformSpec."""

    func: Callable[[Any], Any] | None
    edit_fields: Sequence[EditField]
    removed_fields: Sequence[str]
    selected_fields: Sequence[str] | None


class TransformSpec:
    """A transform of rows after they were read.

    Args:
        func: takes a pandas DataFrame of rows and returns one with as many rows, in the same order; called from several
            threads at once. A typical use is decoding JPEG bytes. None only selects columns.
        edit_fields: (name, numpy type, shape, nullable) of each column that `func` adds or whose type it changes, or a
            UnischemaField.
        removed_fields: columns to remove.
        selected_fields: columns to keep, in this order; instead of `removed_fields`.

    Raises:
        ValueError: `removed_fields` and `selected_fields` are both given, or an entry of `edit_fields` is neither a
            tuple of four nor a UnischemaField.

    Examples:
        >>> spec = TransformSpec(lambda rows: rows.assign(id=rows["id"] + 100), selected_fields=["id"])
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, transform_spec=spec) as reader:
        ...     sorted(next(reader).id.tolist())[:2]
        [100, 101]
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[EditField | UnischemaField] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("give one of `removed_fields` and `selected_fields`, not both.")
        # The only attributes of an instance that the library reads; a subclass may replace all others.
        self._smalti_func, self._smalti_edited = func, _edited(edit_fields or ())
        self._smalti_removed: Sequence[str] = list(removed_fields or ())
        self._smalti_selected = None if selected_fields is None else list(selected_fields)

    func: Replaceable[Callable[[Any], Any] | None] = Replaceable(attrgetter("_smalti_func"), assigned="_smalti_func")
    """The function on a DataFrame, or None."""
    removed_fields: Replaceable[Sequence[str]] = Replaceable(attrgetter("_smalti_removed"), assigned="_smalti_removed")
    """Columns to remove."""
    selected_fields: Replaceable[Sequence[str] | None] = Replaceable(
        attrgetter("_smalti_selected"), assigned="_smalti_selected"
    )
    """Columns to keep."""

    @Replaceable
    def edit_fields(self) -> Sequence[EditField]:
        """Columns that `func` adds or whose type it changes."""
        return self._smalti_edited

    @edit_fields.setter
    def _set_edit_fields(self, value: Any) -> None:
        self._smalti_edited = _edited(value)


def transform_of(spec: Any) -> RowTransform:
    """Return the declared fields of a TransformSpec of Smalti or Petastorm.

    Raises:
        ValueError: `spec` is not a TransformSpec.
    """
    if isinstance(spec, TransformSpec):
        return RowTransform(spec._smalti_func, spec._smalti_edited, spec._smalti_removed, spec._smalti_selected)
    if not hasattr(spec, "edit_fields"):
        raise ValueError(f"`transform_spec` must be a TransformSpec, found {type(spec).__name__}.")
    return RowTransform(spec.func, _edited(spec.edit_fields), spec.removed_fields, spec.selected_fields)


def _edited(entries: Sequence[Any]) -> list[EditField]:
    """Return the entries of `edit_fields` as tuples of four."""
    found = []
    for each in entries:
        if hasattr(each, "numpy_dtype") and hasattr(each, "nullable"):  # a UnischemaField of Smalti or Petastorm
            found.append((each.name, each.numpy_dtype, each.shape, bool(each.nullable)))
        elif isinstance(each, tuple | list) and len(each) == 4:
            found.append((each[0], each[1], each[2], each[3]))
        else:
            raise ValueError(
                f"`edit_fields` must contain (name, numpy type, shape, nullable) or UnischemaFields, found {each!r}."
            )
    return found


def transform_schema(schema: Unischema, transform_spec: Any) -> Unischema:
    """Return the schema after a transform, as its spec declares it."""
    spec = transform_of(transform_spec)
    removed, edited = set(spec.removed_fields), {each[0] for each in spec.edit_fields}
    if unknown := removed - set(schema.fields):
        warnings.warn(f"`removed_fields` names unknown columns: {', '.join(sorted(unknown))}.", stacklevel=4)
    fields = [field for name, field in schema.fields.items() if name not in removed | edited]
    fields += [
        UnischemaField(name, dtype, tuple(shape), None, nullable) for name, dtype, shape, nullable in spec.edit_fields
    ]
    if spec.selected_fields is None:
        return Unischema("transformed", fields)
    by_name = {field.name: field for field in fields}
    if unknown := set(spec.selected_fields) - set(by_name):
        warnings.warn(f"`selected_fields` names unknown columns: {', '.join(sorted(unknown))}.", stacklevel=4)
    return Unischema("transformed", [by_name[name] for name in spec.selected_fields if name in by_name])
