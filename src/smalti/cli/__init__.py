"""The command `smalti`: inspect and change shard sets and their versions from a shell.

Here: arguments and output. Each command, in `commands/`, is one call of a public function. Read `app.py` first.
"""

import sys
from collections.abc import Sequence


def _say_what_to_install(arguments: Sequence[str] | None = None) -> int:
    """Print which package is missing: the command line is an extra."""
    del arguments
    print(
        f"smalti: the command line needs the package {_missing}, which is not installed: pip install 'smalti[cli]'",
        file=sys.stderr,
    )
    return 1


try:
    from smalti.cli.app import main
except ModuleNotFoundError as fault:
    if (fault.name or "").partition(".")[0] not in {"typer", "rich"}:
        raise
    _missing = fault.name
    main = _say_what_to_install


__all__ = ["main"]
