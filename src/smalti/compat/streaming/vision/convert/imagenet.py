"""Writes folders of JPEG files, `<in_root>/<split>/<class>/<file>`, such as ImageNet's."""

from argparse import Namespace
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import add_splits, place_below, visible_files, writing_arguments
from smalti.compat.streaming.base.util import get_list_arg
from smalti.compat.streaming.errors import UnexpectedFilesError


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    parser = add_splits(writing_arguments(size_limit=1 << 26))
    parser.add_argument("--validate", type=int, default=1, help="1 opens each file as an image first; default: 1")
    parser.add_argument("--extensions", type=str, default="jpeg", help="allowed endings, with commas; default: jpeg")
    return parser.parse_args()


def check_extensions(filenames: list[str], extensions: set[str]) -> None:
    """Return only if all files have one of these endings, in any case.

    Raises:
        UnexpectedFilesError: One has another.
    """
    for name in filenames:
        if Path(name).suffix.lower().removeprefix(".") not in extensions:
            raise UnexpectedFilesError(f"{name}: expected a file whose name ends in {', '.join(sorted(extensions))}")


def get_classes(filenames: list[str], class_names: list[str] | None = None) -> tuple[list[int], list[str]]:
    """Return the class of each file, and the sorted names of all classes, which are the names of the files' folders.

    Classes are numbered as they first appear. That is the order of their names, unless one name begins with another.

    Raises:
        UnexpectedFilesError: These are not `class_names`, the classes of another split.
    """
    folders = [Path(name).parent.name for name in filenames]
    found = sorted(set(folders))
    if class_names is not None and class_names != found:
        differing = ", ".join(sorted({*class_names} ^ {*found}))
        raise UnexpectedFilesError(f"expected the same classes in all splits, found in some of them only: {differing}")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(folders))}
    return [numbers[name] for name in folders], found


def main(args: Namespace) -> None:
    """Write the splits, each in random order: number `i`, file `x` and class `y`."""
    class_names = None
    for split in get_list_arg(args.splits):
        filenames = visible_files(Path(args.in_root, split), "*/*")
        check_extensions(filenames, set(get_list_arg(args.extensions)))
        classes, class_names = get_classes(filenames, class_names)
        numbers = np.random.permutation(len(filenames)).tolist()  # noqa: NPY002  the generator that callers seed
        with MDSWriter(
            out=place_below(args.out_root, split),
            columns={"i": "int", "x": "jpeg", "y": "int"},
            compression=args.compression,
            hashes=get_list_arg(args.hashes),
            size_limit=args.size_limit,
            progress_bar=args.progress_bar,
        ) as out:
            for number in tqdm(numbers, leave=bool(args.leave), disable=not args.progress_bar):
                if args.validate:
                    Image.open(filenames[number]).close()
                out.write({"i": number, "x": Path(filenames[number]).read_bytes(), "y": classes[number]})


if __name__ == "__main__":
    main(parse_args())
