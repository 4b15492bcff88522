"""Arguments that select a version: `--at N`, `--tag NAME`, or the newest."""

from typing import Any


def add_version_choice(command: Any) -> None:
    """Add the two arguments, which exclude each other."""
    one = command.add_mutually_exclusive_group()
    one.add_argument("--at", type=int, help="version (default: the newest)", metavar="N")
    one.add_argument("--tag", help="the version with this tag")
