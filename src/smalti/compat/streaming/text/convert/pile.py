"""Writes the Pile: `<in_root>/train/*.jsonl`, `val.jsonl` and `test.jsonl`, each file by a process of its own."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

from smalti.compat.streaming.base.format.mds.writer import MDSWriter
from smalti.compat.streaming.base.scripts import place_below, visible_files, writing_arguments
from smalti.compat.streaming.base.util import get_list_arg, merge_index

Task = tuple[str, str, str, list[str], int]
"""Input file, output folder, compression, hashes and size limit of one process."""


def parse_args() -> Namespace:
    """Return the arguments of the command line."""
    return writing_arguments(size_limit=1 << 27, compression="zstd:16", with_progress=False).parse_args()


def each_task(
    in_root: str, out_root: str, compression: str, hashes: list[str], size_limit: int, in_files: list[str]
) -> Iterator[Task]:
    """Yield the arguments of `file_to_dir` for each file, whose output has the file's path without its ending."""
    for in_file in in_files:
        folder = Path(in_file).relative_to(in_root).with_suffix("")
        yield in_file, place_below(out_root, str(folder)), compression, hashes, size_limit


def file_to_dir(args: Task) -> dict[str, int]:
    """Write the texts of one file as a set, and return how many of them are from each part of the Pile.

    Raises:
        ValueError: A line has other fields than `text` and `meta`, or `meta` others than `pile_set_name`.
    """
    in_file, out, compression, hashes, size_limit = args
    counts: Counter[str] = Counter()
    columns = {"text": "str", "pile_set_name": "str"}
    with (
        MDSWriter(out=out, columns=columns, compression=compression, hashes=hashes, size_limit=size_limit) as writer,
        Path(in_file).open(encoding="utf-8") as file,
    ):
        for number, line in enumerate(file, 1):
            sample = json.loads(line)
            if sorted(sample) != ["meta", "text"]:
                raise ValueError(f"Invalid sample fields in {in_file}, line {number}: expected meta, text")
            if sorted(sample["meta"]) != ["pile_set_name"]:
                raise ValueError(f"Invalid sample meta fields in {in_file}, line {number}: expected pile_set_name")
            part = sample["meta"]["pile_set_name"]
            writer.write({"text": sample["text"], "pile_set_name": part})
            counts[part] += 1
    return counts


def merge_shard_groups(root: str) -> None:
    """Make one set of the sets in the folders below a root; their shards stay where they are."""
    merge_index(root)


def main(args: Namespace) -> None:
    """Write all files, print the counts of each, and merge those of the training split."""
    in_files = visible_files(Path(args.in_root, "train"), "*.jsonl")
    in_files += [str(Path(args.in_root, name)) for name in ("val.jsonl", "test.jsonl")]
    tasks = each_task(
        args.in_root, args.out_root, args.compression, get_list_arg(args.hashes), args.size_limit, in_files
    )
    with Pool() as pool:
        for in_file, counts in zip(in_files, pool.imap(file_to_dir, tasks), strict=True):
            print(json.dumps({"file": in_file, "counts": counts}, sort_keys=True))  # noqa: T201  a script
    merge_shard_groups(place_below(args.out_root, "train"))


if __name__ == "__main__":
    main(parse_args())
