"""The parser, and the exit status: an error of the library is printed as one line, with exit status 1."""

import argparse
import sys
from collections.abc import Sequence

from smalti import __version__
from smalti.cli.cache import add_cache_commands
from smalti.cli.ledger import add_ledger_commands
from smalti.cli.plan import add_plan_command
from smalti.cli.versions import add_version_commands
from smalti.errors import SmaltiError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status: 0 for success, 1 for an error, 2 for wrong arguments."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except SmaltiError as fault:
        print(f"smalti: {fault}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smalti", description="Versioned, verified shard sets.")
    parser.add_argument("--version", action="version", version=f"smalti {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_version_commands(commands)
    add_cache_commands(commands)
    add_ledger_commands(commands)
    add_plan_command(commands)
    return parser
