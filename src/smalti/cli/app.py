"""The command line: one app with the commands that the modules of `commands` declare.

Modules of commands import the library inside their functions, so that `smalti --help` starts quickly.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from smalti import __version__

# Each declares its commands.
from smalti.cli.commands import copying, delete, inspection, machine, training, versions  # noqa: F401
from smalti.cli.faults import run_app
from smalti.cli.output import write
from smalti.cli.registration import add_commands, make_app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status; see `ExitCode`."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_app(
        lambda: _parser(sys.stdout.isatty()).main(arguments, prog_name="smalti", standalone_mode=False), words
    )


@functools.cache
def _parser(is_terminal: bool) -> Any:  # noqa: FBT001 - the help depends on it, as `make_app` says
    """Return the parser of all commands, which takes longer to make than most command lines to run."""
    del is_terminal
    return get_command(build_app())


def build_app() -> typer.Typer:
    """Return the app with all commands."""
    app = make_app(help="Versioned, verified shard sets: build them, look at them, train with them.")
    app.callback()(_root)
    add_commands(app)
    return app


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer calls it
    if value:
        write(f"smalti {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of Smalti.")
    ] = False,
) -> None:
    del version
