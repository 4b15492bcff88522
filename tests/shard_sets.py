"""Small shard sets for the tests of several packages."""

from pathlib import Path

from smalti.writer import MDSWriter

COLUMNS = {"id": "int", "text": "str", "vector": "ndarray:float32:3"}


def sample(number: int) -> dict:
    """Return the sample with this id; its fields can be computed from the id by hand."""
    import numpy as np

    return {
        "id": number,
        "text": f"sample {number} " + "x" * (number % 7),
        "vector": np.array([number, 0.5, -number], dtype=np.float32),
    }


def write_set(root: "Path | str", count: int, *, size_limit: int = 600, **options) -> "Path | str":
    """`count` samples under `root`, a folder or a URL; about ten in a shard."""
    with MDSWriter(out=str(root), columns=COLUMNS, size_limit=size_limit, **options) as writer:
        for number in range(count):
            writer.write(sample(number))
    return root
