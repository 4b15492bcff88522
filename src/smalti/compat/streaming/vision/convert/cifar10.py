"""Writes CIFAR-10, which torchvision downloads."""

from argparse import Namespace

from smalti.compat.streaming.base.scripts import add_splits, writing_arguments
from smalti.compat.streaming.base.util import get_list_arg
from smalti.compat.streaming.vision.convert.base import convert_image_class_dataset
from smalti.errors import MissingDependency


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    return add_splits(writing_arguments(size_limit=1 << 20)).parse_args()


def main(args: Namespace) -> None:
    """Write the splits.

    Raises:
        MissingDependency: torchvision is not installed.
    """
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise MissingDependency("the data set CIFAR10 is read by torchvision: pip install torchvision") from error
    for split in get_list_arg(args.splits):
        dataset = CIFAR10(root=args.in_root, train=split == "train", download=True)
        convert_image_class_dataset(
            dataset,
            args.out_root,
            split,
            args.compression,
            get_list_arg(args.hashes),
            args.size_limit,
            args.progress_bar,
            args.leave,
            "pil",
        )


if __name__ == "__main__":
    main(parse_args())
