"""Which version a command is about: `--at N`, `--tag NAME`, or the newest."""

from typing import Any


def add_version_choice(command: Any) -> None:
    """Adds the two arguments; at most one of them may be given."""
    one = command.add_mutually_exclusive_group()
    one.add_argument("--at", type=int, help="version (default: the newest)", metavar="N")
    one.add_argument("--tag", help="the version of this name")
