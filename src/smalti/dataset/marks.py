"""The columns that `include_ids=True` adds; a data set or a transform must have none of their names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import SchemaError
from smalti.stream import ShardSet

MARKS = ("_sample_id", "_position", "_stream")
"""Sample id, place in the epoch's order, and number of the stream."""


def check_names(sets: Sequence[ShardSet]) -> None:
    """Return only if no stream has a column with the name of a mark.

    Raises:
        SchemaError: one has.
    """
    for number, each in enumerate(sets):
        taken = [name for name in MARKS if name in each.columns]
        if taken:
            raise SchemaError(
                f"stream {number} ({each.options.root}) has a column {taken[0]!r}, and `include_ids=True` adds columns "
                f"{', '.join(MARKS)}: one would overwrite the other. Leave `include_ids` out, or write the data set "
                "with another name for the column.",
                column=taken[0],
                stream=number,
            )


def with_marks(samples: Sequence[Any], marks: Mapping[str, NDArray[np.int64]]) -> list[Any]:
    """Return samples with the marks of each added.

    Raises:
        SchemaError: a sample has a field of that name already, from a transform or an overridden `__getitem__`.
    """
    values = {name: column.tolist() for name, column in marks.items()}
    marked = []
    for at, sample in enumerate(samples):
        taken = [name for name in values if name in sample]
        if taken:
            raise SchemaError(
                f"sample {values['_sample_id'][at]} has a field {taken[0]!r} after its transform, and "
                "`include_ids=True` adds one of that name. Leave `include_ids` out, or give the field another name.",
                column=taken[0],
            )
        marked.append(sample | {name: column[at] for name, column in values.items()})
    return marked
