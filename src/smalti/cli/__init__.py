"""The command `smalti`: inspect and change shard sets and their versions from a shell.

Here: arguments and output. Each command is one library call. Read `main.py` first.
"""

from smalti.cli.main import main

__all__ = ["main"]
