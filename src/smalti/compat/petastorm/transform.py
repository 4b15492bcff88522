"""TransformSpec: a function on a pandas DataFrame of rows, and the columns that it leaves."""

from collections.abc import Callable, Sequence
from typing import Any

EditField = tuple[str, Any, Sequence[int | None], bool]
"""Name, numpy type, shape of one row's value, and whether it may be null."""


class TransformSpec:
    """What is done with rows after reading them.

    Args:
        func: gets a pandas DataFrame of rows and returns one of as many rows, in the same order; called by several
            threads at once. Here Databricks' users decode JPEG bytes. None where columns are only left out.
        edit_fields: (name, numpy type, shape, nullable) of each column that `func` adds or changes the type of.
        removed_fields: columns that are left out.
        selected_fields: columns that are kept, in this order; instead of `removed_fields`.

    Raises:
        ValueError: `removed_fields` and `selected_fields` are both given, or `edit_fields` is not made of fours.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[EditField] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("give one of `removed_fields` and `selected_fields`, not both.")
        given: Sequence[Any] = edit_fields or ()
        for each in given:
            if not isinstance(each, tuple | list) or len(each) != 4:
                raise ValueError(f"`edit_fields` holds (name, numpy type, shape, nullable), found {each!r}.")
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)
