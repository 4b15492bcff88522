"""Writes the lines of the English Wikipedia of 2020-01-01, 500 files and one for evaluation, as texts."""

from argparse import Namespace
from pathlib import Path

from tqdm import tqdm

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import place_below, writing_arguments
from smalti.compat.streaming.base.util import get_list_arg

_NUM_FILES = 500


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    return writing_arguments(size_limit=1 << 25, compression="zstd:7").parse_args()


def process_split(  # noqa: PLR0913, PLR0917  MosaicML's signature
    in_root: str,
    out_root: str,
    compression: str,
    hashes: list[str],
    size_limit: int,
    progress_bar: int,
    leave: int,
    basenames: list[str],
    split: str,
) -> None:
    """Write every line of these files that is not blank, without the blanks around it, as a sample of a split."""
    with MDSWriter(
        out=place_below(out_root, split),
        columns={"text": "str"},
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
        progress_bar=progress_bar,
    ) as out:
        for name in tqdm(basenames, leave=bool(leave), disable=not progress_bar):
            with Path(in_root, name).open(encoding="utf-8") as file:
                for line in file:
                    if text := line.strip():
                        out.write({"text": text})


def main(args: Namespace) -> None:
    """Write both splits."""
    names = [f"part-{number:05}-of-{_NUM_FILES:05}" for number in range(_NUM_FILES)]
    for split, basenames in (("train", names), ("val", ["eval.txt"])):
        process_split(
            args.in_root,
            args.out_root,
            args.compression,
            get_list_arg(args.hashes),
            args.size_limit,
            args.progress_bar,
            args.leave,
            basenames,
            split,
        )


if __name__ == "__main__":
    main(parse_args())
