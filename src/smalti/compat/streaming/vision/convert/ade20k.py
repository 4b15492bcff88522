"""Writes ADE20K: photos and the classes of their pixels, `<in_root>/{images,annotations}/{training,validation}`.

Another number of samples than that of the whole data set is a warning, so that a part of it can be converted.
"""

import random
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import (
    add_splits,
    place_below,
    visible_files,
    warn_of_a_part,
    writing_arguments,
)
from smalti.compat.streaming.base.util import get_list_arg

_SIZES = {"train": 20206, "val": 2000}
_FOLDERS = {"train": "training", "val": "validation"}
_DAMAGED = {"00003020", "00001701", "00013508", "00008455"}
"""Photos of the training split that are left out, as by MosaicML."""
_COLUMNS = {"uid": "bytes", "x": "jpeg", "y": "png"}


def parse_args() -> Namespace:
    """Return the arguments of the command line; both splits are always written, whatever `--splits` is."""
    return add_splits(writing_arguments(size_limit=1 << 22)).parse_args()


def get(in_root: str, split: str, shuffle: bool) -> list[tuple[str, str, str]]:  # noqa: FBT001  MosaicML's signature
    """Return number, photo and annotation of each sample of a split, in random order or sorted.

    Raises:
        ValueError: There is no such split.
        FileNotFoundError: A folder is missing.
    """
    if split not in _FOLDERS:
        raise ValueError(f"Split must be one of 'train', 'val', not {split}")
    folders = [Path(in_root, kind, _FOLDERS[split]) for kind in ("images", "annotations")]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder.parent.name.capitalize()} path does not exist: {folder}")
    photos, annotations = folders
    names = [Path(file).stem for file in visible_files(photos, f"ADE_{split}_*.jpg")]
    samples = [
        (name.rpartition("_")[2], str(photos / f"{name}.jpg"), str(annotations / f"{name}.png"))
        for name in names
        if split != "train" or name.rpartition("_")[2] not in _DAMAGED
    ]
    if shuffle:
        random.shuffle(samples)
    return samples


def each(samples: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the samples with their files."""
    for uid, image, annotation in samples:
        yield {"uid": uid.encode(), "x": Path(image).read_bytes(), "y": Path(annotation).read_bytes()}


def main(args: Namespace) -> None:
    """Write both splits, the first in random order."""
    for split in _FOLDERS:
        samples = get(args.in_root, split, shuffle=split == "train")
        warn_of_a_part(len(samples), _SIZES[split], split)
        with MDSWriter(
            out=place_below(args.out_root, split),
            columns=_COLUMNS,
            compression=args.compression,
            hashes=get_list_arg(args.hashes),
            size_limit=args.size_limit,
            progress_bar=args.progress_bar,
        ) as out:
            for sample in each(tqdm(samples, leave=bool(args.leave), disable=not args.progress_bar)):
                out.write(sample)


if __name__ == "__main__":
    main(parse_args())
