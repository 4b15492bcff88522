"""The command `smalti`: look at shard sets and their versions from a shell. A door: each line is a library call."""

from smalti.cli.main import main

__all__ = ["main"]
