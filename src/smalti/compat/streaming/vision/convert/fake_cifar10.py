"""Writes random images in the form of CIFAR-10."""

from argparse import ArgumentParser, Namespace

import numpy as np
from PIL import Image

from smalti.compat.streaming.vision.convert.base import convert_image_class_dataset


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    parser = ArgumentParser()
    parser.add_argument("--out", type=str, default="/tmp/fake_cifar10/")  # noqa: S108  MosaicML's default
    parser.add_argument("--num_train", type=int, default=8 * 8 * 16384)
    parser.add_argument("--num_val", type=int, default=8 * 8 * 2048)
    return parser.parse_args()


def make_split(root: str, split: str, count: int) -> None:
    """Write a split of so many images of 32 by 32 pixels, each with one of nine classes."""
    x = np.random.randint(0, 255, (count, 32, 32, 3), np.uint8)  # noqa: NPY002  the generator that callers seed
    y = np.random.randint(0, 9, count)  # noqa: NPY002
    convert_image_class_dataset(list(zip(map(Image.fromarray, x), y, strict=True)), root, split)


def main(args: Namespace) -> None:
    """Write both splits."""
    make_split(args.out, "train", args.num_train)
    make_split(args.out, "val", args.num_val)


if __name__ == "__main__":
    main(parse_args())
