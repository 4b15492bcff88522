"""The command line of the conversion scripts: arguments that all of them take, with MosaicML's names."""

import logging
from argparse import ArgumentParser
from pathlib import Path

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))


def writing_arguments(*, size_limit: int, compression: str = "", with_progress: bool = True) -> ArgumentParser:
    """Return a parser of input, output and the options of `MDSWriter`, with these defaults."""
    parser = ArgumentParser()
    parser.add_argument("--in_root", type=str, required=True, help="local folder of the input")
    parser.add_argument("--out_root", type=str, required=True, help="folder or URL of the output")
    parser.add_argument("--compression", type=str, default=compression, help=f"default: {compression or 'none'}")
    parser.add_argument("--hashes", type=str, default="sha1,xxh64", help="hashes of each shard; default: sha1,xxh64")
    parser.add_argument("--size_limit", type=int, default=size_limit, help=f"bytes of a shard; default: {size_limit}")
    if with_progress:
        parser.add_argument("--progress_bar", type=int, default=1, help="1 shows a progress bar; default: 1")
        parser.add_argument("--leave", type=int, default=0, help="1 leaves the bar when it is done; default: 0")
    return parser


def place_below(root: str, name: str) -> str:
    """Return the place of this name below a folder or URL; that itself for an empty name."""
    return f"{root.rstrip('/')}/{name}" if name else root


def visible_files(folder: Path, pattern: str) -> list[str]:
    """Return the paths that match the pattern, sorted, without those of hidden files."""
    return sorted(str(path) for path in folder.glob(pattern) if not path.name.startswith("."))


def add_splits(parser: ArgumentParser) -> ArgumentParser:
    """Add the argument of scripts that convert several splits."""
    parser.add_argument("--splits", type=str, default="train,val", help="splits, with commas; default: train,val")
    return parser


def warn_of_a_part(found: int, expected: int, split: str) -> None:
    """Log a warning if a split has another number of samples than the whole data set, where MosaicML's script fails."""
    if found != expected:
        logger.warning(
            "Number of samples in a dataset doesn't match. Expected %d, but got %d; what is there of %s is converted.",
            expected,
            found,
            split,
        )
