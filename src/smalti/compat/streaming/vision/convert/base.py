"""A data set of images and classes, as torch's map-style datasets are, written as MDS."""

from typing import Any

import numpy as np
from tqdm import tqdm

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import place_below


def convert_image_class_dataset(  # noqa: PLR0913, PLR0917  MosaicML's signature
    dataset: Any,
    out_root: str,
    split: str | None = None,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int = 1 << 24,
    progress_bar: bool = True,  # noqa: FBT001, FBT002
    leave: bool = False,  # noqa: FBT001, FBT002
    encoding: str = "pil",
) -> None:
    """Write the samples of a dataset in random order: their number `i`, image `x` and class `y`.

    Args:
        dataset: Has a length, and pairs of an image and a class by number.
        out_root: Folder or URL; each split is a folder below it.
        split: Name of the split; None writes to `out_root` itself.
        compression: Of the shards.
        hashes: Of the shards.
        size_limit: Largest shard before compression, in bytes.
        progress_bar: Whether to show progress.
        leave: Whether to leave the progress bar when it is done.
        encoding: Of the images.
    """
    numbers = np.random.permutation(len(dataset)).tolist()  # noqa: NPY002  the generator that callers seed
    with MDSWriter(
        out=place_below(out_root, split or ""),
        columns={"i": "int", "x": encoding, "y": "int"},
        compression=compression,
        hashes=hashes or [],
        size_limit=size_limit,
        progress_bar=progress_bar,
    ) as out:
        for number in tqdm(numbers, leave=leave, disable=not progress_bar):
            x, y = dataset[number]
            out.write({"i": number, "x": x, "y": int(y)})
