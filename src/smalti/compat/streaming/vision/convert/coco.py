"""Writes COCO 2017: photos in `<in_root>/<split>2017`, and `<in_root>/annotations/instances_<split>2017.json`.

Photos without an object are left out. Another number of samples than that of the whole data set is a warning, so that a
part of it can be converted.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import place_below, warn_of_a_part, writing_arguments
from smalti.compat.streaming.base.util import get_list_arg

_SIZES = {"train": 117266, "val": 4952}
_COLUMNS = {
    "img": "jpeg",
    "img_id": "int",
    "htot": "int",
    "wtot": "int",
    "bbox_sizes": "ndarray:float32",
    "bbox_labels": "ndarray:int64",
}


class _Objects:
    """The photos of a split with their objects; a sample is a dict of the columns."""

    def __init__(self, folder: Path, annotations: Path) -> None:
        data = json.loads(annotations.read_text(encoding="utf-8"))
        labels = {category["id"]: number for number, category in enumerate(data["categories"], 1)}  # 0: background
        boxes: dict[int, list[tuple[list[float], int]]] = {}
        for one in data["annotations"]:
            boxes.setdefault(one["image_id"], []).append((one["bbox"], labels[one["category_id"]]))
        self.folder = folder
        self.photos = [photo for photo in data["images"] if photo["id"] in boxes]
        self.boxes = boxes

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, number: int) -> dict[str, Any]:
        photo = self.photos[number]
        height, width = photo["height"], photo["width"]
        found = self.boxes[photo["id"]]
        corners = [(x / width, y / height, (x + w) / width, (y + h) / height) for (x, y, w, h), _ in found]
        return {
            "img": (self.folder / photo["file_name"]).read_bytes(),
            "img_id": photo["id"],
            "htot": height,
            "wtot": width,
            "bbox_sizes": np.array(corners, np.float32),
            "bbox_labels": np.array([label for _, label in found], np.int64),
        }


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    return writing_arguments(size_limit=1 << 25).parse_args()


def each(dataset: Any, shuffle: bool) -> Iterator[dict[str, Any]]:  # noqa: FBT001  MosaicML's signature
    """Yield the samples, in random order or that of the annotations."""
    numbers = np.random.permutation(len(dataset)) if shuffle else np.arange(len(dataset))  # noqa: NPY002
    for number in numbers.tolist():
        yield dataset[number]


def main(args: Namespace) -> None:
    """Write both splits, the first in random order.

    Raises:
        FileNotFoundError: Photos or annotations are missing.
    """
    for split, size in _SIZES.items():
        folder = Path(args.in_root, f"{split}2017")
        annotations = Path(args.in_root, "annotations", f"instances_{split}2017.json")
        for kind, path in (("Images path", folder), ("Annotations file", annotations)):
            if not path.exists():
                raise FileNotFoundError(f"{kind} does not exist: {path}")
        dataset = _Objects(folder, annotations)
        warn_of_a_part(len(dataset), size, split)
        with MDSWriter(
            out=place_below(args.out_root, split),
            columns=_COLUMNS,
            compression=args.compression,
            hashes=get_list_arg(args.hashes),
            size_limit=args.size_limit,
            progress_bar=args.progress_bar,
        ) as out:
            samples = each(dataset, shuffle=split == "train")
            for sample in tqdm(samples, total=len(dataset), leave=bool(args.leave), disable=not args.progress_bar):
                out.write(sample)


if __name__ == "__main__":
    main(parse_args())
