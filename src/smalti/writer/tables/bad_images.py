"""Rows of prepared images that have no image, and the policy for them."""

import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import BadImageError

ERROR = "error"
"""Column of `prepare_images` with the reason why a row has no image; null if it has one."""
PATH = "path"
"""Column of `prepare_images` with the file of each row."""


def without_bad_images(batch: pa.RecordBatch, policy: str | None) -> pa.RecordBatch:
    """Return the rows of `prepare_images` that have an image; all rows of other frames, whose policy is None.

    Raises:
        BadImageError: The policy is `fail`, and a row has none.
    """
    if policy is None:
        return batch
    good = pc.is_null(batch.column(ERROR))
    if policy == "fail" and not pc.all(good).as_py():
        first = batch.filter(pc.invert(good)).slice(0, 1).select([PATH, ERROR]).to_pylist()[0]
        raise BadImageError(
            f"{first[PATH]} is not a usable image: {first[ERROR]}. Remove or replace it, or set `on_bad_image` to "
            f'"skip"; `update_prepared` names all such files',
            path=first[PATH],
        )
    return batch.filter(good)
